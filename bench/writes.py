"""Durable writes of one row each: flashmesh against RocksDB, SQLite and DuckDB.

Clients write rows of a key and a text of 100 bytes, of which each is durable when
the call returns. *put* is by primary key, over a row that is there or not:
flashmesh's `put`, RocksDB's with `sync`, SQLite's INSERT OR REPLACE. *insert* is
SQL into a table without a key. SQLite has its WAL and synchronous=FULL, and as
DuckDB a connection for each thread. The engines take turns; the rows are compared
at the end.
"""

import argparse
import random
import sqlite3
import threading

import common

CLIENTS = [1, 8]
TEXT_BYTES = 100


def text(key: int, turn: int) -> str:
    return f"{turn} of {key} ".ljust(TEXT_BYTES, "x")


class Flashmesh:
    name = "flashmesh"

    def __init__(self, folder):
        self.connection = common.Flashmesh(folder).connection
        self.connection.execute("CREATE TABLE kv (k BIGINT PRIMARY KEY, v VARCHAR)")
        self.connection.execute("CREATE TABLE log (k BIGINT, v VARCHAR)")

    def put(self, key, value):
        self.connection.put("kv", [{"k": key, "v": value}])

    def insert(self, key, value):
        self.connection.execute(f"INSERT INTO log VALUES ({key}, '{value}')")

    def inserted(self):
        return self.connection.sql("SELECT count(*), sum(k) FROM log").fetchall()[0]

    def rows(self):
        table = self.connection.sql("SELECT k, v FROM kv ORDER BY k").to_arrow_table()
        return dict(zip(table["k"].to_pylist(), table["v"].to_pylist()))

    def close(self):
        self.connection.close()


class RocksDB:
    name = "RocksDB"
    insert = None

    def __init__(self, folder):
        from rocksdict import Options, Rdict, WriteOptions

        options = Options(raw_mode=True)
        options.create_if_missing(True)
        self.store = Rdict(str(folder), options)
        durable = WriteOptions()
        durable.sync = True
        self.store.set_write_options(durable)

    def put(self, key, value):
        self.store[key.to_bytes(8, "big")] = value.encode()

    def inserted(self):
        return None

    def rows(self):
        return {int.from_bytes(key, "big"): value.decode() for key, value in self.store.items()}

    def close(self):
        self.store.close()


class DuckDB:
    name = "DuckDB"
    put = None

    def __init__(self, folder):
        self.engine, self.connections = common.DuckDB(folder), threading.local()
        self.engine.execute("CREATE TABLE log (k BIGINT, v VARCHAR)")

    def insert(self, key, value):
        if not hasattr(self.connections, "own"):
            self.connections.own = self.engine.connection.cursor()
        self.connections.own.execute("INSERT INTO log VALUES (?, ?)", (key, value))

    def rows(self):
        return None

    def inserted(self):
        return self.engine.connection.execute("SELECT count(*), sum(k) FROM log").fetchone()

    def close(self):
        self.engine.close()


class SQLite:
    name = "SQLite"

    def __init__(self, folder):
        folder.mkdir()
        self.path, self.connections = folder / "db", threading.local()
        connection = self.connection()
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE kv (k INTEGER PRIMARY KEY, v TEXT)")
        connection.execute("CREATE TABLE log (k INTEGER, v TEXT)")

    def connection(self):
        if not hasattr(self.connections, "own"):
            self.connections.own = sqlite3.connect(self.path, timeout=600, isolation_level=None)
            self.connections.own.execute("PRAGMA synchronous = FULL")
        return self.connections.own

    def put(self, key, value):
        self.connection().execute("INSERT OR REPLACE INTO kv VALUES (?, ?)", (key, value))

    def insert(self, key, value):
        self.connection().execute("INSERT INTO log VALUES (?, ?)", (key, value))

    def inserted(self):
        return self.connection().execute("SELECT count(*), sum(k) FROM log").fetchone()

    def rows(self):
        return dict(self.connection().execute("SELECT k, v FROM kv"))

    def close(self):
        self.connection().close()


def rate(write, keys: list[int], clients: int, turn: int) -> float:
    """Writes a second."""

    def run(own: list[int]):
        for key in own:
            write(key, text(key, turn))

    threads = [threading.Thread(target=run, args=(keys[client::clients],)) for client in range(clients)]

    def all_of_them():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return len(keys) / common.timed(all_of_them)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--writes", type=int, default=2000, help="in each run, by each number of clients")
    parser.add_argument("--seed", type=int, default=42)
    arguments = parser.parse_args()
    generator = random.Random(arguments.seed)

    engines = []
    for make in (Flashmesh, RocksDB, SQLite, DuckDB):
        folder = common.bench_dir() / f"writes-{make.name}"
        common.remove(folder)
        engines.append(make(folder))
    kinds = ["put", "insert"]
    rates = {(kind, clients, engine.name): [] for kind in kinds for clients in CLIENTS for engine in engines}
    expected, inserted = {}, (0, 0)
    for turn in range(arguments.runs):
        for clients in CLIENTS:
            # No key twice in a run: which of two came last nobody could tell.
            keys = generator.sample(range(arguments.runs * arguments.writes), arguments.writes)
            expected.update((key, text(key, turn)) for key in keys)
            inserted = (inserted[0] + len(keys), inserted[1] + sum(keys))
            for kind in kinds:
                for engine in engines:
                    write = getattr(engine, kind)
                    if write is not None:
                        rates[kind, clients, engine.name].append(rate(write, keys, clients, turn))
    different = [engine.name for engine in engines if engine.rows() not in (None, expected)]
    different += [engine.name for engine in engines if engine.inserted() not in (None, inserted)]
    for engine in engines:
        engine.close()
        common.remove(common.bench_dir() / f"writes-{engine.name}")

    print(common.describe_machine())
    print(f"durable writes a second, medians of {arguments.runs} runs of {arguments.writes}\n")
    print(f"{'':28}" + "".join(f"{engine.name:>12}" for engine in engines))
    for kind in kinds:
        for clients in CLIENTS:
            found = [rates[kind, clients, engine.name] for engine in engines]
            texts = (f"{common.median(values):12.0f}" if values else f"{'–':>12}" for values in found)
            print(f"{f'{kind}, {clients} clients':28}" + "".join(texts))
    for name in different:
        print(f"DIFFERENT: the rows of {name}")
    return 1 if different else 0


if __name__ == "__main__":
    raise SystemExit(main())
