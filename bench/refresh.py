"""TPC-H on tables that change: beside clean ones, and with the refresh functions beside the queries.

Each engine has two databases of the same data, one that stays clean and one that changes; their
queries take turns, and figures are times on the changed one over times on the clean one:
before any change (how much the machine itself wavers), after one in a hundred rows of lineitem was
deleted and one in a hundred updated, scattered over the table; with a pair of refresh functions for
each stream of the 22 queries, begun with it; and after VACUUM. flashmesh is a server here, so that
queries and refresh functions have sessions, and each function is a transaction over both tables.

RF1 inserts SF * 1500 orders with their rows of lineitem, RF2 deletes as many (TPC-H 2.5 to 2.7). dbgen's
update sets are not to be had from tpchgen, so the sets are a derivation of our own: those orders
whose turn it is, in the order of their keys, are what RF2 deletes, and RF1 inserts copies of them
before, under keys that dbgen leaves free for it (the key + 8). Sizes, keys and the spread of values are
TPC-H's; which values an order has is not.

Results are compared between the engines at every stage at which nothing changes.
"""

import argparse
import statistics
import sys
import tempfile
import threading
from contextlib import contextmanager
from pathlib import Path

import common

sys.path.insert(0, str(common.ROOT / "tests/python/server"))

TOLERANCE = 2e-5
FREE_KEY = 8
# As changes.py, but scattered: every page has some of them.
CHANGES = [
    "DELETE FROM lineitem WHERE (l_orderkey * 7 + l_linenumber * 13) % 100 = 7",
    "UPDATE lineitem SET l_quantity = l_quantity + 1 WHERE (l_orderkey * 7 + l_linenumber * 13) % 100 = 9",
]
RF1 = [f"INSERT INTO {table} SELECT * FROM '{{{table}}}'" for table in ("orders", "lineitem")]
RF2 = [
    f"DELETE FROM {table} WHERE {column} IN (SELECT o_orderkey - {FREE_KEY} FROM '{{orders}}')"
    for table, column in (("lineitem", "l_orderkey"), ("orders", "o_orderkey"))
]


class Flashmesh:
    """A database behind a server of its own: one session asks, another one changes."""

    name, vacuum = "flashmesh", ["VACUUM orders", "VACUUM lineitem"]

    def __init__(self, folder: Path, parquet: Path):
        import flashmesh
        from serving import Server

        folder.mkdir()
        engine = common.Flashmesh(folder / "db")
        common.load_tpch(engine, parquet)
        engine.close()
        self.server = Server(folder, "--threads", str(common.THREADS))
        self.queries = self.server.connect()
        self.changes = flashmesh.connect(self.server.uri)

    def run(self, query: str):
        with self.queries.cursor() as cursor:
            cursor.execute(query)
            return cursor.fetch_arrow_table()

    def execute(self, statement: str):
        self.changes.execute(statement)

    @contextmanager
    def transaction(self):
        with self.changes.transaction():
            yield

    def close(self):
        self.queries.close()
        self.changes.close()
        self.server.stop()


class DuckDB:
    """A database in this process, with a cursor for changes."""

    name, vacuum = "DuckDB", ["CHECKPOINT"]

    def __init__(self, folder: Path, parquet: Path):
        folder.mkdir()
        self.engine = common.DuckDB(folder / "db")
        common.load_tpch(self.engine, parquet)
        self.changes = self.engine.connection.cursor()
        self.run, self.execute, self.close = self.engine.run, self.changes.execute, self.engine.close

    @contextmanager
    def transaction(self):
        self.execute("BEGIN")
        yield
        self.execute("COMMIT")


def refresh_sets(folder: Path, parquet: Path, scale_factor: str, pairs: int) -> list[dict[str, Path]]:
    """Files of the orders that each pair inserts, and of their rows of lineitem."""
    import duckdb

    rows = round(1500 * float(scale_factor))
    connection = duckdb.connect(config={"threads": common.THREADS})
    sets = []
    for pair in range(pairs):
        files = {table: folder / f"{table}-{pair}.parquet" for table in ("orders", "lineitem")}
        connection.execute(f"""
            CREATE OR REPLACE TABLE chosen AS FROM '{parquet}/orders.parquet'
            ORDER BY o_orderkey LIMIT {rows} OFFSET {pair * rows}""")
        connection.execute(f"""
            COPY (SELECT * REPLACE (o_orderkey + {FREE_KEY} AS o_orderkey) FROM chosen)
            TO '{files["orders"]}'""")
        connection.execute(f"""
            COPY (SELECT * REPLACE (l_orderkey + {FREE_KEY} AS l_orderkey) FROM '{parquet}/lineitem.parquet'
                  WHERE l_orderkey IN (SELECT o_orderkey FROM chosen))
            TO '{files["lineitem"]}'""")
        sets.append(files)
    return sets


def refresh(engine, files: dict[str, Path]):
    """RF1, then RF2: each as one transaction."""
    for function in (RF1, RF2):
        with engine.transaction():
            for statement in function:
                engine.execute(statement.format(**files))


def times_of(engines: dict, queries: dict[int, str], runs: int) -> dict:
    """Median seconds of each query on each database, after a run that does not count."""
    seconds = {(side, number): [] for side in engines for number in queries}
    for run in range(runs + 1):
        for number, query in queries.items():
            for side, engine in list(engines.items())[:: -1 if run % 2 else 1]:
                taken = common.timed(lambda: engine.run(query))
                if run > 0:
                    seconds[side, number].append(taken)
    return {key: common.median(values) for key, values in seconds.items()}


def stream(engine, queries: dict[int, str], files: dict[str, Path] | None) -> tuple[float, float]:
    """Seconds that all queries take, and those of the pair of refresh functions that begins with them."""
    pair = []

    def change():
        try:
            pair.append(common.timed(lambda: refresh(engine, files)))
        except BaseException as error:
            pair.append(error)

    beside = threading.Thread(target=change)
    if files:
        beside.start()
    seconds = common.timed(lambda: [engine.run(query) for query in queries.values()])
    if files:
        beside.join()
        if isinstance(pair[0], BaseException):
            raise pair[0]
    return seconds, pair[0] if pair else 0.0


def print_ratios(label: str, name: str, seconds: dict, queries: dict[int, str]):
    ratios = {number: seconds["changed", number] / seconds["clean", number] for number in queries}
    totals = [sum(seconds[side, number] for number in queries) for side in ("changed", "clean")]
    worst = max(ratios, key=ratios.get)
    mean = common.geometric_mean(list(ratios.values()))
    print(
        f"{label:32}{name:>12}{totals[1]:10.3f}{totals[0]:10.3f}{totals[0] / totals[1]:8.2f}{mean:10.2f}"
        f"   most Q{worst} {ratios[worst]:.2f}",
        flush=True,
    )


def differences(engines: dict, queries: dict[int, str], stage: str) -> list[str]:
    """Queries whose results on the changed tables are not those of the other engine."""
    found = []
    for number, query in queries.items():
        ours, theirs = (sides["changed"].run(query) for sides in engines.values())
        if difference := common.same_result(ours, theirs, TOLERANCE):
            found.append(f"{stage}, q{number:02}: {difference}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale-factor", default="1")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--query", type=int, action="append", help="only this query; may be repeated")
    arguments = parser.parse_args()
    runs, queries = arguments.runs, common.tpch_queries(arguments.query)
    parquet = common.tpch_parquet(arguments.scale_factor)

    with tempfile.TemporaryDirectory(dir=common.bench_dir(), prefix="refresh-") as folder:
        folder = Path(folder)
        pairs = refresh_sets(folder, parquet, arguments.scale_factor, runs)
        engines = {
            make.name: {side: make(folder / f"{make.name}-{side}", parquet) for side in ("clean", "changed")}
            for make in (Flashmesh, DuckDB)
        }
        print(common.describe_machine())
        print(f"TPC-H scale factor {arguments.scale_factor}, {len(queries)} queries, medians of {runs} runs\n")
        print(f"{'':44}{'clean, s':>10}{'changed':>10}{'ratio':>8}{'geomean':>10}")

        def measure(label: str):
            for name, sides in engines.items():
                print_ratios(label, name, times_of(sides, queries, runs), queries)

        measure("before any change")
        for sides in engines.values():
            for change in CHANGES:
                sides["changed"].execute(change)
        measure("1 % deleted, 1 % updated")
        different = differences(engines, queries, "after the changes")

        for name, sides in engines.items():
            beside = {side: [] for side in sides}
            taken = []
            for files in pairs:
                beside["clean"].append(stream(sides["clean"], queries, None)[0])
                seconds, pair = stream(sides["changed"], queries, files)
                beside["changed"].append(seconds)
                taken.append(pair)
            clean, changed = (statistics.median(beside[side]) for side in ("clean", "changed"))
            print(
                f"{'RF1 and RF2 beside the queries':32}{name:>12}{clean:10.3f}{changed:10.3f}{changed / clean:8.2f}"
                f"{'':10}   a pair takes {statistics.median(taken):.3f} s",
                flush=True,
            )
        different += differences(engines, queries, "after the refreshes")
        measure("after the refreshes")
        for sides in engines.values():
            for statement in sides["changed"].vacuum:
                sides["changed"].execute(statement)
        measure("… and VACUUM")
        different += differences(engines, queries, "after VACUUM")
        for sides in engines.values():
            for engine in sides.values():
                engine.close()
    for text in different:
        print(f"DIFFERENT {text}")
    return 1 if different else 0


if __name__ == "__main__":
    raise SystemExit(main())
