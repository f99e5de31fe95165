"""Queries, parameters and changes through the ADBC driver."""

import datetime
import decimal
import random

import adbc_driver_flightsql.dbapi
import adbc_driver_manager
import pyarrow as pa
import pytest
from serving import eventually, execute, rows

DAY = datetime.date(2024, 2, 29)
MOMENT = datetime.datetime(2024, 2, 29, 12, 30, 15, 123456)

# A value of each type that tables hold, with the type's name in SQL.
VALUES = {
    "BOOLEAN": pa.array([True, None], pa.bool_()),
    "TINYINT": pa.array([-128, None], pa.int8()),
    "SMALLINT": pa.array([-32768, None], pa.int16()),
    "INTEGER": pa.array([-(2**31), None], pa.int32()),
    "BIGINT": pa.array([-(2**63), None], pa.int64()),
    "TINYINT UNSIGNED": pa.array([255, None], pa.uint8()),
    "SMALLINT UNSIGNED": pa.array([65535, None], pa.uint16()),
    "INTEGER UNSIGNED": pa.array([2**32 - 1, None], pa.uint32()),
    "BIGINT UNSIGNED": pa.array([2**64 - 1, None], pa.uint64()),
    "REAL": pa.array([0.5, None], pa.float32()),
    "DOUBLE": pa.array([-1e300, None], pa.float64()),
    "DECIMAL(20, 3)": pa.array([decimal.Decimal("-12345678901234567.125"), None], pa.decimal128(20, 3)),
    "VARCHAR": pa.array(["Grüße, 世界", None], pa.string()),
    "BYTEA": pa.array([b"\x00\xff", None], pa.binary()),
    "DATE": pa.array([DAY, None], pa.date32()),
    "TIMESTAMP": pa.array([MOMENT, None], pa.timestamp("ns")),
}


@pytest.mark.parametrize("sql_type", VALUES)
def test_values_of_every_type_go_there_and_back(connection, table, sql_type):
    values = VALUES[sql_type]
    execute(connection, f"CREATE TABLE {table} (id INTEGER, v {sql_type})")
    given = pa.table({"id": pa.array([1, 2], pa.int32()), "v": values})
    with connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO {table} VALUES (?, ?)", given)
        assert cursor.rowcount == 2
        cursor.execute(f"SELECT id, v FROM {table} ORDER BY id")
        assert cursor.fetch_arrow_table()["v"].to_pylist() == values.to_pylist()
        # As a parameter of a comparison, which finds the row with the value and not that with NULL.
        cursor.execute(f"SELECT id FROM {table} WHERE v = ?", given.select(["v"]).slice(0, 1))
        assert cursor.fetchall() == [(1,)]


def test_nested_and_odd_types_reach_the_client(connection):
    [row] = rows(
        connection,
        """SELECT [1, NULL, 3] AS list, {a: 1, b: 'x'} AS struct, arrow_cast('d', 'Dictionary(Int32, Utf8)') AS dictionary,
                  arrow_cast('v', 'Utf8View') AS view, NULL AS nothing, INTERVAL '1 day' AS span""",
    )
    assert row[:5] == ([1, None, 3], {"a": 1, "b": "x"}, "d", "v", None)


def test_one_row_of_parameters_and_many(connection):
    with connection.cursor() as cursor:
        cursor.execute("SELECT concat($2, $1) AS both", ("a", "b"))
        assert cursor.fetchall() == [("ba",)]
        # A query is run once for each row of its parameters.
        cursor.execute("SELECT CAST(? AS BIGINT) * 2 AS double", pa.table({"x": [1, None, 3]}))
        assert cursor.fetchall() == [(2,), (None,), (6,)]
        cursor.execute("SELECT ? IS NULL AS missing", (None,))
        assert cursor.fetchall() == [(True,)]


def test_wrong_parameters_are_refused(connection):
    for sql, parameters in [("SELECT $1 + $2", (1,)), ("SELECT $1 + $3", (1, 2)), ("SELECT CAST($1 AS INT)", ("x",))]:
        with pytest.raises(adbc_driver_manager.Error):
            rows(connection, sql, parameters)


def test_changes_have_true_row_counts(connection, table):
    assert execute(connection, f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, name VARCHAR)") <= 0
    assert execute(connection, f"INSERT INTO {table} VALUES (1, 'a'), (2, NULL)") == 2
    with connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO {table} VALUES (?, upper(?))", [(3, "c"), (4, None), (5, "e")])
        assert cursor.rowcount == 3
    assert execute(connection, f"INSERT INTO {table} SELECT id + 10, name FROM {table} WHERE id > ?", (2,)) == 3
    assert execute(connection, f"INSERT INTO {table} SELECT id + 10, name FROM {table} WHERE false") == 0
    found = rows(connection, f"SELECT * FROM {table} ORDER BY id")
    assert found == [(1, "a"), (2, None), (3, "C"), (4, None), (5, "E"), (13, "C"), (14, None), (15, "E")]
    assert execute(connection, f"DROP TABLE {table}") <= 0
    with pytest.raises(adbc_driver_manager.Error, match=table):
        rows(connection, f"SELECT * FROM {table}")


def test_a_failed_insert_of_many_rows_leaves_none(connection, table):
    execute(connection, f"CREATE TABLE {table} (id BIGINT PRIMARY KEY)")
    with connection.cursor() as cursor, pytest.raises(adbc_driver_manager.Error):
        cursor.executemany(f"INSERT INTO {table} VALUES (?)", [(1,), (2,), (1,)])
    assert rows(connection, f"SELECT count(*) FROM {table}") == [(0,)]


def test_random_rows_by_parameters(connection, table):
    seed = random.randrange(2**32)
    print("seed", seed)
    generator = random.Random(seed)
    model = {}
    execute(connection, f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, name VARCHAR)")
    for _ in range(10):
        new = {generator.randrange(2**40): generator.choice([None, "", "x'y", "ü" * generator.randrange(50)]) for _ in range(20)}
        new = {key: name for key, name in new.items() if key not in model}
        with connection.cursor() as cursor:
            cursor.executemany(f"INSERT INTO {table} VALUES (?, ?)", list(new.items()))
            assert cursor.rowcount == len(new)
        model |= new
        wanted = generator.choice(list(model))
        assert rows(connection, f"SELECT name FROM {table} WHERE id = ?", (wanted,)) == [(model[wanted],)]
    assert dict(rows(connection, f"SELECT id, name FROM {table}")) == model


@pytest.mark.parametrize(
    ("sql", "kind", "message"),
    [
        ("SELEC 1", adbc_driver_manager.ProgrammingError, "SELEC"),
        ("SELECT * FROM nowhere", adbc_driver_manager.ProgrammingError, "nowhere"),
        ("SELECT 1; SELECT 2", adbc_driver_manager.ProgrammingError, "one statement"),
        ("-- nothing", adbc_driver_manager.ProgrammingError, "no statement"),
        ("SELECT 1 / x FROM (VALUES (0)) AS t(x)", adbc_driver_manager.ProgrammingError, "[Dd]ivi"),
        ("SELECT CAST(x AS INT) FROM (VALUES ('a')) AS t(x)", adbc_driver_manager.ProgrammingError, "'a'"),
    ],
)
def test_errors_keep_their_kind_and_their_message(connection, sql, kind, message):
    with pytest.raises(kind, match=message):
        rows(connection, sql)
    assert rows(connection, "SELECT 1") == [(1,)]


@pytest.mark.filterwarnings("error")
def test_drivers_without_autocommit_write_in_transactions(server, table):
    connect = lambda: adbc_driver_flightsql.dbapi.connect(server.uri)
    with connect() as one, server.connect() as other:
        seen = lambda: rows(other, f"SELECT * FROM {table} ORDER BY id")
        execute(one, f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, x BIGINT)")
        execute(one, f"CREATE INDEX {table}_x ON {table} USING hash (x)")
        execute(one, f"INSERT INTO {table} VALUES (1, 10)")
        with one.cursor() as cursor:
            cursor.executemany(f"INSERT INTO {table} VALUES (?, ?)", [(2, 20), (3, 30)])
            more = pa.table({"id": [4], "x": [40]})
            assert cursor.adbc_ingest(table, more, mode="append") == 1
        execute(one, f"CREATE VIEW {table}_v AS SELECT id FROM {table} WHERE x >= 30")
        assert rows(one, f"SELECT id FROM {table}_v ORDER BY id") == [(3,), (4,)]
        assert rows(one, f"SELECT id FROM {table} WHERE x = ?", (20,)) == [(2,)]
        with pytest.raises(adbc_driver_manager.ProgrammingError, match=table):
            seen()
        one.commit()
        assert seen() == [(1, 10), (2, 20), (3, 30), (4, 40)]
        execute(one, f"ALTER TABLE {table} ADD COLUMN y BIGINT DEFAULT 1")
        execute(one, f"DELETE FROM {table}")
        one.rollback()
        assert rows(one, f"SELECT count(*) FROM {table}") == [(4,)]
        one.adbc_connection.set_autocommit(True)
        execute(one, f"UPDATE {table} SET x = 13 WHERE id = 1")
        assert seen()[0] == (1, 13)
        one.adbc_connection.set_autocommit(False)
        # Of two that change a row the second is refused.
        execute(one, f"UPDATE {table} SET x = 11 WHERE id = 1")
        execute(other, f"UPDATE {table} SET x = 12 WHERE id = 1")
        with pytest.raises(adbc_driver_manager.Error, match=r"changed row \(id\) = \(1\)"):
            one.commit()


def test_transactions_belong_to_a_session(server):
    with server.connect() as one, server.connect() as other:
        execute(one, "CREATE TABLE account (id BIGINT PRIMARY KEY, balance BIGINT)")
        execute(one, "INSERT INTO account VALUES (1, 10)")
        execute(one, "BEGIN")
        execute(one, "UPDATE account SET balance = 20")
        assert rows(one, "SELECT balance FROM account") == [(20,)]
        assert rows(other, "SELECT balance FROM account") == [(10,)]
        execute(other, "UPDATE account SET balance = balance + 1")
        with pytest.raises(adbc_driver_manager.Error, match="changed"):
            execute(one, "COMMIT")
        assert rows(one, "SELECT balance FROM account") == [(11,)]
        execute(one, "BEGIN")
        execute(one, "DELETE FROM account")
    # A session that ends rolls back.
    with server.connect() as later:
        assert rows(later, "SELECT balance FROM account") == [(11,)]


def test_a_session_that_ends_takes_its_transaction_with_it(start):
    server = start("--session-idle", "1s")
    with server.connect() as connection, server.connect() as other:
        execute(connection, "CREATE TABLE t (a BIGINT)")
        execute(connection, "BEGIN")
        execute(connection, "INSERT INTO t VALUES (1)")
        eventually(lambda: server.metrics()["sessions"] == 0, "the session ends")
        # It does not commit by itself.
        with pytest.raises(adbc_driver_manager.Error, match="has ended"):
            execute(connection, "INSERT INTO t VALUES (2)")
        execute(connection, "INSERT INTO t VALUES (3)")
        assert rows(other, "SELECT a FROM t") == [(3,)]


def test_connections_have_views_and_options_of_their_own(server):
    with server.connect() as one, server.connect() as other:
        execute(one, "CREATE TEMPORARY VIEW mine AS SELECT 42 AS answer")
        assert rows(one, "SELECT answer FROM mine") == [(42,)]
        with pytest.raises(adbc_driver_manager.Error, match="mine"):
            rows(other, "SELECT answer FROM mine")
        execute(one, "SET datafusion.execution.batch_size = 77")
        shown = "SELECT value FROM information_schema.df_settings WHERE name = 'datafusion.execution.batch_size'"
        assert rows(one, shown) == [("77",)]
        assert rows(other, shown) != [("77",)]


def test_session_options(connection):
    option = "adbc.flight.sql.session.option.datafusion.execution.batch_size"
    raw = connection.adbc_connection
    raw.set_options(**{option: "4096"})
    assert raw.get_option(option) == "4096"
    assert "datafusion.execution.batch_size" in raw.get_option("adbc.flight.sql.session.options")
    with pytest.raises(adbc_driver_manager.Error):
        raw.set_options(**{option: "many"})
    with pytest.raises(adbc_driver_manager.Error):
        raw.set_options(**{"adbc.flight.sql.session.option.no_such_option": "1"})
    assert raw.get_option(option) == "4096"
