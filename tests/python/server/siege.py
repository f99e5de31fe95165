"""A server under siege: stalled readers, silent connections and a flood of logins at once.

    python tests/python/server/siege.py --seconds 60

prints what a well-behaved client sees meanwhile, and fails when it is more than it should be.
"""

import argparse
import contextlib
import multiprocessing
import random
import selectors
import socket
import statistics
import sys
import tempfile
import threading
import time
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path

import grpc
import pyarrow.flight as flight
from serving import PATIENCE, Server, add_user, rows

GOOD, BAD = ("ada", "correct horses"), ("eve", "battery staples")
READERS, SILENT, GUESSERS = 64, 1_000, 8
# Seconds that a short query may take.
MEDIAN, WORST = 0.1, 1.0

LONG = "SELECT value, 'some text ' || value AS t FROM generate_series(1, 100000000000) AS s(value)"
SERVICE = "/arrow.flight.protocol.FlightService"


@dataclass
class Figures:
    """What the well-behaved client saw, in seconds."""

    queries: list[float]
    logins: list[float]
    guesses: int

    @property
    def median(self) -> float:
        return statistics.median(self.queries)

    @property
    def worst(self) -> float:
        """The 99th percentile."""
        return sorted(self.queries)[int(len(self.queries) * 0.99)]

    def __str__(self) -> str:
        return (
            f"SELECT 1 under siege: {len(self.queries)} times, median {self.median * 1e3:.1f} ms, "
            f"99th percentile {self.worst * 1e3:.1f} ms, longest {max(self.queries) * 1e3:.1f} ms; "
            f"{len(self.logins)} logins, longest {max(self.logins, default=0) * 1e3:.1f} ms; "
            f"{self.guesses} wrong passwords meanwhile"
        )


# The besiegers, in a process of their own.


def read_nothing(listen: str, stop) -> None:
    """Takes the start of a long result, and nothing more."""
    client = flight.connect(f"grpc+tcp://{listen}")
    options = flight.FlightCallOptions(headers=[client.authenticate_basic_token(*BAD)])
    with contextlib.suppress(flight.FlightError, StopIteration):
        command = long_query()
        info = client.get_flight_info(flight.FlightDescriptor.for_command(command), options)
        reader = client.do_get(info.endpoints[0].ticket, options)
        reader.read_chunk()
        stop.wait()
        reader.cancel()


def long_query() -> bytes:
    from test_flight import command, field

    return command("CommandStatementQuery", field(1, LONG))


def say_nothing(listen: str, stop) -> None:
    """Keeps connections open that say nothing; those that the server closes are opened again."""
    host, port = listen.rsplit(":", 1)
    with selectors.DefaultSelector() as selector:

        def connect() -> None:
            with contextlib.suppress(OSError):
                opened = socket.create_connection((host, int(port)), timeout=PATIENCE)
                selector.register(opened, selectors.EVENT_READ)

        for _ in range(SILENT):
            connect()
        while not stop.is_set():
            for key, _ in selector.select(0.1):
                selector.unregister(key.fileobj)
                key.fileobj.close()
                connect()
        for key in list(selector.get_map().values()):
            key.fileobj.close()


def guess(listen: str, stop, count) -> None:
    """Tries passwords, of users that are there and that are not."""
    while not stop.is_set():
        name = random.choice([GOOD[0], f"user{random.randrange(1_000)}"])
        header = b64encode(f"{name}:{random.random()}".encode()).decode()
        with grpc.insecure_channel(listen) as channel, contextlib.suppress(grpc.RpcError):
            shake = channel.stream_stream(f"{SERVICE}/Handshake")
            metadata = [("authorization", f"Basic {header}")]
            list(shake(iter(()), metadata=metadata, timeout=PATIENCE))
        with count.get_lock():
            count.value += 1


def besiege(listen: str, stop, count) -> None:
    work = [(read_nothing, (listen, stop))] * READERS
    work += [(say_nothing, (listen, stop))] + [(guess, (listen, stop, count))] * GUESSERS
    threads = [threading.Thread(target=target, args=arguments, daemon=True) for target, arguments in work]
    for thread in threads:
        thread.start()
    stop.wait()


# The well-behaved client.


def measure(server: Server, seconds: float) -> Figures:
    """Asks short queries for so long, while others besiege the server."""
    processes = multiprocessing.get_context("spawn")
    stop, count = processes.Event(), processes.Value("q", 0)
    besiegers = processes.Process(target=besiege, args=(server.listen, stop, count))
    figures = Figures([], [], 0)
    with server.connect(*GOOD) as connection:
        rows(connection, "SELECT 1")
        besiegers.start()
        try:
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                began = time.monotonic()
                assert rows(connection, "SELECT 1") == [(1,)]
                figures.queries.append(time.monotonic() - began)
                if len(figures.queries) % 20 == 0:
                    began = time.monotonic()
                    # One who guesses the same user's password from the same address may be in the way.
                    with contextlib.suppress(Exception), server.connect(*GOOD) as another:
                        assert rows(another, "SELECT 1") == [(1,)]
                        figures.logins.append(time.monotonic() - began)
                time.sleep(0.01)
        finally:
            figures.guesses = count.value
            stop.set()
            besiegers.join(PATIENCE)
            besiegers.kill()
    return figures


def siege(folder: Path, seconds: float) -> Figures:
    """The same of a server that is made for it."""
    users = folder / "users.toml"
    add_user(users, *GOOD, "--admin")
    add_user(users, *BAD)
    server = Server(folder, "--users", users, "--log", "error")
    try:
        figures = measure(server, seconds)
    finally:
        server.kill()
    assert "panicked" not in server.log(), server.log()
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = siege(Path(folder), arguments.seconds)
    print(figures)
    if figures.median > MEDIAN or figures.worst > WORST:
        sys.exit(f"more than {MEDIAN} s at the median or {WORST} s at the 99th percentile")


if __name__ == "__main__":
    main()
