"""Prints what each module takes on a Xilinx part, as yosys maps it; in an environment with pyosys.

    resources.py <folder of the sources>

Each module is mapped alone, with its default parameters and all that is in it, for the 7 series,
as the paper's Virtex 7 is; what is not mapped is a sum. Nothing is placed or routed, and no clock
is claimed.
"""

import json
import pathlib
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


# (name, module, parameters other than the defaults).
PARTS = [
    ("packet_fifo", "packet_fifo", {}),
    ("round_robin", "round_robin", {}),
    ("crossbar", "crossbar", {}),
    ("router", "router", {}),
    ("internal_switch", "internal_switch", {}),
    ("endpoint", "endpoint", {}),
    ("endpoint, end to end", "endpoint", {"RECEIVE_DEPTH": 512, "END_TO_END": "1'b1"}),
    ("link_sender", "link_sender", {}),
    ("link_receiver", "link_receiver", {}),
    ("frame_encoder", "frame_encoder", {}),
    ("frame_decoder", "frame_decoder", {}),
]

# What consists of others is their sum: a flattened node maps to 5 per cent less, in twice the time
# of all others together.
SUMS = {
    "external_switch": {"router": 9, "crossbar": 1},
    "link": {"link_sender": 1, "link_receiver": 1, "frame_encoder": 1, "frame_decoder": 1},
    "node": {"endpoint": 3, "endpoint, end to end": 1, "internal_switch": 1, "external_switch": 1,
             "link": 8},
}


def resources(folder, module, parameters):
    design = yosys.Design()
    for source in sorted(folder.glob("*.sv"), key=lambda path: (path.stem != "network_pkg", path)):
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
    folder = pathlib.Path(sys.argv[1])
    result = {name: resources(folder, module, parameters) for name, module, parameters in PARTS}
    for name, parts in SUMS.items():
        result[name] = {kind: sum(count * result[part][kind] for part, count in parts.items())
                        for kind in KINDS}
    print("\n" + json.dumps(result))


main()
