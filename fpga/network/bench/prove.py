"""Runs one proof with yosys; in an environment with pyosys.

Standard input is JSON: sources, parameters, bound (null: by induction; else the number of clocks
that are looked at, from any state that the harness assumes). The top module is `proof`. A wire of
the harness with a comment `// probe inst.register` after it shows that register of the flattened
design; `[*]` is a whole memory, the last word first.

It ends with 0 when the proof succeeds, with 2 when it does not, and with anything else when yosys
could not read the sources.
"""

import json
import re
import sys
import tempfile

import pyosys.libyosys as yosys


def memory_words(design, memory):
    """The registers of a memory, the last first."""
    with tempfile.NamedTemporaryFile("r") as listing:
        design.run_pass(f"tee -q -o {listing.name} select -list w:{memory}[*]")
        indices = [int(found[1]) for found in re.finditer(r"\[(\d+)\]$", listing.read(), re.M)]
    return ",".join(f"{memory}[{index}]" for index in sorted(indices, reverse=True))


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
            if probe.endswith("[*]"):
                probe = memory_words(design, probe[:-3])
            design.run_pass(f"connect -set {wire} {probe}")
    for command in ("async2sync", "chformal -lower", "opt -full", "check -assert"):
        design.run_pass(command)
    if job["bound"] is None:
        method = f"-tempinduct -seq 1 -maxsteps {job['depth']}"
    else:
        method = f"-seq {job['bound']}"
    print("PROVING", flush=True)
    # Without -verify: an error would end the process before its output is written.
    design.run_pass(f"sat {method} -prove-asserts -set-assumes -verify")


main()
