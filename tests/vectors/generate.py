#!/usr/bin/env python3
"""Makes the vectors of the kernels: what each must answer.

The references are naive on purpose, and were written from the documents (docs/kernels.md,
docs/flash-format.md, the comment at the head of each kernel), not from the kernels' code.
"""

import argparse
import importlib.util
import pathlib
import random
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
ROOT = FOLDER.parent.parent
sys.path.insert(0, str(FOLDER))
sys.dont_write_bytecode = True

import references  # noqa: E402


def examples():
    """The examples' own references, each in the folder of its kernel."""
    for path in sorted(ROOT.glob("examples/kernels/*/reference.py")):
        spec = importlib.util.spec_from_file_location(f"reference_{path.parent.name}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield path.parent.name, module.vectors


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the files, write none")
    parser.add_argument("kernels", nargs="*", help="only these kernels")
    arguments = parser.parse_args()

    stale = []
    for name, make in [*references.KERNELS.items(), *examples()]:
        if arguments.kernels and name not in arguments.kernels:
            continue
        text = make(random.Random(f"flashmesh {name}")).text(name)
        path = FOLDER / f"{name}.vec"
        if not arguments.check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(path.name)
    if stale:
        sys.exit(f"not what tests/vectors/generate.py makes: {', '.join(stale)}")


if __name__ == "__main__":
    main()
