"""The snippets of the README and of docs/ run as they stand there, file by file, in their order.

Blocks in sql, python and sh are run; other languages (text, toml, …) are not. What a snippet takes
for granted stands before it in a comment that readers don't see: `<!-- test: python` … `-->`.
"""

import re
import shlex
import socket
import subprocess
import sys
from pathlib import Path

import flashmesh
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import trustme

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(
    r"^<!-- test: (?P<hidden>\w+)\n(?P<code>.*?)^-->$|^```(?P<shown>\w*)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE
)
#: What this environment was set up with.
SET_UP = ("pip install", "cargo install", "./dev")
PASSWORD = "correct horses"


PROGRAM = str(Path(sys.executable).with_name("flashmesh"))


def blocks(document: Path) -> list[tuple[str, str]]:
    found = BLOCK.finditer(document.read_text())
    return [(m["hidden"] or m["shown"], m["code"] or m["text"] or "") for m in found]


class Reader:
    """Somebody who types what a document says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.db = flashmesh.connect(folder / "of_snippets")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = str(free.getsockname()[1])
        self.names = {"db": self.db, "pa": pa, "pq": pq, "flashmesh": flashmesh}
        self.names |= {"getpass": lambda: PASSWORD, "certificates": self.certificates}
        self.server: subprocess.Popen[str] | None = None

    def close(self) -> None:
        self.db.close()
        for value in self.names.values():
            if isinstance(value, flashmesh.Connection):
                value.close()
        self.stop_server()
        for rack in self.folder.glob("*/rack.toml"):
            subprocess.run([PROGRAM, "rack", "down", rack, "--kill"], check=True)

    def run(self, language: str, text: str) -> None:
        # Several tests may run at once.
        getattr(self, language)(text.replace("50051", self.port))

    def sql(self, text: str) -> None:
        self.db.execute(text)

    def python(self, text: str) -> None:
        exec(compile(text, "snippet", "exec"), self.names)

    def sh(self, text: str) -> None:
        for line in text.splitlines():
            command = shlex.split(line, comments=True)
            if not command or line.startswith(SET_UP):
                continue
            if command[0] == "flashmesh":
                command[0] = PROGRAM
            if command[1:2] == ["serve"]:
                self.serve(command)
                continue
            if "--db" in command:
                # A database has one process at a time.
                self.stop_server()
            typed = f"{PASSWORD}\n{PASSWORD}\n" if command[1:3] == ["user", "add"] else ""
            ran = subprocess.run(command, input=typed, capture_output=True, text=True)
            assert ran.returncode == 0, f"{line}\n{ran.stdout}{ran.stderr}"

    def certificates(self) -> None:
        """A server's certificate and key, and that of who signed it."""
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1", "localhost")
        authority.cert_pem.write_to_path(self.folder / "ca.pem")
        issued.cert_chain_pems[0].write_to_path(self.folder / "cert.pem")
        issued.private_key_pem.write_to_path(self.folder / "key.pem")

    def serve(self, command: list[str]) -> None:
        self.stop_server()
        listen = [] if "--listen" in command else ["--listen", f"127.0.0.1:{self.port}"]
        self.server = subprocess.Popen(
            [*command, *listen, "--http", "none"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert any(line.startswith("Flight SQL") for line in iter(self.server.stdout.readline, "")), command

    def stop_server(self) -> None:
        if self.server:
            self.server.kill()
            self.server.wait()
            self.server.stdout.close()
            self.server = None


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_snippets(document, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path)
    try:
        for language, text in blocks(document):
            if language in ("sql", "python", "sh"):
                reader.run(language, text)
    finally:
        reader.close()


def test_blocks_are_found():
    languages = [language for document in DOCUMENTS for language, _ in blocks(document)]
    assert languages.count("sql") > 10 and languages.count("python") > 10 and languages.count("sh") > 5
