#!/usr/bin/env python3
"""The first hour of a new user, step by step, beside DuckDB.

Types what the documents tell (installing, loading, asking, plotting, indexes, Python, a kernel, a
server with users, clients in Java and Go, backups, databases of earlier formats, a rack of three
nodes), checks that what the documents say comes of it, and does the same with DuckDB where DuckDB
can. Prints a table in Markdown: steps, words typed, seconds waited.

Words are what white space separates in all that is typed: commands, statements, programs, answers
to questions; the same for both. Seconds are from Enter to the next prompt. Each side works in a
fresh folder with copies of the same files, made from a fixed seed; what the answers have to be is
computed from these by NumPy.

The program is `flashmesh` on the PATH, or $FLASHMESH_BIN, and Python is the one that runs this: it
needs flashmesh, numpy, pyarrow, pandas and polars, and for DuckDB duckdb and duckdb-cli. What else
is missing (matplotlib, ziglang, openssl, Java, Go) leaves out the steps that need it, and says so.
With --packages, program and module are installed from a wheel into an environment of their own,
which are then the first steps; DuckDB comes from PyPI then.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import data
import stage
import steps

FORMATS = steps.ROOT / "storage/tests/formats"


@dataclass
class Outcome:
    """What became of a step at one desk."""

    seconds: float = 0.0
    error: str = ""
    #: Why it was left out.
    skipped: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--packages",
        type=Path,
        metavar="DIR",
        help="install the wheel of this folder (./dev package makes it) and use that; dependencies come from the folder, too, where it has them",
    )
    parser.add_argument(
        "--only",
        metavar="N..M",
        help="check and show only these steps; those before them are done, too, because later ones build on them",
    )
    parser.add_argument("--no-duckdb", action="store_true", help="leave DuckDB out")
    parser.add_argument(
        "--duckdb-python", type=Path, metavar="PYTHON", help="Python with duckdb and duckdb-cli [default: the one that runs this]"
    )
    parser.add_argument("--keep", action="store_true", help="keep the folders and say where they are")
    parser.add_argument("--list", action="store_true", help="list the steps and what is typed")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="fh-"))
    try:
        return hour(arguments, folder)
    finally:
        if arguments.keep:
            say(f"kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


def hour(arguments: argparse.Namespace, folder: Path) -> int:
    say(f"making data (seed {data.SEED})")
    files = folder / "files"
    files.mkdir()
    truth = data.make(files)
    wheel = given_wheel(arguments.packages) if arguments.packages else None
    all_steps = steps.steps(truth, wheel)
    if arguments.list:
        for number, step in enumerate(all_steps, 1):
            print(f"{number}. {step.title} ({step.document})\n{indented(step.of_flashmesh.text())}")
        return 0
    first, last = wanted(arguments.only, len(all_steps))
    if not wheel:
        say("no --packages: the steps of installing are left out")

    desks = [flashmesh_desk(folder, files, arguments.packages, wheel)]
    if not arguments.no_duckdb:
        desks.append(duckdb_desk(folder, files, arguments.duckdb_python, wheel))
    rows = []
    try:
        for number, step in enumerate(all_steps[:last], 1):
            outcomes = [outcome(step, desk) for desk in desks]
            if number >= first:
                rows.append((number, step, outcomes))
            tell(number, last, step, desks, outcomes, number >= first)
    finally:
        for desk in desks:
            if (desk.folder / "lab/rack.toml").exists():
                ended = ["flashmesh", "rack", "down", "lab/rack.toml", "--kill", "--timeout", "10"]
                subprocess.run(ended, cwd=desk.folder, env=desk.environment, capture_output=True)
            desk.close()
    report(rows, desks)
    return 1 if any(outcome.error for _, _, outcomes in rows for outcome in outcomes) else 0


def wanted(only: str | None, count: int) -> tuple[int, int]:
    if not only:
        return 1, count
    found = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", only)
    if not found or not 1 <= int(found[1]) <= int(found[2] or found[1]) <= count:
        sys.exit(f"--only {only}: write N or N..M, of 1..{count}")
    return int(found[1]), int(found[2] or found[1])


def given_wheel(packages: Path) -> str:
    """What pip is told to install: the name of the wheel, as it lies in the user's folder."""
    wheels = list(packages.glob("flashmesh-*.whl"))
    if len(wheels) != 1:
        sys.exit(f"{packages} has {len(wheels)} wheels of flashmesh: ./dev package makes one")
    return f"./{wheels[0].name}"


def flashmesh_desk(folder: Path, files: Path, packages: Path | None, wheel: str | None) -> stage.Desk:
    at = folder / "flashmesh"
    shutil.copytree(files, at)
    for archive in sorted(FORMATS.glob("format-*.zst")):
        unpack(archive, at / "formats" / archive.stem)
    if jar := jdbc_driver():
        (at / steps.JDBC_JAR).symlink_to(jar)
    programs = folder / "bin"
    programs.mkdir()
    more = {}
    if wheel:
        (at / wheel).symlink_to((packages / wheel).resolve())
        more = {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        # Where the folder has what the wheel asks for, nothing comes from elsewhere.
        if any(packages.glob("datafusion-*.whl")):
            more |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(packages.resolve())}
        return stage.Desk("flashmesh", at, at / "venv/bin/python", environment(folder, at, at / "venv", more), "flashmesh> ")
    program = os.environ.get("FLASHMESH_BIN") or shutil.which("flashmesh")
    if not program:
        sys.exit("no flashmesh on the PATH: name it by FLASHMESH_BIN, or packages by --packages")
    (programs / "flashmesh").symlink_to(Path(program).resolve())
    return stage.Desk("flashmesh", at, Path(sys.executable), environment(folder, programs, Path(sys.prefix), more), "flashmesh> ")


def duckdb_desk(folder: Path, files: Path, python: Path | None, wheel: str | None) -> stage.Desk:
    at = folder / "duckdb"
    shutil.copytree(files, at)
    if wheel:
        return stage.Desk("DuckDB", at, at / "venv/bin/python", environment(folder, at, at / "venv", {}), r"\w+ D ")
    python = python.absolute() if python else Path(sys.executable)
    venv = python.parent.parent
    if not (venv / "bin/duckdb").exists():
        sys.exit(f"{venv} has no duckdb-cli: pip install duckdb duckdb-cli, or --no-duckdb")
    return stage.Desk("DuckDB", at, python, environment(folder, at, venv, {}), r"\w+ D ")


def environment(folder: Path, programs: Path, venv: Path, more: dict[str, str]) -> dict[str, str]:
    """That of somebody who has activated the venv, on a terminal, without settings of their own."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    # What others have downloaded is not downloaded again.
    kept = Path.home()
    return {
        **os.environ,
        "PATH": f"{programs}:{venv / 'bin'}:{os.environ['PATH']}",
        "VIRTUAL_ENV": str(venv),
        "HOME": str(home),
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(kept / ".cache")),
        "GOPATH": os.environ.get("GOPATH", str(kept / "go")),
        "TERM": "xterm",
        "PAGER": "cat",
        "NO_COLOR": "1",
        "MPLBACKEND": "Agg",
        "PYTHONDONTWRITEBYTECODE": "1",
        **more,
    }


def unpack(archive: Path, folder: Path) -> None:
    """A database of an earlier format, as it was when it was closed (storage/tests/formats/README.md)."""
    import pyarrow as pa

    folder.mkdir(parents=True)
    with pa.input_stream(str(archive), compression="zstd") as stream:
        rest = stream.read()
    while rest:
        line, _, rest = rest.partition(b"\n")
        name, length = line.decode().rsplit(" ", 1)
        how_it_ended, _, name = name.partition("/")
        if how_it_ended == "closed":
            (folder / name).write_bytes(rest[: int(length)])
        rest = rest[int(length) :]


def jdbc_driver() -> Path | None:
    """Arrow's driver: $FLASHMESH_JDBC_DRIVER, or the one that the tests of the server have fetched."""
    if given := os.environ.get("FLASHMESH_JDBC_DRIVER"):
        return Path(given).resolve()
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flashmesh/target"
    found = sorted(Path(os.environ.get("CARGO_TARGET_DIR", default)).glob("jdbc/flight-sql-jdbc-driver-*.jar"))
    return found[-1] if found else None


def outcome(step: steps.Step, desk: stage.Desk) -> Outcome:
    ours = desk.name == "flashmesh"
    typed = step.of_flashmesh if ours else step.of_duckdb
    if typed is None:
        return Outcome(skipped=step.lacking)
    if missing := step.missing(desk):
        return Outcome(skipped=missing)
    check = step.check if ours else step.check_duckdb or step.check
    started = time.perf_counter()
    printed, failed = "", False
    try:
        printed = typed.run(desk)
    except (stage.Failed, AssertionError, OSError, subprocess.TimeoutExpired) as error:
        printed, failed = str(error), True
    seconds = time.perf_counter() - started
    problem = ""
    if failed != step.fails:
        problem = "an error" if failed else "no error"
    else:
        try:
            check(printed, desk)
        except (AssertionError, OSError, ValueError) as error:
            problem = str(error)
    if problem:
        problem = f"{problem}\ntyped:\n{indented(typed.text())}\ncame:\n{indented(printed[-3000:])}"
    return Outcome(seconds, problem)


def tell(number: int, last: int, step: steps.Step, desks: list[stage.Desk], outcomes: list[Outcome], counts: bool) -> None:
    """A line about the step, and what went wrong."""
    parts = []
    for desk, done in zip(desks, outcomes):
        if done.error:
            parts.append(f"{desk.name} FAILED")
        elif not done.skipped:
            parts.append(f"{desk.name} {done.seconds:.2f} s")
        elif desk.name == "flashmesh":
            parts.append(f"{desk.name} LEFT OUT ({done.skipped})")
    say(f"{number:2}/{last} {step.title}: {', '.join(parts)}{'' if counts else ' (not counted)'}")
    for desk, done in zip(desks, outcomes):
        if done.error:
            say(indented(f"{desk.name}, {step.document}: {done.error}"))


def report(rows: list[tuple[int, steps.Step, list[Outcome]]], desks: list[stage.Desk]) -> None:
    both = len(desks) == 2
    print(f"{machine()} {', '.join(map(version, desks))}.\n")
    print("| # | step | flashmesh: words | seconds |" + (" DuckDB: words | seconds |" if both else ""))
    print("|---|---|---|---|" + ("---|---|" if both else ""))
    notes: dict[str, list[int]] = {}
    ours, ours_of_both, theirs = [0, 0.0], [0, 0.0], [0, 0.0]
    compared = 0
    for number, step, outcomes in rows:
        cells = [str(number), step.title]
        for done, typed in zip(outcomes, (step.of_flashmesh, step.of_duckdb)):
            if done.skipped or typed is None:
                cells += ["–", "left out" if typed else "–"]
                notes.setdefault(done.skipped, []).append(number)
            else:
                cells += [str(typed.words()), "FAILED" if done.error else f"{done.seconds:.2f}"]
        print(f"| {' | '.join(cells)} |")
        if not outcomes[0].skipped:
            add(ours, step.of_flashmesh, outcomes[0])
            if both and not outcomes[1].skipped and step.of_duckdb:
                compared += 1
                add(ours_of_both, step.of_flashmesh, outcomes[0])
                add(theirs, step.of_duckdb, outcomes[1])
    if both:
        print(
            f"| | **the {compared} steps of both** | {ours_of_both[0]} | {ours_of_both[1]:.2f} | {theirs[0]} | {theirs[1]:.2f} |"
        )
    print(f"| | **all {len(rows)} steps** | {ours[0]} | {ours[1]:.2f} |" + (" | |" if both else ""))
    if notes:
        print("\nLeft out, or not there (–):\n")
    for note, numbers in notes.items():
        print(f"* {', '.join(map(str, numbers))}: {note}.")
    if both:
        more = [(n, step, outcomes) for n, step, outcomes in rows if is_more(step, outcomes)]
        if more:
            print("\nWhere flashmesh takes more words, or twice the seconds and a tenth of one more:\n")
        for number, step, outcomes in more:
            assert step.of_duckdb
            print(
                f"* {number}, {step.title}: {step.of_flashmesh.words()} words and {outcomes[0].seconds:.2f} s, "
                f"DuckDB {step.of_duckdb.words()} and {outcomes[1].seconds:.2f} s{': ' + step.why if step.why else ''}."
            )


def add(total: list, typed: steps.Typed, done: Outcome) -> None:
    total[0] += typed.words()
    total[1] += done.seconds


def is_more(step: steps.Step, outcomes: list[Outcome]) -> bool:
    if step.of_duckdb is None or any(done.skipped or done.error for done in outcomes):
        return False
    ours, theirs = (done.seconds for done in outcomes)
    return step.of_flashmesh.words() > step.of_duckdb.words() or ours > 2 * theirs and ours > theirs + 0.1


def version(desk: stage.Desk) -> str:
    """That of the program, and of the Python module where it is another one."""
    if desk.name == "flashmesh":
        return desk.run("flashmesh --version").strip()
    program = desk.run("duckdb --version").split()[0].lstrip("v")
    module = subprocess.run(
        [desk.python, "-c", "import duckdb; print(duckdb.__version__)"], capture_output=True, text=True
    ).stdout.strip()
    return f"DuckDB {program} (its shell) and {module} (its Python module)"


def machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), "a processor")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{cpu}, {os.cpu_count()} cores, {memory:.0f} GiB, Python {sys.version.split()[0]}."


def indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
