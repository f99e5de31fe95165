"""DataFusion on Vortex files, as an engine of the TPC-H benchmark.

No Python package runs DataFusion on Vortex natively, so bench/vortex is a small
Rust program of its own; `cargo xtask bench tpch --vortex` builds it.
"""

import os
import struct
import subprocess
from pathlib import Path

import pyarrow as pa

import common


class Vortex:
    """DataFusion on Vortex files made from the Parquet files."""

    name = "DataFusion (Vortex)"

    def __init__(self, parquet: Path) -> None:
        self.process = subprocess.Popen(
            [os.environ["FLASHMESH_VORTEX_RIVAL"], str(common.THREADS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        folder = parquet.with_name(parquet.name + "-vortex")
        folder.mkdir(exist_ok=True)
        for table in common.TABLES:
            file = folder / f"{table}.vortex"
            if not file.exists():
                unfinished = folder / f"unfinished-{table}.vortex"
                self.run(f"COPY (SELECT * FROM '{parquet / table}.parquet') TO '{unfinished}' STORED AS VORTEX")
                unfinished.rename(file)
            self.run(f"CREATE EXTERNAL TABLE {table} STORED AS VORTEX LOCATION '{file}'")

    def run(self, query: str) -> pa.Table:
        self.process.stdin.write((" ".join(query.split()) + "\n").encode())
        self.process.stdin.flush()
        length = self.process.stdout.read(8)
        if len(length) < 8:
            raise RuntimeError(f"the Vortex rival ended with {self.process.wait()} on: {query}")
        (size_bytes,) = struct.unpack("<Q", length)
        return pa.ipc.open_stream(self.process.stdout.read(size_bytes)).read_all()

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()
