"""A rack of four nodes whose only ways to each other are links of 1 Gbit/s: bytes over the links and time, with
pushdown on and off, and of DataFusion, which reads the same tables as Parquet over the same links.

Each node is a process in a network namespace of its own, with one interface that `tc tbf` shapes both ways; a bridge
joins them. The mesh is TCP with mutual TLS. Clients are where the head is, over loopback, which is not shaped. Each
node has a quarter of the rows; DataFusion runs at the head, reads its quarter from there and the others by HTTP from
where they lie. All nodes share this machine's processors.

Needs root, `ip` and `tc`.
"""

import argparse
import base64
import contextlib
import ctypes
import http.server
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import common
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

sys.path.insert(0, str(common.ROOT / "tests/python"))

from network_racks import write_rack  # noqa: E402

NODES = 4
HTTP_PORT = 8000
ROW_GROUP_ROWS = 65_536
DIMENSIONS = 128
VECTORS = 200_000
VERTICES = 1 << 16
EDGES = 16 * VERTICES
POINTS = 4_000_000
KERNEL = "a user's kernel"
CLONE_NEWNET = 0x40000000


class Network:
    """Namespaces `fm-n0`, …, joined by a bridge over links that have this many Mbit/s each way."""

    def __init__(self, stack: contextlib.ExitStack, mbits: int) -> None:
        self.spaces = [f"fm-n{node}" for node in range(NODES)]
        for space in ["fm-hub", *self.spaces]:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
            ip("netns", "add", space)
            stack.callback(ip, "netns", "del", space)
            ip("-n", space, "link", "set", "lo", "up")
        ip("-n", "fm-hub", "link", "add", "bridge", "type", "bridge")
        ip("-n", "fm-hub", "link", "set", "bridge", "up")
        for node, space in enumerate(self.spaces):
            port = f"port{node}"
            ip("-n", "fm-hub", "link", "add", port, "type", "veth", "peer", "name", "uplink", "netns", space)
            ip("-n", "fm-hub", "link", "set", port, "master", "bridge", "up")
            ip("-n", space, "addr", "add", f"{self.address(node)}/24", "dev", "uplink")
            ip("-n", space, "link", "set", "uplink", "up")
            for at, device in ((space, "uplink"), ("fm-hub", port)):
                shape = ["rate", f"{mbits}mbit", "burst", "256kb", "latency", "20ms"]
                subprocess.run(["tc", "-n", at, "qdisc", "add", "dev", device, "root", "tbf", *shape], check=True)

    @staticmethod
    def address(node: int) -> str:
        return f"10.77.0.{node + 1}"

    def at(self, node: int, *command: object) -> list[str]:
        """The command line that runs a program at a node."""
        return ["ip", "netns", "exec", self.spaces[node], *map(str, command)]

    def move_to(self, node: int) -> None:
        """What this process connects from now on, it connects from this node."""
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/run/netns/{self.spaces[node]}") as space:
            if libc.setns(space.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")

    def bytes_sent(self) -> int:
        """What all nodes have put on their links."""
        total = 0
        for space in self.spaces:
            command = ["ip", "-n", space, "-s", "-j", "link", "show", "uplink"]
            shown = subprocess.run(command, check=True, capture_output=True)
            total += json.loads(shown.stdout)[0]["stats64"]["tx"]["bytes"]
        return total


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


class Rack:
    """The nodes' processes."""

    def __init__(self, stack: contextlib.ExitStack, folder: Path, network: Network, cache: str) -> None:
        binary = os.environ["FLASHMESH_BIN"]
        self.file = write_rack(
            folder,
            NODES,
            network.address,
            lambda _: "127.0.0.1:50051",
            endpoints(binary, folder),
            "[clients]",
            "allow_plaintext = true",
        )
        for node in range(NODES):
            log = stack.enter_context(open(folder / f"n{node:02}.log", "w"))
            words = [binary, "node", self.file, "--name", f"n{node:02}", "--threads", common.THREADS]
            words += ["--cache-size", cache]
            process = subprocess.Popen(network.at(node, *words), stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        deadline = time.monotonic() + 60
        while subprocess.run([binary, "rack", "status", self.file], capture_output=True).returncode != 0:
            if time.monotonic() > deadline:
                sys.exit((folder / "n00.log").read_text())
            time.sleep(0.2)


def endpoints(binary: str, folder: Path) -> list[tuple[str, str]]:
    """The endpoints of a drafted rack file, and their flow control."""
    import tomllib

    subprocess.run([binary, "rack", "init", folder / "draft", "--nodes", "2"], check=True, capture_output=True)
    draft = tomllib.loads((folder / "draft/rack.toml").read_text())
    return [(endpoint["name"], endpoint.get("flow", "plain")) for endpoint in draft["endpoint"]]


class Ranges(http.server.SimpleHTTPRequestHandler):
    """Serves files, and ranges of them, to whom takes it for an object store: paths begin with a bucket."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def translate_path(self, path: str) -> str:
        return super().translate_path("/" + path.lstrip("/").partition("/")[2])

    def do_GET(self) -> None:
        try:
            file = open(self.translate_path(self.path), "rb")
        except OSError:
            return self.send_error(404)
        with file:
            size = os.fstat(file.fileno()).st_size
            start, stop = 0, size
            found = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if found:
                start, stop = int(found[1]), min(int(found[2] or size - 1) + 1, size)
            self.send_response(206 if found else 200)
            self.send_header("Content-Length", str(stop - start))
            self.send_header("Accept-Ranges", "bytes")
            if found:
                self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{size}")
            self.end_headers()
            self.wfile.flush()
            while start < stop:
                start += os.sendfile(self.connection.fileno(), file.fileno(), start, stop - start)


def serve(folder: str) -> None:
    os.chdir(folder)
    http.server.ThreadingHTTPServer(("", HTTP_PORT), Ranges).serve_forever()


def tables(scale_factor: str) -> dict[str, pa.Table]:
    rng = np.random.default_rng(7)
    vectors = rng.standard_normal(VECTORS * DIMENSIONS, dtype=np.float32)
    ids = np.arange(POINTS, dtype=np.int64)
    rng.shuffle(ids)
    return {
        "lineitem": pq.read_table(common.tpch_parquet(scale_factor) / "lineitem.parquet"),
        "vectors": pa.table(
            {
                "id": np.arange(VECTORS, dtype=np.int64),
                "x": pa.FixedSizeListArray.from_arrays(vectors, DIMENSIONS),
            }
        ),
        "edges": pa.table(
            {
                "source": rng.integers(0, VERTICES, EDGES),
                "target": rng.integers(0, VERTICES, EDGES),
            }
        ),
        "points": pa.table({"id": ids, "v": ids * 3, "w": rng.integers(0, 1 << 40, POINTS)}),
    }


def jobs(rng: random.Random) -> dict[str, tuple[Callable[[], tuple[str, str]], bool]]:
    """By name: a maker of the query in both engines' words, and whether few of the bytes are wanted."""
    query_vectors = np.random.default_rng(8).standard_normal((64, DIMENSIONS), dtype=np.float32)

    def both(text: str) -> tuple[str, str]:
        return text, text

    def nearest() -> tuple[str, str]:
        vector = [round(float(x), 4) for x in rng.choice(query_vectors)]
        return (
            f"SELECT id FROM nearest('vectors', 'x', {vector}, 10) ORDER BY distance",
            f"SELECT id FROM vectors ORDER BY array_distance(x, {vector}) LIMIT 10",
        )

    def expand() -> tuple[str, str]:
        start = rng.randrange(VERTICES)
        return (
            f"SELECT vertex FROM expand('graph', {start}, 2)",
            f"WITH a AS (SELECT DISTINCT target FROM edges WHERE source = {start}), "
            "b AS (SELECT DISTINCT e.target FROM edges e JOIN a ON e.source = a.target) "
            f"SELECT target FROM (SELECT * FROM a UNION SELECT * FROM b) WHERE target <> {start}",
        )

    def keys() -> tuple[str, str]:
        wanted = ", ".join(str(rng.randrange(POINTS)) for _ in range(100))
        return both(f"SELECT id, v, w FROM points WHERE id IN ({wanted})")

    def kernel() -> tuple[str, str]:
        low = rng.randrange(1 << 39)
        high = low + (1 << 24)
        query = "SELECT id, w FROM points WHERE {} ORDER BY id"
        return (
            query.format(f"price_band(CAST(w AS DOUBLE), {low}, {high})"),
            query.format(f"CAST(w AS DOUBLE) BETWEEN {low} AND {high}"),
        )

    q1, q6 = (common.tpch_queries([number])[number] for number in (1, 6))
    scan = "SELECT * FROM lineitem WHERE l_partkey = {} AND l_quantity > 30"
    return {
        "scan, few rows": (lambda: both(scan.format(rng.randrange(1, 200_000))), True),
        "scan, all rows, 2 columns": (
            lambda: both("SELECT l_orderkey, l_extendedprice FROM lineitem"),
            False,
        ),
        "search": (
            lambda: both("SELECT count(*) FROM lineitem WHERE l_comment LIKE '%carefully special%'"),
            True,
        ),
        "aggregate (Q6)": (lambda: both(q6), True),
        "aggregate, all rows (Q1)": (lambda: both(q1), True),
        "nearest 10": (nearest, True),
        "expand, 2 hops": (expand, True),
        "100 rows by key": (keys, True),
        KERNEL: (kernel, True),
    }


def add_kernel(cursor, binary: str, folder: Path) -> bool:
    """Whether there is a compiler for it."""
    source = shutil.copytree(common.ROOT / "examples/kernels/price_band", folder / "price_band")
    built = subprocess.run([binary, "kernel", "build", source], capture_output=True, text=True)
    if built.returncode != 0:
        print(f"No job '{KERNEL}': {built.stderr.strip()}")
        return False
    package = next(source.glob("*.fmk")).read_bytes()
    data = base64.b64encode(package).decode()
    cursor.execute(f"CREATE FUNCTION price_band() LANGUAGE hls AS 'data:application/wasm;base64,{data}'")
    return True


def load(cursor, folder: Path) -> None:
    for table in ("lineitem", "vectors", "edges"):
        files = f"{folder}/{table}/*.parquet"
        cursor.execute(f"CREATE TABLE {table} AS SELECT * FROM '{files}'")
        cursor.fetchall()
    cursor.execute("CREATE TABLE points (id BIGINT PRIMARY KEY, v BIGINT, w BIGINT)")
    cursor.execute(f"INSERT INTO points SELECT * FROM '{folder}/points/*.parquet'")
    cursor.execute("CREATE INDEX graph ON edges USING adjacency (source, target)")


def datafusion(network: Network, folder: Path):
    import datafusion
    from datafusion.object_store import AmazonS3

    context = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(common.THREADS))
    for node in range(1, NODES):
        endpoint = f"http://{network.address(node)}:{HTTP_PORT}"
        store = AmazonS3(
            bucket_name=f"n{node}",
            region="here",
            access_key_id="a",
            secret_access_key="b",
            endpoint=endpoint,
            allow_http=True,
        )
        context.register_object_store("s3://", store, f"n{node}")
    for table in sorted(path.name for path in folder.iterdir() if path.is_dir()):
        for node in range(NODES):
            place = folder if node == 0 else f"s3://n{node}"
            context.register_parquet(f"{table}_{node}", f"{place}/{table}/{node}.parquet", skip_metadata=False)
        parts = " UNION ALL ".join(f"SELECT * FROM {table}_{node}" for node in range(NODES))
        context.sql(f"CREATE VIEW {table} AS {parts}").collect()
    return lambda query: pa.table(context.sql(query))


def parts(folder: Path, tables: dict[str, pa.Table]) -> Iterator[str]:
    """Writes each table as files, one for each node."""
    for name, table in tables.items():
        (folder / name).mkdir(parents=True)
        share = -(-table.num_rows // NODES)
        for node in range(NODES):
            pq.write_table(
                table.slice(node * share, share),
                folder / name / f"{node}.parquet",
                row_group_size=ROW_GROUP_ROWS,
                compression="zstd",
            )
        yield f"{name}: {table.num_rows:,} rows"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale-factor", default="1")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--mbits", type=int, default=1000, help="of each link, each way")
    parser.add_argument("--cache-size", default="16MB", help="of each node's cache of pages")
    parser.add_argument("--job", action="append", help="only jobs whose names have this in them")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        return serve(arguments.serve)
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"):
        sys.exit("bench rack-network needs root, and `ip` and `tc` (Debian: iproute2): it makes network namespaces")
    print(common.describe_machine(("adbc-driver-flightsql", "datafusion")))
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=common.bench_dir(), prefix="network-")))
        parquet = folder / "parquet"
        for line in parts(parquet, tables(arguments.scale_factor)):
            common.note(line)
        network = Network(stack, arguments.mbits)
        for node in range(1, NODES):
            server = subprocess.Popen(network.at(node, sys.executable, __file__, "--serve", parquet))
            stack.callback(server.wait)
            stack.callback(server.kill)
        (folder / "rack").mkdir()
        Rack(stack, folder / "rack", network, arguments.cache_size)
        network.move_to(0)
        import adbc_driver_flightsql.dbapi

        connection = stack.enter_context(adbc_driver_flightsql.dbapi.connect("grpc://127.0.0.1:50051", autocommit=True))
        cursor = stack.enter_context(connection.cursor())
        common.note("loading the rack")
        load(cursor, parquet)
        chosen = jobs(random.Random(7))
        if not add_kernel(cursor, os.environ["FLASHMESH_BIN"], folder):
            del chosen[KERNEL]
        if arguments.job:
            chosen = {name: job for name, job in chosen.items() if any(part in name for part in arguments.job)}
        measure(network, cursor, datafusion(network, parquet), chosen, arguments.runs)


def measure(network: Network, cursor, peer: Callable[[str], pa.Table], chosen: dict, runs: int) -> None:
    def ours(mode: str) -> Callable[[tuple[str, str]], pa.Table]:
        def run(queries: tuple[str, str]) -> pa.Table:
            cursor.execute(f"SET flashmesh.pushdown = '{mode}'")
            cursor.execute(queries[0])
            return cursor.fetch_arrow_table()

        return run

    contestants = {"on": ours("auto"), "off": ours("never"), "DataFusion": lambda queries: peer(queries[1])}
    print("\nMedians; bytes are all that the nodes put on their links.\n")
    print("| job | pushdown on | off | DataFusion | bytes: on | off | DataFusion |")
    print("|---|---|---|---|---|---|---|")
    for name, (make, is_selective) in chosen.items():
        seconds = {contestant: [] for contestant in contestants}
        sent = {contestant: [] for contestant in contestants}
        for run in range(runs + 1):
            queries = make()
            answers = {}
            for contestant, ask in contestants.items():
                before = network.bytes_sent()
                started = time.perf_counter()
                answers[contestant] = ask(queries)
                took = time.perf_counter() - started
                if run > 0:
                    seconds[contestant].append(took)
                    sent[contestant].append(network.bytes_sent() - before)
            for other in ("off", "DataFusion"):
                difference = same(answers["on"], answers[other])
                assert difference is None, (name, other, difference)
        times = [f"{common.median(seconds[each]) * 1000:.1f} ms" for each in contestants]
        amounts = [f"{common.median(sent[each]) / 1e6:,.3f} MB" for each in contestants]
        mark = "" if is_selective else " *"
        print(f"| {name}{mark} | {' | '.join(times)} | {' | '.join(amounts)} |", flush=True)
    print("\n\\* all bytes of the columns are wanted")


def same(ours: pa.Table, theirs: pa.Table) -> str | None:
    if ours.num_rows > 100_000:
        sums = [[pa.compute.sum(column).as_py() for column in table.columns] for table in (ours, theirs)]
        return None if ours.num_rows == theirs.num_rows and sums[0] == sums[1] else f"{sums}"
    return common.same_result(ours, theirs, 1e-6)


if __name__ == "__main__":
    main()
