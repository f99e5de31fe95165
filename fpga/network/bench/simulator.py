"""Builds the nodes, and runs traces through them."""

import json
import pathlib
import threading

from mesh import ENDPOINTS
from steps import Failure, run

BENCH = pathlib.Path(__file__).resolve().parent
RUN_TIMEOUT_S = 120


class Simulator:
    def __init__(self, toolchain, sources):
        self.toolchain = toolchain
        self.sources = sources
        self.lock = threading.Lock()
        self.traces = 0

    def build(self, name="node", sources=None, ports=8):
        """The bench with nodes of so many ports; built once for each name."""
        indices = sum(index << 4 * e for e, index in enumerate(ENDPOINTS))
        end_to_end = sum(has << e for e, has in enumerate(ENDPOINTS.values()))
        parameters = [f"-GPORTS={ports}", f"-GENDPOINTS={len(ENDPOINTS)}",
                      f"-GINDICES=64'h{indices:x}", f"-GEND_TO_END=16'h{end_to_end:x}"]
        macros = [f"-DBENCH_PORTS={ports}", f"-DBENCH_ENDPOINTS={len(ENDPOINTS)}",
                  f"-DBENCH_INDICES=0x{indices:x}", f"-DBENCH_END_TO_END={end_to_end}"]
        return self.toolchain.once(name, lambda folder: self.toolchain.compile(
            folder, "node", sources or self.sources, [BENCH / "node/bench.cpp"], parameters, macros))

    def build_frame(self):
        """The bench of frames."""
        return self.toolchain.once("frame", lambda folder: self.toolchain.compile(
            folder, "frame_loop", self.sources, [BENCH / "frame/bench.cpp"],
            [BENCH / "frame/frame_loop.sv"], []))

    def run(self, bench, trace, *options, is_deadlock=False):
        """Replays a trace, a path or a Trace; what the bench prints. `is_deadlock`: it must."""
        path = trace
        if not isinstance(trace, pathlib.Path):
            with self.lock:
                self.traces += 1
                path = self.toolchain.work / f"{self.traces}.trace"
            path.write_text(trace.text(without_deliveries=is_deadlock))
        done = run([bench, path, *options], RUN_TIMEOUT_S, check=False)
        wanted = 3 if is_deadlock else 0
        if done.returncode != wanted:
            raise Failure(f"{path.name} {' '.join(map(str, options))}: {done.stdout[-2000:]}")
        return None if is_deadlock else json.loads(done.stdout)
