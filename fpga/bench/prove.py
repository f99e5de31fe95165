"""Runs one proof with yosys; in an environment with pyosys.

Standard input is JSON: sources, parameters, bound (null: by induction; else the number of clocks
that are looked at, from any state that the harness assumes). The top module is `proof`. A wire of
the harness with a comment `// probe inst.register` after it shows that register of the flattened
design, or several joined by commas, the lowest last; `[*]` is a whole memory; `[@]`
is of sides 1 and 0.

It ends with 0 when the proof succeeds. When it does not, yosys says "proof did fail" last.
"""

import json
import re
import sys
import tempfile

import pyosys.libyosys as yosys


def memory_words(design, memory):
    """The registers of a memory, the last first."""
    with tempfile.NamedTemporaryFile("r") as listing:
        pattern = re.sub(r"([\[\]])", r"\\\1", memory)
        design.run_pass(f"tee -q -o {listing.name} select -list w:{pattern}[*]")
        indices = [int(found[1]) for found in re.finditer(r"\[(\d+)\]$", listing.read(), re.M)]
    return ",".join(f"{memory}[{index}]" for index in sorted(indices, reverse=True))


def side_by_side(probe):
    """A probe with `[@]` is those of sides 1 and 0."""
    sides = ("[1]", "[0]") if "[@]" in probe else ("",)
    return ",".join(probe.replace("[@]", side) for side in sides)


def main():
    job = json.load(sys.stdin)
    design = yosys.Design()
    for source in job["sources"]:
        design.run_pass(f"read_verilog -sv -formal {source}")
    for name, value in job["parameters"].items():
        design.run_pass(f"chparam -set {name} {value} proof")
    for command in ("hierarchy -check -top proof", "proc", "flatten", "memory_collect",
                    "memory_map", "rename -top proof"):
        design.run_pass(command)
    with open(job["sources"][-1]) as harness:
        for wire, probe in re.findall(r"(\w+);\s*// probe (\S+)", harness.read()):
            signals = [memory_words(design, signal[:-3]) if signal.endswith("[*]") else signal
                       for signal in side_by_side(probe).split(",")]
            design.run_pass(f"connect -nounset -set {wire} {','.join(signals)}")
    # Without opt_dff (-noff): it gives registers that nothing changes a value of its choice.
    for command in ("check -assert", "async2sync", "chformal -lower", "opt -full -noff"):
        design.run_pass(command)
    if job["bound"] is None:
        method = f"-tempinduct -seq 1 -maxsteps {job['depth']}"
    else:
        method = f"-seq {job['bound']}"
    design.run_pass(f"sat {method} -prove-asserts -set-assumes -verify")


main()
