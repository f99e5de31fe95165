"""Verilates the nodes, and runs traces through them."""

import json
import pathlib
import threading

from mesh import ENDPOINTS
from steps import Failure, run

BENCH = pathlib.Path(__file__).resolve().parent
BUILD_TIMEOUT_S = 300
RUN_TIMEOUT_S = 120


class Simulator:
    def __init__(self, home, work, compiler):
        self.verilator = home / "bin/verilator-cli"
        self.include = next(home.glob("lib/*/site-packages/verilator/include"))
        self.work = work
        self.compiler = compiler
        self.lock = threading.Lock()
        self.building = {}
        self.traces = 0

    def verilate(self, rtl, words):
        sources = [rtl / "lint.vlt", rtl / "network_pkg.sv",
                   *sorted(path for path in rtl.glob("*.sv") if path.stem != "network_pkg")]
        return run([self.verilator, "-sv", *words, *sources], BUILD_TIMEOUT_S)

    def build(self, rtl, name, ports=8):
        """The bench with nodes of so many ports; built once for each name."""
        indices = sum(index << 4 * e for e, index in enumerate(ENDPOINTS))
        end_to_end = sum(has << e for e, has in enumerate(ENDPOINTS.values()))
        parameters = [f"-GPORTS={ports}", f"-GENDPOINTS={len(ENDPOINTS)}",
                      f"-GINDICES=64'h{indices:x}", f"-GEND_TO_END=16'h{end_to_end:x}"]
        macros = [f"-DBENCH_PORTS={ports}", f"-DBENCH_ENDPOINTS={len(ENDPOINTS)}",
                  f"-DBENCH_INDICES=0x{indices:x}", f"-DBENCH_END_TO_END={end_to_end}"]
        return self.once(name, lambda folder: self.compile(
            folder, "node", rtl, BENCH / "node/bench.cpp", parameters, macros))

    def build_frame(self):
        """The bench of frames."""
        return self.once("frame", lambda folder: self.compile(
            folder, "frame_loop", BENCH.parent / "rtl", BENCH / "frame/bench.cpp",
            [BENCH / "frame/frame_loop.sv"], []))

    def once(self, name, compile_into):
        with self.lock:
            building = self.building.setdefault(name, threading.Lock())
        with building:
            folder = self.work / f"build-{name}"
            if not (folder / "bench").exists():
                compile_into(folder)
            return folder / "bench"

    def compile(self, folder, top, rtl, bench, words, macros):
        """Without Verilator's make: it would need make, Perl and the compiler of its build."""
        self.verilate(rtl, ["--cc", "-O3", "--x-initial", "unique", "--output-split", "0",
                            "-Wno-PINCONNECTEMPTY", "-Mdir", folder, "--top-module", top, *words])
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

    def run(self, bench, trace, *options, is_deadlock=False):
        """Replays a trace, a path or a Trace; what the bench prints. `is_deadlock`: it must."""
        path = trace
        if not isinstance(trace, pathlib.Path):
            with self.lock:
                self.traces += 1
                path = self.work / f"{self.traces}.trace"
            path.write_text(trace.text(without_deliveries=is_deadlock))
        done = run([bench, path, *options], RUN_TIMEOUT_S, check=False)
        wanted = 3 if is_deadlock else 0
        if done.returncode != wanted:
            raise Failure(f"{path.name} {' '.join(map(str, options))}: {done.stdout[-2000:]}")
        return None if is_deadlock else json.loads(done.stdout)
