"""Builds the device with its models, and runs it."""

import json
import pathlib

from steps import run

BENCH = pathlib.Path(__file__).resolve().parent
RUN_TIMEOUT_S = 240


class Simulator:
    def __init__(self, toolchain, sources):
        self.toolchain = toolchain
        self.sources = sources

    def build(self, name="device"):
        """The bench of the device; built once for each name."""
        return self.toolchain.once(name, lambda folder: self.toolchain.compile(
            folder, "device", self.sources, BENCH / "device/bench.cpp", [], []))

    def run(self, bench, *options):
        return json.loads(run([bench, *options], RUN_TIMEOUT_S).stdout)
