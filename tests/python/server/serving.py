"""A `flashmesh serve` of one's own, for tests and benchmarks."""

import json
import os
import re
import selectors
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import adbc_driver_flightsql.dbapi
import adbc_driver_manager.dbapi
import pyarrow.flight

# Longer than anything here takes on a busy machine; what runs into it is broken.
PATIENCE = 60

# Runs until somebody ends it: 10^14 pairs of rows, of which none passes.
ENDLESS = (
    "SELECT count(*) FROM generate_series(1, 1000) AS a(x), generate_series(1, 100000000000) AS b(y) "
    "WHERE x * y < 0 /* {} */"
)


def binary() -> Path:
    """The program under test: $FLASHMESH_BIN, else that of the target directory."""
    if given := os.environ.get("FLASHMESH_BIN"):
        return Path(given)
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flashmesh/target"
    return Path(os.environ.get("CARGO_TARGET_DIR", default)) / "release/flashmesh"


def eventually(condition: Callable[[], object], what: str, seconds: float = PATIENCE) -> object:
    """What the condition gives as soon as that is true; fails when it never is."""
    until = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < until, f"never happened: {what}"
        time.sleep(0.02)
    return value


class Server:
    """A server process on free ports. Its log goes to a file, which is read for panics at the end."""

    def __init__(self, folder: Path, *options: str, listen: str = "127.0.0.1:0", database: Path | None = None) -> None:
        self.folder = folder
        self.database = database or folder / "db"
        self.options = options
        self.log_file = folder / "server.log"
        self.listen = listen
        self.http = "127.0.0.1:0"
        self.start()

    def start(self) -> None:
        """Starts it; once more on the same ports when it ran before."""
        command = [binary(), "serve", "--db", self.database, "--listen", self.listen, "--http", self.http]
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *self.options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self.stopping = False
        self.uri = self._announced("Flight SQL")
        self.page = self._announced("Page")
        self.listen = self.uri.split("//")[1]
        self.http = self.page.split("//")[1]

    def _announced(self, name: str) -> str:
        with selectors.DefaultSelector() as ready:
            ready.register(self.process.stdout, selectors.EVENT_READ)
            assert ready.select(PATIENCE), f"the server said nothing: {self.log()}"
        # One write a line, and each is awaited: nothing is left in the reader's buffer.
        line = self.process.stdout.raw.readline().decode()
        match = re.fullmatch(rf"{name}: (\S+)\n", line)
        assert match, f"{line!r} announces no {name}: {self.log()}"
        return match[1]

    def log(self) -> str:
        """All that it logged so far."""
        return self.log_file.read_text(errors="replace")

    def terminate(self) -> None:
        """Asks it to end when what runs is finished; a second signal would end it at once."""
        self.stopping = True
        self.process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """Ends it as an operator does, and checks that it ended well."""
        if self.process.returncode is not None:
            return
        if not self.stopping:
            self.terminate()
        try:
            code = self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"SIGTERM did not end the server: {self.log()}") from None
        self.process.stdout.close()
        assert code == 0, f"exit code {code}: {self.log()}"
        assert "panicked" not in self.log(), self.log()

    def kill(self) -> None:
        """Ends it at once."""
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()

    def connect(self, user: str | None = None, password: str | None = None, **options: str):
        """An ADBC connection; `options` are those of the driver."""
        if user is not None:
            options |= {"username": user, "password": password}
        return adbc_driver_flightsql.dbapi.connect(self.uri, options, autocommit=True)

    def flight(self, **options) -> pyarrow.flight.FlightClient:
        """A client that speaks Flight and nothing above it."""
        return pyarrow.flight.connect(self.uri.replace("grpc://", "grpc+tcp://"), **options)

    def get(self, path: str, **headers: str) -> str:
        """A page of the HTTP port."""
        request = urllib.request.Request(self.page + path, headers=headers)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.read().decode()

    def metrics(self) -> dict[str, float]:
        """`/metrics`, without the prefix that all names have."""
        samples = (line for line in self.get("/metrics").splitlines() if not line.startswith("#"))
        pairs = (line.removeprefix("flashmesh_").rsplit(" ", 1) for line in samples)
        return {name: float(value) for name, value in pairs}

    def overview(self) -> dict:
        """What the page shows. Asking for it is no query and opens no session."""
        return json.loads(self.get("/api/queries"))

    def plan(self, id: int) -> str:
        """The operators of a query's plan, a line each."""
        return "\n".join(operator["line"] for operator in json.loads(self.get(f"/api/queries/{id}/plan")))

    def kill_query(self, id: int) -> None:
        """What the page's cancel button does."""
        request = urllib.request.Request(f"{self.page}/api/queries/{id}/kill", method="POST", headers={"x-flashmesh": "1"})
        with urllib.request.urlopen(request, timeout=PATIENCE):
            pass

    def query(self, text: str) -> dict | None:
        """The newest query whose SQL contains `text`."""
        found = [query for query in self.overview()["queries"] if text in query["sql"]]
        return max(found, key=lambda query: query["id"], default=None)

    def running(self, text: str) -> dict:
        """The same, awaited until it runs."""

        def runs() -> dict | None:
            query = self.query(text)
            return query if query and query["state"] == "running" else None

        return eventually(runs, f"a query runs with {text}")

    def ended(self, text: str) -> dict:
        """The same, awaited until it has ended."""

        def over() -> dict | None:
            query = self.query(text)
            return query if query and query["state"] not in ("planning", "running") else None

        return eventually(over, f"the query with {text} ends")


def rows(connection, sql: str, parameters: object = None) -> list[tuple]:
    """All rows of a query."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchall()


def execute(connection, sql: str, parameters: object = None) -> int:
    """Runs a statement; the number of rows that it changed."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.rowcount


def add_user(users: Path, name: str, password: str, *options: str) -> None:
    """`flashmesh user add`: the password goes by standard input."""
    command = [binary(), "user", "add", name, "--users", users, *options]
    subprocess.run(command, input=password + "\n", text=True, check=True, capture_output=True)
