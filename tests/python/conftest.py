"""Fixtures of the Python tests."""

import contextlib
import os
import random
import shutil
import subprocess
from pathlib import Path

import flashmesh
import pyarrow as pa
import pytest
import seeds

ROWS = 200_000
SEED = 20_261


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tries the same inputs again."""
    if terminalreporter.stats.get("failed") or terminalreporter.stats.get("error"):
        terminalreporter.write_line(f"{seeds.NAME}={seeds.SEED}")


def readings(seed: int) -> pa.Table:
    """Rows with NULLs, few and many distinct values, text, and a key."""
    random_ = random.Random(seed)
    sensors = [random_.randrange(50) for _ in range(ROWS)]
    return pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "sensor": pa.array(sensors, pa.int32()),
            "celsius": pa.array(
                [None if random_.random() < 0.01 else round(random_.gauss(20, 15), 2) for _ in range(ROWS)]
            ),
            "note": pa.array([f"{random_.choice(('ok', 'warm', 'ERROR', 'cold'))} at {s}" for s in sensors]),
        }
    )


@pytest.fixture(scope="session")
def source() -> pa.Table:
    print(f"seed {SEED}")
    return readings(SEED)


def binary() -> Path:
    """The program `flashmesh`, as `./dev test` builds it before these tests."""
    target = os.environ.get("CARGO_TARGET_DIR", Path.home() / ".cache/flashmesh/target")
    path = Path(target) / "release/flashmesh"
    assert path.exists(), f"{path} is missing: cargo build --release --bins"
    return path


class Server:
    """A server process on a folder."""

    def __init__(self, folder: Path, *options: str, listen: str = "127.0.0.1:0") -> None:
        self.process = subprocess.Popen(
            [binary(), "serve", "--db", folder, "--listen", listen, "--http", "none", "--log", "error", *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        lines = iter(self.process.stdout.readline, "")
        self.url = next((line.split()[-1] for line in lines if line.startswith("Flight SQL:")), None)
        assert self.url, "the server did not start"

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def serve(tmp_path):
    """Starts servers that end with the test."""
    servers = []

    def start(*options, folder=tmp_path / "served", **named):
        servers.append(Server(folder, *options, **named))
        return servers[-1]

    yield start
    for server in servers:
        server.kill()


def pytest_generate_tests(metafunc):
    """Databases are in this process unless a test, or its module, says otherwise."""
    if "place" in metafunc.fixturenames:
        places = getattr(metafunc.function, "places", getattr(metafunc.module, "PLACES", ["embedded"]))
        metafunc.parametrize("place", places, indirect=True, scope="session")


@pytest.fixture(scope="session")
def place(request):
    """Where the database is: "embedded" (a temporary one), a "file", a "server" or a "rack"."""
    return request.param


@pytest.fixture(scope="session")
def rack(tmp_path_factory):
    """The rack file of three nodes that run."""
    from test_running_racks import Rack

    # Paths of sockets are short.
    rack = Rack(tmp_path_factory.mktemp("rack") / "r", 3)
    rack.up()
    yield rack.file
    rack.down()


#: Tables of `stocked`.
STOCK = ("reading", "sensor")


def clear(rack: Path) -> None:
    """Drops what a test has made in a rack that others use too."""
    with flashmesh.connect(rack) as connection:
        made = "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = 'public'"
        for name, kind in connection.execute(made).fetchall():
            if name not in STOCK:
                connection.execute(f'DROP {"VIEW" if kind == "VIEW" else "TABLE"} "{name}"')


@pytest.fixture(scope="session")
def stocked(request, source, place, tmp_path_factory):
    """A database with tables that tests only read."""
    with contextlib.ExitStack() as stack:
        path = None
        if place == "file":
            path = tmp_path_factory.mktemp("stocked") / "db"
        elif place == "server":
            server = Server(tmp_path_factory.mktemp("served"))
            stack.callback(server.kill)
            path = server.url
        elif place == "rack":
            path = request.getfixturevalue("rack")
        connection = stack.enter_context(flashmesh.connect(path))
        connection.load("reading", source)
        connection.execute("CREATE TABLE sensor (id INT PRIMARY KEY, room TEXT)")
        connection.execute("INSERT INTO sensor SELECT value, 'room ' || (value % 7) FROM generate_series(0, 49) AS s(value)")
        yield connection


@pytest.fixture
def path(request, place, serve, tmp_path):
    """What an empty database is connected to by."""
    if place == "rack":
        rack = request.getfixturevalue("rack")
        yield rack
        clear(rack)
    else:
        yield {"embedded": lambda: None, "file": lambda: tmp_path / "db", "server": lambda: serve().url}[place]()


@pytest.fixture
def db(path):
    with flashmesh.connect(path) as connection:
        yield connection


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium."""
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("THE PAGE IS NOT TESTED: chromium is missing; `./dev test` installs it")
    sync_api = pytest.importorskip("playwright.sync_api")
    options = [
        *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
        *("--disable-background-networking", "--disable-component-update"),
    ]
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=options)
        yield browser
        browser.close()
