"""What a commit costs where a group of nodes keeps the catalog, beside a head alone; and for how long nobody is
answered when the head is killed.

The nodes share this machine's processors and its disk, which each of the group waits for; links are Unix sockets.
"""

import argparse
import os
import signal
import statistics
import tempfile
import threading
import time
from pathlib import Path

import adbc_driver_flightsql.dbapi
import common
from rack import Rack

KINDS = {"1 node": (1, 1), "3 nodes, catalog at the head": (3, 1), "3 nodes, a group keeps the catalog": (3, 2)}
CLIENTS = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--commits", type=int, default=200, help="commits of a client in a run")
    parser.add_argument("--runs", type=int, default=5)
    arguments = parser.parse_args()
    print(common.describe_machine(("adbc-driver-flightsql",)))
    with tempfile.TemporaryDirectory(dir=common.bench_dir(), prefix="commits-") as folder:
        racks = {}
        try:
            for number, (name, (nodes, replicas)) in enumerate(KINDS.items()):
                racks[name] = rack = Rack(Path(folder) / f"r{number}", nodes, "--replicas", replicas)
                with rack.connect() as connection, connection.cursor() as cursor:
                    cursor.execute("CREATE TABLE entry (id BIGINT PRIMARY KEY, v BIGINT)")
                    cursor.execute("CREATE TABLE note (client INT, v BIGINT)")
                    cursor.execute("INSERT INTO entry SELECT value, 0 FROM range(100000)")
            commits(racks, arguments.commits, arguments.runs)
            outages(racks["3 nodes, a group keeps the catalog"], arguments.runs)
        finally:
            for rack in racks.values():
                rack.down()


def commits(racks: dict[str, Rack], count: int, runs: int) -> None:
    one = {name: [] for name in racks}
    inserts = {name: [] for name in racks}
    many = {name: [] for name in racks}
    for _ in range(runs):
        for name, rack in racks.items():
            with rack.connect() as connection, connection.cursor() as cursor:
                for times, sql in (
                    (one, "UPDATE entry SET v = v + 1 WHERE id = {at}"),
                    (inserts, "INSERT INTO note VALUES (0, {at})"),
                ):
                    for at in range(count):
                        begun = time.perf_counter()
                        cursor.execute(sql.format(at=at))
                        times[name].append(time.perf_counter() - begun)
            many[name].append(together(rack, count))
    print("\n| | UPDATE of a row by its key | INSERT of a row | rows a second, INSERT by 8 clients |")
    print("|---|---|---|---|")
    for name in racks:
        update, insert = (statistics.median(times[name]) * 1e3 for times in (one, inserts))
        print(f"| {name} | {update:.2f} ms | {insert:.2f} ms | {statistics.median(many[name]):.0f} |")


def together(rack: Rack, count: int) -> float:
    """Commits a second of clients that insert a row each at a time."""
    begins = threading.Barrier(CLIENTS + 1)

    def insert(client: int) -> None:
        with rack.connect() as connection, connection.cursor() as cursor:
            begins.wait()
            for at in range(count):
                cursor.execute(f"INSERT INTO note VALUES ({client}, {at})")

    threads = [threading.Thread(target=insert, args=(client,)) for client in range(CLIENTS)]
    for thread in threads:
        thread.start()
    begins.wait()
    begun = time.perf_counter()
    for thread in threads:
        thread.join()
    return CLIENTS * count / (time.perf_counter() - begun)


def outages(rack: Rack, runs: int) -> None:
    """Seconds from the head's SIGKILL until a query, and then an INSERT, is answered at another node."""
    queries, inserts = [], []
    for _ in range(runs):
        nodes = rack.status()
        head = next(at for at, node in enumerate(nodes) if node["is_head"])
        os.kill(nodes[head]["pid"], signal.SIGKILL)
        begun = time.perf_counter()
        for times, sql in ((queries, "SELECT count(*) FROM entry"), (inserts, "INSERT INTO note VALUES (-1, 0)")):
            while True:
                try:
                    with rack.connect((head + 1) % 3) as connection, connection.cursor() as cursor:
                        cursor.execute(sql)
                        cursor.fetchall()
                    break
                except adbc_driver_flightsql.dbapi.Error:
                    pass
            times.append(time.perf_counter() - begun)
        rack.up()
        while any(node["replicas_behind"] != 0 for node in rack.status()):
            time.sleep(0.1)
    print("\nFrom the head's SIGKILL (deadline_ms = 3000), medians; in brackets, the longest:\n")
    for name, times in (("a query is answered", queries), ("a commit is told as done", inserts)):
        print(f"* {name} after {statistics.median(times):.1f} s ({max(times):.1f} s)")


if __name__ == "__main__":
    main()
