"""A full scan with an empty cache against what fio reads from the same file.

Two tables, both larger than the cache that flashmesh gets: lineitem, and a
table of random 64-bit integers that no encoding makes smaller. The queries read
every page of the columns named; each run opens the database anew, and fio reads
the database's own file in the same way (O_DIRECT, in order), before and after.
Bytes are those that the kernel counts for this process (/proc/self/io).
"""

import argparse
from pathlib import Path

import numpy
import pyarrow as pa
import pyarrow.parquet as pq

import common

CACHE = "64MB"
RANDOM_COLUMNS = 8
# What sums 8-byte integers is not to be limited by the CPU; lineitem shows real data.
QUERIES = {
    "random integers, all columns": "SELECT " + ", ".join(f"sum(c{i})" for i in range(RANDOM_COLUMNS)) + " FROM integers",
    "lineitem, the columns of numbers": "SELECT sum(l_orderkey), sum(l_partkey), sum(l_suppkey), sum(l_linenumber), "
    "sum(l_quantity), sum(l_extendedprice), sum(l_discount), sum(l_tax) FROM lineitem",
    "lineitem, all columns": "SELECT sum(l_orderkey), sum(l_partkey), sum(l_suppkey), sum(l_linenumber), "
    "sum(l_quantity), sum(l_extendedprice), sum(l_discount), sum(l_tax), sum(octet_length(l_returnflag)), "
    "sum(octet_length(l_linestatus)), sum(date_part('doy', l_shipdate)), sum(date_part('doy', l_commitdate)), "
    "sum(date_part('doy', l_receiptdate)), sum(octet_length(l_shipinstruct)), sum(octet_length(l_shipmode)), "
    "sum(octet_length(l_comment)) FROM lineitem",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale-factor", default="5")
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()

    database = common.bench_dir() / "cold-scan"
    common.remove(database)
    engine = common.Flashmesh(database)
    engine.create_table("lineitem", common.tpch_parquet(arguments.scale_factor) / "lineitem.parquet")
    engine.create_table("integers", random_integers(arguments.scale_factor))
    engine.close()
    flash = database / "card0.flash"

    print(common.describe_machine())
    print(f"scale factor {arguments.scale_factor}, cache {CACHE}, medians of {arguments.runs} runs\n")
    fio = [fio_bytes_per_second(flash)]
    figures = {name: [] for name in QUERIES}
    for _ in range(arguments.runs):
        for name, query in QUERIES.items():
            figures[name].append(scan(database, flash, query))
        fio.append(fio_bytes_per_second(flash))
    reference = common.median(fio)
    print(f"{'fio, sequential, 1 MiB, depth 16':36}{reference / 1e6:10.0f} MB/s   (from {min(fio) / 1e6:.0f} to {max(fio) / 1e6:.0f})")
    for name, runs in figures.items():
        seconds = common.median([seconds for seconds, _ in runs])
        size_bytes = common.median([size_bytes for _, size_bytes in runs])
        speed = size_bytes / seconds
        print(f"{name:36}{speed / 1e6:10.0f} MB/s   {speed / reference:6.0%} of fio   {size_bytes / 1e6:8.0f} MB in {seconds:.2f} s")
    common.remove(database)


def scan(database: Path, flash: Path, query: str) -> tuple[float, int]:
    """Seconds of the query with an empty cache, and the bytes that it read."""
    common.evict(flash)
    engine = common.Flashmesh(database, cache_size=CACHE)
    before = bytes_read()
    seconds = common.timed(lambda: engine.run(query))
    size_bytes = bytes_read() - before
    engine.close()
    return seconds, size_bytes


def bytes_read() -> int:
    """Bytes that this process has had read from storage."""
    fields = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(fields["read_bytes"])


def fio_bytes_per_second(flash: Path) -> float:
    options = ["--rw=read", "--bs=1M", "--iodepth=16", "--runtime=10"]
    return common.fio_read(flash, *options)["bw_bytes"]


def random_integers(scale_factor: str) -> Path:
    """A Parquet file of incompressible integers, about as large as lineitem is on flash."""
    path = common.bench_dir() / f"integers-sf{scale_factor}.parquet"
    if not path.exists():
        generator = numpy.random.default_rng(42)
        rows = int(3_000_000 * float(scale_factor))
        schema = pa.schema([(f"c{i}", pa.int64()) for i in range(RANDOM_COLUMNS)])
        unfinished = path.with_suffix(".unfinished")
        with pq.ParquetWriter(unfinished, schema, compression="none", use_dictionary=False) as writer:
            for first in range(0, rows, 500_000):
                size = min(500_000, rows - first)
                # Half of the range, so that sums of a few million values do not overflow often;
                # the sum itself is not looked at.
                columns = [generator.integers(-(2**62), 2**62, size) for _ in range(RANDOM_COLUMNS)]
                writer.write_table(pa.table(columns, schema=schema))
        unfinished.rename(path)
    return path


if __name__ == "__main__":
    main()
