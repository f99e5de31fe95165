"""Bytes on disk of the TPC-H tables: flashmesh, DuckDB's database file, Parquet.

What is counted is the disk space that the files take, after closing.
"""

import argparse

import common

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--scale-factor", default="1")
parser.add_argument("--runs", type=int, default=1, help="ignored: a size does not vary")
arguments = parser.parse_args()

parquet = common.tpch_parquet(arguments.scale_factor)
common.fresh_flashmesh(arguments.scale_factor).close()
common.duckdb_tpch(arguments.scale_factor).close()

folder = common.bench_dir()
duckdb_file = next(folder.glob(f"duckdb-*-sf{arguments.scale_factor}.db"))
sizes = {
    "flashmesh": common.allocated_bytes(folder / f"flashmesh-sf{arguments.scale_factor}"),
    "DuckDB": common.allocated_bytes(duckdb_file),
    "Parquet (snappy)": common.allocated_bytes(parquet),
}
print(common.describe_machine())
print(f"TPC-H scale factor {arguments.scale_factor}, size of all tables\n")
for name, size_bytes in sizes.items():
    print(f"{name:18}{size_bytes / 1e6:10.1f} MB   {sizes['flashmesh'] / size_bytes:6.2f} = flashmesh / this")
