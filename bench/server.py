"""The server: a large result beside a bare Arrow Flight server, many clients at once, and clients that vanish.

The bare servers are of the Rust crate arrow-flight (bare_flight.rs), which flashmesh's is made with,
and of pyarrow, each in a process of its own. They hold the very batches that flashmesh sends and
answer any statement with them, so that one client program, the ADBC driver, reads all.
"""

import argparse
import multiprocessing
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import common
import pyarrow as pa
import pyarrow.flight as flight

sys.path.insert(0, str(common.ROOT / "tests/python/server"))

TABLE = "lineitem"
PROCESSES = 8
# Larger than all that client, server and kernel hold of a result on its way.
ENDLESS_ROWS = "SELECT value, 'some text ' || value AS t FROM generate_series(1, 100000000000) AS s(value)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale-factor", default="1")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--vanishing", type=int, default=100)
    parser.add_argument("--bare", metavar="FILE", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("--vanish", metavar="URI", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bare:
        return serve_bare(arguments.bare)
    if arguments.vanish:
        return vanish(arguments.vanish, arguments.vanishing)

    from serving import Server, binary

    print(common.describe_machine(("pyarrow", "adbc-driver-flightsql")))
    with tempfile.TemporaryDirectory(dir=common.bench_dir(), prefix="server-") as folder:
        folder = Path(folder)
        parquet = common.tpch_parquet(arguments.scale_factor) / f"{TABLE}.parquet"
        subprocess.run([binary(), "load", "--db", folder / "db", TABLE, parquet], check=True, stdout=subprocess.DEVNULL)
        # The clients that vanish all have a query that runs.
        queries = str(max(64, arguments.vanishing))
        server = Server(folder, "--threads", str(common.THREADS), "--max-queries", queries)
        try:
            large_result(server, folder, arguments.runs)
            many_clients(server, arguments.clients, arguments.seconds)
            vanishing_clients(server, arguments.vanishing)
        finally:
            server.stop()


# --- a large result


def large_result(server, folder: Path, runs: int) -> None:
    """`SELECT *` over ADBC from all servers, in turns."""
    files = keep_batches(server, folder)
    size = sum(file.stat().st_size for file in files)
    rows = 0
    for file in files:
        with pa.memory_map(str(file)) as source:
            rows += pa.ipc.open_file(source).read_all().num_rows
    programs = {
        "bare, arrow-flight": [os.environ["FLASHMESH_BARE_FLIGHT"]],
        "bare, pyarrow": [sys.executable, __file__, "--bare"],
    }
    uris, bare = {"flashmesh": server.uri}, []
    try:
        for name, program in programs.items():
            bare.append(subprocess.Popen([*program, *files], stdout=subprocess.PIPE, text=True))
            uris[name] = bare[-1].stdout.readline().strip()
        readers = {name: Reader(uri, rows) for name, uri in uris.items()}
        seconds = common.interleaved({name: reader.read for name, reader in readers.items()}, runs)
        for reader in readers.values():
            reader.close()
    finally:
        for process in bare:
            process.kill()
            process.wait()
    print(f"SELECT * FROM {TABLE}: {rows} rows, {size / 1e6:.0f} MB of Arrow, {len(files)} endpoints, over ADBC")
    for name, median in seconds.items():
        print(f"  {name:20}{median:8.3f} s {size / median / 1e6:8.0f} MB/s   flashmesh at {median / seconds['flashmesh']:.2f} of it")


class Reader:
    """An ADBC connection that reads a whole result, batch by batch, and counts it."""

    def __init__(self, uri: str, rows: int) -> None:
        import adbc_driver_flightsql
        import adbc_driver_manager

        self.database = adbc_driver_flightsql.connect(uri)
        self.connection = adbc_driver_manager.AdbcConnection(self.database)
        self.statement = adbc_driver_manager.AdbcStatement(self.connection)
        self.rows = rows

    def close(self) -> None:
        for part in (self.statement, self.connection, self.database):
            part.close()

    def read(self) -> None:
        self.statement.set_sql_query(f"SELECT * FROM {TABLE}")
        stream, _ = self.statement.execute_query()
        with pa.RecordBatchReader._import_from_c(stream.address) as reader:
            rows = sum(batch.num_rows for batch in reader)
        assert rows == self.rows, (rows, self.rows)


def keep_batches(server, folder: Path) -> list[Path]:
    """Writes the batches that flashmesh sends, in their order, a file for each endpoint."""
    files = []
    with server.flight() as client:
        info = client.get_flight_info(statement(f"SELECT * FROM {TABLE}"))
        for number, endpoint in enumerate(info.endpoints):
            files.append(folder / f"endpoint-{number}.arrow")
            with pa.ipc.new_file(str(files[-1]), info.schema) as writer:
                for chunk in client.do_get(endpoint.ticket):
                    writer.write_batch(chunk.data)
    return files


def statement(sql: str) -> flight.FlightDescriptor:
    """Flight SQL's `CommandStatementQuery`: two messages of length-prefixed fields (protobuf)."""

    def field(number: int, value: bytes) -> bytes:
        length, prefix = len(value), bytearray()
        while length > 127:
            prefix.append(length & 127 | 128)
            length >>= 7
        return bytes([number << 3 | 2, *prefix, length]) + value

    kind = b"type.googleapis.com/arrow.flight.protocol.sql.CommandStatementQuery"
    return flight.FlightDescriptor.for_command(field(1, kind) + field(2, field(1, sql.encode())))


class BareServer(flight.FlightServerBase):
    """Sends batches that it holds in memory, whatever the statement."""

    def __init__(self, files: list[str]) -> None:
        super().__init__("grpc://127.0.0.1:0")
        self.endpoints = []
        for file in files:
            with pa.OSFile(file) as source:
                reader = pa.ipc.open_file(source)
                self.schema = reader.schema
                self.endpoints.append([reader.get_batch(number) for number in range(reader.num_record_batches)])

    def get_flight_info(self, context, descriptor):
        if b"CommandStatementQuery" not in descriptor.command:
            # The driver asks for information on the server, and does without it.
            raise NotImplementedError("only statements are answered")
        endpoints = [flight.FlightEndpoint(str(number), []) for number in range(len(self.endpoints))]
        return flight.FlightInfo(self.schema, descriptor, endpoints, -1, -1)

    def do_get(self, context, ticket):
        batches = self.endpoints[int(ticket.ticket)]
        # Sent by C++ alone: no Python between the batches.
        return flight.RecordBatchStream(pa.RecordBatchReader.from_batches(self.schema, batches))


def serve_bare(files: list[str]) -> None:
    server = BareServer(files)
    print(f"grpc://127.0.0.1:{server.port}", flush=True)
    server.serve()


# --- many clients


def many_clients(server, clients: int, seconds: float) -> None:
    """Small queries from many clients at once, each on a connection of its own; every answer is checked."""
    from serving import rows

    with server.connect() as connection:
        keys = [key for (key,) in rows(connection, f"SELECT DISTINCT l_orderkey FROM {TABLE} WHERE l_orderkey < 20000")]
        expected = dict(rows(connection, f"SELECT l_orderkey, count(*) FROM {TABLE} WHERE l_orderkey < 20000 GROUP BY 1"))
    # Fresh processes: one that has used gRPC can't be forked.
    context = multiprocessing.get_context("spawn")
    shares = [clients // PROCESSES + (number < clients % PROCESSES) for number in range(PROCESSES)]
    arguments = [(server.uri, share, seconds, keys, expected, number) for number, share in enumerate(shares)]
    with context.Pool(PROCESSES) as pool:
        results = pool.starmap(run_clients, arguments)
    latencies = sorted(latency for latencies, _ in results for latency in latencies)
    errors = [error for _, errors in results for error in errors]
    print(f"{clients} clients for {seconds:.0f} s, small queries: {len(latencies)} answers, {len(errors)} errors")
    if latencies:
        at = lambda share: latencies[int(share * (len(latencies) - 1))] * 1e3
        print(f"  {len(latencies) / seconds:.0f} a second; median {at(0.5):.1f} ms, 99 % {at(0.99):.1f} ms, worst {at(1):.0f} ms")
    assert not errors, errors[:3]
    metrics = server.metrics()
    assert metrics["queries_running"] == metrics["memory_used_bytes"] == 0, metrics


def run_clients(uri: str, clients: int, seconds: float, keys: list[int], expected: dict[int, int], seed: int):
    """Latencies and errors of some clients, one thread each."""
    import adbc_driver_flightsql.dbapi

    latencies, errors = [], []
    ready = threading.Barrier(clients)

    def run(number: int) -> None:
        generator = random.Random(seed * 1000 + number)
        try:
            with adbc_driver_flightsql.dbapi.connect(uri, autocommit=True) as connection, connection.cursor() as cursor:
                ready.wait()
                until = time.monotonic() + seconds
                while time.monotonic() < until:
                    key = generator.choice(keys)
                    started = time.perf_counter()
                    cursor.execute(f"SELECT count(*) FROM {TABLE} WHERE l_orderkey = ?", (key,))
                    answer = cursor.fetchall()
                    latencies.append(time.perf_counter() - started)
                    assert answer == [(expected[key],)], (key, answer)
        except Exception as error:
            errors.append(repr(error))
            ready.abort()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return latencies, errors


# --- clients that vanish


def vanishing_clients(server, clients: int) -> None:
    """Clients that are killed while they read; what the server holds after each round of them."""
    from serving import eventually

    print(f"{clients} clients killed mid-stream, in rounds")
    held = {}
    open_before = server.metrics()["connections"]
    for number in range(4):
        if number:
            run = [sys.executable, __file__, "--vanish", server.uri, "--vanishing", str(clients)]
            subprocess.run(run, check=True)
        eventually(lambda: server.metrics()["connections"] <= open_before, "the connections are gone")
        eventually(lambda: server.metrics()["queries_running"] == 0, "the queries are gone")
        eventually(lambda: server.metrics()["memory_used_bytes"] == 0, "their memory is given back")
        held[number] = holding(server)
        print(f"  {'before' if number == 0 else f'round {number}':10}" + "".join(f"{name} {value:<10}" for name, value in held[number].items()))
    for name in ("queries", "sessions", "fds"):
        assert held[3][name] <= held[1][name], f"{name} are leaked: {held}"
    # The first round fills the allocator's caches and the pools of threads.
    grown = held[3]["RSS MB"] - held[1]["RSS MB"]
    print(f"  RSS grew by {grown} MB from the first round to the last")


def holding(server) -> dict[str, int]:
    """What the process holds now."""
    process = Path(f"/proc/{server.process.pid}")
    resident = re.search(r"VmRSS:\s+(\d+) kB", (process / "status").read_text())
    metrics = server.metrics()
    return {
        "RSS MB": int(resident[1]) // 1000,
        "fds": len(os.listdir(process / "fd")),
        "queries": int(metrics["queries_running"]),
        "sessions": int(metrics["sessions"]),
        "connections": int(metrics["connections"]),
    }


def vanish(uri: str, clients: int) -> None:
    """Forks clients that begin to read a result, and kills them when each has a part of it."""
    began, tell = os.pipe()
    children = []
    for _ in range(clients):
        child = os.fork()
        if child == 0:
            try:
                client = flight.connect(uri.replace("grpc://", "grpc+tcp://"))
                reader = client.do_get(client.get_flight_info(statement(ENDLESS_ROWS)).endpoints[0].ticket)
                reader.read_chunk()
                os.write(tell, b".")
                signal.pause()
            finally:
                os.write(tell, b"!")
                os._exit(1)
        children.append(child)
    try:
        for _ in children:
            assert os.read(began, 1) == b".", "a client failed before it was killed"
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


if __name__ == "__main__":
    main()
