"""Racks of 1, 2, 4, … nodes as processes of this machine: what travels between nodes with pushdown on and off,
what a query costs more than on one node, and memory a node.

The nodes share this machine's processors and links are Unix sockets, so that more nodes make nothing faster here:
bytes, and overhead a query, are what can be read off.
"""

import argparse
import contextlib
import json
import random
import re
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import adbc_driver_flightsql.dbapi
import common

sys.path.insert(0, str(common.ROOT / "tests/python/server"))

from serving import binary  # noqa: E402

QUERIES = {
    "aggregate, 2 % of the rows (Q6)": common.tpch_queries([6])[6],
    "aggregate, all rows (Q1)": common.tpch_queries([1])[1],
    "text": "SELECT count(*) FROM lineitem WHERE l_comment LIKE '%carefully special%'",
    "first rows of an order": "SELECT l_orderkey, l_extendedprice FROM lineitem ORDER BY l_extendedprice DESC LIMIT 10",
    "few rows": "SELECT * FROM lineitem WHERE l_partkey = 4711 AND l_quantity > 30",
    "a tenth of the rows, 2 columns": "SELECT sum(l_orderkey % 7 + l_suppkey % 5) FROM "
    "(SELECT l_orderkey, l_suppkey FROM lineitem WHERE l_quantity < 6 LIMIT 1000000000)",
    "a join (Q3)": common.tpch_queries([3])[3],
}
POINT = "SELECT v FROM points WHERE id = {}"


class Rack:
    def __init__(self, folder: Path, nodes: int, *options: object) -> None:
        made = self.run("rack", "init", folder, "--nodes", nodes, "--flight-port", free_ports(nodes), *options)
        self.file = Path(made.splitlines()[0])
        self.up()
        self.nodes = self.status()

    def up(self) -> None:
        self.run("rack", "up", self.file, "--detach", "--threads", common.THREADS, "--cache-size", "1GB")

    def status(self) -> list[dict]:
        return json.loads(self.run("rack", "status", self.file, "--format", "json"))["nodes"]

    @staticmethod
    def run(*words: object) -> str:
        return subprocess.run([binary(), *map(str, words)], check=True, capture_output=True, text=True).stdout

    def down(self) -> None:
        self.run("rack", "down", self.file)

    def connect(self, node: int = 0) -> adbc_driver_flightsql.dbapi.Connection:
        uri = f"grpc://{self.nodes[node]['flight']}"
        return adbc_driver_flightsql.dbapi.connect(uri, autocommit=True)

    def memory(self) -> list[int]:
        def resident(pid: int) -> int:
            status = Path(f"/proc/{pid}/status").read_text()
            return int(re.search(r"VmRSS:\s+(\d+)", status)[1]) * 1024

        return [resident(node["pid"]) for node in self.nodes]


def free_ports(count: int) -> int:
    while True:
        first = random.randrange(20_000, 30_000)
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale-factor", default="1")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4, 8])
    arguments = parser.parse_args()
    print(common.describe_machine(("adbc-driver-flightsql",)))
    parquet = common.tpch_parquet(arguments.scale_factor)
    with tempfile.TemporaryDirectory(dir=common.bench_dir(), prefix="rack-") as folder:
        racks = {}
        try:
            for nodes in arguments.nodes:
                racks[nodes] = rack = Rack(Path(folder) / f"r{nodes}", nodes)
                common.note(f"loading a rack of {nodes}")
                with rack.connect() as connection, connection.cursor() as cursor:
                    for table in ("lineitem", "orders", "customer"):
                        source = parquet / f"{table}.parquet"
                        cursor.execute(f"CREATE TABLE {table} AS SELECT * FROM '{source}'")
                        cursor.fetchall()
                    cursor.execute("CREATE TABLE points (id BIGINT PRIMARY KEY, v BIGINT)")
                    cursor.execute(
                        "INSERT INTO points SELECT value, value * 3 FROM generate_series(1, 1000000) AS s(value)"
                    )
            measure(racks, arguments.runs)
        finally:
            for rack in racks.values():
                rack.down()
            shutil.rmtree(folder, ignore_errors=True)


def timed(cursor, query: str) -> tuple[float, list]:
    start = time.perf_counter()
    cursor.execute(query)
    rows = cursor.fetchall()
    return time.perf_counter() - start, rows


def counted(cursor, query: str) -> dict[str, int]:
    """Bytes that travelled for a query: answers of other nodes, and pages that the head took from all cards."""
    cursor.execute(f"EXPLAIN ANALYZE {query}")
    plan = " ".join(str(row[1]) for row in cursor.fetchall())

    def total(name: str) -> int:
        scale = {"": 1, "K": 1e3, "M": 1e6, "G": 1e9}
        found = re.findall(rf"\b{name}=([\d.]+)\s?([KMG]?)", plan)
        return round(sum(float(value) * scale[unit] for value, unit in found))

    return {name: total(name) for name in ("bytes_from_nodes", "bytes_to_nodes", "bytes_from_flash", "bytes_to_host")}


def measure(racks: dict[int, Rack], runs: int) -> None:
    with contextlib.ExitStack() as stack:
        cursors = {}
        for nodes, rack in racks.items():
            connection = stack.enter_context(rack.connect())
            cursors[nodes] = stack.enter_context(connection.cursor())
        print("\nWarm, medians; nodes share the machine. Bytes: answers and commands between nodes, of one run.\n")
        print("| query | nodes | pushdown on | off | bytes between nodes, on |")
        print("|---|---|---|---|---|")
        for name, query in QUERIES.items():
            expected = None
            for nodes, cursor in cursors.items():
                times = {"auto": [], "never": []}
                for _ in range(runs):
                    for mode, taken in times.items():
                        cursor.execute(f"SET flashmesh.pushdown = '{mode}'")
                        seconds, rows = timed(cursor, query)
                        taken.append(seconds)
                        rows = sorted(map(str, rows))
                        expected = expected or rows
                        assert len(rows) == len(expected), (name, nodes, mode)
                cursor.execute("SET flashmesh.pushdown = 'auto'")
                bytes_ = counted(cursor, query)
                between = bytes_["bytes_from_nodes"] + bytes_["bytes_to_nodes"]
                on, off = (statistics.median(times[mode]) * 1000 for mode in ("auto", "never"))
                print(f"| {name} | {nodes} | {on:.1f} ms | {off:.1f} ms | {between:,} |", flush=True)
        print("\n| nodes | a row by its key, median | memory: head | others, mean |")
        print("|---|---|---|---|")
        keys = [random.randrange(1, 1_000_000) for _ in range(200)]
        taken = {nodes: [] for nodes in racks}
        for key in keys:
            for nodes, cursor in cursors.items():
                taken[nodes].append(timed(cursor, POINT.format(key))[0])
        for nodes, rack in racks.items():
            head, *others = rack.memory()
            mean = f"{statistics.mean(others) / 1e6:.0f} MB" if others else "–"
            point = statistics.median(taken[nodes]) * 1000
            print(f"| {nodes} | {point:.2f} ms | {head / 1e6:.0f} MB | {mean} |")


if __name__ == "__main__":
    main()
