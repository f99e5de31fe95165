"""What columns and types are called, and what a database says of itself, as DuckDB's users expect."""

from __future__ import annotations

import datetime
import itertools
import re
import subprocess

import duckdb
import flashmesh
import pytest
from conftest import binary

TABLE = "CREATE TABLE t (a INT PRIMARY KEY, b VARCHAR, l INT[], s STRUCT(x INT, y VARCHAR))"
ROWS = "INSERT INTO t VALUES (1, 'x', [1, 2], {'x': 1, 'y': 'p'}), (2, NULL, [], NULL)"


@pytest.fixture
def own():
    connection = flashmesh.connect()
    connection.execute(TABLE)
    connection.execute(ROWS)
    return connection


@pytest.fixture
def peer():
    connection = duckdb.connect()
    connection.execute(TABLE)
    connection.execute(ROWS)
    return connection


def names(connection, query: str, *args) -> list[str]:
    return [column[0] for column in connection.execute(query, *args).description]


def rows(connection, query: str, *args) -> list[tuple]:
    return [tuple(row) for row in connection.execute(query, *args).fetchall()]


# A SELECT list, and the names of its columns.
NAMES = [
    ("1, 'it''s', NULL, true, 1.50", ["1", "'it''s'", "NULL", "true", "1.50"]),
    ("a + 1, -a, a || b", ["a + 1", "-a", "a || b"]),
    ("A, t.a, (a), a::BIGINT, \"a\"::INT", ["a", "a:1", "a:2", "a:3", "a:4"]),
    ("a, Max(A) OVER () - a", ["a", "max(a) OVER () - a"]),
    ("[1, a], l[1], {'x': a}", ["[1, a]", "l[1]", "{'x': a}"]),
    ("CASE WHEN a = 1 THEN 'x' END", ["CASE WHEN a = 1 THEN 'x' END"]),
    ("list_transform(l, x -> x + 1)", ["list_transform(l, x -> x + 1)"]),
    ("b GLOB 'x*', b NOT GLOB 'y'", ["b GLOB 'x*'", "b NOT GLOB 'y'"]),
    ("DATE '2024-01-02', CAST('1' AS INT) + 1", ["DATE '2024-01-02'", "CAST('1' AS INT) + 1"]),
    ("(SELECT 7)", ["(SELECT 7)"]),
    ("upper(b), upper(b)", ["upper(b)", "upper(b)"]),
    ("len(b), apply(l, x -> x)", ["len(b)", "apply(l, x -> x)"]),
    ('"A b" + 1', ['"A b" + 1']),
]


@pytest.mark.parametrize(("items", "expected"), NAMES)
def test_columns_are_called_as_they_are_written(own, items: str, expected: list[str]) -> None:
    own.execute('CREATE TABLE u AS SELECT *, a AS "A b" FROM t')
    of_query = [re.sub(r":\d$", "", name) for name in expected]
    table = "t, u" if "u." in items else ("u" if "A b" in items else "u AS t")
    assert names(own, f"SELECT {items} FROM {table}") == of_query
    # As others see them: of a subquery, of WITH, of a table and of a view.
    distinct = len(set(of_query)) == len(of_query)
    assert names(own, f"SELECT * FROM (SELECT {items} FROM {table})") == of_query or not distinct
    if distinct:
        assert names(own, f"WITH w AS (SELECT {items} FROM {table}) SELECT * FROM w") == of_query
        quoted = ", ".join('"' + name.replace('"', '""') + '"' for name in of_query)
        assert names(own, f"SELECT {quoted} FROM (SELECT {items} FROM {table})") == of_query
        own.execute(f"CREATE VIEW v AS SELECT {items} FROM {table}")
        assert names(own, "SELECT * FROM v") == of_query
        own.execute(f"CREATE TABLE made AS SELECT {items} FROM {table}")
        assert names(own, "SELECT * FROM made") == of_query


def test_names_of_other_results(own) -> None:
    assert names(own, "SELECT sum(a), count(*) FROM t GROUP BY b HAVING sum(a) > 0 ORDER BY sum(a)") == ["sum(a)", "count(*)"]
    assert names(own, "SELECT a + 1 FROM t UNION ALL SELECT a * 2 FROM t ORDER BY 1") == ["a + 1"]
    assert names(own, "SELECT DISTINCT a % 2 FROM t ORDER BY a % 2") == ["a % 2"]
    assert names(own, "INSERT INTO t (a) VALUES (3) RETURNING a * 2, b") == ["a * 2", "b"]
    own.execute("CREATE MACRO twice(x) AS x * 2")
    assert names(own, "SELECT twice(a) FROM t") == ["twice(a)"]
    own.execute("CREATE VIEW w AS SELECT twice(a) FROM t")
    assert names(own, "SELECT * FROM w") == ["twice(a)"]
    own.execute("CREATE MACRO rows_from(n) AS TABLE SELECT a + n, count(*) OVER () FROM t")
    assert names(own, "SELECT * FROM rows_from(1)") == ["a + n", "count(*) OVER ()"]


TYPES = [
    "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "BOOLEAN",
    "DOUBLE", "VARCHAR", "DATE", "TIME", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "INTERVAL", "DECIMAL(9,2)",
    "INTEGER[]", "VARCHAR[][]", "STRUCT(a INTEGER, b VARCHAR[])",
]  # fmt: skip


@pytest.mark.parametrize("name", TYPES)
def test_types_are_called_as_in_duckdb(own, peer, name: str) -> None:
    for connection in (own, peer):
        connection.execute(f"CREATE TABLE typed (x {name})")
    query = f"SELECT typeof(x), typeof(CAST(NULL AS {name})) FROM (SELECT NULL::{name} AS x)"
    assert rows(own, query) == rows(peer, query) == [(name, name)]
    assert rows(own, "DESCRIBE typed")[0][:2] == ("x", name)
    assert rows(own, "DESCRIBE SELECT x FROM typed")[0][:2] == ("x", name)
    assert rows(own, "PRAGMA table_info(typed)")[0][2] == name
    assert rows(own, "SUMMARIZE typed")[0][1] == name
    query = "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'typed'"
    assert rows(own, query) == rows(peer, query)
    own.execute("CREATE VIEW of_types AS SELECT * FROM typed")
    query = "SELECT c.data_type FROM information_schema.columns AS c WHERE c.table_name = 'of_types'"
    assert rows(own, query) == [(name,)]


# Statements and questions with the same answers.
SAME = [
    "SHOW TABLES",
    "SELECT epoch_ms(1700000000123), epoch_ms(0) = TIMESTAMP '1970-01-01', epoch_ms(TIMESTAMP '1970-01-01 00:00:01')",
    "SELECT ~5, ~a, ~(-1) FROM t ORDER BY 2",
    "SELECT octet_length('ab'::BLOB), octet_length(encode('é')), decode(encode('é')), strlen('é')",
    "SELECT quantile_cont(a, [0.25, 0.5]), quantile_disc(a, [0.5]) FROM t",
    "SELECT b, quantile_cont(a, [0, 1]) FILTER (WHERE a > 0) FROM t GROUP BY b ORDER BY b",
    "SELECT greatest_common_divisor(4, 6), least_common_multiple(4, 6)",
    "SELECT regexp_full_match('abc', 'a.c'), regexp_full_match('abcd', 'abc'), regexp_full_match('ab', 'a|ab'), regexp_full_match(NULL, 'a')",
    "SELECT INTERVAL (a + 1) DAY + DATE '2024-01-01', DATE '2024-01-01' + INTERVAL (a) MONTH, DATE '2024-01-01' - INTERVAL (a) QUARTER FROM t ORDER BY 1",
    "SELECT TIMESTAMP '9999-12-31', '9999-12-31 10:00:00'::TIMESTAMP, CAST('0044-03-15' AS TIMESTAMP)",
    "SELECT list_sum([1, 2]), list_sum([9007199254740993, 0]), list_sum([1.10::DECIMAL(5, 2), 2.25::DECIMAL(5, 2)]), list_sum([0.5::DOUBLE]), list_sum([]::INT[]), list_sum([NULL, 3])",
    "SELECT list_sum(l), list_aggregate(l, 'sum') FROM t ORDER BY a",
    "SELECT * FROM (SELECT 1 a) JOIN (SELECT 1 a, 2 b) USING (a)",
    "SELECT * FROM (SELECT 1 a), (SELECT 2 a)",
    "SELECT a, x FROM t LEFT JOIN LATERAL unnest(l) u(x) ON true ORDER BY ALL",
    "SELECT a, x FROM t, LATERAL unnest(l) u(x) ORDER BY ALL",
    "SELECT count(*) FROM range(100) TABLESAMPLE 100%",
    "SELECT i, i + 1 FROM generate_series(1, 3) AS i ORDER BY i",
    "SELECT sum(i) FROM range(4) i WHERE i > 1",
    "SELECT a, u FROM t, unnest(l) AS u ORDER BY ALL",
    "SELECT range FROM range(3) ORDER BY range",
    "SELECT unnest FROM unnest([3, 4]) ORDER BY 1",
    "UNPIVOT (SELECT 1 id, 2 jan, NULL::INT feb, 4 mar) ON jan, feb, mar INTO NAME m VALUE v ORDER BY m",
    "SELECT count(*) FROM (UNPIVOT (SELECT 1 id, 2 jan, 3 feb) ON jan, feb)",
    "SHOW TABLES",
]


@pytest.mark.parametrize("query", SAME)
def test_answers_are_those_of_duckdb(own, peer, query: str) -> None:
    assert rows(own, query) == rows(peer, query)


STRUCTS = [
    "SELECT s.* FROM t ORDER BY 1",
    "SELECT s.* EXCLUDE (x) FROM t ORDER BY 1",
    "SELECT unnest(s) FROM t ORDER BY 1",
    "SELECT unnest(l) FROM t ORDER BY 1",
    "SELECT unnest(l) + 1, a FROM t ORDER BY 1",
    "SELECT unnest({'p': a, 'q': b}) FROM t ORDER BY 1",
    "SELECT unnest(max(s)), count(*) AS n FROM t",
    "WITH w AS (SELECT s AS z FROM t WHERE a = 1), v AS (SELECT z.* FROM w) SELECT v.*, z.* FROM v, w",
    "SELECT v.* FROM (SELECT unnest([{'x': 1}, {'x': 2}]) AS v) ORDER BY 1",
    "SELECT y FROM (SELECT s.* FROM t) WHERE x = 1",
]


@pytest.mark.parametrize("query", STRUCTS)
def test_fields_of_structs_are_columns(own, peer, query: str) -> None:
    assert rows(own, query) == rows(peer, query)
    assert names(own, query) == names(peer, query) or "+" in query
    with pytest.raises(flashmesh.Error, match="nope"):
        own.execute("SELECT nope.* FROM t")
    with pytest.raises(flashmesh.Error, match="neither a table of FROM nor a struct"):
        own.execute("SELECT b.* FROM t")


SCRIPTS = [
    ["CREATE SCHEMA other", "USE other", "CREATE TABLE here (x INT)", "SELECT count(*) FROM other.here"],
    ["CREATE SCHEMA other", "CREATE TABLE other.there (x INT)", "SET schema = 'other'", "SELECT count(*) FROM there"],
    ["CREATE SCHEMA other", "USE other", "USE main", "SELECT count(*) FROM t"],
    ["CREATE SCHEMA other", "SET search_path = 'other'", "SET search_path TO main", "SELECT count(*) FROM t"],
    ["SET threads = 1", "SELECT sum(a) FROM t"],
    ["SET threads TO 2", "SELECT sum(a) FROM t"],
    ["CREATE TEMP TABLE passing (x INT)", "CREATE VIEW seen AS SELECT 1 AS one", "SHOW TABLES"],
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_those_of_duckdb(own, peer, script: list[str]) -> None:
    for connection in (own, peer):
        for statement in script[:-1]:
            connection.execute(statement)
    assert rows(own, script[-1]) == rows(peer, script[-1])


def test_what_a_database_says_of_itself(own) -> None:
    own.execute("CREATE SCHEMA other")
    assert rows(own, "SHOW DATABASES") == [("flashmesh",)]
    schemas = rows(own, "SHOW SCHEMAS")
    assert {("flashmesh", "other"), ("flashmesh", "public")} <= set(schemas)
    assert rows(own, "SHOW TABLES LIKE 't%'") == [("t",)]
    assert rows(own, "SHOW TABLES LIKE 'x%'") == [] == rows(own, "SHOW TABLES FROM other")
    (only,) = rows(own, "SHOW ALL TABLES")
    assert only == (
        "flashmesh", "public", "t", ["a", "b", "l", "s"],
        ["INTEGER", "VARCHAR", "INTEGER[]", "STRUCT(x INTEGER, y VARCHAR)"],
    )  # fmt: skip
    with pytest.raises(flashmesh.Error, match="memory_limit = '4GB'"):
        own.execute("SET memory_limit = '1GB'")
    for statement, way_out in (
        ("INSTALL httpfs", "are read without one"),
        ("LOAD httpfs", "are read without one"),
        ("ATTACH 'other.db' AS other", "connection of its own"),
        ("CREATE TYPE mood AS ENUM ('a', 'b')", "CHECK"),
    ):
        with pytest.raises(flashmesh.Error, match=way_out):
            own.execute(statement)
    with pytest.raises(flashmesh.Error, match="SHOW ALL lists them"):
        own.execute("SET nonsense = 1")


UNITS = ["TIME", "TIME(6)", "TIME(3)", "TIME(0)"]


@pytest.mark.parametrize("pushdown", ["always", "auto", "never"])
def test_times_of_day_of_all_units_are_compared(pushdown: str) -> None:
    own, peer = flashmesh.connect(), duckdb.connect()
    own.execute(f"SET flashmesh.pushdown = '{pushdown}'")
    texts = ["00:00:00", "01:02:03", "01:02:03.5", "23:59:59"]
    for number, unit in enumerate(UNITS):
        own.execute(f"CREATE TABLE t{number} (id INT, x {unit})")
        peer.execute(f"CREATE TABLE t{number} (id INT, x TIME)")
        for row, text in enumerate([*texts, None]):
            # Of whole seconds where there is no place for more.
            value = "NULL" if text is None else f"'{text.split('.')[0] if unit == 'TIME(0)' else text}'"
            for connection in (own, peer):
                connection.execute(f"INSERT INTO t{number} VALUES ({row}, {value})")
    queries = []
    for number in range(len(UNITS)):
        for test in (
            "x = TIME '01:02:03'",
            "x < TIME '01:02:03.5'",
            "x <> '01:02:03.500'",
            "TIME '01:02:03.25' <= x",
            "x BETWEEN TIME '01:00:00' AND TIME '02:00:00.000001'",
            "x IN (TIME '01:02:03', TIME '23:59:59', NULL)",
            "x NOT IN (TIME '01:02:03.5')",
            "x IS NOT DISTINCT FROM TIME '00:00:00'",
        ):
            queries.append((f"SELECT id FROM t{number} WHERE {test} ORDER BY id", []))
        for test in ("x = ?", "x >= ?", "x BETWEEN ? AND TIME '12:00:00'", "x IN (?)"):
            for value in (datetime.time(1, 2, 3), datetime.time(1, 2, 3, 500_000)):
                queries.append((f"SELECT id FROM t{number} WHERE {test} ORDER BY id", [value]))
    for one, other in itertools.permutations(range(len(UNITS)), 2):
        queries += [
            (f"SELECT l.id, r.id FROM t{one} l JOIN t{other} r ON l.x = r.x ORDER BY ALL", []),
            (f"SELECT l.id, r.id FROM t{one} l LEFT JOIN t{other} r ON l.x > r.x ORDER BY ALL", []),
            (f"SELECT x FROM t{one} UNION SELECT x FROM t{other} ORDER BY 1 NULLS LAST", []),
            (f"SELECT CASE WHEN l.id > 1 THEN l.x ELSE r.x END FROM t{one} l JOIN t{other} r USING (id) ORDER BY id", []),
        ]
    for query, values in queries:
        assert rows(own, query, values) == rows(peer, query, values), (query, values)


# Values that are printed, rounded and read.
VALUES = [
    "SELECT 132.74::DECIMAL(10, 2)::INT, 0.99::DECIMAL(3, 2)::BIGINT, (-0.5)::DECIMAL(3, 1)::INT, 2.5::DECIMAL(3, 1)::TINYINT, 9.9::DECIMAL(2, 1)::INT",
    "SELECT x::INT, TRY_CAST(x AS BIGINT), x::REAL::SMALLINT FROM (VALUES (0.5::DOUBLE), (1.5), (2.5), (-2.5), (-0.4), (1e4)) AS v(x)",
    "SELECT sum(x)::INT FROM (VALUES (1.75::DECIMAL(5, 2)), (1.0)) AS v(x)",
    "SELECT count(*) FROM (VALUES (1.25::DOUBLE), (1.0), (0.75), (1.75)) AS v(x) WHERE x::INT = 1",
    "SELECT INTERVAL '1 hour'::VARCHAR, (INTERVAL '1 month 2 days')::VARCHAR, (INTERVAL '-14 months')::VARCHAR, (INTERVAL '1 day' - INTERVAL '1 hour')::VARCHAR",
    "SELECT (TIMESTAMP '2024-01-02 10:00:00.5' - TIMESTAMP '2024-01-01 09:00:00')::VARCHAR, 'took ' || (TIMESTAMP '2024-01-01' - TIMESTAMP '2024-01-01')",
    "SELECT '\\xAA\\xBB'::BLOB = x'AABB', '\\x41g'::BLOB, 'ab'::BLOB",
    "SELECT len(l), length(l), len([{'x': 1}]), len('abc'), len(NULL::INT[]) FROM t ORDER BY a",
    "SELECT list_transform([{'x': 1}, {'x': 2}], e -> e.x + 1), [e.x FOR e IN [{'x': 3}]]",
    "SELECT b, count(*), rank() OVER (ORDER BY count(*) DESC, b) FROM t GROUP BY b ORDER BY 3",
    "SELECT a, sum(a) * 100.0 / sum(sum(a)) OVER () FROM t GROUP BY a ORDER BY 2 DESC",
    "SELECT 'abc' ^@ 'ab', bool_and(a > 0), list_inner_product([1.0, 2.0], [3.0, 4.0]) FROM t",
]


@pytest.mark.parametrize("query", VALUES)
def test_values_are_those_of_duckdb(own, peer, query: str) -> None:
    peer.execute("SET lambda_syntax = 'ENABLE_SINGLE_ARROW'")
    assert rows(own, query) == rows(peer, query)


def test_what_duckdb_has_not(own) -> None:
    query = "SELECT len(MAP {'a': 1, 'b': 2}), every(a > 0), a, s.* FROM t GROUP BY a, s ORDER BY a"
    assert rows(own, query) == [(2, True, 1, 1, "p"), (2, True, 2, None, None)]
    assert names(own, query) == ["len(MAP {'a': 1, 'b': 2})", "every(a > 0)", "a", "x", "y"]


def test_casts_round_wherever_they_stand(own) -> None:
    own.execute("CREATE TABLE n (i INT)")
    own.execute("INSERT INTO n VALUES (CAST(1.7 AS INT)), (2.5::DECIMAL(3, 1)::INT)")
    own.execute("INSERT INTO n SELECT CAST(a + 0.6 AS INT) FROM t")
    own.execute("UPDATE n SET i = CAST(i + 0.75 AS INT) WHERE i = 3")
    assert sorted(rows(own, "SELECT i FROM n")) == [(2,), (2,), (4,), (4,)]
    own.execute("PREPARE rounded AS SELECT CAST($1 AS INT)")
    assert rows(own, "EXECUTE rounded(1.7)") == [(2,)] == rows(own, "EXECUTE rounded(2.2)")


def test_bytes_are_read_from_texts(own) -> None:
    own.execute("CREATE TABLE held (x BYTEA)")
    own.execute(r"INSERT INTO held VALUES ('\xDEADbeef'), ('plain'), ('\x')")
    assert rows(own, "SELECT x FROM held ORDER BY octet_length(x)") == [(b"",), (bytes.fromhex("deadbeef"),), (b"plain",)]
    assert rows(own, r"SELECT '\xDEADBEEF'::BYTEA") == [(bytes.fromhex("deadbeef"),)]
    with pytest.raises(flashmesh.Error, match="hexadecimal"):
        own.execute(r"INSERT INTO held VALUES ('\xZZ')")


def test_large_constants_are_not_written_out_for_all_rows() -> None:
    own = flashmesh.connect(memory_limit="500MB")
    own.execute("CREATE TABLE many AS SELECT value AS id FROM range(0, 10000)")
    big = "a" * 300_000
    assert rows(own, "SELECT max(length(z)), count(*) FROM (SELECT id, ? AS z FROM many)", [big]) == [(300_000, 10_000)]
    assert rows(own, "SELECT max(length(z)) FROM (SELECT id, ? AS z FROM many)", [big.encode()]) == [(300_000,)]
    query = "SELECT sum(list_position(range(0, 20000), id)), max(len(z)) FROM (SELECT id, range(0, 20000) AS z FROM many)"
    assert rows(own, query) == [(sum(range(1, 10_001)), 20_000)]
    assert "SlicingExec" in str(rows(own, "EXPLAIN " + query))
    with pytest.raises(flashmesh.Error, match="bytes at once"):
        own.execute("SELECT len(array_repeat('', 300000000))").fetchall()


def test_numpy_times_are_parameters(own) -> None:
    np = pytest.importorskip("numpy")
    day = datetime.date(2024, 1, 2)
    for value, expected in (
        (np.datetime64("2024-01-02"), day),
        (np.datetime64("2024-01"), datetime.date(2024, 1, 1)),
        (np.datetime64("2024-01-02T03"), datetime.datetime(2024, 1, 2, 3)),
        (np.datetime64("2024-01-02T03:04:05.000006"), datetime.datetime(2024, 1, 2, 3, 4, 5, 6)),
        (np.datetime64("NaT"), None),
        (np.timedelta64("NaT"), None),
        (np.array(["2024-01-02", "NaT"], "datetime64[D]"), [day, None]),
    ):
        assert rows(own, "SELECT ?", [value]) == [(expected,)], value
    for value, expected in (
        (np.timedelta64(5, "h"), "05:00:00"),
        (np.timedelta64(2, "D"), "2 days"),
        (np.timedelta64(90, "s"), "00:01:30"),
        (np.timedelta64(7, "ns"), "00:00:00.000000007"),
        (np.timedelta64(14, "M"), "1 year 2 months"),
    ):
        assert rows(own, "SELECT ?::VARCHAR", [value]) == [(expected,)], value


def test_the_shell_prints_moments_and_intervals_as_texts() -> None:
    query = "SELECT TIMESTAMP '2024-01-02 03:04:05.5' AS m, INTERVAL '1 month 2 days' AS i, [INTERVAL '90 minutes'] AS l, now() - now() AS d"
    shown = subprocess.run([binary(), "-c", query], capture_output=True, text=True, check=True).stdout
    for text in ("2024-01-02 03:04:05.500", "1 month 2 days", "[01:30:00]", " 00:00:00 "):
        assert text in shown, shown


def test_values_of_all_types_have_texts(own, tmp_path) -> None:
    query = "SELECT [1, NULL]::VARCHAR, {'a': 1, 'b': 'x'}::VARCHAR, MAP {'k': 1}::VARCHAR, [{'a': INTERVAL '1 hour'}]::VARCHAR"
    assert rows(own, query) == [("[1, NULL]", "{a: 1, b: x}", "{k: 1}", "[{a: 01:00:00}]")]
    own.execute("CREATE TABLE mixed (id INT, x BYTEA, i INTERVAL, l INT[], s STRUCT(x INT, y VARCHAR))")
    own.execute("INSERT INTO mixed SELECT a, encode(b), INTERVAL '1 month 2 days 03:04:05', l, s FROM t")
    path = tmp_path / "mixed.csv"
    own.execute(f"COPY (SELECT * FROM mixed ORDER BY id) TO '{path}'")
    assert path.read_text().splitlines() == [
        "id,x,i,l,s",
        '1,\\x78,1 month 2 days 03:04:05,"[1, 2]","{x: 1, y: p}"',
        "2,,1 month 2 days 03:04:05,[],",
    ]
    own.execute(f"COPY (SELECT id, x, i FROM mixed) TO '{path}'")
    own.execute("CREATE TABLE again (id INT, x BYTEA, i INTERVAL)")
    own.load("again", str(path), mode="append")
    assert rows(own, "SELECT * FROM again ORDER BY id") == rows(own, "SELECT id, x, i FROM mixed ORDER BY id")
