"""Changing rows: flashmesh against DuckDB, in turns.

Each run makes both databases anew. One in a hundred rows of lineitem is deleted,
one in a hundred updated; a million rows, half of them with keys that are there,
are inserted with ON CONFLICT DO UPDATE. Every change is committed when it
returns. Then TPC-H queries 1 and 6 on the changed table are set against
themselves before the changes, and again after VACUUM. The contents are compared
between the engines. Last, clients insert rows one by one, each row a durable
commit of its own, also into SQLite (WAL, synchronous=FULL); and the rows are
counted after that.
"""

import argparse
import sqlite3
import threading

import common

KEYED = 1_000_000
CHANGES = {
    "DELETE 1 % of lineitem": "DELETE FROM lineitem WHERE l_orderkey % 100 = 7",
    "UPDATE 1 % of lineitem": "UPDATE lineitem SET l_quantity = l_quantity + 1 WHERE l_orderkey % 100 = 9",
    "upsert of 1,000,000 rows": f"""
        INSERT INTO keyed SELECT value + {KEYED // 2}, value, 'new ' || value FROM numbers
        ON CONFLICT (id) DO UPDATE SET n = keyed.n + excluded.n, name = excluded.name""",
}
CLIENTS = [1, 8]
CONTENTS = [
    "SELECT count(*), sum(l_quantity), sum(l_orderkey) FROM lineitem",
    "SELECT count(*), sum(id), sum(n), sum(length(name)) FROM keyed",
]


def prepare(make_engine, database, parquet):
    common.remove(database)
    engine = make_engine(database)
    engine.create_table("lineitem", parquet / "lineitem.parquet")
    values = "generate_series(0, {})" if engine.name == "flashmesh" else "range({} + 1)"
    column = "value" if engine.name == "flashmesh" else "range"
    engine.execute(f"CREATE TABLE numbers AS SELECT {column} AS value FROM {values.format(KEYED - 1)}")
    engine.execute("CREATE TABLE keyed (id BIGINT PRIMARY KEY, n BIGINT, name VARCHAR)")
    engine.execute("INSERT INTO keyed SELECT value, 0, 'old ' || value FROM numbers")
    return engine


def queries(engine, runs: int) -> float:
    both = list(common.tpch_queries([1, 6]).values())
    times = [common.timed(lambda: [engine.run(query) for query in both]) for _ in range(runs + 1)]
    return common.median(times[1:])


class SQLite:
    """One connection a thread, as SQLite wants it."""

    name = "SQLite"

    def __init__(self, path):
        self.path, self.connections = path / "db", threading.local()
        path.mkdir()
        self.execute("PRAGMA journal_mode = WAL")

    def execute(self, statement):
        if not hasattr(self.connections, "own"):
            self.connections.own = sqlite3.connect(self.path, timeout=600, isolation_level=None)
            self.connections.own.execute("PRAGMA synchronous = FULL")
        self.connections.own.execute(statement)

    def run(self, query):
        return self.connections.own.execute(query).fetchall()


class Clients:
    """A database to which several threads send statements."""

    def __init__(self, engine):
        self.engine, self.connections = engine, threading.local()

    def execute(self, statement):
        if self.engine.name != "DuckDB":
            return self.engine.execute(statement)
        if not hasattr(self.connections, "own"):
            self.connections.own = self.engine.connection.cursor()
        return self.connections.own.execute(statement)


def append(engine, clients: int, rows: int) -> float:
    """Seconds in which so many clients insert so many rows together."""
    target = Clients(engine)

    def insert(client):
        for row in range(rows // clients):
            target.execute(f"INSERT INTO small VALUES ({client * rows + row}, 'row {row}')")

    threads = [threading.Thread(target=insert, args=(client,)) for client in range(clients)]

    def run():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return common.timed(run)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale-factor", default="1")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--appends", type=int, default=800, help="rows that are inserted one by one")
    arguments = parser.parse_args()

    parquet = common.tpch_parquet(arguments.scale_factor)
    makers = {engine.name: engine for engine in (common.Flashmesh, common.DuckDB)}
    seconds = {(name, change): [] for name in makers for change in CHANGES}
    slower = {name: [] for name in makers}
    vacuumed = {name: [] for name in makers}
    appended = {(name, clients): [] for name in [*makers, "SQLite"] for clients in CLIENTS}
    counted = {name: [] for name in [*makers, "SQLite"]}
    different = False
    for _ in range(arguments.runs):
        engines = {
            name: prepare(maker, common.bench_dir() / f"changes-{name}", parquet) for name, maker in makers.items()
        }
        before = {name: queries(engine, 5) for name, engine in engines.items()}
        for change, statement in CHANGES.items():
            for name, engine in engines.items():
                seconds[name, change].append(common.timed(lambda: engine.execute(statement)))
        for name, engine in engines.items():
            slower[name].append(queries(engine, 5) / before[name])
        for query in CONTENTS:
            ours, theirs = (engine.run(query) for engine in engines.values())
            if difference := common.same_result(ours, theirs, 1e-9):
                print(f"DIFFERENT {query}: {difference}")
                different = True
        for name, engine in engines.items():
            engine.execute("VACUUM" if name == "DuckDB" else "VACUUM lineitem")
            vacuumed[name].append(queries(engine, 5) / before[name])
        common.remove(common.bench_dir() / "changes-SQLite")
        sqlite = SQLite(common.bench_dir() / "changes-SQLite")
        for engine in [*engines.values(), sqlite]:
            for clients in CLIENTS:
                engine.execute("DROP TABLE IF EXISTS small")
                engine.execute("CREATE TABLE small (id BIGINT, name VARCHAR)")
                appended[engine.name, clients].append(append(engine, clients, arguments.appends))
            counted[engine.name].append(common.timed(lambda: engine.run("SELECT count(*), sum(id) FROM small")))
        common.remove(common.bench_dir() / "changes-SQLite")
        for name, engine in engines.items():
            engine.close()
            common.remove(common.bench_dir() / f"changes-{name}")

    print(common.describe_machine())
    print(f"TPC-H scale factor {arguments.scale_factor}, medians of {arguments.runs} runs, s\n")
    print(f"{'':28}" + "".join(f"{name:>12}" for name in makers) + f"{'ratio':>8}")
    for change in CHANGES:
        ours, theirs = (common.median(seconds[name, change]) for name in makers)
        print(f"{change:28}{ours:12.3f}{theirs:12.3f}{ours / theirs:8.2f}")
    ratios = "".join(f"{common.median(values):12.2f}" for values in slower.values())
    print(f"{'queries 1 and 6, after/before':28}{ratios}")
    ratios = "".join(f"{common.median(values):12.2f}" for values in vacuumed.values())
    print(f"{'… after VACUUM':28}{ratios}\n")
    print(f"{'':28}" + "".join(f"{name:>12}" for name in counted))
    for clients in CLIENTS:
        rates = (arguments.appends / common.median(appended[name, clients]) for name in counted)
        print(f"{f'rows a second, {clients} clients':28}" + "".join(f"{rate:12.0f}" for rate in rates))
    times = (common.median(values) for values in counted.values())
    print(f"{'counting them, s':28}" + "".join(f"{seconds:12.4f}" for seconds in times))
    return 1 if different else 0


if __name__ == "__main__":
    raise SystemExit(main())
