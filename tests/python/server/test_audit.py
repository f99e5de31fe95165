"""The audit log: who logged in, who was refused, what was run."""

import json
import subprocess

import adbc_driver_manager
import pytest
from serving import add_user, binary, execute, rows


def entries(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_what_is_done_is_written_down(start, tmp_path):
    users, log = tmp_path / "users.toml", tmp_path / "audit.jsonl"
    add_user(users, "ada", "secret", "--admin")
    add_user(users, "bob", "secret")
    server = start("--users", users, "--audit-log", log)
    with pytest.raises(adbc_driver_manager.Error), server.connect("eve\n", "x") as nobody:
        rows(nobody, "SELECT 1")
    with server.connect("ada", "secret") as ada:
        execute(ada, "CREATE TABLE t AS SELECT 1 AS id")
        execute(ada, "CREATE USER eve PASSWORD 'hidden'")
        with server.connect("bob", "secret") as bob:
            assert rows(bob, "SELECT id FROM t") == [(1,)]
            for refused in ["DROP TABLE t", "SELECT nothing FROM t", "no SQL"]:
                with pytest.raises(adbc_driver_manager.Error):
                    execute(bob, refused)
    server.stop()
    found = entries(log)
    assert all(entry["address"].startswith("127.0.0.1:") and entry["time"].endswith("Z") for entry in found)
    logins = [(entry["event"], entry["user"], entry.get("by")) for entry in found if entry["event"] != "statement"]
    # What a driver asks after a login that failed is refused, too.
    logins = [login for login in logins if login != ("login refused", "", None)]
    assert logins == [("login refused", "eve\n", None), ("login", "ada", "password"), ("login", "bob", "password")]
    statements = [(e["user"], e["statement"], e["state"]) for e in found if e["event"] == "statement"]
    assert statements == [
        ("ada", "CREATE TABLE t AS SELECT 1 AS id", "finished"),
        ("ada", "CREATE USER eve PASSWORD '…'", "finished"),
        ("bob", "SELECT id FROM t", "finished"),
        ("bob", "DROP TABLE t", "failed"),
        ("bob", "SELECT nothing FROM t", "failed"),
        ("bob", "no SQL", "failed"),
    ]
    errors = {e["statement"]: e["error"] for e in found if e.get("state") == "failed"}
    assert "may not" in errors["DROP TABLE t"], errors
    assert next(e["rows"] for e in found if e.get("statement") == "SELECT id FROM t") == 1
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_log_that_cannot_be_written_is_told(tmp_path):
    command = [binary(), "serve", "--db", tmp_path / "db", "--listen", "127.0.0.1:0", "--http", "none"]
    refused = subprocess.run([*command, "--audit-log", tmp_path / "no" / "log"], capture_output=True, text=True)
    assert refused.returncode == 1 and "audit log" in refused.stderr
