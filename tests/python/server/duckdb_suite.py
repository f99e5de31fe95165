"""Statements of DuckDB's own tests, in both engines: where do they give different rows?

    git clone --depth 1 https://github.com/duckdb/duckdb
    python tests/python/server/duckdb_suite.py duckdb/test/sql/subquery duckdb/test/sql/join

Each file runs in a process of its own, on two empty databases in memory, statement by statement. What both
answer with different rows is printed, and at the end how many statements were alike, and the commonest errors
of what only DuckDB takes. Once a statement that changes something has failed in one of them, their tables
differ, and so what the rest of the file gives is only counted.

It is no test that can pass: the dialects differ on purpose here and there (docs/sql.md). Of the files, loops are
unrolled a little, and settings, attached databases and what asks for extensions are left out.
"""

import argparse
import collections
import datetime
import decimal
import json
import math
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import flashmesh

# What a `require` may ask for.
THERE = {"core_functions", "icu", "json", "noforcestorage", "no_alternative_verify", "parquet", "skip_reload", "vector_size"}
# Statements for DuckDB alone.
SETTINGS = re.compile(r"\s*(pragma|set|reset|explain|attach|detach|use|install|load|checkpoint|call|export|import|force)\b", re.I)
# Statements whose rows say how many were changed, or of which types.
UNLIKE = re.compile(r"\s*(insert|update|delete|truncate|copy|merge|create|describe|summarize|show|with\b.*\b(insert|update|delete))\b", re.I | re.S)
LOOPS = ("loop", "foreach", "concurrentloop", "concurrentforeach")
TYPES = {
    "<numeric>": ["int", "bigint", "double"],
    "<integral>": ["int", "bigint"],
    "<signed>": ["int", "bigint"],
    "<alltypes>": ["int", "double", "varchar", "bool"],
}
MOST_STATEMENTS = 250
SECONDS = 60


def blocks(text: str) -> list[list[str]]:
    """The parts of a file between empty lines, without comments before them."""
    found: list[list[str]] = [[]]
    for line in text.splitlines():
        if not line.strip():
            found.append([])
        elif found[-1] or not line.lstrip().startswith("#"):
            found[-1].append(line)
    return [block for block in found if block]


def unrolled(parts: list[list[str]]) -> Iterator[list[str]]:
    place = 0
    while place < len(parts):
        words = parts[place][0].split()
        place += 1
        if words[0] not in LOOPS:
            yield parts[place - 1]
            continue
        start, depth = place, 1
        while place < len(parts) and depth:
            first = parts[place][0].split()[0]
            depth += (first in LOOPS) - (first == "endloop")
            place += 1
        if words[0].endswith("loop"):
            values = [str(value) for value in range(int(words[2]), min(int(words[3]), int(words[2]) + 3))]
        else:
            values = [kind for value in words[2:] for kind in TYPES.get(value, [value])][:12]
        for value in values:
            name = "${" + words[1] + "}"
            body = [[line.replace(name, value) for line in part] for part in parts[start : place - 1]]
            yield from unrolled(body)


def statements(text: str) -> Iterator[tuple[bool, str]]:
    """Statements, and whether each is a query."""
    for part in unrolled(blocks(text)):
        words = part[0].split()
        if words[0] == "halt" or words[0] == "require" and words[1] not in THERE:
            return
        if words[0] not in ("statement", "query"):
            continue
        lines = part[1 : part.index("----")] if "----" in part else part[1:]
        sql = "\n".join(lines).strip().rstrip(";")
        if sql and "__TEST_DIR__" not in sql and "${" not in sql:
            yield words[0] == "query", sql


def normal(value: object) -> tuple:
    """A value that is the same for both engines."""
    if value is None:
        return ("null",)
    if isinstance(value, (bool, int, float, decimal.Decimal)):
        number = float(value)
        return ("number", "nan" if math.isnan(number) else float(f"{number:.6g}"))
    if isinstance(value, str):
        return normal(float(value)) if re.fullmatch(r"-?\d+(\.\d+)?", value) else ("text", value)
    if isinstance(value, (list, tuple)):
        return ("list", tuple(map(normal, value)))
    if isinstance(value, dict):
        return ("struct", tuple((name, normal(of)) for name, of in value.items()))
    if isinstance(value, datetime.datetime):
        return ("text", value.replace(tzinfo=None).isoformat())
    if isinstance(value, datetime.date):
        return ("text", f"{value.isoformat()}T00:00:00")
    if isinstance(value, (bytes, bytearray, memoryview)):
        return ("bytes", bytes(value))
    return ("text", str(value))


def alike(rows: list) -> list[tuple]:
    """Rows in an order of their own."""
    return sorted(map(normal, rows), key=repr)


def answer(engine: duckdb.DuckDBPyConnection | flashmesh.Connection, sql: str) -> tuple[list, str | None]:
    try:
        return engine.execute(sql).fetchall(), None
    except Exception as error:
        return [], str(error).split("\n")[0]


def compare(path: Path) -> None:
    """Runs a file and prints what became of each statement, as JSON."""
    peer, engine = duckdb.connect(), flashmesh.connect()
    differ = False
    ran = 0
    for is_query, sql in statements(path.read_text(errors="replace")):
        if SETTINGS.match(sql):
            answer(peer, sql)
            continue
        ran += 1
        if ran > MOST_STATEMENTS:
            return
        expected, refused = answer(peer, sql)
        found, error = answer(engine, sql)
        said = {"file": str(path), "sql": sql, "differ": differ}
        if (refused is None) != (error is None):
            said["kind"] = "refused here" if error else "refused there"
            said["error"] = error or refused
            differ |= not is_query or bool(UNLIKE.match(sql))
        elif refused is not None:
            said["kind"] = "refused by both"
        elif is_query and not UNLIKE.match(sql) and alike(expected) != alike(found):
            said["kind"] = "unlike"
            said["rows"] = [repr(rows[:5])[:300] for rows in (expected, found)]
        else:
            said["kind"] = "alike"
        print(json.dumps(said), flush=True)


def run(path: Path) -> list[dict]:
    command = [sys.executable, str(Path(__file__).resolve()), "--file", str(path.resolve())]
    try:
        # What its statements write goes with the folder.
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd=folder)
        output, ended = done.stdout, done.returncode and done.stderr[-300:]
    except subprocess.TimeoutExpired as expired:
        output, ended = (expired.stdout or b"").decode(), f"more than {SECONDS} s"
    said = [json.loads(line) for line in output.splitlines()]
    return [*said, {"kind": "ended", "file": str(path), "error": ended}] if ended else said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, help="files, or folders of them")
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--errors", type=int, default=20, help="so many of the commonest errors")
    arguments = parser.parse_args()
    if arguments.file:
        return compare(arguments.file)
    files = [file for path in arguments.paths for file in (sorted(path.rglob("*.test")) if path.is_dir() else [path])]
    kinds, errors, example = collections.Counter(), collections.Counter(), {}
    with ThreadPoolExecutor(2) as threads:
        for said in (said for file in threads.map(run, files) for said in file):
            kinds[said["kind"]] += 1
            if said["kind"] == "refused here" and not said["differ"]:
                error = re.sub(r"'[^']*'|\d+", "_", said["error"])[:90]
                errors[error] += 1
                example.setdefault(error, said["sql"].replace("\n", " ")[:120])
            if said["kind"] == "ended" or said["kind"] == "unlike" and not said["differ"]:
                print(f"\n{said['file']}\n{said.get('sql', '')}")
                for name, rows in zip(("DuckDB", "flashmesh"), said.get("rows", [said.get("error")]), strict=False):
                    print(f"  {name}: {rows}")
    print(f"\n{len(files)} files: {', '.join(f'{count} {kind}' for kind, count in kinds.most_common())}")
    for error, count in errors.most_common(arguments.errors):
        print(f"{count:6} {error}\n       {example[error]}")


if __name__ == "__main__":
    main()
