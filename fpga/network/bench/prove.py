"""Runs one proof with yosys; in an environment with pyosys.

Standard input is JSON: sources, parameters, bound (null: by induction; else the number of clocks
that are looked at, from any state that the harness assumes). The top module is `proof`. A wire of
the harness with a comment `// probe inst.register` after it shows that register of the flattened
design, or several joined by commas, the lowest last; `[*]` is a whole memory.

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
        pattern = re.sub(r"([\[\]])", r"\\\1", memory)
        design.run_pass(f"tee -q -o {listing.name} select -list w:{pattern}[*]")
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
            signals = [memory_words(design, signal[:-3]) if signal.endswith("[*]") else signal
                       for signal in probe.split(",")]
            design.run_pass(f"connect -nounset -set {wire} {','.join(signals)}")
    for command in ("check -assert", "async2sync", "chformal -lower",
                    # Without opt_dff: it gives registers that nothing changes a value of its choice.
                    "opt -full -noff"):
        design.run_pass(command)
    if job["bound"] is None:
        method = f"-tempinduct -seq 1 -maxsteps {job['depth']}"
    else:
        method = f"-seq {job['bound']}"
    print("PROVING", flush=True)
    design.run_pass(f"sat {method} -prove-asserts -set-assumes -verify")


main()
