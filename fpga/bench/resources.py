"""Prints what each module takes on a Xilinx part, as yosys maps it; in an environment with pyosys.

Standard input is JSON: sources; parts, each a name, a module, and parameters other than the
defaults; sums, of modules that consist of others: how many of which. Each part is mapped alone,
with all that is in it, for the 7 series, as the paper's Virtex 7 is. Nothing is placed or routed,
and no clock is claimed.
"""

import json
import re
import sys
import tempfile

import pyosys.libyosys as yosys

# What a cell is; memories in LUTs take LUTs that compute nothing then.
KINDS = {
    "lut": r"LUT[1-6]|INV",
    "lut_as_memory": r"RAM(32|64)M|RAM\d+X1[DS]",
    "ff": r"FD[RSCP]E",
    "ramb36": r"RAMB36E1",
    "ramb18": r"RAMB18E1",
}
# LUTs that a memory cell takes (UG474, tables 2-3 and 2-4).
MEMORY_LUTS = {"RAM32M": 4, "RAM64M": 4, "RAM32X1D": 2, "RAM64X1D": 2, "RAM128X1D": 4,
               "RAM256X1S": 4, "RAM64X1S": 1, "RAM32X1S": 1, "RAM128X1S": 2}


def resources(sources, module, parameters):
    design = yosys.Design()
    for source in sources:
        design.run_pass(f"read_verilog -sv {source}")
    for name, value in parameters.items():
        design.run_pass(f"chparam -set {name} {value} {module}")
    design.run_pass(f"synth_xilinx -family xc7 -flatten -noiopad -noclkbuf -top {module}")
    with tempfile.NamedTemporaryFile("r") as file:
        design.run_pass(f"tee -q -o {file.name} stat -json")
        cells = json.load(file)["design"]["num_cells_by_type"]
    found = dict.fromkeys(KINDS, 0)
    for cell, number in cells.items():
        for kind, pattern in KINDS.items():
            if re.fullmatch(pattern, cell):
                found[kind] += number * MEMORY_LUTS.get(cell, 1)
    return found


def main():
    job = json.load(sys.stdin)
    result = {part["name"]: resources(job["sources"], part.get("module", part["name"]),
                                      part.get("parameters", {})) for part in job["part"]}
    for name, parts in job["sum"].items():
        result[name] = {kind: sum(count * result[part][kind] for part, count in parts.items())
                        for kind in KINDS}
    print("\n" + json.dumps(result))


main()
