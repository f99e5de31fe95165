#!/usr/bin/env python3
"""Writes fpga/network/traces: what the RTL and the software mesh must both deliver.

With --check it writes nothing, and fails when a file is not what it would write. The orders of
events that the model draws must not matter: each trace is run with several.
"""

import pathlib
import sys

sys.dont_write_bytecode = True

import mesh  # noqa: E402
import topology  # noqa: E402
import traffic  # noqa: E402

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "traces"
ENDPOINTS = [*mesh.ENDPOINTS]


def traces():
    line = topology.up_down(topology.line(4, lanes=2), ENDPOINTS, 1)
    ring = topology.up_down(topology.ring(6), ENDPOINTS, 2)
    torus = topology.up_down(topology.torus(4, 5), ENDPOINTS, 3)
    grid = topology.dimension_order(topology.mesh(3, 3), 3, 3, ENDPOINTS)
    tree = topology.up_down(topology.fat_tree(), ENDPOINTS, 4)
    return {
        "line": traffic.uniform(line, 150, 11),
        "ring-isolated": traffic.isolated(ring, 12, packets=150),
        "torus": traffic.uniform(torus, 250, 13),
        "mesh-saturation": traffic.saturation(grid, 8, 14, farthest=False),
        "fat-tree": traffic.uniform(tree, 200, 15),
    }


def main():
    is_check = sys.argv[1:] == ["--check"]
    for name, trace in traces().items():
        if found := trace.routes.cycle():
            sys.exit(f"the routes of {name} can deadlock: {found}")
        text = trace.text()
        for seed in range(1, 4):
            if mesh.run(trace, seed) != mesh.run(trace, 0):
                sys.exit(f"{name}: deliveries depend on the order of events, seed {seed}")
        path = FOLDER / f"{name}.trace"
        if not is_check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            sys.exit(f"{path.name} is not what this writes: run model/generate.py")


if __name__ == "__main__":
    main()
