"""The shell on a server, in a terminal."""

import os
import pty
import re
import selectors
import subprocess
import time

from serving import PATIENCE, binary, eventually, execute

CTRL_C, CTRL_D = b"\x03", b"\x04"


class Terminal:
    """A pseudo-terminal with the shell in it."""

    def __init__(self, *options: str) -> None:
        self.near, far = pty.openpty()
        environment = os.environ | {"TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
        # With the terminal as its own, Ctrl-C is a signal.
        self.process = subprocess.Popen(
            [binary(), *options], env=environment, pass_fds=[far], preexec_fn=lambda: os.login_tty(far)
        )
        os.close(far)
        self.shown = ""

    def wait_for(self, pattern: str) -> None:
        """Reads until the pattern was shown; what was shown before it is dropped."""
        until = time.monotonic() + PATIENCE
        with selectors.DefaultSelector() as selector:
            selector.register(self.near, selectors.EVENT_READ)
            while not (match := re.search(pattern, self.shown)):
                assert selector.select(until - time.monotonic()), f"{pattern} is not in {self.shown[-2000:]!r}"
                self.shown += os.read(self.near, 65_536).decode(errors="replace")
        self.shown = self.shown[match.end() :]

    def type(self, keys: bytes) -> None:
        os.write(self.near, keys)


def test_it_shows_how_far_a_statement_is(start, table):
    server = start("--cache-size", "32KB")
    with server.connect() as connection:
        execute(connection, f"CREATE TABLE {table} AS SELECT value AS x FROM generate_series(1, 1000000) AS s(value)")
    terminal = Terminal("--connect", server.uri)
    try:
        terminal.wait_for("flashmesh> ")
        # Reads the table and then looks at pairs for ever.
        endless = f"SELECT count(*) FROM {table}, generate_series(1, 100000000000) AS b(y) WHERE x * y < 0 AND 'it''s' <> '';\r"
        terminal.type(endless.encode())
        terminal.wait_for(r"[0-9.]+ [KM]iB from flash, [0-9]+ s")
        terminal.type(CTRL_C)
        terminal.wait_for("interrupted")
        terminal.wait_for("flashmesh> ")
        assert server.ended(table)["state"] == "cancelled"
        # One question may still be on its way; none is kept.
        asks = lambda: any("system.queries" in query["sql"] for query in server.overview()["queries"])
        eventually(lambda: not asks(), "no question of the shell's own is among the queries")
        terminal.type(CTRL_D)
        assert terminal.process.wait(PATIENCE) == 0
    finally:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.near)
