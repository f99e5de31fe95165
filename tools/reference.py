"""Writes docs/reference out of the engine that runs and of the sources: settings, functions, system
tables, metrics, errors, the command line.

    ./dev reference            writes the pages
    ./dev reference --check    says what differs, and fails where something does

Where the engine has no text for something, tools/reference.toml has; a thing without either, or
a text for a thing that is gone, is an error here.
"""

import argparse
import csv
import difflib
import io
import re
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "docs/reference"
TEXTS = tomllib.loads((ROOT / "tools/reference.toml").read_text())
NOTE = "<!-- Written by `./dev reference` from the code; tests/python/test_reference.py holds it to that. -->"

Row = dict[str, str]


class Missing(Exception):
    """The code has something that no text is about, or the other way round."""


class Engine:
    """The program, asked for what it has."""

    def __init__(self, binary: Path) -> None:
        self.binary = binary

    def rows(self, query: str, *options: str) -> list[Row]:
        command = [self.binary, *options, "--quiet", "--format", "csv", "-c", query]
        answer = subprocess.run(command, capture_output=True, text=True, check=True)
        return list(csv.DictReader(io.StringIO(answer.stdout)))

    def help(self, *words: str) -> str:
        command = [self.binary, *words, "--help"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def metrics(self) -> str:
        """What a server's /metrics says before anybody has come."""
        with tempfile.TemporaryDirectory() as folder:
            command = [self.binary, "serve", "--db", folder, "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
            server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            try:
                lines = iter(server.stdout.readline, "")
                page = next(found[0] for line in lines if (found := re.search(r"http://\S+", line)))
                with urllib.request.urlopen(f"{page.rstrip('/')}/metrics") as answer:
                    return answer.read().decode()
            finally:
                server.kill()
                server.wait()
                server.stdout.close()


def source(path: str) -> str:
    return (ROOT / path).read_text()


def described(section: dict[str, object], names: Iterable[str], what: str) -> None:
    """Holds a section of the texts to be about `names`, no more and no less."""
    names = set(names)
    if wanting := sorted(names - set(section)):
        raise Missing(f"{what}: nothing in tools/reference.toml says what these are: {', '.join(wanting)}")
    if gone := sorted(set(section) - names):
        raise Missing(f"{what}: tools/reference.toml describes what is not there (or has a text of its own): {', '.join(gone)}")


def cell(text: str) -> str:
    """A text as a cell of a table: one line, no bar, no tag."""
    text = re.sub(r"\s+", " ", text).strip().replace("|", "\\|")
    # Links of DataFusion's texts to its own pages.
    text = re.sub(r"\[([^\]]+)\]\((?!https?:|\.\./)[^)]*\)", r"\1", text)
    # Outside of code, `<` begins a tag, `*` and `[` are markup where DataFusion means the character.
    parts = text.split("`")
    parts[::2] = [part.replace("<", "&lt;").replace(">", "&gt;") for part in parts[::2]]
    return "`".join(parts)


def code(text: str) -> str:
    text = re.sub(r"\s+", " ", text).strip().replace("|", "\\|")
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}" if text else ""


def table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    columns = list(columns)
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page(title: str, *parts: str) -> str:
    return "\n\n".join([f"# {title}", NOTE, *parts]) + "\n"


def settings(engine: Engine) -> str:
    query = "SELECT name, value, description FROM information_schema.df_settings ORDER BY name"
    # What differs between these two comes from the machine and its options.
    some = engine.rows(query, "--threads", "3", "--memory-limit", "1GB")
    other = {row["name"]: row["value"] for row in engine.rows(query, "--threads", "5", "--memory-limit", "3GB")}
    if silent := [row["name"] for row in some if not row["description"]]:
        raise Missing(f"settings: the engine has no description of {', '.join(silent)}")
    everybodys = re.search(r"EVERYBODYS: &\[&str\] = &\[(.*?)\];", source("engine/src/settings.rs"), re.DOTALL)
    patterns = [re.compile(re.escape(p).replace(r"\*", ".*")) for p in re.findall(r'"([^"]+)"', everybodys[1])]

    def line(row: Row) -> list[str]:
        name = row["name"]
        is_everybodys = any(pattern.fullmatch(name) for pattern in patterns)
        default = code(row["value"]) if row["value"] == other[name] else "by the machine"
        return [code(name), default, "anybody" if is_everybodys else "admins", cell(row["description"])]

    def of(prefix: str) -> str:
        found = (row for row in some if row["name"].startswith(prefix))
        return table(("setting", "default", "set by", "meaning"), map(line, found))

    return page(
        "Settings",
        "`SET name = value`, `RESET name`, `SHOW name`, `SHOW ALL`; in Python also attributes of `con.settings`. "
        "On a server some are for admins only; in a database that is opened directly, one is admin. "
        "Where no default stands, none is set.",
        "## Of flashmesh",
        of("flashmesh."),
        "## Of DataFusion",
        of("datafusion."),
    )


def functions(engine: Engine) -> str:
    own = re.search(r"const FUNCTIONS: &\[Function\] = &\[(.*?)\n\];", source("engine/planner/src/relations/mod.rs"), re.DOTALL)
    relations = dict(re.findall(r'\(\s*"(\w+)",\s*"([^"]*)",', own[1]))
    found = engine.rows(
        "SELECT routine_name AS name, function_type AS kind, max(syntax_example) AS syntax, max(description) AS description "
        "FROM information_schema.routines WHERE routine_name NOT LIKE 'flashmesh:%' GROUP BY 1, 2 ORDER BY 1, 2"
    )
    giving_tables = {row["name"] for row in found if row["kind"] == "TABLE"}
    described(TEXTS["table_functions"], relations.keys() | giving_tables, "table functions")
    silent = {row["name"] for row in found if row["kind"] != "TABLE" and not row["description"]}
    described(TEXTS["functions"], silent, "functions")
    without_syntax = {row["name"] for row in found if row["kind"] != "TABLE" and not row["syntax"]}
    described(TEXTS["syntax"], without_syntax, "syntax of functions")

    def of(kind: str) -> str:
        rows = (row for row in found if row["kind"] == kind)
        return table(
            ("function", "call", "meaning"),
            (
                (
                    code(row["name"]),
                    code(row["syntax"] or TEXTS["syntax"][row["name"]]),
                    cell(row["description"] or TEXTS["functions"][row["name"]]),
                )
                for row in rows
            ),
        )

    calls = {name: f"{name}({usage})" for name, usage in relations.items()}
    calls |= {name: f"{name}(start, stop [, step])" for name in sorted(giving_tables)}
    return page(
        "Functions",
        "`SHOW FUNCTIONS` lists all but the first ones below, with those that users have added ([kernels](../kernels.md)).",
        "## That give tables",
        "They stand in FROM. An argument for keys, vertices or vectors is a value, an array, or a query in parentheses.",
        table(
            ("function", "call", "meaning"),
            ((code(name), code(call), cell(TEXTS["table_functions"][name])) for name, call in calls.items()),
        ),
        "## Aggregates",
        of("AGGREGATE"),
        "## Window functions",
        "Aggregates may stand there, too.",
        of("WINDOW"),
        "## Of single values",
        of("SCALAR"),
    )


def system_tables(engine: Engine) -> str:
    found = engine.rows(
        "SELECT table_name, column_name, data_type, is_nullable FROM information_schema.columns "
        "WHERE table_schema = 'system' ORDER BY table_name, ordinal_position"
    )
    tables: dict[str, list[Row]] = {}
    for row in found:
        tables.setdefault(row["table_name"], []).append(row)
    described(TEXTS["tables"], tables, "system tables")
    described(TEXTS["columns"], tables, "columns of system tables")
    parts = []
    for name, columns in tables.items():
        texts = TEXTS["columns"][name]
        described(texts, (row["column_name"] for row in columns), f"columns of system.{name}")
        rows = (
            (
                code(row["column_name"]),
                code(row["data_type"]) + (", may be NULL" if row["is_nullable"] == "YES" else ""),
                cell(texts[row["column_name"]]),
            )
            for row in columns
        )
        parts += [f"## system.{name}", TEXTS["tables"][name], table(("column", "type", "meaning"), rows)]
    return page(
        "System tables",
        "Tables of the schema `system` are made when they are read, of what the process knows then.",
        *parts,
    )


def metrics(engine: Engine) -> str:
    found: dict[str, dict[str, str]] = {}
    text = engine.metrics()
    for kind, name, value in re.findall(r"^# (HELP|TYPE) (\S+) (.*)$", text, re.MULTILINE):
        found.setdefault(name, {})[kind] = value
    if silent := [name for name, of in found.items() if not of.get("HELP")]:
        raise Missing(f"metrics: the server has no description of {', '.join(silent)}")

    def shown(name: str) -> str:
        """The name as queries have it: counters end in _total; and the labels."""
        sample = re.search(rf"^({name}(?:_total|_bucket)?)(?:\{{(.*)\}})? ", text, re.MULTILINE)
        labels = re.findall(r"(\w+)=", sample[2] or "")
        return sample[1] + (f"{{{', '.join(labels)}}}" if labels else "")

    rows = (
        (code(shown(name)), of["TYPE"], cell(of["HELP"].removesuffix(".").replace('\\"', '"'))) for name, of in sorted(found.items())
    )
    return page(
        "Metrics",
        "What `/metrics` of a [server](../server.md) tells Prometheus, in OpenMetrics' text format.",
        table(("metric", "type", "meaning"), rows),
    )


VARIANT = re.compile(
    r"(?P<doc>(?:^    ///[^\n]*\n)+)"
    r"    #\[error\((?P<message>.*?)\)\]\n"
    r"    (?P<name>\w+)(?P<rest>[^\n]*)",
    re.DOTALL | re.MULTILINE,
)
#: The enums of errors, where they are, and of what they tell.
ERRORS = [
    ("Error", "engine/src/error.rs", "Of statements and calls"),
    ("StorageError", "storage/pages/src/error.rs", "Of the store"),
    ("ProgramError", "engine/pushdown/src/error.rs", "Of Programs, which are what runs beside the pages"),
    ("RackError", "cluster/src/rack/mod.rs", "Of rack files"),
    ("StartError", "cluster/src/mesh/node.rs", "Of nodes that start"),
    ("MeshError", "cluster/src/mesh/error.rs", "Of the mesh between nodes"),
]


def variants(name: str, path: str) -> Iterator[tuple[str, str, str]]:
    """Name, message and meaning of each error of an enum."""
    body = re.search(rf"pub enum {name} \{{\n(.*?)^\}}", source(path), re.DOTALL | re.MULTILINE)[1]
    found = list(VARIANT.finditer(body))
    # Each has one attribute: so none has been overlooked.
    if len(found) != body.count("#[error("):
        raise Missing(f"errors: not every error of {name} in {path} has a text of its own above it")
    for variant in found:
        doc = " ".join(line.strip().removeprefix("///").strip() for line in variant["doc"].splitlines())
        doc = re.sub(r"\[(`[^`]+`)\](?:\([^)]*\))?", r"\1", doc)
        message = re.sub(r"\\\n\s*", "", variant["message"].strip())
        quoted = re.match(r'"((?:[^"\\]|\\.)*)"', message, re.DOTALL)
        text = quoted[1].replace('\\"', '"').replace(":?}", "}") if quoted else ""
        yield variant["name"], text, doc


def grpc_codes() -> dict[str, str]:
    """The gRPC status of each error, as the server gives it."""
    status = source("engine/src/server/status.rs")
    arms = re.findall(r"((?:\|?\s*(?:Storage)?Error::\w+(?:\s*\{ \.\. \}|\(_\))?\s*)+)=>\s*Code::(\w+)", status)
    return {f"{kind}.{name}": to for names, to in arms for kind, name in re.findall(r"((?:Storage)?Error)::(\w+)", names)}


def datafusion_codes() -> list[tuple[str, str]]:
    """The same of the errors that DataFusion has, those that have one of their own."""
    body = re.search(r"fn code_of_query.*", source("engine/src/server/status.rs"), re.DOTALL)[0]
    body = re.sub(r"//.*", "", body)
    arms = re.findall(r"((?:\|?\s*DataFusionError::\w+\((?:_|\.\.)\)\s*)+)=>\s*Code::(\w+)", body)
    return [(", ".join(map(code, re.findall(r"DataFusionError::(\w+)", names))), code(to)) for names, to in arms]


def errors(engine: Engine) -> str:
    codes = grpc_codes()
    parts = []
    for name, path, title in ERRORS:
        rows = []
        for variant, message, meaning in variants(name, path):
            given = TEXTS["errors"].get(variant, {}) if name == "Error" else {}
            shown = cell(given["message"]) if given else code(message)
            shown = shown if shown not in ("", "`{0}`") else "its own, or that of what is in it"
            line = [code(variant), shown, cell(given.get("meaning", meaning))]
            if name in ("Error", "StorageError"):
                status = code(codes.get(f"{name}.{variant}", "Internal"))
                line.append(given.get("status", status))
            rows.append(line)
        columns = ["error", "message", "meaning"] + ["gRPC status"] * (name in ("Error", "StorageError"))
        parts += [f"## {title}", f"`{name}` in `{path}`.", table(columns, rows)]
        if name == "Error":
            parts += [
                "The gRPC status of `Query` is `NotFound` where a column or a table is not there, else it goes by DataFusion's error; "
                "what stands in neither table is `Internal`.",
                table(("DataFusion's error", "gRPC status"), datafusion_codes()),
            ]
    parts += [
        "## Exceptions of Python",
        "`flashmesh.Error` is what everything raises; `flashmesh.dbapi` has those of PEP 249, of which all but `Warning` are kinds of it.",
        table(("exception", "meaning"), python_exceptions()),
    ]
    return page(
        "Errors",
        "flashmesh has no SQLSTATEs: a program goes by the gRPC status that a server gives, in Python by the class of PEP 249, "
        "in Rust by the variant. Messages are for people and may change; in braces stands what is filled in. The command line "
        "prints the message and ends with exit code 1, or 2 where its arguments are wrong.",
        *parts,
    )


def python_exceptions() -> list[tuple[str, str]]:
    """Those of PEP 249 by name, with the first line of what their sources say of them."""
    found = re.findall(r'^class (\w+)\((\w+)\):\n    """(.*?)"""', source("python/flashmesh/dbapi.py"), re.MULTILINE | re.DOTALL)
    kinds = {"Exception", "Error"}
    rows = []
    for name, base, text in found:
        if base in kinds:
            kinds.add(name)
            rows.append((code(name), cell(text.splitlines()[0])))
    return rows


def command_line(engine: Engine) -> str:
    parts = []

    def add(*words: str) -> None:
        text = engine.help(*words)
        title = " ".join(("flashmesh", *words))
        parts.extend([f"{'#' * min(2 + max(len(words) - 1, 0), 4)} {title}", f"```text\n{text.strip()}\n```"])
        if commands := re.search(r"^Commands:\n((?:  .*\n)+)", text, re.MULTILINE):
            for name in re.findall(r"^  (\S+)", commands[1], re.MULTILINE):
                if name != "help":
                    add(*words, name)

    add()
    return page("Command line", "What `--help` says of each command.", *parts)


PAGES: dict[str, Callable[[Engine], str]] = {
    "command-line.md": command_line,
    "errors.md": errors,
    "functions.md": functions,
    "metrics.md": metrics,
    "settings.md": settings,
    "system-tables.md": system_tables,
}


def differences(binary: Path) -> str:
    """What the pages lack or have too much, as a diff; empty when they are right."""
    engine, changes = Engine(binary), []
    for name, write in PAGES.items():
        path = FOLDER / name
        old = path.read_text() if path.exists() else ""
        new = write(engine)
        where = f"docs/reference/{name}"
        changes += difflib.unified_diff(old.splitlines(), new.splitlines(), where, f"{where} (as the code has it)", lineterm="", n=0)
    changes += [f"docs/reference/{path.name}: nothing writes it" for path in FOLDER.glob("*.md") if path.name not in PAGES]
    return "\n".join(changes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=Path, help="the program flashmesh, as built from this tree")
    parser.add_argument("--check", action="store_true", help="write nothing; fail with a diff where a page is not as the code is")
    arguments = parser.parse_args()
    try:
        if arguments.check:
            if changes := differences(arguments.binary):
                sys.exit(f"{changes}\n\ndocs/reference is not as the code is: run ./dev reference")
            return
        FOLDER.mkdir(exist_ok=True)
        for name, write in PAGES.items():
            (FOLDER / name).write_text(write(Engine(arguments.binary)))
            print(f"docs/reference/{name}")
    except Missing as error:
        sys.exit(f"reference: {error}")


if __name__ == "__main__":
    main()
