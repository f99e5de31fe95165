"""Temporary tables: all that tables have, for one session alone, and gone with it."""

import subprocess

import adbc_driver_manager
import flashmesh
import pyarrow as pa
import pytest
from serving import Server, add_user, binary, eventually, execute, rows


def refused(connection, sql: str) -> str:
    with pytest.raises(adbc_driver_manager.Error) as error:
        rows(connection, sql)
    return str(error.value)


def used_bytes(connection) -> int:
    return rows(connection, "SELECT sum(live_bytes + memory_bytes) FROM system.flash")[0][0]


def place_of(connection, table: str) -> str:
    """The schema that has a session's temporary tables."""
    plan = str(rows(connection, f"EXPLAIN SELECT * FROM {table}"))
    return plan.split("table=temp#")[1].split(".")[0]


def test_a_session_has_all_of_a_table(connection, table):
    execute(connection, f"CREATE TEMP TABLE {table} (id BIGINT PRIMARY KEY, name TEXT DEFAULT 'none', n INT)")
    execute(connection, f"INSERT INTO {table} (id, n) VALUES (1, 10), (2, 20), (3, 30)")
    execute(connection, f"INSERT INTO temp.{table} VALUES (3, 'three', 33) ON CONFLICT (id) DO UPDATE SET n = excluded.n")
    execute(connection, f"UPDATE {table} SET name = 'two' WHERE id = 2")
    execute(connection, f"DELETE FROM {table} WHERE id = 1")
    expected = [(2, "two", 20), (3, "none", 33)]
    assert rows(connection, f"SELECT * FROM {table} ORDER BY id") == expected
    assert rows(connection, f"SELECT * FROM temp.{table} ORDER BY id") == expected
    assert rows(connection, f"SELECT id, n FROM lookup('{table}', [3])") == [(3, 33)]
    execute(connection, f"CREATE INDEX {table}_names ON {table} USING ngram (name)")
    assert rows(connection, f"SELECT a.id FROM {table} a JOIN {table} b ON a.id = b.id WHERE b.name LIKE '%two%'") == [(2,)]
    execute(connection, f"DROP INDEX {table}_names")
    execute(connection, f"ALTER TABLE {table} RENAME COLUMN n TO amount")
    execute(connection, f"ALTER TABLE {table} RENAME TO {table}_r")
    assert rows(connection, f"SELECT count(*) FROM {table}_r") == [(2,)]
    assert "not found" in refused(connection, f"SELECT * FROM {table}")
    execute(connection, f"ALTER TABLE temp.{table}_r RENAME TO {table}")
    assert [row[0] for row in rows(connection, f"DESCRIBE {table}")] == ["id", "name", "amount"]
    listed = f"SELECT table_schema, table_type FROM information_schema.tables WHERE table_name = '{table}'"
    assert rows(connection, listed) == [("temp", "LOCAL TEMPORARY")]
    execute(connection, f"CREATE OR REPLACE TEMPORARY TABLE {table} AS SELECT value AS v FROM range(1000)")
    execute(connection, f"CREATE TEMP VIEW {table}_v AS SELECT sum(v) AS s FROM {table}")
    assert rows(connection, f"SELECT s FROM {table}_v") == [(499500,)]
    execute(connection, f"CREATE TEMP TABLE IF NOT EXISTS {table} (other INT)")
    with connection.cursor() as cursor:
        ingested = pa.table({"a": [1, 2, 3]})
        assert cursor.adbc_ingest(f"{table}_i", ingested, mode="create", temporary=True) == 3
        assert cursor.adbc_ingest(f"{table}_i", ingested, mode="append", temporary=True) == 3
    assert rows(connection, f"SELECT count(*), sum(a) FROM {table}_i") == [(6, 12)]
    execute(connection, f"DROP VIEW {table}_v")
    execute(connection, f"DROP TABLE {table}")
    assert "not found" in refused(connection, f"SELECT * FROM {table}")
    execute(connection, f"DROP TABLE IF EXISTS {table}")
    # The name is free again.
    execute(connection, f"CREATE TABLE {table} AS SELECT 1 AS a")
    assert rows(connection, f"SELECT * FROM {table}") == [(1,)]
    execute(connection, f"DROP TABLE {table}")


def test_nothing_is_hidden_and_nothing_lasts_that_reads_it(connection, table):
    execute(connection, f"CREATE TABLE {table} AS SELECT 1 AS a")
    assert "would hide it" in refused(connection, f"CREATE TEMP TABLE {table} (b INT)")
    execute(connection, f"DROP TABLE {table}")
    execute(connection, f"CREATE TEMP TABLE {table} (b INT)")
    for sql in (f"CREATE TABLE {table} (a INT)", f"CREATE OR REPLACE TABLE {table} AS SELECT 1 AS a"):
        assert "temporary table of this session" in refused(connection, sql)
    assert "CREATE TEMPORARY VIEW" in refused(connection, f"CREATE VIEW {table}_v AS SELECT * FROM {table}")
    assert "in the schema 'temp'" in refused(connection, f"CREATE TEMP TABLE public.{table}_x (a INT)")
    assert "can't be called" in refused(connection, "CREATE SCHEMA temp")
    assert "CREATE TEMPORARY VIEW" in refused(connection, f"CREATE VIEW temp.{table}_v AS SELECT 1 AS a")
    assert "does not exist" in refused(connection, f"DROP TABLE temp.{table}_x")
    execute(connection, f"CREATE TEMP VIEW {table}_w AS SELECT 1 AS a")
    assert "would hide it" in refused(connection, f"CREATE TEMP TABLE {table}_w (a INT)")
    execute(connection, f"CREATE TABLE {table}_y AS SELECT 1 AS a")
    assert "temporary table" in refused(connection, f"ALTER TABLE {table}_y RENAME TO {table}")
    assert "would hide it" in refused(connection, f"ALTER TABLE {table} RENAME TO {table}_y")
    with connection.cursor() as cursor:
        for mode in ("create", "replace"):
            with pytest.raises(adbc_driver_manager.Error):
                cursor.adbc_ingest(table, pa.table({"a": [1]}), mode=mode)
    # Where another schema is in use, it stays where it is found.
    execute(connection, f"CREATE SCHEMA {table}_s")
    execute(connection, f"SET datafusion.catalog.default_schema = '{table}_s'")
    execute(connection, f"CREATE TEMP TABLE IF NOT EXISTS {table} (b INT)")
    execute(connection, "RESET datafusion.catalog.default_schema")
    assert rows(connection, f"SELECT count(*) FROM {table}") == [(0,)]
    assert "with their session" in refused(connection, "DROP SCHEMA temp CASCADE")


def test_a_transaction_takes_it_back(connection, table):
    execute(connection, f"CREATE TEMP TABLE {table} AS SELECT 1 AS a")
    execute(connection, "BEGIN")
    execute(connection, f"INSERT INTO {table} VALUES (2)")
    execute(connection, f"CREATE TEMP TABLE {table}_2 AS SELECT * FROM {table}")
    assert rows(connection, f"SELECT count(*) FROM {table}_2") == [(2,)]
    execute(connection, "ROLLBACK")
    assert rows(connection, f"SELECT count(*) FROM {table}") == [(1,)]
    assert "not found" in refused(connection, f"SELECT * FROM {table}_2")
    # The schema of the first one goes with it.
    with_first = f"{table}_3"
    execute(connection, f"DROP TABLE {table}")
    execute(connection, "BEGIN")
    execute(connection, f"CREATE TEMP TABLE {with_first} AS SELECT 1 AS a")
    execute(connection, "ROLLBACK")
    assert "not found" in refused(connection, f"SELECT * FROM {with_first}")
    execute(connection, f"CREATE TEMP TABLE {with_first} AS SELECT 2 AS a")
    assert rows(connection, f"SELECT * FROM {with_first}") == [(2,)]


def test_drivers_are_told_of_it(connection, table):
    execute(connection, f"CREATE TEMP TABLE {table} (id BIGINT PRIMARY KEY, name TEXT)")
    found = connection.adbc_get_objects(depth="tables", table_name_filter=table).read_all().to_pylist()
    schemas = [schema for catalog in found for schema in catalog["catalog_db_schemas"] if schema["db_schema_tables"]]
    assert [(s["db_schema_name"], t["table_type"]) for s in schemas for t in s["db_schema_tables"]] == [
        ("temp", "LOCAL TEMPORARY")
    ]


def test_a_backup_and_a_closed_database_have_none(tmp_path):
    place, restored = tmp_path / "backup", tmp_path / "restored"

    def used(connection) -> int:
        return connection.execute("SELECT sum(live_bytes + memory_bytes) FROM system.flash").fetchone()[0]

    with flashmesh.connect(tmp_path / "db") as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS a")
        before = used(connection)
        connection.execute("CREATE TEMP TABLE gone AS SELECT value AS v FROM range(200000)")
        connection.execute(f"BACKUP DATABASE TO '{place}'")
        assert used(connection) > before
    for database in (tmp_path / "db", restored):
        if database == restored:
            subprocess.run([binary(), "restore", "--db", restored, place], check=True, capture_output=True)
        with flashmesh.connect(database, read_only=True) as connection:
            assert connection.execute("SELECT a FROM kept").fetchall() == [(1,)]
            assert used(connection) == before


def test_others_neither_see_nor_reach_it(server, connection, table):
    execute(connection, f"CREATE TEMP TABLE {table} (id BIGINT PRIMARY KEY, name TEXT)")
    execute(connection, f"INSERT INTO {table} VALUES (1, 'mine')")
    schema = f'"temp#{place_of(connection, table)}"'
    with server.connect() as other:
        assert "not found" in refused(other, f"SELECT * FROM {table}")
        for sql in (
            f"SELECT * FROM {schema}.{table}",
            f"SELECT * FROM lookup('{schema}.{table}', [1])",
            f"SELECT * FROM {schema}.{table} AT (VERSION => 1)",
            f"INSERT INTO {schema}.{table} VALUES (2, 'theirs')",
            f"DROP TABLE {schema}.{table}",
            f"CREATE TABLE {schema}.{table}_2 (a INT)",
            f"CREATE SCHEMA {schema}",
        ):
            refused(other, sql)
        everywhere = "SELECT count(*) FROM {} WHERE {} LIKE 'temp%'"
        for listed, column in (
            ("information_schema.tables", "table_schema"),
            ("information_schema.schemata", "schema_name"),
            ("system.tables", "schema"),
            ("system.versions", "schema"),
            ("system.indexes", "schema"),
        ):
            assert rows(other, everywhere.format(listed, column)) == [(0,)], listed
        execute(other, f"CREATE TEMP TABLE {table} AS SELECT 'theirs' AS name")
        assert rows(other, f"SELECT * FROM {table}") == [("theirs",)]
    assert rows(connection, f"SELECT * FROM {table}") == [(1, "mine")]


def test_it_goes_with_the_session_and_with_the_server(start):
    server: Server = start()
    with server.connect() as watching:
        before = used_bytes(watching)
        with server.connect() as connection:
            execute(connection, "CREATE TEMP TABLE big AS SELECT value AS v, value * 7 % 1000003 AS w FROM range(300000)")
            assert used_bytes(watching) > before
        eventually(lambda: used_bytes(watching) == before, "an ended session leaves nothing")
        connection = server.connect()
        execute(connection, "CREATE TEMP TABLE big AS SELECT value AS v, value * 7 % 1000003 AS w FROM range(300000)")
    server.kill()
    server.start()
    with server.connect() as watching:
        eventually(lambda: used_bytes(watching) == before, "a server that was killed leaves nothing")


def test_who_may_make_no_table_makes_no_temporary_one(start, tmp_path):
    users = tmp_path / "users.toml"
    add_user(users, "root", "a password", "--admin")
    add_user(users, "reader", "a password")
    add_user(users, "maker", "a password")
    everything = 'grants = [{ tables = "*.*", rights = ["read"] }]'
    scratch = 'grants = [{ tables = "scratch_*", rights = ["read", "write", "create"] }]'
    before, found, after = users.read_text().rpartition(everything)
    assert found and everything in before
    users.write_text(before + scratch + after)
    server = start("--users", users)
    with server.connect("reader", "a password") as connection:
        assert "may not create" in refused(connection, "CREATE TEMP TABLE scratch_1 (a INT)")
    with server.connect("maker", "a password") as connection:
        execute(connection, "CREATE TEMP TABLE scratch_1 AS SELECT 1 AS a")
        execute(connection, "INSERT INTO scratch_1 VALUES (2)")
        assert rows(connection, "SELECT sum(a) FROM scratch_1") == [(3,)]
        assert "may not create" in refused(connection, "CREATE TEMP TABLE another (a INT)")
        with server.connect("root", "a password") as admin:
            schema = place_of(connection, "scratch_1")
            refused(admin, f'SELECT * FROM "temp#{schema}".scratch_1')
