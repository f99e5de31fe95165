"""The `flashmesh` command of the wheel."""

import json
import subprocess
import sys
from pathlib import Path


def flashmesh(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = Path(sys.executable).with_name("flashmesh")
    return subprocess.run([command, *arguments], capture_output=True, text=True)


def test_it_runs_sql(tmp_path: Path) -> None:
    database = ["--db", str(tmp_path / "db")]
    created = flashmesh(*database, "-c", "CREATE TABLE t AS SELECT * FROM (VALUES (1, 'one'), (2, NULL)) v(n, name)")
    assert created.returncode == 0, created.stderr
    ran = flashmesh(*database, "--format", "json", "-c", "SELECT * FROM t ORDER BY n")
    assert json.loads(ran.stdout) == [{"n": 1, "name": "one"}, {"n": 2, "name": None}]


def test_what_fails_shows_in_the_exit_code() -> None:
    failed = flashmesh("-c", "SELECT nothing")
    assert failed.returncode == 1
    assert "nothing" in failed.stderr
    assert flashmesh("--no-such-option").returncode == 2


def test_it_waits_for_no_library_that_it_does_not_use() -> None:
    program = "import sys, flashmesh.command; print({'datafusion', 'pyarrow'} & {*sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
    assert loaded.stdout == "set()\n"
