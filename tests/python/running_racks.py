"""Racks of nodes that run, for tests."""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import time
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import adbc_driver_flightsql.dbapi
import pytest

PATIENCE = 120
#: For nodes of tests: the head's caches are small.
SMALL = ("--cache-size", "32MB", "--memory-limit", "256MB", "--threads", "2")


def binary() -> Path:
    """The program under test: $FLASHMESH_BIN, else that of the target directory."""
    if given := os.environ.get("FLASHMESH_BIN"):
        return Path(given)
    target = os.environ.get("CARGO_TARGET_DIR", Path.home() / ".cache/flashmesh/target")
    return Path(target) / "release/flashmesh"


def flashmesh(*words: object, check: bool = True) -> subprocess.CompletedProcess[str]:
    ran = subprocess.run([binary(), *map(str, words)], capture_output=True, text=True, timeout=PATIENCE)
    assert not check or ran.returncode == 0, ran.stderr
    return ran


def eventually(condition, what: str):
    """What the condition gives as soon as that is true."""
    until = time.monotonic() + PATIENCE
    while not (value := condition()):
        assert time.monotonic() < until, f"never happened: {what}"
        time.sleep(0.02)
    return value


def free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody has, below those that clients are given."""
    while True:
        first = random.randrange(20_000, 30_000)
        if all(is_free(f"127.0.0.1:{port}") for port in range(first, first + count)):
            return first


def is_free(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as free:
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            free.bind((host, int(port)))
        except OSError:
            return False
    return True


class Rack:
    """A rack in a folder of its own."""

    def __init__(self, folder: Path, nodes: int, *options: str) -> None:
        port = free_ports(nodes)
        made = flashmesh("rack", "init", folder, "--nodes", nodes, "--flight-port", port, *options)
        self.folder = folder
        self.file = Path(made.stdout.splitlines()[0])
        self.nodes = {node["name"]: node for node in tomllib.loads(self.file.read_text())["node"]}

    def up(self, check: bool = True) -> subprocess.CompletedProcess[str]:
        return flashmesh("rack", "up", self.file, "--detach", *SMALL, check=check)

    def down(self) -> subprocess.CompletedProcess[str]:
        return flashmesh("rack", "down", self.file)

    def status(self) -> dict[str, dict]:
        said = flashmesh("rack", "status", self.file, "--format", "json", check=False)
        nodes = {node["name"]: node for node in json.loads(said.stdout)["nodes"]}
        assert (said.returncode == 0) == all(node["state"] == "up" for node in nodes.values())
        return nodes

    def states(self) -> dict[str, str]:
        return {name: node["state"] for name, node in self.status().items()}

    def log(self, name: str) -> str:
        return (self.folder / name / "node.log").read_text()

    def connect(self, name: str) -> adbc_driver_flightsql.dbapi.Connection:
        return adbc_driver_flightsql.dbapi.connect(f"grpc://{self.nodes[name]['flight']}", autocommit=True)

    @contextlib.contextmanager
    def cursor(self, name: str) -> Iterator[adbc_driver_flightsql.dbapi.Cursor]:
        with self.connect(name) as connection, connection.cursor() as cursor:
            yield cursor

    def rows(self, name: str, sql: str) -> list[tuple]:
        with self.cursor(name) as cursor:
            cursor.execute(sql)
            return cursor.fetchall()

    def execute(self, name: str, sql: str) -> None:
        with self.cursor(name) as cursor:
            cursor.execute(sql)

    def stocked(self, statements: Iterable[str]) -> "Rack":
        """The rack, up, when its head has run these."""
        self.up()
        for sql in statements:
            self.execute("n00", sql)
        return self


@pytest.fixture
def racks(tmp_path_factory):
    """Makes racks, which end with the test."""
    made = []

    def make(nodes: int = 3, *options: str) -> Rack:
        # Paths of sockets are short.
        made.append(Rack(tmp_path_factory.mktemp("rack") / "r", nodes, *options))
        return made[-1]

    yield make
    for rack in made:
        flashmesh("rack", "down", rack.file, "--timeout", "20s", "--kill", check=False)
        for log in rack.folder.glob("*/node.log"):
            assert "panicked" not in log.read_text(), log.read_text()
            assert "the database was not closed" not in log.read_text(), log.read_text()


def plan_of(cursor, query: str, analyze: bool = False) -> str:
    cursor.execute(f"EXPLAIN {'ANALYZE ' if analyze else ''}{query}")
    return "\n".join(str(row[-1]) for row in cursor.fetchall())


def kill(rack: Rack, name: str, with_signal: signal.Signals = signal.SIGKILL) -> None:
    process = rack.status()[name]["pid"]
    if process is not None:
        os.kill(process, with_signal)
    eventually(lambda: rack.states()[name] == "down", f"{name} is down")


def behind(rack: Rack) -> dict[str, int]:
    """How many copies of each node can't be read."""
    return {name: node["replicas_behind"] for name, node in rack.status().items()}
