"""Statements that DuckDB's users write, beside what DuckDB makes of them."""

from __future__ import annotations

import random
import sqlite3
import threading

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
    ["CREATE SEQUENCE s", "SELECT nextval('s')", "SELECT nextval('s') + 1, currval('s') FROM range(3)"],
    ["CREATE SEQUENCE s START 10 INCREMENT BY 5", "SELECT nextval('s'), nextval('S')"],
    ["CREATE SEQUENCE s INCREMENT BY -2 START WITH -3", "INSERT INTO t SELECT nextval('s'), a1, b FROM t ORDER BY a1", "SELECT * FROM t ORDER BY ALL"],
    ["CREATE SEQUENCE s START 5", "CREATE SEQUENCE IF NOT EXISTS s", "SELECT nextval('s')"],
    ["CREATE TEMP SEQUENCE s MINVALUE 7", "SELECT nextval('s')"],
    ["CREATE SEQUENCE s INCREMENT BY 1 MINVALUE 1 MAXVALUE 9223372036854775807 START 4 NO CYCLE", "SELECT nextval('s')"],
    [
        "CREATE SEQUENCE s START 100",
        "CREATE TABLE c (id INTEGER PRIMARY KEY DEFAULT nextval('s'), x TEXT)",
        "INSERT INTO c (x) VALUES ('a'), ('b')",
        "INSERT INTO c SELECT nextval('s'), b FROM t WHERE b IS NOT NULL",
        "INSERT INTO c BY NAME SELECT 'd' AS x",
        "SELECT min(id), max(id), count(DISTINCT id), count(x) FROM c",
    ],
    ["CREATE SCHEMA k", "CREATE SEQUENCE k.s START 3", "SELECT nextval('k.s')"],
    ["CREATE SEQUENCE s", "DROP SEQUENCE s", "DROP SEQUENCE IF EXISTS s", "CREATE SEQUENCE s START 2", "SELECT nextval('s')"],
    ["CREATE SEQUENCE s", "BEGIN", "SELECT nextval('s')", "ROLLBACK", "SELECT nextval('s')"],
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


def test_sequences_give_each_number_once(tmp_path) -> None:
    given = []
    for _ in range(2):
        with flashmesh.connect(tmp_path / "db") as con:
            con.execute("CREATE SEQUENCE IF NOT EXISTS s")
            with pytest.raises(flashmesh.Error, match="has given nothing in this session"):
                con.execute("SELECT currval('s')").fetchall()

            def some(cursor=con) -> None:
                given.extend(value for (value,) in cursor.execute("SELECT nextval('s') FROM range(100)").fetchall())

            threads = [threading.Thread(target=some) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert con.execute("SELECT count(*) FROM s").fetchall() == [(0,)]
    assert sorted(given) == list(range(1, 801))


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("DROP SEQUENCE t", "'t' is a table, and no sequence"),
        ("SELECT nextval('t')", "'t' is a table, and no sequence"),
        ("SELECT nextval('nope')", "CREATE SEQUENCE nope makes it"),
        ("SELECT nextval(b) FROM t", "in quotes"),
        ("CREATE SEQUENCE s MAXVALUE 5", "MAXVALUE 5"),
        ("CREATE SEQUENCE s CYCLE", "CYCLE"),
        ("CREATE SEQUENCE s INCREMENT 0", "one value again"),
        ("CREATE SEQUENCE s OWNED BY t.a1", "OWNED BY t.a1"),
    ],
)
def test_what_no_sequence_does_is_said(engines, statement: str, says: str) -> None:
    with pytest.raises(flashmesh.Error, match=says):
        engines[0].execute(statement).fetchall()
    assert engines[0].execute("SELECT count(*) FROM t").fetchall() == [(3,)]


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
        "SELECT * REPLACE (upper(b) AS b) RENAME (a2 AS z) FROM t ORDER BY b",
    ):
        ours, theirs = own.execute(query), duckdb.execute(query)
        assert [column[0] for column in ours.description] == [column[0] for column in theirs.description]
        assert ours.fetchall() == theirs.fetchall(), query
    with pytest.raises(Exception, match="'zz'"):
        own.execute("SELECT COLUMNS(['a1', 'zz']) FROM t")


def test_texts_that_are_printed_have_bounds(engines) -> None:
    own, _ = engines
    for query in (
        "SELECT sum(length(format(repeat('{0:10000}', 100), i::VARCHAR))) FROM range(3000) AS r(i)",
        "SELECT sum(length(bin(repeat('a', 300000 + i)))) FROM range(3000) AS r(i)",
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


PIVOTED = [
    "CREATE TABLE c (country VARCHAR, city VARCHAR, y INT, pop INT)",
    "INSERT INTO c VALUES ('NL', 'Amsterdam', 2000, 1005), ('NL', 'Amsterdam', 2010, 1065), ('US', 'Seattle', 2000, 564), "
    "('US', 'Seattle', 2010, 608), ('US', 'New York', 2000, 8015), ('US', NULL, 2010, 8175)",
]


@pytest.mark.parametrize(
    "query",
    [
        "PIVOT c ON y USING sum(pop) ORDER BY ALL",
        "PIVOT c ON y USING sum(pop) GROUP BY country ORDER BY ALL",
        "PIVOT c ON y USING sum(pop) AS total, max(pop) AS most GROUP BY country ORDER BY ALL",
        "PIVOT c ON y IN (2000, 2010) USING sum(pop) ORDER BY ALL",
        "SELECT * FROM (PIVOT c ON y USING sum(pop) GROUP BY country) p ORDER BY 1",
        "WITH p AS (PIVOT c ON country USING count(*) GROUP BY y) SELECT * FROM p ORDER BY 1",
        "PIVOT (SELECT country, y, pop FROM c) ON country USING sum(pop) ORDER BY y",
        "WITH p AS (PIVOT c ON country USING count(*) GROUP BY y), q AS (SELECT * FROM p) SELECT y, \"US\" FROM q ORDER BY y",
        "PIVOT c ON city USING sum(pop) GROUP BY country, y ORDER BY 1, 2 LIMIT 3",
        "WITH d AS (SELECT country, pop, y FROM c WHERE y = 2000) PIVOT d ON country USING sum(pop)",
        "PIVOT (SELECT 1 AS a, 'it''s' AS b, 3 AS c) ON b USING sum(c)",
        "PIVOT c ON nope USING sum(pop)",
    ],
)
def test_pivots_find_their_values(engines, query: str) -> None:
    answers = []
    for one in engines:
        for statement in PIVOTED:
            one.execute(statement)
        try:
            answer = one.execute(query)
            answers.append(([column[0] for column in answer.description], answer.fetchall()))
        except Exception as error:
            assert "nope" in str(error)
            answers.append(None)
    assert answers[0] == answers[1]


OF_DUCKDB = [
    "SELECT list_select([10, 20, 30], [3, 1]), list_select(['a', 'b'], [2]), list_where([1, 2, 3], [true, false, true])",
    "SELECT max(v, 2), min(v, 2), arg_max(v, -v, 2), arg_min(v, -v, 1), max(v, 10) FROM (VALUES (1), (2), (3), (NULL)) t(v)",
    "SELECT v % 2 AS k, max(v, 1), min(v, 5) FILTER (WHERE v < 3) FROM (VALUES (1), (2), (3)) t(v) GROUP BY k ORDER BY k",
    "SELECT struct_insert({'a': 1}, b := 2, c := 'x'), struct_keys({'a': 1, 'B c': 2})",
    "SELECT map_keys(map_concat(map {'a': 1}, map {'b': 2}, map {'a': 5})), map_values(map_from_entries([('a', 1), ('b', NULL)]))",
    "SELECT bar(5, 0, 10), bar(3.3, 0, 10, 7), bar(-1, 0, 10, 4), bar(99, 0, 10, 4), bar(NULL, 0, 1)",
    "SELECT date_sub('day', DATE '2020-01-01', DATE '2020-01-03'), date_sub('month', DATE '2020-01-31', DATE '2020-02-29'), "
    "date_sub('month', DATE '2020-01-31', DATE '2020-03-30'), date_sub('year', DATE '2020-02-29', DATE '2021-02-28')",
    "SELECT date_sub('hour', TIMESTAMP '2020-01-01 10:30:00', TIMESTAMP '2020-01-01 09:31:00'), datesub('quarter', DATE '2019-01-01', DATE '2020-12-31'), "
    "date_sub('month', TIMESTAMP '2020-03-31 10:00:00', TIMESTAMP '2020-02-29 11:00:00'), date_sub('decade', DATE '2020-01-01', DATE '1990-01-15')",
    "SELECT printf('%.2d', 5), printf('%.5d', -42), printf('%8.3d|', 7), printf('%+.3d', 7), printf('%x', -1), printf('%X', -255), printf('%o', -1), "
    "printf('%05.2d', 5), printf('%u', -1), format('{:x}', -1)",
    "SELECT @(-5), @ -5 + 3, @v, @ v * 2 FROM (VALUES (-7)) t(v)",
    "SELECT 'abc' GLOB p, 'abc' NOT GLOB 'a*', 'abc' NOT GLOB p, 'a]c' GLOB 'a[]]c', 'abc' GLOB 'a' || '*' FROM (VALUES ('a?c')) t(p)",
    "SELECT s FROM (VALUES ('a.b', 'a?b'), ('axb', 'a[xy]b'), ('azb', 'a[!z]b'), ('a*b', 'a\\*b')) t(s, p) WHERE s GLOB p ORDER BY 1",
    "SELECT list_reduce([1, 2, 3], lambda x, y : x + y), list_reduce(['a', 'b', 'c'], lambda x, y : x || y), list_reduce(NULL::INT[], lambda x, y : x + y)",
    "SELECT list_reduce([1, 2, 3], lambda x, y : x + y, 100), list_reduce([]::INT[], lambda x, y : x + y, 100)",
    "SELECT list_reduce(l, lambda x, y : x * y + k) FROM (VALUES ([1, 2, 3], 1), ([4, 5], 2), ([7], 0), (NULL, 3)) t(l, k) ORDER BY 1",
    "SELECT list_reduce([]::INT[], lambda x, y : x + y)",
    "SELECT try(CAST('5' AS INT)), try(5)",
    "SELECT v, try(CAST(v AS INT) + 1), try(CAST(v AS DATE)) FROM (VALUES ('1'), ('x'), (NULL), ('2020-01-01')) t(v) ORDER BY v",
    "SELECT try(CAST(v AS TINYINT)) FROM range(120, 140) t(v) ORDER BY v",
    "SELECT count(*) FROM (SELECT * FROM range(1000) LIMIT 10%)",
    "SELECT * FROM range(10) t(v) ORDER BY v DESC LIMIT 25%",
    "WITH a AS (SELECT * FROM range(100) t(v)) SELECT v FROM a WHERE v > 49 ORDER BY v LIMIT 5 PERCENT",
    "SELECT count(*) FROM range(7) LIMIT 0%",
    "SELECT 1 LIMIT 150%",
]


@pytest.mark.parametrize("query", OF_DUCKDB)
def test_functions_are_duckdbs(engines, query: str) -> None:
    answers = []
    for one in engines:
        try:
            answers.append(one.execute(query).fetchall())
        except Exception:
            answers.append(None)
    assert answers[0] == answers[1]


def test_date_sub_of_random_times(engines) -> None:
    rng = random.Random(3)
    for _ in range(200):
        a, b = (f"TIMESTAMP '{rng.randrange(1990, 2030)}-{rng.randrange(1, 13):02}-{rng.choice([1, 15, 28]):02} {rng.randrange(24):02}:00:00' + INTERVAL {rng.randrange(4)} DAY" for _ in "ab")
        part = rng.choice(["month", "quarter", "year", "decade", "week", "day", "hour", "minute"])
        query = f"SELECT date_sub('{part}', {a}, {b})"
        own, theirs = (one.execute(query).fetchall() for one in engines)
        assert own == theirs, query


def test_names_of_our_own_are_refused() -> None:
    own = flashmesh.connect()
    own.execute("CREATE TABLE t (a INT)")
    for statement in (
        'INSERT INTO t ("flashmesh:by_name") SELECT 1 AS a',
        "SELECT 'a' RLIKE \"flashmesh:glob\"('a*')",
        'SELECT array_transform([1], "flashmesh:lambda"(x, x))',
    ):
        with pytest.raises(Exception, match="flashmesh's own"):
            own.execute(statement)
    assert own.execute("SELECT 'flashmesh:glob' AS x").fetchall() == [("flashmesh:glob",)]


def test_comments_stay(tmp_path) -> None:
    with flashmesh.connect(tmp_path / "some.db") as own:
        own.execute("CREATE TABLE t (a INT, \"B c\" INT)")
        own.execute("COMMENT ON TABLE t IS 'it''s a table'")
        own.execute("COMMENT ON COLUMN t.\"B c\" IS 'second'")
        own.execute("COMMENT ON COLUMN public.t.a IS 'first'")
        own.execute("ALTER TABLE t RENAME COLUMN a TO z")
        own.execute("INSERT INTO t VALUES (1, 2)")
        own.execute("ALTER TABLE t ALTER COLUMN z TYPE BIGINT")
        own.execute("ALTER TABLE t RENAME TO u")
        for statement, says in (
            ("COMMENT ON VIEW v IS 'x'", "not supported"),
            ("COMMENT ON TABLE nope IS 'x'", "nope"),
            ("COMMENT ON COLUMN u.nope IS 'x'", "'nope'"),
            ("COMMENT ON COLUMN u IS 'x'", "not a name"),
        ):
            with pytest.raises(Exception, match=says):
                own.execute(statement)
        own.execute("COMMENT IF EXISTS ON TABLE nope IS 'x'")
    with flashmesh.connect(tmp_path / "some.db") as own:
        assert own.execute("SELECT comment FROM system.tables").fetchall() == [("it's a table",)]
        comments = "SELECT name, comment FROM system.columns ORDER BY position"
        assert own.execute(comments).fetchall() == [("z", "first"), ("B c", "second")]
        own.execute("COMMENT ON COLUMN u.z IS NULL")
        own.execute("COMMENT ON TABLE u IS NULL")
        assert own.execute(comments).fetchall() == [("z", None), ("B c", "second")]
        assert own.execute("SELECT comment FROM system.tables").fetchall() == [(None,)]
        assert own.execute("SELECT * FROM u").fetchall() == [(1, 2)]


def test_files_are_listed_and_read(engines, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("b.txt", "two\nlines ä"), ("a.txt", ""), ("c.csv", "x")):
        (tmp_path / name).write_text(text)
    for query in (
        "SELECT file FROM glob('*.txt') ORDER BY 1",
        f"SELECT file FROM glob('{tmp_path}/*') ORDER BY 1",
        "SELECT count(*) FROM glob('none*.txt')",
        "SELECT count(*) FROM glob('none.txt')",
        "SELECT filename, content, size FROM read_text('*.txt') ORDER BY 1",
        "SELECT content FROM read_text(['a.txt', 'c.csv']) ORDER BY 1",
        "SELECT g.file, t.size FROM glob('*.txt') g JOIN read_text('*.txt') t ON g.file = t.filename ORDER BY 1",
    ):
        own, theirs = (one.execute(query).fetchall() for one in engines)
        assert own == theirs, query
    own, _ = engines
    (tmp_path / "d.bin").write_bytes(b"\xff\xfe")
    for query, says in (
        ("SELECT * FROM read_text('d.bin')", "no text"),
        ("SELECT * FROM read_text('nope.txt')", "does not exist"),
        ("SELECT * FROM glob(5)", "takes a path"),
    ):
        with pytest.raises(Exception, match=says):
            own.execute(query)
    own.execute("CREATE VIEW listed AS SELECT file FROM glob('*.txt')")
    assert own.execute("SELECT * FROM listed ORDER BY 1").fetchall() == [("a.txt",), ("b.txt",)]


def test_views_keep_what_is_written_otherwise(engines) -> None:
    view = (
        "CREATE VIEW kept AS SELECT 'abc' GLOB p AS a, @ x AS b, list_reduce([1, x], lambda a, b : a + b) AS c, max(x, 1) AS d, "
        "struct_insert({'a': 1}, b := 2) AS e, list_select([10, 20], [2]) AS f, list_where([1, 2], [true, false]) AS g, "
        "try(CAST(p AS INT)) AS h FROM (VALUES ('a*', -3)) t(p, x) GROUP BY p, x"
    )
    answers = []
    for one in engines:
        one.execute(view)
        answers.append(one.execute("SELECT * FROM kept").fetchall())
    assert answers[0] == answers[1]
