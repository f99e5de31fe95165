"""What the smallest uses from Python cost, flashmesh against DuckDB: from import to the first answer,
memory of an empty connection, and one row by its key, with a parameter, warm.

Each start is a process of its own, in turns; memory is its resident set once the connection is open, and
after a first answer.
"""

import argparse
import random
import statistics
import subprocess
import sys
from collections.abc import Callable

import common

KEYED = "id BIGINT PRIMARY KEY, name TEXT, cents BIGINT"

START = """
import time
begin = time.perf_counter()
import {module}
connection = {module}.connect()
opened = resident()
(answer,) = connection.execute("SELECT 6 * ?", [7]).fetchone()
print(time.perf_counter() - begin, opened, resident())
assert answer == 42
"""

RESIDENT = """
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * {page_size}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=42)
    arguments = parser.parse_args()
    starts = {module: [] for module in ("flashmesh", "duckdb")}
    for run in range(arguments.runs + 1):
        for module, measured in starts.items():
            started = start(module)
            # The first ones fill the kernel's page cache.
            if run:
                measured.append(started)
    print(common.describe_machine(("flashmesh", "duckdb")))
    flashmesh, duckdb = ([statistics.median(column) for column in zip(*rows)] for rows in starts.values())
    report("import to the first answer", flashmesh[0] * 1e3, duckdb[0] * 1e3, "ms")
    report("memory of an empty connection", flashmesh[1] / 1e6, duckdb[1] / 1e6, "MB")
    report("memory after the first answer", flashmesh[2] / 1e6, duckdb[2] / 1e6, "MB")
    by_key(arguments)


def start(module: str) -> tuple[float, int, int]:
    """Seconds to the first answer, bytes before it and behind it, of a new process."""
    import resource

    program = RESIDENT.format(page_size=resource.getpagesize()) + START.format(module=module)
    ran = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    seconds, opened, answered = ran.stdout.split()
    return float(seconds), int(opened), int(answered)


def by_key(arguments: argparse.Namespace) -> None:
    engines = []
    for make in (common.Flashmesh, common.DuckDB):
        database = common.bench_dir() / f"first-answer-{make.name}"
        common.remove(database)
        engine = make(database)
        engine.execute(f"CREATE TABLE account ({KEYED})")
        series = f"range({arguments.rows})" if make is common.DuckDB else f"generate_series(0, {arguments.rows - 1})"
        engine.execute(f"INSERT INTO account SELECT n, 'owner ' || n, n * 7 % 1000 FROM {series} AS s(n)")
        engines.append(engine.connection)
    flashmesh, duckdb = engines
    generator = random.Random(arguments.seed)

    def asked(connection, query: str) -> Callable[[int], object]:
        return lambda key: connection.execute(query, [key]).fetchone()

    query = "SELECT * FROM account WHERE id = ?"
    contestants = {
        "flashmesh, execute": asked(flashmesh, query),
        "DuckDB, execute": asked(duckdb, query),
        # A query that is planned.
        "flashmesh, execute of an expression": asked(flashmesh, "SELECT id, name, cents + 0 FROM account WHERE id = ?"),
        "DuckDB, execute of an expression": asked(duckdb, "SELECT id, name, cents + 0 FROM account WHERE id = ?"),
        "flashmesh, get_one": lambda key: tuple(flashmesh.get_one("account", key).values()),
    }
    keys = [generator.randrange(arguments.rows) for _ in range(arguments.runs * 100)]
    # The first time, pages come from flash.
    for _ in ("cold", "warm"):
        times = {name: [] for name in contestants}
        for key in keys:
            rows = set()
            for name, ask in contestants.items():
                times[name].append(common.timed(lambda: rows.add(ask(key))))
            assert rows == {(key, f"owner {key}", key * 7 % 1000)}, rows
    medians = {name: common.median(seconds) * 1e3 for name, seconds in times.items()}
    report("one row by its key, execute", medians["flashmesh, execute"], medians["DuckDB, execute"], "ms")
    report(
        "the same with an expression, which is planned",
        medians["flashmesh, execute of an expression"],
        medians["DuckDB, execute of an expression"],
        "ms",
    )
    report("one row by its key, get_one", medians["flashmesh, get_one"], medians["DuckDB, execute"], "ms")


def report(what: str, flashmesh: float, duckdb: float, unit: str) -> None:
    print(f"{what:46} flashmesh {flashmesh:8.3f} {unit}   DuckDB {duckdb:8.3f} {unit}   {flashmesh / duckdb:.2f} x")


if __name__ == "__main__":
    main()
