"""Statements that DuckDB's users write, beside what DuckDB makes of them."""

from __future__ import annotations

import random
import sqlite3

import duckdb
import flashmesh
import pytest

TABLE = "CREATE TABLE t (a1 INT PRIMARY KEY, a2 INT NOT NULL, b VARCHAR)"
ROWS = "INSERT INTO t VALUES (1, 2, 'x'), (4, 5, 'y'), (7, 8, NULL)"

QUERIES = [
    "SELECT COLUMNS('a.') FROM t ORDER BY 1",
    "SELECT COLUMNS('a'), b FROM t ORDER BY 1",
    "SELECT min(COLUMNS(*)), max(COLUMNS('a.')) FROM t",
    "SELECT COLUMNS('a.') + 1, COLUMNS(* EXCLUDE (a1)) FROM t ORDER BY 1",
    "SELECT COLUMNS('a(.)') AS 'x\\1', max(a1) OVER () AS m FROM t ORDER BY 1",
    "SELECT COLUMNS(['b', 'a1']) FROM t ORDER BY ALL",
    "SELECT COLUMNS(*) || '' FROM (SELECT b FROM t) ORDER BY 1",
    "SELECT COLUMNS('a.') * COLUMNS('a.') FROM t ORDER BY 1",
    "SELECT max(COLUMNS(x.*)) FROM t x JOIN t y USING (a1)",
    "SELECT count(*) AS n, sum(c) FROM (SELECT COLUMNS('a1') AS c FROM t)",
    "WITH u AS (SELECT COLUMNS('a.') FROM t), v AS (SELECT COLUMNS('2') FROM u) SELECT COLUMNS(*) + 1 FROM v ORDER BY 1",
    "SELECT * RENAME (a1 AS c) FROM t ORDER BY 1",
    "SELECT * EXCLUDE (b) RENAME (a1 AS c, a2 AS d) FROM t ORDER BY 1",
    "SELECT t.* RENAME (b AS z), a1 FROM t ORDER BY 1",
    "SELECT * RENAME (nope AS c) FROM t ORDER BY 1",
    "PRAGMA show_tables",
    "SELECT count(*) AS n FROM t USING SAMPLE 100%",
    "SELECT count(*) AS n FROM (SELECT * FROM t WHERE a1 > 0 USING SAMPLE 3 ROWS)",
]

SCRIPTS = [
    ["INSERT INTO t BY NAME SELECT 'z' AS b, 10 AS a1, 11 AS a2", "SELECT * FROM t ORDER BY a1"],
    ["INSERT INTO t BY NAME SELECT a2 + 30 AS A1, 5 AS a2 FROM t", "SELECT * FROM t ORDER BY a1"],
    ["INSERT INTO t BY POSITION SELECT 20, 21, 'p'", "SELECT * FROM t ORDER BY a1"],
    ["SET VARIABLE v = 5", "SELECT getvariable('v') + 1, getvariable('nope')"],
    ["SET VARIABLE v = (SELECT max(a1) FROM t)", "SELECT count(*) FROM t WHERE a1 < getvariable('v')"],
    ["SET VARIABLE v = [1, 2]", "SELECT getvariable('v'), getvariable('V')[2]"],
    ["SET VARIABLE v = 1", "SET VARIABLE v = 'text'", "SELECT getvariable('v') || '!'"],
    ["SET VARIABLE v = 1", "RESET VARIABLE v", "SELECT getvariable('v')"],
    ["CREATE MACRO plus(x, y := 2) AS x + y", "SELECT plus(3), plus(3, 7), plus(3, y := 5), plus(plus(1), a1) FROM t ORDER BY 4"],
    ["CREATE MACRO plus(x) AS x + 1", "CREATE OR REPLACE MACRO plus(x) AS x + 2", "SELECT plus(1) * 2"],
    ["CREATE MACRO twice(x) AS x * 2", "CREATE MACRO again(x) AS twice(twice(x)) + 1", "SELECT again(a1 + 1) FROM t ORDER BY 1"],
    ["CREATE MACRO above(n) AS (SELECT count(*) FROM t WHERE a1 > n)", "SELECT above(1), above(n := 4)"],
    ["CREATE MACRO from_n(n) AS TABLE SELECT a1, b FROM t WHERE a1 >= n", "SELECT * FROM from_n(4) ORDER BY 1"],
    ["CREATE MACRO from_n(n) AS TABLE SELECT a1, b FROM t WHERE a1 >= n", "SELECT f.b, t.a2 FROM from_n(4) f JOIN t ON f.a1 = t.a1 ORDER BY 2"],
    ["CREATE FUNCTION half(x) AS x / 2.0", "SELECT sum(half(a1)) FROM t"],
    ["CREATE MACRO gone() AS 1", "DROP MACRO gone", "CREATE MACRO gone() AS 2", "SELECT gone()"],
    ["CREATE MACRO gone() AS TABLE SELECT 1 AS x", "DROP MACRO TABLE gone", "DROP MACRO IF EXISTS gone", "SELECT 1"],
    ["CREATE VIEW v AS SELECT COLUMNS('a.'), a1 ** 2 AS c FROM t WHERE b GLOB '[xy]'", "SELECT * FROM v ORDER BY 1"],
    ["CREATE MACRO plus(x) AS x + 1", "CREATE VIEW v AS SELECT plus(a1) AS c FROM t", "SELECT * FROM v ORDER BY 1"],
    ["CHECKPOINT", "ANALYZE", "ANALYZE t", "SELECT count(*) FROM t"],
]


@pytest.fixture
def engines():
    engines = flashmesh.connect(), duckdb.connect()
    for engine in engines:
        engine.execute(TABLE)
        engine.execute(ROWS)
    return engines


def answer(connection, query: str) -> tuple:
    result = connection.execute(query)
    return [column[0] for column in result.description], [tuple(row) for row in result.fetchall()]


@pytest.mark.parametrize("query", QUERIES)
def test_queries(engines, query: str) -> None:
    own, peer = engines
    assert answer(own, query) == answer(peer, query)


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts(engines, script: list[str]) -> None:
    answers = []
    for engine in engines:
        for statement in script[:-1]:
            engine.execute(statement)
        answers.append(answer(engine, script[-1])[1])
    assert answers[0] == answers[1]


def test_columns_of_a_table(engines) -> None:
    own, _ = engines
    names, rows = answer(own, "PRAGMA table_info('t')")
    assert names == ["cid", "name", "type", "notnull", "dflt_value", "pk"]
    assert [(row[0], row[1], row[3], row[5]) for row in rows] == [
        (0, "a1", True, True),
        (1, "a2", True, False),
        (2, "b", False, False),
    ]


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("SELECT COLUMNS('z') FROM t", "a1, a2, b"),
        ("SELECT COLUMNS('a.') + COLUMNS('b') FROM t", "several COLUMNS"),
        ("SELECT 1 FROM t WHERE COLUMNS(*) > 1", "SELECT list"),
        ("SELECT COLUMNS('(') FROM t", "COLUMNS('(')"),
        ("INSERT INTO t BY NAME SELECT 9 AS zz", "zz"),
        ("INSERT INTO t BY NAME VALUES (1)", "BY NAME"),
        ("INSERT INTO t BY NAME SELECT 9 AS b, 9 AS B", "two columns"),
        ("CREATE MACRO abs(x) AS x", "'abs'"),
        ("CREATE MACRO m(x, x) AS x", "two parameters"),
        ("DROP MACRO nothing", "'nothing'"),
        ("PRAGMA memory_limit", "table_info"),
        ("PRAGMA table_info('nope')", "nope"),
        ("ANALYZE nope", "nope"),
        ("SET VARIABLE v = (SELECT a1 FROM t)", "row"),
        ("SELECT getvariable(b) FROM t", "in quotes"),
    ],
)
def test_what_is_wrong_is_said(engines, statement: str, says: str) -> None:
    own, _ = engines
    with pytest.raises(Exception, match=".") as refused:
        own.execute(statement).fetchall()
    assert says in str(refused.value)


def test_macros_take_what_they_say(engines) -> None:
    own, _ = engines
    own.execute("CREATE MACRO m(x, y := 2) AS x + y")
    own.execute("CREATE MACRO loop(x) AS loop(x) + 1")
    for call, says in (
        ("m()", "'x' is missing"),
        ("m(1, 2, 3)", "m' takes (x, y)"),
        ("m(1, z := 3)", "m' takes (x, y)"),
        ("m(1, x := 3)", "m' takes (x, y)"),
        ("m(DISTINCT 1)", "DISTINCT"),
        ("loop(1)", "calls itself"),
    ):
        with pytest.raises(Exception, match=".") as refused:
            own.execute(f"SELECT {call}").fetchall()
        assert says in str(refused.value), call


def test_macros_stay_within_what_a_statement_may_be(engines) -> None:
    """What is written out has not passed the parser's bounds."""
    own, _ = engines
    own.execute(f"CREATE MACRO chain(x) AS x{' + 1' * 900}")
    own.execute(f"CREATE MACRO deep(x) AS {'abs(' * 20}x{')' * 20}")
    own.execute("CREATE MACRO rows(x) AS (SELECT (SELECT (SELECT x)))")
    own.execute(f"CREATE MACRO wide(x) AS {' || '.join(['x'] * 900)}")
    assert own.execute("SELECT chain(1), deep(-2), rows(3)").fetchall() == [(901, 2, 3)]
    for name, call in (
        ("chain", "chain(" * 45 + "1" + ")" * 45),
        ("deep", "deep(" * 40 + "1" + ")" * 40),
        ("rows", "rows(" * 30 + "1" + ")" * 30),
        ("wide", f"wide('{'a' * 100_000}')"),
    ):
        with pytest.raises(Exception, match="too large or too deep") as refused:
            own.execute(f"SELECT {call}").fetchall()
        assert name in str(refused.value)
    for body in ("list_transform([1, 2], z -> z + x)", "[z + x for z in [1, 2]]"):
        with pytest.raises(Exception, match="lambda"):
            own.execute(f"CREATE MACRO mapped(x) AS {body}")


def test_macros_call_others_as_they_are_then(engines) -> None:
    own, duckdb = engines
    for statement in (
        "CREATE MACRO inner_one(x) AS x + 1",
        "CREATE MACRO outer_one(x) AS inner_one(x) * 2",
        "CREATE OR REPLACE MACRO inner_one(x) AS x + 100",
        "CREATE MACRO ordered(n) AS TABLE SELECT a1, b FROM t ORDER BY n DESC NULLS LAST, a1 LIMIT 1",
    ):
        own.execute(statement)
        duckdb.execute(statement)
    for query in ("SELECT outer_one(1)", "FROM ordered(2)"):
        assert own.execute(query).fetchall() == duckdb.execute(query).fetchall(), query


def test_rename_beside_others(engines) -> None:
    own, duckdb = engines
    for query in (
        "SELECT t.* EXCLUDE (a1) RENAME (a2 AS z) FROM t ORDER BY b",
        "SELECT * EXCLUDE (a1) RENAME (a2 AS z) FROM t ORDER BY b",
    ):
        ours, theirs = own.execute(query), duckdb.execute(query)
        assert [column[0] for column in ours.description] == [column[0] for column in theirs.description]
        assert ours.fetchall() == theirs.fetchall(), query
    for query, says in (
        ("SELECT * REPLACE (b + 1 AS b) RENAME (a2 AS z) FROM t", "RENAME"),
        ("SELECT COLUMNS(['a1', 'zz']) FROM t", "'zz'"),
    ):
        with pytest.raises(Exception, match=says):
            own.execute(query)


def test_texts_that_are_printed_have_bounds(engines) -> None:
    own, _ = engines
    for query in (
        "SELECT sum(length(format(repeat('{0:10000}', 100), i::VARCHAR))) FROM range(3000) AS r(i)",
        "SELECT sum(length(bin(repeat('a', 300000) || i))) FROM range(3000) AS r(i)",
    ):
        with pytest.raises(Exception, match="a function may make"):
            own.execute(query).fetchall()


def test_ignored_are_rows_with_any_known_key() -> None:
    """Beside SQLite: rows come one after the other, and one that has a key of a row that is there is left out."""
    rng = random.Random(11)
    for _ in range(40):
        own, theirs = flashmesh.connect(), sqlite3.connect(":memory:")
        constraints = rng.choice([
            "id INT PRIMARY KEY, a INT UNIQUE, b INT, c TEXT",
            "id INT PRIMARY KEY, a INT, b INT, c TEXT, UNIQUE (a, b)",
            "id INT, a INT UNIQUE, b INT, c TEXT UNIQUE",
            "id INT PRIMARY KEY, a INT, b INT, c TEXT, UNIQUE (b, a), UNIQUE (c)",
            "id INT PRIMARY KEY, a INT, b INT, c TEXT",
        ])
        for one in (own, theirs):
            one.execute(f"CREATE TABLE t ({constraints})")
        for _ in range(rng.randrange(2, 8)):
            null = lambda value: rng.choice(["NULL", value, value, value])
            rows = ", ".join(
                f"({rng.randrange(12)}, {null(rng.randrange(8))}, {null(rng.randrange(4))}, {null(chr(39) + rng.choice('abcdefgh') + chr(39))})"
                for _ in range(rng.randrange(1, 9))
            )
            for one in (own, theirs):
                one.execute(f"INSERT OR IGNORE INTO t VALUES {rows}")
            rows = [sorted(one.execute("SELECT * FROM t").fetchall(), key=str) for one in (own, theirs)]
            assert rows[0] == rows[1], constraints
        own.close()


def test_one_of_several_keys_is_named() -> None:
    own = flashmesh.connect()
    own.execute("CREATE TABLE t (id INT PRIMARY KEY, a INT UNIQUE)")
    own.execute("INSERT INTO t VALUES (1, 10), (2, 20)")
    own.execute("INSERT INTO t VALUES (3, 10), (3, 30), (3, 40), (4, 30) ON CONFLICT DO NOTHING")
    assert own.execute("SELECT * FROM t ORDER BY id").fetchall() == [(1, 10), (2, 20), (3, 30)]
    for statement in ("INSERT OR REPLACE INTO t VALUES (1, 11)", "INSERT INTO t VALUES (1, 11) ON CONFLICT DO UPDATE SET a = 11"):
        with pytest.raises(Exception, match=r"several PRIMARY KEY and UNIQUE constraints, \(id\), \(a\)"):
            own.execute(statement)
    own.execute("INSERT INTO t VALUES (1, 11) ON CONFLICT (id) DO UPDATE SET a = excluded.a")
    assert own.execute("SELECT a FROM t WHERE id = 1").fetchall() == [(11,)]
    own.execute("CREATE TABLE u (a INT UNIQUE, b INT)")
    own.execute("INSERT INTO u VALUES (1, 1), (NULL, 2)")
    own.execute("INSERT OR REPLACE INTO u VALUES (1, 5), (NULL, 6)")
    assert own.execute("SELECT * FROM u ORDER BY b").fetchall() == [(None, 2), (1, 5), (None, 6)]
