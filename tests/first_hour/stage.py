"""Where the user sits: terminals, a Python prompt, and what runs beside them.

What is typed is a `Typed`: a command line, lines in the shell of a database, a snippet of Python, a
file that is written. Each knows its words, and runs at a `Desk`, which is one user's folder and
environment: one for flashmesh, one for DuckDB.
"""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import termios
import time
from dataclasses import dataclass, field
from pathlib import Path

#: Longer than any step takes on a busy machine; what runs into it hangs.
PATIENCE = 300
CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")
#: What flashmesh's line editor writes when a line is done: pastes come as they are again.
EDITED = b"\x1b[?2004l"
#: A terminal that answers nothing would make DuckDB's editor wait: its colour, and what it can.
TERMINAL_ANSWERS = b"\x1b]11;rgb:0000/0000/0000\x07\x1b[?62;c"
COLUMNS = 400
#: Bytes in which a prompt stands, with the line before it and what commands the terminal.
TAIL = 4096
#: The first ports of a server that the documents name.
PORT, PAGE_PORT = 50051, 50052


class Failed(Exception):
    """What was typed ended with an error, or did not end."""


class Desk:
    """A user's folder, environment, terminal and Python."""

    def __init__(self, name: str, folder: Path, python: Path, environment: dict[str, str], prompt: str) -> None:
        self.name = name
        self.folder = folder
        self.python = python
        self.environment = environment
        #: What the database's shell ends an answer with.
        self.prompt = re.compile(rf"\n\r*{prompt}\r*$")
        self.terminal: Terminal | None = None
        self.interpreter: subprocess.Popen[bytes] | None = None
        self.beside: subprocess.Popen[bytes] | None = None
        self.ports = free_ports()

    def run(self, line: str, answers: str = "", code: int = 0) -> str:
        """A command line, to its end."""
        ran = subprocess.run(
            ["bash", "-c", self.at_ports(line)],
            cwd=self.folder,
            env=self.environment,
            input=answers,
            text=True,
            errors="replace",
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE,
        )
        if ran.returncode != code:
            raise Failed(f"exit code {ran.returncode}\n{ran.stdout}")
        return ran.stdout

    def at_ports(self, text: str) -> str:
        """The text, with other ports where those of the documents are taken."""
        return text.replace(str(PORT), str(self.ports[0])).replace(str(PAGE_PORT), str(self.ports[1]))

    def close(self) -> None:
        if self.terminal:
            self.terminal.kill()
        for process in (self.interpreter, self.beside):
            if process and process.poll() is None:
                process.kill()
                process.wait()


def free_ports() -> tuple[int, int]:
    """The documents' ports for clients and for the page, or others where one of them is taken."""
    with contextlib.ExitStack() as stack:
        found = []
        for wanted in (PORT, PAGE_PORT):
            try:
                listening = stack.enter_context(socket.socket())
                listening.bind(("127.0.0.1", wanted))
            except OSError:
                break
            found.append(wanted)
        if len(found) == 2:
            return PORT, PAGE_PORT
        others = [stack.enter_context(socket.socket()) for _ in range(2)]
        for other in others:
            other.bind(("127.0.0.1", 0))
        first, second = (other.getsockname()[1] for other in others)
        return first, second


class Terminal:
    """The shell of a database, on a terminal as wide as any answer."""

    def __init__(self, desk: Desk, line: str) -> None:
        self.prompt = desk.prompt
        self.child, self.fd = pty.fork()
        if self.child == 0:
            os.chdir(desk.folder)
            os.execvpe("bash", ["bash", "-c", f"exec {line}"], desk.environment)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 100, COLUMNS, 0, 0))
        self.greeting = self._until_prompt()

    def _read(self, seconds: float) -> bytes:
        ready, _, _ = select.select([self.fd], [], [], max(0, seconds))
        if not ready:
            raise Failed("no answer")
        try:
            return os.read(self.fd, 1 << 16)
        except OSError:
            return b""

    def _until_prompt(self) -> str:
        """What is printed up to the next prompt. The editor draws the line again with every key."""
        seen = bytearray()
        until = time.monotonic() + PATIENCE
        while True:
            more = self._read(until - time.monotonic())
            if not more:
                raise Failed(f"the shell has ended\n{seen.decode(errors='replace')}")
            if b"\x1b[c" in more:
                os.write(self.fd, TERMINAL_ANSWERS)
            seen += more
            # The end of it decides: some answers are long.
            if not self.prompt.search(plain(seen[-TAIL:])):
                continue
            # What comes before the end of editing is the line as it was typed.
            text = plain(seen.rpartition(EDITED)[2])
            if found := self.prompt.search(text):
                # Of a line that is drawn again and again, as progress is, the last that stands there.
                lines = (line.rstrip("\r").rpartition("\r")[2] for line in text[: found.start()].split("\n"))
                return "\n".join(lines) + "\n"

    def answer(self, line: str) -> str:
        """Types a line; gives what is printed below it."""
        os.write(self.fd, line.encode() + b"\r")
        return self._until_prompt().partition("\n")[2]

    def leave(self, line: str) -> None:
        os.write(self.fd, line.encode() + b"\r")
        while self._read(PATIENCE):
            pass
        code = os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])
        os.close(self.fd)
        # DuckDB's tells with 1 that some statement has failed.
        if code and not (code == 1 and self.prompt.match("\nshop D ")):
            raise Failed(f"the shell ended with exit code {code}")

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            os.kill(self.child, signal.SIGKILL)
            os.waitpid(self.child, 0)
            os.close(self.fd)


def plain(printed: bytes) -> str:
    """Without what commands the terminal."""
    return CONTROLS.sub("", printed.decode(errors="replace")).replace("\r\n", "\n")


class Typed:
    """Something that a user types."""

    def text(self) -> str:
        """All that is typed, answers to questions too."""
        raise NotImplementedError

    def run(self, desk: Desk) -> str:
        """Does it, waits for its end, gives what it prints."""
        raise NotImplementedError

    def words(self) -> int:
        return len(self.text().split())


@dataclass
class Shell(Typed):
    """Command lines for bash."""

    line: str
    #: What is typed where it asks (passwords).
    answers: str = ""
    #: The exit code that the documents tell.
    code: int = 0

    def text(self) -> str:
        return f"{self.line} {self.answers}"

    def run(self, desk: Desk) -> str:
        return desk.run(self.line, self.answers, self.code)


@dataclass
class Opened(Typed):
    """A command line that leads into the shell of a database."""

    line: str

    def text(self) -> str:
        return self.line

    def run(self, desk: Desk) -> str:
        desk.terminal = Terminal(desk, desk.at_ports(self.line))
        return desk.terminal.greeting


class Sql(Typed):
    """Lines in the shell of a database: statements, and commands that begin with a dot."""

    #: An error in either shell.
    ERROR = re.compile(r"^(error:|(\w+ )*Error:)", re.MULTILINE)

    def __init__(self, *lines: str) -> None:
        self.lines = lines

    def text(self) -> str:
        return "\n".join(self.lines)

    def run(self, desk: Desk) -> str:
        assert desk.terminal, "no shell is open"
        printed = "".join(desk.terminal.answer(line) for line in self.lines)
        if self.ERROR.search(printed):
            raise Failed(printed)
        return printed


@dataclass
class Left(Typed):
    """The last line in the shell of a database."""

    line: str

    def text(self) -> str:
        return self.line

    def run(self, desk: Desk) -> str:
        assert desk.terminal, "no shell is open"
        desk.terminal.leave(self.line)
        desk.terminal = None
        return ""


#: Runs snippets that come as lines of JSON, as a notebook does: one namespace, and the last
#: expression is shown. What a snippet prints is caught below Python, where DataFusion's `show` prints.
INTERPRETER = """
import ast, json, os, sys, tempfile, traceback
answers = os.fdopen(os.dup(1), "w")
printed = tempfile.TemporaryFile()
os.dup2(printed.fileno(), 1)
os.dup2(printed.fileno(), 2)
names = {"__name__": "__main__"}
for line in sys.stdin:
    printed.seek(0)
    printed.truncate()
    failed = False
    try:
        tree = ast.parse(json.loads(line))
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "typed", "exec"), names)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "typed", "eval"), names)
            if value is not None:
                print(repr(value))
    except BaseException:
        failed = True
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    printed.seek(0)
    text = printed.read().decode(errors="replace")
    printed.seek(0, 2)
    answers.write(json.dumps([failed, text]) + "\\n")
    answers.flush()
"""


@dataclass
class Python(Typed):
    """A snippet at a Python prompt, which the first one opens and `LeftPython` leaves."""

    snippet: str

    def text(self) -> str:
        return self.snippet

    def run(self, desk: Desk) -> str:
        if desk.interpreter is None:
            desk.interpreter = subprocess.Popen(
                [desk.python, "-c", INTERPRETER],
                cwd=desk.folder,
                env=desk.environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        desk.interpreter.stdin.write(json.dumps(desk.at_ports(self.snippet)).encode() + b"\n")
        desk.interpreter.stdin.flush()
        ready, _, _ = select.select([desk.interpreter.stdout], [], [], PATIENCE)
        line = desk.interpreter.stdout.readline() if ready else b""
        if not line:
            raise Failed("Python has not answered")
        failed, printed = json.loads(line)
        if failed:
            raise Failed(printed)
        return printed


@dataclass
class LeftPython(Typed):
    """The end of the Python prompt."""

    line: str = "exit()"

    def text(self) -> str:
        return self.line

    def run(self, desk: Desk) -> str:
        assert desk.interpreter, "no Python is open"
        desk.interpreter.stdin.close()
        code = desk.interpreter.wait(PATIENCE)
        desk.interpreter = None
        if code:
            raise Failed(f"Python ended with exit code {code}")
        return ""


@dataclass
class Written(Typed):
    """A file that is written in an editor."""

    name: str
    content: str

    def text(self) -> str:
        return self.content

    def run(self, desk: Desk) -> str:
        path = desk.folder / self.name
        path.parent.mkdir(exist_ok=True)
        path.write_text(desk.at_ports(self.content))
        return ""


@dataclass
class Served(Typed):
    """A server, in a terminal of its own; it is there when it says where clients reach it."""

    line: str
    there: str = "Flight SQL: "

    def text(self) -> str:
        return self.line

    def run(self, desk: Desk) -> str:
        line = desk.at_ports(self.line)
        if desk.ports != (PORT, PAGE_PORT):
            given = "" if "--listen" in line else f" --listen 127.0.0.1:{desk.ports[0]}"
            line = f"{line}{given} --http 127.0.0.1:{desk.ports[1]}"
        log = desk.folder / "server.log"
        with log.open("wb") as out:
            desk.beside = subprocess.Popen(
                ["bash", "-c", f"exec {line}"],
                cwd=desk.folder,
                env=desk.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        until = time.monotonic() + 60
        while self.there not in (printed := log.read_text(errors="replace")):
            if desk.beside.poll() is not None or time.monotonic() > until:
                raise Failed(f"the server did not start\n{printed}")
            time.sleep(0.005)
        return printed


@dataclass
class Interrupted(Typed):
    """Ctrl-C in the server's terminal; the end of its log is what is printed."""

    keys: str = "Ctrl-C"

    def text(self) -> str:
        return self.keys

    def run(self, desk: Desk) -> str:
        assert desk.beside, "no server runs"
        desk.beside.send_signal(signal.SIGINT)
        code = desk.beside.wait(PATIENCE)
        if code:
            raise Failed(f"the server ended with exit code {code}")
        return (desk.folder / "server.log").read_text(errors="replace")


@dataclass
class Several(Typed):
    """One after the other."""

    parts: list[Typed] = field(default_factory=list)

    def text(self) -> str:
        return " ".join(part.text() for part in self.parts)

    def run(self, desk: Desk) -> str:
        return "".join(part.run(desk) for part in self.parts)


def has(program: str, desk: Desk) -> bool:
    """Whether the user's PATH has the program."""
    return shutil.which(program, path=desk.environment["PATH"]) is not None
