"""What the benchmarks share: data, engines, measuring, and comparing results."""

import decimal
import importlib.metadata
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

ROOT = Path(__file__).resolve().parent.parent
TABLES = "region nation supplier customer part partsupp orders lineitem".split()
# The peers of the published figures run on two threads, and so does flashmesh.
THREADS = 2


def bench_dir() -> Path:
    """Where data and databases live between runs."""
    default = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "flashmesh/bench"
    folder = Path(os.environ.get("FLASHMESH_BENCH_DIR", default))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def tpch_parquet(scale_factor: str) -> Path:
    """The TPC-H tables as Parquet files, made by tpchgen-cli when missing."""
    folder = bench_dir() / f"tpch-sf{scale_factor}"
    if not folder.exists():
        note(f"generating TPC-H data at scale factor {scale_factor}")
        unfinished = folder.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        subprocess.run(
            ["tpchgen-cli", "parquet", "-s", scale_factor, "--output-dir", str(unfinished)],
            check=True,
            env={**os.environ, "PATH": f"{scripts_dir()}:{os.environ['PATH']}"},
        )
        unfinished.rename(folder)
    return folder


def scripts_dir() -> Path:
    """Where pip put the programs of this environment's packages."""
    import sysconfig

    return Path(sysconfig.get_path("scripts"))


def tpch_queries(only: list[int] | None = None) -> dict[int, str]:
    """The 22 queries by number, or some of them."""
    folder = ROOT / "tests/tpch/queries"
    numbers = only or range(1, 23)
    return {number: (folder / f"q{number:02}.sql").read_text().strip().rstrip(";") for number in numbers}


class Flashmesh:
    """flashmesh through its Python module."""

    name = "flashmesh"

    def __init__(self, database: Path, **options: str) -> None:
        import flashmesh

        self.connection = flashmesh.connect(database, threads=THREADS, **options)

    def run(self, query: str) -> pa.Table:
        return self.connection.sql(query).to_arrow_table()

    def execute(self, statement: str) -> None:
        self.connection.execute(statement)

    def create_table(self, table: str, parquet: Path) -> None:
        self.execute(f"CREATE TABLE {table} AS SELECT * FROM '{parquet}'")

    def close(self) -> None:
        self.connection.close()


class DuckDB:
    """DuckDB with tables of its own."""

    name = "DuckDB"

    def __init__(self, database: Path) -> None:
        import duckdb

        self.connection = duckdb.connect(str(database), config={"threads": THREADS})

    def run(self, query: str) -> pa.Table:
        return self.connection.sql(query).to_arrow_table()

    def execute(self, statement: str) -> None:
        self.connection.execute(statement)

    def create_table(self, table: str, parquet: Path) -> None:
        self.execute(f"CREATE TABLE {table} AS FROM '{parquet}'")

    def close(self) -> None:
        self.connection.close()


class DataFusion:
    """DataFusion on the Parquet files."""

    name = "DataFusion (Parquet)"

    def __init__(self, parquet: Path) -> None:
        import datafusion

        config = datafusion.SessionConfig().with_target_partitions(THREADS)
        self.context = datafusion.SessionContext(config)
        for table in TABLES:
            self.context.register_parquet(table, str(parquet / f"{table}.parquet"))

    def run(self, query: str) -> pa.Table:
        return pa.table(self.context.sql(query))

    def close(self) -> None:
        pass


def load_tpch(engine: Flashmesh | DuckDB, parquet: Path) -> float:
    """Loads every TPC-H table; returns the seconds it took."""
    started = time.perf_counter()
    for table in TABLES:
        engine.create_table(table, parquet / f"{table}.parquet")
    return time.perf_counter() - started


def fresh_flashmesh(scale_factor: str, **options: str) -> Flashmesh:
    """A database loaded by the build under test, never one that another build left."""
    database = bench_dir() / f"flashmesh-sf{scale_factor}"
    remove(database)
    engine = Flashmesh(database, **options)
    seconds = load_tpch(engine, tpch_parquet(scale_factor))
    note(f"flashmesh loaded TPC-H at scale factor {scale_factor} in {seconds:.1f} s")
    return engine


def fresh_engines(name: str, table: str, parquet: Path) -> tuple[Flashmesh, DuckDB]:
    """flashmesh and DuckDB, each with one table loaded into a new database."""
    engines = []
    for make in (Flashmesh, DuckDB):
        database = bench_dir() / f"{name}-{make.name}"
        remove(database)
        engine = make(database)
        engine.create_table(table, parquet)
        engines.append(engine)
    return tuple(engines)


def fio_read(file: Path, *options: str) -> dict:
    """What fio measures when it reads a file past the kernel's cache."""
    command = ["fio", "--name=read", f"--filename={file}", "--readonly", "--ioengine=io_uring", "--direct=1", *options]
    output = subprocess.run([*command, "--output-format=json"], check=True, capture_output=True, text=True).stdout
    return json.loads(output)["jobs"][0]["read"]


def duckdb_tpch(scale_factor: str) -> DuckDB:
    """DuckDB's database of the TPC-H tables, kept between runs for each DuckDB version."""
    version = importlib.metadata.version("duckdb")
    database = bench_dir() / f"duckdb-{version}-sf{scale_factor}.db"
    if not database.exists():
        unfinished = database.with_suffix(".unfinished")
        remove(unfinished)
        engine = DuckDB(unfinished)
        load_tpch(engine, tpch_parquet(scale_factor))
        engine.close()
        unfinished.rename(database)
    return DuckDB(database)


def remove(path: Path) -> None:
    """Removes a file or folder, if there is one."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
        path.with_name(path.name + ".wal").unlink(missing_ok=True)


def allocated_bytes(path: Path) -> int:
    """Disk space that a file or the files of a folder take (holes are not counted)."""
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    return sum(file.stat().st_blocks * 512 for file in files)


def evict(path: Path) -> None:
    """Drops a file, or the files of a folder, from the kernel's page cache."""
    for file in [path] if path.is_file() else path.rglob("*"):
        if file.is_file():
            descriptor = os.open(file, os.O_RDONLY)
            try:
                os.fsync(descriptor)
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def timed(action: Callable[[], object]) -> float:
    """Seconds that the call takes."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def interleaved(contestants: dict[str, Callable[[], object]], runs: int) -> dict[str, float]:
    """Median seconds of each, taking turns after a run that warms them."""
    for action in contestants.values():
        action()
    times = {name: [] for name in contestants}
    for _ in range(runs):
        for name, action in contestants.items():
            times[name].append(timed(action))
    return {name: median(seconds) for name, seconds in times.items()}


def median(values: list[float]) -> float:
    return statistics.median(values)


def geometric_mean(values: list[float]) -> float:
    return math.exp(statistics.fmean(math.log(value) for value in values))


def same_result(ours: pa.Table, theirs: pa.Table, tolerance: float) -> str | None:
    """Why two results differ, or None.

    Values of any number type are equal within the relative tolerance (engines
    round averages of decimals differently) or half a millionth. Rows must come
    in the same order, except that rows that the order leaves open may be
    anywhere: if the results differ in order they are compared sorted.
    """
    if ours.num_columns != theirs.num_columns or ours.num_rows != theirs.num_rows:
        return f"shape {ours.shape} against {theirs.shape}"
    left, right = _rows(ours), _rows(theirs)
    difference = _first_difference(left, right, tolerance)
    if difference:
        difference = _first_difference(sorted(left, key=_sort_key), sorted(right, key=_sort_key), tolerance)
    return difference


def _rows(table: pa.Table) -> list[tuple]:
    return list(zip(*(column.to_pylist() for column in table.columns)))


def _sort_key(row: tuple) -> tuple:
    # Text before numbers: rounding must not decide the order where text can.
    numbers = [f"{value:.3f}" for value in row if isinstance(value, (int, float, decimal.Decimal))]
    others = [str(value) for value in row if not isinstance(value, (int, float, decimal.Decimal))]
    return (*others, *numbers)


def _first_difference(left: list[tuple], right: list[tuple], tolerance: float) -> str | None:
    for number, (ours, theirs) in enumerate(zip(left, right)):
        for a, b in zip(ours, theirs):
            if not _same_value(a, b, tolerance):
                return f"row {number}: {ours} against {theirs}"
    return None


def _same_value(a: object, b: object, tolerance: float) -> bool:
    if isinstance(a, (int, float, decimal.Decimal)) and isinstance(b, (int, float, decimal.Decimal)):
        return math.isclose(a, b, rel_tol=tolerance, abs_tol=0.5e-6)
    return a == b


def describe_machine(packages: tuple[str, ...] = ("flashmesh", "duckdb", "datafusion")) -> str:
    """CPU, memory, disk and versions: the head of every table of figures."""
    cpu = next(
        (line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    device = subprocess.run(
        ["findmnt", "-no", "SOURCE,FSTYPE", "--target", str(bench_dir())], capture_output=True, text=True
    ).stdout.split()
    versions = ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=ROOT
    ).stdout.strip()
    return (
        f"machine: {cpu}, {os.cpu_count()} cores ({THREADS} threads used), {memory_gib:.0f} GiB, "
        f"{' '.join(device)}, Linux {platform.release()}, Python {platform.python_version()}\n"
        f"versions: {versions}; commit {commit or 'unknown'}"
    )


def note(text: str) -> None:
    """A line about progress, on standard error."""
    import sys

    print(f"bench: {text}", file=sys.stderr, flush=True)
