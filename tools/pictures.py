"""Takes the pictures of docs/tour.md: a terminal in which somebody types, and a server's page.

    ./dev pictures

Everything in them is what the program shows; times differ from run to run, so nothing compares them.
"""

import argparse
import os
import pty
import select
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from fcntl import ioctl
from pathlib import Path

import pyte
from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.style import Style
from rich.text import Text

FOLDER = Path(__file__).resolve().parent.parent / "docs/images"
COLUMNS, LINES = 110, 36
#: The shell says nothing for so long: it waits for the next statement.
QUIET_S = 0.7
PATIENCE_S = 30

MAKE = """\
CREATE TABLE reading AS SELECT value AS id, value % 100 AS sensor, value * 7919 % 10007 / 10.0 AS celsius
FROM generate_series(1, 1000000) AS series(value)"""
QUESTION = "SELECT sensor, max(celsius) AS hottest FROM reading WHERE celsius > 990 GROUP BY sensor ORDER BY hottest DESC LIMIT 3;"
PLAN = "EXPLAIN FORMAT TREE SELECT count(*) FROM reading WHERE celsius > 990 AND sensor IN (7, 8);"


class Terminal:
    """A program in a terminal of COLUMNS × LINES."""

    def __init__(self, command: list[str], folder: str) -> None:
        self.screen = pyte.Screen(COLUMNS, LINES)
        self.stream = pyte.ByteStream(self.screen)
        process, self.terminal = pty.fork()
        if process == 0:
            os.chdir(folder)
            # Where the shell keeps its history.
            os.environ |= {"HOME": folder, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
            os.execv(command[0], command)
        ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self.process = process

    def type(self, text: str) -> None:
        os.write(self.terminal, f"{text}\r".encode())
        self.wait()

    def wait(self) -> None:
        """Until it has said something and is quiet."""
        until = time.monotonic() + PATIENCE_S
        said = False
        while time.monotonic() < until:
            ready, _, _ = select.select([self.terminal], [], [], QUIET_S)
            if not ready:
                if said:
                    return
                continue
            said = True
            self.stream.feed(os.read(self.terminal, 1 << 16))
        sys.exit("pictures: the program does not become quiet")

    def picture(self, name: str, title: str) -> None:
        console = Console(record=True, width=COLUMNS, file=open(os.devnull, "w"), force_terminal=True, color_system="truecolor")
        lines = [self.line(row) for row in range(LINES)]
        while lines and not lines[-1].plain.strip():
            lines.pop()
        for line in lines:
            console.print(line, no_wrap=True, crop=True, overflow="crop")
        # A name of its own, so that the same text gives the same file.
        (FOLDER / name).write_text(console.export_svg(title=title, unique_id=Path(name).stem))
        print(f"docs/images/{name}")

    def line(self, row: int) -> Text:
        text = Text()
        for column in range(COLUMNS):
            cell = self.screen.buffer[row][column]
            text.append(cell.data, Style(color=color(cell.fg), bgcolor=color(cell.bg), bold=cell.bold, reverse=cell.reverse))
        text.rstrip()
        return text

    def close(self) -> None:
        os.close(self.terminal)
        os.waitpid(self.process, 0)


def color(name: str) -> str | None:
    """pyte's names of colours as rich knows them."""
    if name == "default":
        return None
    if len(name) == 6 and all(letter in "0123456789abcdef" for letter in name):
        return f"#{name}"
    name = name.replace("brown", "yellow")
    return f"bright_{name.removeprefix('bright')}" if name.startswith("bright") else name


def terminals(binary: str, folder: str) -> None:
    subprocess.run([binary, "--db", f"{folder}/sensors", "--quiet", "-c", MAKE], check=True, stdout=subprocess.DEVNULL)
    terminal = Terminal([binary, "--db", "sensors"], folder)
    terminal.wait()
    terminal.type("SELECT count(*) FROM reading;")
    terminal.type(QUESTION)
    terminal.type("SELECT celsus FROM reading;")
    terminal.picture("shell.svg", "flashmesh --db sensors")
    terminal.type("\x0c")
    terminal.type(PLAN)
    terminal.picture("plan.svg", "EXPLAIN")
    terminal.close()


def page(binary: str, folder: str) -> None:
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("pictures: chromium is missing")
    command = [binary, "serve", "--db", "sensors", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    server = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        addresses: dict[str, str] = {}
        while len(addresses) < 2:
            line = server.stdout.readline()
            if not line:
                sys.exit("pictures: the server did not start")
            for kind in ("grpc://", "http://"):
                if kind in line:
                    addresses[kind] = line[line.index(kind) :].split()[0]
        for question in (QUESTION, "SELECT avg(celsius) FROM reading WHERE sensor = 7;", "SELECT celsus FROM reading;"):
            client = [binary, "--connect", addresses["grpc://"], "-c", question]
            subprocess.run(client, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
            tab = browser.new_page(viewport={"width": 1200, "height": 420}, color_scheme="light")
            tab.goto(addresses["http://"])
            first = tab.locator("tr.query", has_text="max(celsius)").first
            first.click()
            tab.wait_for_timeout(1000)
            tab.screenshot(path=FOLDER / "server-page.png")
            browser.close()
        print("docs/images/server-page.png")
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", help="the program flashmesh, as built from this tree")
    binary = str(Path(parser.parse_args().binary).resolve())
    with tempfile.TemporaryDirectory() as folder:
        terminals(binary, folder)
        page(binary, folder)


if __name__ == "__main__":
    main()
