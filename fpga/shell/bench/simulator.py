"""Builds the device with its models, and runs it."""

import json
import pathlib

from steps import run
from toolchain import WARNINGS

BENCH = pathlib.Path(__file__).resolve().parent
HLS = BENCH.parent.parent / "hls"
RUN_TIMEOUT_S = 240

# HLS kernels that a slot can have in simulation; what joins them to the device, and asks for them.
KERNELS = ["hamming_nearest", "morris_pratt", "fgrep8", "read_modify_write"]
KERNEL_BENCH = [BENCH / f"hls_kernels/{name}"
                for name in ("hls_kernels.sv", "hls_kernel.sv", "slot.hpp", "slot.cpp",
                             "references.hpp", "bench.cpp")]
KERNEL_SOURCES = [*HLS.glob("include/flashmesh/*.hpp"),
                  *(HLS / f"{name}/kernel.cpp" for name in KERNELS)]


class Simulator:
    """`sources` are SystemVerilog, and files of a bench that are to be taken instead of its own."""

    def __init__(self, toolchain, sources):
        self.toolchain = toolchain
        self.sources = sources

    def build(self, name="device"):
        """The bench of the device; built once for each name."""
        return self.toolchain.once(name, lambda folder: self.toolchain.compile(
            folder, "device", self.sources, [BENCH / "device/bench.cpp"], [], []))

    def build_kernels(self, name="kernels"):
        """The bench of the device with HLS kernels in its slots."""
        # As fpga/check has them: pragmas are for Vitis HLS, labels name loops in its reports.
        options = ["-Wno-unknown-pragmas", "-Wno-unused-label", "-I", BENCH / "hls_kernels", "-I",
                   HLS.parent, "-I", HLS / "include"]
        kernels = self.toolchain.objects(
            "kernel", [BENCH / f"hls_kernels/{name}.cpp" for name in KERNELS], "-O2", *WARNINGS,
            *options)
        files = [*{path.name: path for path in [*KERNEL_BENCH, *self.sources]}.values()]
        design = [path for path in files if path.suffix in (".vlt", ".sv")]
        design.sort(key=lambda path: (path.suffix != ".vlt", not path.stem.endswith("_pkg")))
        benches = [path for path in files if path.suffix == ".cpp"]
        return self.toolchain.once(name, lambda folder: self.toolchain.compile(
            folder, "hls_kernels", design, benches, [], options, kernels))

    def run(self, bench, *options):
        return json.loads(run([bench, *options], RUN_TIMEOUT_S).stdout)
