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
        with self.lock:
            building = self.building.setdefault(name, threading.Lock())
        with building:
            folder = self.work / f"build-{name}"
            if not (folder / "bench").exists():
                self.compile(rtl, folder, ports)
            return folder / "bench"

    def compile(self, rtl, folder, ports):
        """Without Verilator's make: it would need make, Perl and the compiler of its build."""
        indices = sum(index << 4 * e for e, index in enumerate(ENDPOINTS))
        end_to_end = sum(has << e for e, has in enumerate(ENDPOINTS.values()))
        parameters = {"PORTS": ports, "ENDPOINTS": len(ENDPOINTS), "INDICES": f"64'h{indices:x}",
                      "END_TO_END": f"16'h{end_to_end:x}"}
        self.verilate(rtl, ["--cc", "-O3", "--x-initial", "unique", "--output-split", "0",
                            "-Mdir", folder, "--top-module", "node",
                            *(f"-G{name}={value}" for name, value in parameters.items())])
        flags = ["-std=c++17", "-DVERILATOR=1", "-DVM_COVERAGE=0", "-DVM_SC=0", "-DVM_TIMING=0",
                 "-DVM_TRACE=0", "-I", folder, "-isystem", self.include,
                 "-isystem", self.include / "vltstd"]
        macros = [f"-DBENCH_PORTS={ports}", f"-DBENCH_ENDPOINTS={len(ENDPOINTS)}",
                  f"-DBENCH_INDICES=0x{indices:x}", f"-DBENCH_END_TO_END={end_to_end}"]
        objects = []
        for source in [BENCH / "node/bench.cpp", *sorted(folder.glob("V*.cpp")),
                       self.include / "verilated.cpp", self.include / "verilated_threads.cpp"]:
            is_ours = source.parent.name == "node"
            warnings = ["-Wall", "-Wextra", "-Werror", *macros] if is_ours else ["-w"]
            optimised = "-O0" if "Slow" in source.name else "-O2"
            objects.append(folder / f"{source.stem}.o")
            run([self.compiler, *flags, *warnings, optimised, "-c", source, "-o", objects[-1]],
                BUILD_TIMEOUT_S)
        run([self.compiler, *objects, "-pthread", "-o", folder / "bench"], BUILD_TIMEOUT_S)

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
