"""Queries of several tables on a rack of four nodes whose only ways to each other are links of 1 Gbit/s: what it takes
where the nodes join and group among themselves, and where all of it is done at the head; bytes over the links, and
those of the busiest one. Answers are compared.

The nodes are those of `rack-network`; TPC-H's tables, whose rows take turns between the nodes, with no key, or with
--distributed lie by keys: `lineitem` and `orders` by those of orders, `part` and `partsupp` by those of parts.

Needs root, `ip` and `tc`.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import common
import pyarrow.parquet as pq
from rack_network import Network, Rack, parts, same

TABLES = ("lineitem", "orders", "customer", "part", "partsupp", "supplier", "nation", "region")
MODES = ("always", "auto", "never")
KEYS = {"lineitem": "l_orderkey", "orders": "o_orderkey", "part": "p_partkey", "partsupp": "ps_partkey"}

OWN = {
    "join of all rows": "SELECT o_orderpriority, count(*), sum(l_quantity), max(l_comment) "
    "FROM lineitem JOIN orders ON l_orderkey = o_orderkey GROUP BY o_orderpriority",
    "groups by a key": "SELECT count(*), sum(n), max(q) FROM "
    "(SELECT l_partkey, l_suppkey, count(*) AS n, sum(l_quantity) AS q FROM lineitem GROUP BY l_partkey, l_suppkey)",
    "distinct of a join": "SELECT count(DISTINCT l_partkey), count(DISTINCT o_custkey) "
    "FROM lineitem JOIN orders ON l_orderkey = o_orderkey WHERE l_discount > 0.02",
    "groups by their key": "SELECT count(*), sum(n), max(q) FROM "
    "(SELECT l_orderkey, count(*) AS n, sum(l_quantity) AS q FROM lineitem GROUP BY l_orderkey)",
    "window": "SELECT count(*), sum(r) FROM (SELECT rank() OVER (PARTITION BY l_suppkey ORDER BY l_extendedprice) AS r "
    "FROM lineitem)",
}


def links(network: Network) -> list[int]:
    """What each node has put on its link, and taken from it."""
    amounts = []
    for space in network.spaces:
        command = ["ip", "-n", space, "-s", "-j", "link", "show", "uplink"]
        stats = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)[0]["stats64"]
        amounts += [stats["tx"]["bytes"], stats["rx"]["bytes"]]
    return amounts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale-factor", default="1")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--mbits", type=int, default=1000, help="of each link, each way")
    parser.add_argument("--cache-size", default="1GB", help="of each node's cache of pages")
    parser.add_argument("--queries", type=int, nargs="*", default=list(range(1, 23)), help="of TPC-H")
    parser.add_argument("--distributed", action="store_true", help="tables lie by their keys")
    arguments = parser.parse_args()
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        sys.exit("bench rack-joins needs root, and `ip` and `tc` (Debian: iproute2): it makes network namespaces")
    print(common.describe_machine(("adbc-driver-flightsql",)))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=common.bench_dir(), prefix="joins-")))
        source = common.tpch_parquet(arguments.scale_factor)
        for line in parts(folder / "parquet", {name: pq.read_table(source / f"{name}.parquet") for name in TABLES}):
            common.note(line)
        network = Network(stack, arguments.mbits)
        (folder / "rack").mkdir()
        Rack(stack, folder / "rack", network, arguments.cache_size)
        network.move_to(0)
        import adbc_driver_flightsql.dbapi

        connection = stack.enter_context(adbc_driver_flightsql.dbapi.connect("grpc://127.0.0.1:50051", autocommit=True))
        cursor = stack.enter_context(connection.cursor())
        common.note("loading the rack")
        for table in TABLES:
            by = f"WITH (distribute_by = '{KEYS[table]}')" if arguments.distributed and table in KEYS else ""
            cursor.execute(f"CREATE TABLE {table} {by} AS SELECT * FROM '{folder}/parquet/{table}/*.parquet'")
            cursor.fetchall()
        queries = common.tpch_queries(arguments.queries) if arguments.queries else {}
        measure(network, cursor, {f"TPC-H Q{number}": text for number, text in queries.items()} | OWN, arguments.runs)


def measure(network: Network, cursor, queries: dict[str, str], runs: int) -> None:
    print("\nWarm, medians: time; MB on all links (on the busiest, one way). A star: 'auto' has nodes take part.\n")
    print("| query | always | auto | never |")
    print("|---|---|---|---|")
    for name, text in queries.items():
        seconds, sent, busiest, answers = ({mode: [] for mode in MODES} for _ in range(4))
        for run in range(runs + 1):
            for mode in MODES:
                cursor.execute(f"SET flashmesh.distributed = '{mode}'")
                before = links(network)
                started = time.perf_counter()
                cursor.execute(text)
                answers[mode] = cursor.fetch_arrow_table()
                took = time.perf_counter() - started
                if run > 0:
                    moved = [after - before for after, before in zip(links(network), before, strict=True)]
                    seconds[mode].append(took)
                    sent[mode].append(sum(moved) / 2)
                    busiest[mode].append(max(moved))
        for mode in MODES:
            difference = same(answers["never"], answers[mode])
            assert difference is None, (name, mode, difference)
        cursor.execute("SET flashmesh.distributed = 'auto'")
        cursor.execute(f"EXPLAIN {text}")
        mark = " *" if "RackExec" in str(cursor.fetchall()) else ""
        cells = [
            f"{common.median(seconds[mode]) * 1000:.0f} ms, {common.median(sent[mode]) / 1e6:.1f} MB "
            f"({common.median(busiest[mode]) / 1e6:.1f})"
            for mode in MODES
        ]
        print(f"| {name}{mark} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
