"""A rare text among 8 million log lines: flashmesh with and without an n-gram index, ripgrep, DuckDB.

All answer the same question, how many lines hold the needle; ripgrep reads the
same lines as a plain file. Warm, interleaved, medians. Cold: a new connection,
and the database's files dropped from the kernel's cache.
"""

import argparse
import re
import resource
import subprocess
import time

import common
import search_data

QUERY = f"SELECT count(*) AS n FROM log WHERE line LIKE '%{search_data.NEEDLE}%'"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    arguments = parser.parse_args()
    parquet, text = search_data.log()
    flashmesh, duckdb = common.fresh_engines("text", "log", parquet)
    ripgrep = common.scripts_dir() / "rg"

    def count_by_ripgrep() -> int:
        command = [ripgrep, "--count", "--fixed-strings", "--threads", str(common.THREADS), search_data.NEEDLE, text]
        return int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)

    def count_by(engine) -> int:
        return engine.run(QUERY)["n"][0].as_py()

    print(common.describe_machine())
    contestants = {"ripgrep": count_by_ripgrep, "DuckDB": lambda: count_by(duckdb), "flashmesh": lambda: count_by(flashmesh)}
    warm = interleaved(contestants, arguments.runs)
    cold, rate, cores = cold_run(flashmesh)

    started = time.perf_counter()
    flashmesh.execute("CREATE INDEX log_line ON log USING ngram (line)")
    built = time.perf_counter() - started
    contestants["flashmesh, ngram index"] = contestants.pop("flashmesh")
    indexed = interleaved(contestants, arguments.runs)

    print(f"\n{'warm, median of ' + str(arguments.runs):28}{'ms':>10}")
    for name, seconds in warm.items():
        print(f"{name:28}{seconds * 1000:10.1f}")
    name = "flashmesh, ngram index"
    print(f"{name:28}{indexed[name] * 1000:10.1f}   (built in {built:.1f} s)")
    print(f"without index: {warm['flashmesh'] / warm['ripgrep']:.2f} x ripgrep, {warm['flashmesh'] / warm['DuckDB']:.2f} x DuckDB")
    print(f"with index: {indexed[name] / indexed['DuckDB']:.3f} x DuckDB")
    print(f"cold, without index: {cold * 1000:.0f} ms, {rate / 1e6:.0f} MB/s from flash, {cores:.2f} cores busy")


def interleaved(contestants, runs: int) -> dict[str, float]:
    """Median seconds of each; all must count the same."""
    expected = {name: run() for name, run in contestants.items()}
    assert len(set(expected.values())) == 1, expected
    return common.interleaved(contestants, runs)


def cold_run(engine) -> tuple[float, float, float]:
    """Seconds with an empty page cache, bytes a second from flash, and cores that were busy."""
    engine.execute("SET flashmesh.cache_size = '0'")
    before = resource.getrusage(resource.RUSAGE_SELF)
    started = time.perf_counter()
    plan = engine.run("EXPLAIN ANALYZE " + QUERY)["plan"][0].as_py()
    seconds = time.perf_counter() - started
    after = resource.getrusage(resource.RUSAGE_SELF)
    engine.execute("SET flashmesh.cache_size = '2GB'")
    (read,) = re.findall(r"bytes_from_flash=([0-9.]+) ([KMG]?)", plan)
    read = float(read[0]) * {"": 1, "K": 1e3, "M": 1e6, "G": 1e9}[read[1]]
    busy = (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
    return seconds, read / seconds, busy / seconds


if __name__ == "__main__":
    main()
