"""Parameters and prepared statements over ADBC: values mean what they mean as literals, and each execution sees the database as it is."""

import datetime
from decimal import Decimal

import adbc_driver_manager
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from serving import add_user, execute, rows
from test_flight import command, descriptor, field, fields

DAY = datetime.date(2024, 5, 6)
EVENING = datetime.datetime(2024, 5, 6, 23)


@pytest.fixture
def sale(connection, table):
    execute(connection, f"CREATE TABLE {table} (qty INT, price DECIMAL(10, 2), day DATE, name VARCHAR)")
    execute(connection, f"INSERT INTO {table} VALUES (3, 10.00, DATE '2024-05-06', 'tea')")
    return table


def typed(*values) -> pa.Table:
    """One row of parameters; values of Python's types, or Arrow arrays of one value."""
    arrays = [value if isinstance(value, pa.Array) else pa.array([value]) for value in values]
    return pa.table(arrays, names=[f"p{i}" for i in range(len(arrays))])


@pytest.mark.parametrize(
    ("sql", "values", "expected"),
    [
        ("SELECT qty * ?, price * ? FROM {}", (Decimal("0.19"), Decimal("0.195")), (Decimal("0.57"), Decimal("1.95000"))),
        ("SELECT qty * ? FROM {}", (0.5,), (1.5,)),
        ("SELECT count(*) FROM {} WHERE qty >= ?", (3.5,), (0,)),
        ("SELECT count(*) FROM {} WHERE qty >= ?", (Decimal("3.5"),), (0,)),
        ("SELECT count(*) FROM {} WHERE qty = ?", (3.5,), (0,)),
        ("SELECT 1 + ?", (0.5,), (1.5,)),
        ("SELECT ? / 2", (1.0,), (0.5,)),
        ("SELECT count(*) FROM {} WHERE day < ?", (EVENING,), (1,)),
        ("SELECT count(*) FROM {} WHERE day >= ?", (EVENING,), (0,)),
        ("SELECT count(*) FROM {} WHERE day = ?", ("2024-05-06",), (1,)),
        ("SELECT count(*) FROM {} WHERE price = ? + 8.7601", (Decimal("1.2399"),), (1,)),
        ("SELECT count(*) FROM {} WHERE price = ?", (Decimal("10.001"),), (0,)),
        ("SELECT count(*) FROM {} WHERE qty < ?", (2**40,), (1,)),
        ("SELECT count(*) FROM {} WHERE qty BETWEEN ? AND ?", (2.5, 2.9), (0,)),
        ("SELECT count(*) FROM {} WHERE qty IN (?, ?)", (3.4, 2.6), (0,)),
        ("SELECT qty % ? FROM {}", (2.5,), (0.5,)),
        ("SELECT sum(qty * ?) FROM {}", (0.5,), (1.5,)),
        ("SELECT max(price) FROM {} GROUP BY qty HAVING sum(qty) > ?", (2.9,), (Decimal("10.00"),)),
        ("SELECT CASE WHEN qty > ? THEN 'more' ELSE 'less' END FROM {}", (3.5,), ("less",)),
        ("SELECT (SELECT count(*) FROM {} AS s WHERE s.qty > ?) FROM {} AS t", (2.5,), (1,)),
        ("SELECT count(*) FROM {} AS t WHERE EXISTS (SELECT 1 FROM {} AS s WHERE s.qty = t.qty AND s.qty > ?)", (3.5,), (0,)),
        # What meets nothing but parameters.
        ("SELECT ? + ?", (1, 0.5), (1.5,)),
        ("SELECT ? = ?, ? || ?", ("a", "a", "b", "c"), (True, "bc")),
        ("SELECT ? = ?", (1, 1.5), (False,)),
        ("SELECT ? BETWEEN ? AND ?", (2, 1.5, 2.5), (True,)),
        ("SELECT count(*) FROM {} WHERE ? = ? AND qty BETWEEN ? AND ?", (1, 1, 1, 5), (1,)),
        ("SELECT name FROM {} LIMIT ? OFFSET ?", (1, 0), ("tea",)),
        ("SELECT day + ? FROM {}", (pa.array([(0, 2, 0)], pa.month_day_nano_interval()),), (datetime.date(2024, 5, 8),)),
        ("SELECT day - ? FROM {}", (pa.array([(0, 2, 0)], pa.month_day_nano_interval()),), (datetime.date(2024, 5, 4),)),
        ("SELECT day - ? FROM {}", (datetime.date(2024, 5, 1),), (5,)),
        ("SELECT upper(?)", ("x",), ("X",)),
        ("SELECT coalesce(?, ?)", (None, 7), (7,)),
        ("SELECT name FROM {} WHERE name LIKE ?", ("t%",), ("tea",)),
        ("SELECT name FROM {} WHERE name = ?", (pa.array(["tea"]).dictionary_encode(),), ("tea",)),
        ("SELECT * FROM (VALUES (?, ?)) AS v", (0.5, "x"), (0.5, "x")),
        ("SELECT ? AS a, ? AS b UNION ALL SELECT 2, 'y' ORDER BY a", (1.5, "x"), (1.5, "x")),
        ("WITH w AS (SELECT qty * ? AS q FROM {}) SELECT q FROM w WHERE q > ?", (0.5, 1.25), (1.5,)),
    ],
)
def test_a_parameter_means_what_its_literal_means(connection, sale, sql, values, expected):
    assert rows(connection, sql.replace("{}", sale), typed(*values))[0] == expected


def test_days_are_added_to_dates_as_by_literals(connection, sale):
    # Whatever the literal does, the parameter does.
    def outcome(sql, parameters=None):
        try:
            return rows(connection, sql, parameters)
        except adbc_driver_manager.Error:
            return "refused"

    for operator in "+-":
        literal = outcome(f"SELECT day {operator} 2 FROM {sale}")
        assert outcome(f"SELECT day {operator} ? FROM {sale}", (2,)) == literal


def test_the_types_of_parameters_are_told(connection, sale):
    def told(sql):
        with connection.cursor() as cursor:
            return cursor.adbc_prepare(sql).types

    # As wide as can be: the JDBC driver makes numbers fit without a word.
    assert told(f"SELECT qty FROM {sale} WHERE qty = ? LIMIT ?") == [pa.int64(), pa.int64()]
    assert told("SELECT ? || ?, ? + ?") == [pa.string(), pa.string(), pa.int64(), pa.int64()]
    # The JDBC driver writes milliseconds whatever the unit is.
    assert told("SELECT to_timestamp('2024-05-06') < ?") == [pa.timestamp("ms")]


def test_named_parameters_and_gaps_are_refused(connection):
    for sql, why in [("SELECT $x", r"\$x"), ("SELECT $1 + $3", r"no \$2")]:
        with pytest.raises(adbc_driver_manager.Error, match=why):
            rows(connection, sql, (1,))


LOSSES = [
    ("BIGINT", pa.array([1.5])),
    ("BIGINT", pa.array([Decimal("1.99")])),
    ("REAL", pa.array([1e300])),
    ("DECIMAL(10, 2)", pa.array([Decimal("1.239")])),
    ("DECIMAL(10, 2)", pa.array([1.239])),
    ("DECIMAL(10, 2)", pa.array(["1.239"])),
    ("TIMESTAMP(0)", pa.array([datetime.datetime(2024, 5, 6, 1, 2, 3, 456789)])),
    ("DATE", pa.array([EVENING])),
    ("INT", pa.array([2**40])),
    ("BOOLEAN", pa.array([2])),
]


@pytest.mark.parametrize(("sql_type", "values"), LOSSES)
def test_what_would_lose_digits_is_not_stored(connection, table, sql_type, values):
    execute(connection, f"CREATE TABLE {table} (v {sql_type})")
    with connection.cursor() as cursor, pytest.raises(adbc_driver_manager.Error, match="'v'"):
        cursor.adbc_ingest(table, pa.table({"v": values}), mode="append")
    with connection.cursor() as cursor, pytest.raises(adbc_driver_manager.Error, match="'v'"):
        cursor.executemany(f"INSERT INTO {table} VALUES (?)", pa.table({"v": values}))
    assert rows(connection, f"SELECT count(*) FROM {table}") == [(0,)]


def test_what_loses_nothing_is_stored(connection, table):
    execute(connection, f"CREATE TABLE {table} (a BIGINT, b DECIMAL(10, 2), c REAL, d TIMESTAMP(0), e DATE)")
    moment = datetime.datetime(2024, 5, 6, 1, 2, 3)
    given = pa.table(
        {
            "a": [2.0, -0.0, None],
            "b": [0.1 + 0.2, 1.25, None],
            "c": pa.array([0.1, float("inf"), None], pa.float64()),
            "d": pa.array([moment, None, None], pa.timestamp("us")),
            "e": pa.array([datetime.datetime(2024, 5, 6), None, None], pa.timestamp("us")),
        }
    )
    with connection.cursor() as cursor:
        cursor.adbc_ingest(table, given, mode="append")
        cursor.executemany(f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?)", given)
    found = rows(connection, f"SELECT a, b, d, e FROM {table} WHERE a IS NOT NULL ORDER BY a DESC")
    assert found == [(2, Decimal("0.30"), moment, DAY)] * 2 + [(0, Decimal("1.25"), None, None)] * 2


def test_a_prepared_statement_sees_what_was_committed_since(connection, table):
    execute(connection, f"CREATE TABLE {table} (id INT)")
    with connection.cursor() as cursor, connection.cursor() as other:
        # The driver keeps the prepared statement as long as the text is the same.
        count = f"SELECT count(*) FROM {table} WHERE id > ?"
        for expected in range(3):
            cursor.execute(count, (0,))
            assert cursor.fetchall() == [(expected,)]
            other.execute(f"INSERT INTO {table} VALUES (1)")
        other.execute(f"DROP TABLE {table}")
        with pytest.raises(adbc_driver_manager.Error, match=table):
            cursor.execute(count, (0,))
            cursor.fetchall()
        other.execute(f"CREATE TABLE {table} AS SELECT 'x' AS name, 5 AS id")
        cursor.execute(count, (0,))
        assert cursor.fetchall() == [(1,)]


def prepare(client, sql: str) -> bytes:
    [answer] = client.do_action(("CreatePreparedStatement", command("ActionCreatePreparedStatementRequest", field(1, sql))))
    return dict(fields(dict(fields(answer.body.to_pybytes()))[2]))[1]


def test_a_prepared_statement_follows_the_tables_and_is_not_run_for_its_schema(server, connection, table):
    execute(connection, f"CREATE TABLE {table} (id INT)")
    with server.flight() as client:
        handle = prepare(client, f"INSERT INTO {table} VALUES (1)")
        assert client.get_schema(descriptor("CommandPreparedStatementQuery", field(1, handle))).schema.names == []
        assert rows(connection, f"SELECT count(*) FROM {table}") == [(0,)]
        handle = prepare(client, f"SELECT * FROM {table}")
        ask = descriptor("CommandPreparedStatementQuery", field(1, handle))
        assert client.get_schema(ask).schema.names == ["id"]

        def answer() -> list:
            return [row for e in client.get_flight_info(ask).endpoints for row in client.do_get(e.ticket).read_all().to_pylist()]

        for expected in ([], [{"id": 7}]):
            assert answer() == expected
            execute(connection, f"INSERT INTO {table} VALUES (7)")
        execute(connection, f"CREATE OR REPLACE TABLE {table} AS SELECT 'x' AS name")
        assert answer() == [{"name": "x"}]
        assert client.get_schema(ask).schema.names == ["name"]


def test_revoked_rights_end_prepared_statements(start, tmp_path):
    users = tmp_path / "users.toml"
    add_user(users, "ada", "secret", "--admin")
    add_user(users, "bob", "secret")
    server = start("--users", users)
    with server.connect("ada", "secret") as ada, server.connect("bob", "secret") as bob, bob.cursor() as cursor:
        execute(ada, "CREATE TABLE t AS SELECT 1 AS id")
        cursor.execute("SELECT id FROM t WHERE id = ?", (1,))
        assert cursor.fetchall() == [(1,)]
        users.write_text(users.read_text().replace("*.*", "public.other"))
        with pytest.raises(adbc_driver_manager.Error):
            cursor.execute("SELECT id FROM t WHERE id = ?", (1,))
            cursor.fetchall()


def test_statements_prepared_in_sql(connection, table):
    execute(connection, f"CREATE TABLE {table} (id INT, price DECIMAL(10, 2))")
    execute(connection, f"PREPARE {table}_add AS INSERT INTO {table} VALUES ($1, $2)")
    execute(connection, f"PREPARE {table}_count AS SELECT count(*) FROM {table} WHERE id >= $1")
    execute(connection, f"PREPARE {table}_typed(INT) AS SELECT count(*) FROM {table} WHERE id >= $1")
    for expected in range(3):
        assert rows(connection, f"EXECUTE {table}_count(0)") == [(expected,)]
        assert execute(connection, f"EXECUTE {table}_add({expected} + 1, 1.25)") == 1
    # As the literal: none is 3.5 or more.
    assert rows(connection, f"EXECUTE {table}_count(3.5)") == [(0,)]
    with pytest.raises(adbc_driver_manager.Error, match="3.5"):
        rows(connection, f"EXECUTE {table}_typed(3.5)")
    assert rows(connection, f"EXECUTE {table}_typed(3)") == [(1,)]
    for sql, why in [
        (f"EXECUTE {table}_count", "1 parameters, 0 were given"),
        (f"PREPARE {table}_count AS SELECT 1", "already"),
        (f"PREPARE {table}_bad AS SELECT nothing FROM {table}", "nothing"),
        (f"PREPARE {table}_ddl AS CREATE TABLE x (a INT)", "only queries and INSERT"),
        ("EXECUTE nothing_of_the_kind", "no prepared statement"),
    ]:
        with pytest.raises(adbc_driver_manager.Error, match=why):
            rows(connection, sql)
    execute(connection, f"DROP TABLE {table}")
    with pytest.raises(adbc_driver_manager.Error, match=table):
        rows(connection, f"EXECUTE {table}_count(0)")
    execute(connection, f"CREATE TABLE {table} AS SELECT 9 AS id")
    assert rows(connection, f"EXECUTE {table}_count(0)") == [(1,)]
    execute(connection, f"DEALLOCATE {table}_count")
    with pytest.raises(adbc_driver_manager.Error, match="no prepared statement"):
        rows(connection, f"EXECUTE {table}_count(0)")


def test_parts_of_a_result_are_fetched_by_other_connections_of_the_user(start, tmp_path):
    users = tmp_path / "users.toml"
    add_user(users, "ada", "secret", "--admin")
    add_user(users, "eve", "secret", "--admin")
    server = start("--users", users)
    with server.connect("ada", "secret") as one, server.connect("ada", "secret") as other, server.connect("eve", "secret") as eve:
        execute(one, "CREATE TABLE t AS SELECT value AS id FROM generate_series(1, 1500000) AS s(value)")
        with one.cursor() as cursor:
            partitions, schema = cursor.adbc_execute_partitions("SELECT id FROM t")
        assert schema.names == ["id"] and len(partitions) > 1
        with eve.cursor() as cursor, pytest.raises(adbc_driver_manager.Error, match="no such ticket"):
            cursor.adbc_read_partition(partitions[0])
            cursor.fetchall()
        total = 0
        for partition in partitions:
            with other.cursor() as cursor:
                cursor.adbc_read_partition(partition)
                total += cursor.fetch_arrow_table().num_rows
        assert total == 1_500_000


def test_any_token_will_do_without_users(server):
    with server.flight() as client:
        options = flight.FlightCallOptions(headers=[(b"authorization", b"Bearer of.another.server")])
        info = client.get_flight_info(descriptor("CommandStatementQuery", field(1, "SELECT 1 AS a")), options)
        assert client.do_get(info.endpoints[0].ticket, options).read_all().to_pylist() == [{"a": 1}]


def test_statements_without_rows_have_no_count_of_them(connection, table):
    assert execute(connection, f"CREATE TABLE {table} (id INT)") == -1
    assert execute(connection, f"INSERT INTO {table} SELECT id FROM {table}") == 0
    assert execute(connection, f"DROP TABLE {table}") == -1


def test_rows_are_changed_with_parameters(connection, table):
    execute(connection, f"CREATE TABLE {table} (id BIGINT PRIMARY KEY, n DECIMAL(10, 2), name VARCHAR)")
    with connection.cursor() as cursor:
        cursor.executemany(f"INSERT INTO {table} VALUES (?, ?, ?)", [(i, Decimal(i), f"row {i}") for i in range(1, 6)])
        cursor.executemany(f"UPDATE {table} SET n = n + ?, name = ? WHERE id = ?", [(Decimal("0.50"), "one", 1), (Decimal(1), None, 2), (Decimal(1), "both", 2)])
        cursor.executemany(f"DELETE FROM {table} WHERE id = ?", [(4,), (9,)])
        upsert = f"INSERT INTO {table} VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET n = {table}.n + excluded.n"
        cursor.executemany(upsert, [(5, 1, "new"), (6, 1, "six"), (6, 1, "again")])
    assert rows(connection, f"SELECT * FROM {table} ORDER BY id") == [
        (1, Decimal("1.50"), "one"),
        (2, Decimal("4.00"), "both"),
        (3, Decimal("3.00"), "row 3"),
        (5, Decimal("6.00"), "row 5"),
        (6, Decimal("2.00"), "six"),
    ]
    with connection.cursor() as cursor, pytest.raises(adbc_driver_manager.Error, match="1.555"):
        cursor.execute(f"UPDATE {table} SET n = ?", (Decimal("1.555"),))
