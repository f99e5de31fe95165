"""`flashmesh load`, `flashmesh fsck` and `flashmesh backup` on a server, and `CHECK DATABASE`."""

import os
import random
import subprocess
import threading

import adbc_driver_manager
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from serving import PATIENCE, add_user, binary, execute, rows


def flashmesh(*arguments, **environment) -> subprocess.CompletedProcess:
    command = [str(part) for part in (binary(), *arguments)]
    environment = os.environ | environment
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment, check=False)


def test_files_are_sent(start, tmp_path):
    add_user(tmp_path / "users", "ada", "secret", "--admin")
    server = start("--users", tmp_path / "users")
    parquet.write_table(pa.table({"id": range(100_000), "name": [f"n{n}" for n in range(100_000)]}), tmp_path / "a.parquet")
    (tmp_path / "b.csv").write_text("id,name\n100000,\"x;\ny\"\n")
    (tmp_path / "c.csv").write_text("100001;-\n")

    def load(*arguments):
        login = ("--connect", server.uri, "--user", "ada")
        return flashmesh("load", *arguments, *login, FLASHMESH_PASSWORD="secret")

    refused = flashmesh("--connect", server.uri, "--user", "ada", "-c", "SELECT 1", FLASHMESH_PASSWORD="s")
    assert refused.stderr == "error: logging in as 'ada': wrong user name or password\n", refused.stderr
    done = load("shop", tmp_path / "a.parquet")
    assert done.returncode == 0 and "100,000 rows sent to table 'shop'" in done.stderr, done.stderr
    again = load("shop", tmp_path / "a.parquet")
    assert again.returncode == 1 and "exists" in again.stderr, again.stderr
    absent = load("nothing", tmp_path / "b.csv", "--append")
    assert absent.returncode == 1 and "nothing" in absent.stderr, absent.stderr
    assert load("shop", tmp_path / "b.csv", "--append", "--quiet").stderr == ""
    with server.connect("ada", "secret") as ada:
        assert rows(ada, "SELECT count(*), sum(id) FROM shop") == [(100_001, sum(range(100_001)))]
        assert rows(ada, "SELECT name FROM shop WHERE id = 100000") == [("x;\ny",)]
        assert load("shop", tmp_path / "c.csv", "--replace", "--no-header", "--delimiter", ";", "--null", "-").returncode == 0
        assert rows(ada, "SELECT * FROM shop") == [(100_001, None)]
    # Nobody is let in by the way.
    refused = flashmesh("load", "shop", tmp_path / "b.csv", "--append", "--connect", server.uri)
    assert refused.returncode == 1 and "user name and a password" in refused.stderr
    both = flashmesh("load", "shop", tmp_path / "b.csv", "--db", tmp_path / "db", "--connect", server.uri)
    assert both.returncode == 2 and "cannot be used with" in both.stderr


def test_a_database_is_checked_while_others_write(start):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    server = start()
    failed, over = [], threading.Event()

    def write(number: int) -> None:
        chance = random.Random(seed + number)
        statements = [
            "INSERT INTO {t} SELECT value, 'w' || value FROM generate_series({n}, {n} + 400) AS s(value) ON CONFLICT (id) DO NOTHING",
            "UPDATE {t} SET name = name || '!' WHERE id % 7 = {n} % 7",
            "DELETE FROM {t} WHERE id % 11 = {n} % 11",
            "VACUUM {t}",
            "CREATE OR REPLACE TABLE {t}_copy AS SELECT * FROM {t}",
            "DROP TABLE IF EXISTS {t}_copy",
            "ALTER TABLE {t} SET (retention = '{r} seconds')",
            "ALTER TABLE {t}_renamed RENAME TO {t}_other",
            "CREATE TABLE IF NOT EXISTS {t}_renamed AS SELECT * FROM {t} LIMIT 100",
        ]
        with server.connect() as connection:
            table = f"t{number}"
            execute(connection, f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, name VARCHAR) WITH (retention = '2 seconds')")
            while not over.is_set():
                sql = chance.choice(statements).format(t=table, n=chance.randrange(10_000), r=1 + chance.randrange(3))
                try:
                    execute(connection, sql)
                except adbc_driver_manager.Error as error:
                    # Whether there is a table to be renamed is left to chance.
                    if "RENAME" not in sql:
                        failed.append(f"{sql}: {error}")
                        return

    writers = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for writer in writers:
        writer.start()
    try:
        with server.connect() as connection:
            for _ in range(40):
                found = rows(connection, "CHECK DATABASE")
                assert [row[0] for row in found] == [None], found
    finally:
        over.set()
        for writer in writers:
            writer.join()
    assert not failed
    done = flashmesh("fsck", "--connect", server.uri)
    assert done.returncode == 0 and "checked: all sound" in done.stdout, done.stdout + done.stderr


def test_a_server_makes_backups(start, tmp_path):
    server = start()
    with server.connect() as connection:
        execute(connection, "CREATE TABLE t AS SELECT value AS id FROM generate_series(1, 1000) AS s(value)")
    place = tmp_path / "it's a place"
    for _ in range(2):
        done = flashmesh("backup", "--connect", server.uri, place, "--keep", "1")
        assert done.returncode == 0 and str(place) in done.stdout, done
    assert flashmesh("backups", place).stdout.startswith("backup 2,")
    restored = flashmesh("restore", "--db", tmp_path / "other.db", place)
    assert restored.returncode == 0 and "1,000 rows" in restored.stdout, restored
    without = flashmesh("backup", place)
    assert without.returncode == 1 and "--connect" in without.stderr, without


def test_what_is_damaged_is_found_by_a_server(start, tmp_path):
    add_user(tmp_path / "users", "ada", "secret", "--admin")
    add_user(tmp_path / "users", "bob", "secret")
    server = start("--users", tmp_path / "users")
    login = {"FLASHMESH_PASSWORD": "secret"}
    with server.connect("ada", "secret") as ada:
        execute(ada, "CREATE TABLE t AS SELECT value AS id, 'row ' || value AS name FROM generate_series(1, 300000) AS s(value)")
        [(problem, tables, segments, pages, size)] = rows(ada, "CALL check_database()")
        assert problem is None and tables == 1 and segments >= 1 and size == pages * 8192
    refused = flashmesh("fsck", "--connect", server.uri, "--user", "bob", **login)
    assert refused.returncode == 1 and "may not check the database" in refused.stderr
    [card] = server.database.glob("*.flash")
    with card.open("r+b") as file:
        for page in range(0, card.stat().st_size, 8192):
            file.seek(page + 100)
            byte = file.read(1)
            if byte not in (b"", b"\x00", b"\xff"):
                file.seek(page + 100)
                file.write(bytes([byte[0] ^ 1]))
        file.flush()
        os.fsync(file.fileno())
    found = flashmesh("fsck", "--connect", server.uri, "--user", "ada", **login)
    assert found.returncode == 1 and "problem" in found.stdout.splitlines()[-1], found.stdout + found.stderr
    assert "table 'public.t'" in found.stdout, found.stdout
    # The server goes on.
    with server.connect("ada", "secret") as ada:
        assert rows(ada, "SELECT 1") == [(1,)]


def test_checks_take_no_arguments(connection):
    for sql, why in [("CALL check_database(1)", "takes no arguments"), ("CHECK TABLE t", "DATABASE")]:
        with pytest.raises(adbc_driver_manager.Error, match=why):
            rows(connection, sql)
