"""What DataFusion answers wrongly, or not at all, and flashmesh does not: the answers are DuckDB's, in all pushdown
modes."""

import math
import random
from fractions import Fraction

import duckdb
import flashmesh
import pyarrow
import pytest

SETUP = [
    """CREATE TABLE t (id INT NOT NULL, n INT, s VARCHAR, d DATE, a TIMESTAMP, b TIMESTAMP, x DOUBLE,
        m DECIMAL(10, 2))""",
    """INSERT INTO t VALUES
        (1, 10, '1', '2024-01-01', '2024-01-01 00:00:00', '2024-01-03 00:00:00', 1.5, 1.50),
        (2, 20, '30', '2024-01-10', '2024-01-01 00:00:00', '2024-01-01 12:00:00', 1e-16, 0.00),
        (3, NULL, '5', NULL, NULL, NULL, 1e20, 7.25)""",
    "CREATE TABLE f (id INT, x DOUBLE)",
    "INSERT INTO f VALUES (1, 1.0), (2, 'inf'::DOUBLE), (3, 'nan'::DOUBLE), (4, 7.25), (5, 0.1)",
    "CREATE TABLE r (s VARCHAR)",
    r"INSERT INTO r VALUES ('a\b'), ('a%b'), ('ab'), ('\'), ('%'), ('plain'), ('A\B'), (NULL)",
    "CREATE TABLE u (id INT PRIMARY KEY, a INT)",
    "INSERT INTO u VALUES (1, 5), (2, NULL), (3, 7)",
    "CREATE TABLE e (id INT, a INT)",
    "CREATE TABLE g (id INT, k INT, x DOUBLE)",
    """INSERT INTO g VALUES (1, 1, 1), (2, 2, 'nan'), (3, 1, 2.5), (4, 3, 5), (5, 1, 'inf'), (6, 2, 1), (7, 3, 'nan'),
        (8, 4, NULL), (9, 4, 5), (10, 4, 6), (11, 2, '-inf'), (12, 1, 0.5)""",
    "CREATE TABLE q (id INT, x DOUBLE, y DOUBLE)",
    "INSERT INTO q VALUES (1, 0, 0), (2, 1, 0), (3, 'nan'::DOUBLE, 1), (4, -1, 0), (5, 6, 2), (6, NULL, 0), (7, 0, 0)",
    "CREATE TABLE i (k INT, i INTERVAL)",
    """INSERT INTO i VALUES (1, INTERVAL '1 month'), (2, INTERVAL '40 days'), (3, INTERVAL '25 hours'),
        (4, INTERVAL '1 day'), (5, NULL)""",
    "CREATE TABLE w (b INT NOT NULL, a INT)",
    "INSERT INTO w VALUES (1, 2), (3, NULL), (4, 4)",
    "CREATE TABLE z (id INT NOT NULL, b INT NOT NULL)",
    "INSERT INTO z SELECT v, v % 2 FROM range(10) AS g(v)",
    "CREATE TABLE few (v DECIMAL(38, 10))",
    "INSERT INTO few VALUES ('1234567890123456789012345678.5'), (2.25), (NULL)",
]

QUERIES = {
    "conditions without columns above aggregates": [
        """SELECT * FROM (SELECT 'x' AS src, count(*) AS n FROM u UNION ALL SELECT 'y', count(*) FROM e) q
           WHERE src = 'x'""",
        "WITH t AS (SELECT 'total' AS l, sum(a) AS s FROM u) SELECT * FROM t WHERE l = 'other'",
        "SELECT count(*) FROM u HAVING (SELECT max(id) FROM u) > 99",
        "SELECT count(*) FROM u HAVING (SELECT max(id) FROM u) > 2",
        "SELECT * FROM (SELECT count(*) AS n FROM u) q WHERE (SELECT max(id) FROM u) > 99",
        "SELECT 0 IN (SELECT 1 FROM (SELECT count(*) FROM u) q)",
        "SELECT l, id, count(*) FROM (SELECT 'x' AS l, id FROM u) q WHERE l = 'y' GROUP BY ROLLUP (l, id)",
        "SELECT * FROM (SELECT 'x' AS l, id, count(*) FROM u GROUP BY ROLLUP (id)) q WHERE l = 'y'",
        "SELECT u.id, n FROM u LEFT JOIN (SELECT count(*) AS n FROM u) q ON (SELECT max(id) FROM u) > 99 ORDER BY 1",
    ],
    "tests of constants": [
        "SELECT id FROM u WHERE 99 NOT IN (SELECT a FROM u)",
        "SELECT id FROM u WHERE 5 NOT IN (SELECT a FROM u)",
        "SELECT id FROM u WHERE 99 NOT IN (SELECT a FROM u WHERE a IS NOT NULL) ORDER BY id",
        "SELECT id FROM u WHERE NOT (99 IN (SELECT a FROM u))",
        "SELECT id FROM u WHERE 99 <> ALL (SELECT a FROM u)",
        "SELECT id FROM u WHERE 7 IN (SELECT a FROM u) ORDER BY id",
        "SELECT id FROM u WHERE NULL NOT IN (SELECT a FROM e) ORDER BY id",
    ],
    "subqueries that are values": [
        "SELECT CASE WHEN (SELECT 1 FROM t WHERE id = 99) IS NULL THEN 'none' END",
        "SELECT coalesce((SELECT id FROM t WHERE id = 99), 0)",
        "SELECT id FROM t WHERE (SELECT id FROM t WHERE id = 99) IS NULL ORDER BY id",
        "SELECT id FROM t WHERE (SELECT id FROM t WHERE id = 99) IS NOT NULL ORDER BY id",
        "SELECT id FROM t WHERE coalesce((SELECT id FROM t WHERE id = 99), 2) = id",
        "SELECT (SELECT id FROM t WHERE id = 99)",
        "SELECT (SELECT 3 FROM t WHERE id = 99) + 1 AS y, id FROM t ORDER BY id",
        "SELECT q.y, q.y IS NULL FROM (SELECT (SELECT id FROM t WHERE id = 99) AS y) q",
        "SELECT id, (SELECT id FROM u WHERE u.id = t.id + 2) AS o FROM t ORDER BY id",
        "SELECT id FROM t WHERE (SELECT id FROM u WHERE u.id = t.id + 2) IS NULL ORDER BY id",
        "SELECT (SELECT count(*) FROM e), (SELECT max(id) FROM u)",
        "SELECT * FROM (VALUES ((SELECT max(id) FROM u)), ((SELECT min(id) FROM u))) AS v(a) ORDER BY a",
        "SELECT * FROM (VALUES (1, (SELECT max(id) FROM u)), (2, NULL)) AS v(a, b) ORDER BY a",
    ],
    "tests by what has no name": [
        "SELECT id, id IN (SELECT max(a) FROM u) FROM u ORDER BY id",
        "SELECT id, id = ANY (SELECT count(*) FROM u) FROM u ORDER BY id",
        "SELECT id FROM u WHERE id NOT IN (SELECT count(a) + 1 FROM u) OR a = 5 ORDER BY id",
        "SELECT id FROM u WHERE id IN (SELECT count(*) FROM u)",
    ],
    "rows in queries": [
        "SELECT id FROM u WHERE (id, a) IN (SELECT id, a FROM u WHERE id < 3) ORDER BY id",
        "SELECT id FROM u WHERE (id, a) NOT IN (SELECT id, a FROM u WHERE a = 7) ORDER BY id",
        "SELECT id FROM u WHERE (id, a) NOT IN (SELECT id, a FROM u) ORDER BY id",
        "SELECT id FROM u WHERE (id, a) NOT IN (SELECT id, a FROM e) ORDER BY id",
        "SELECT id FROM u WHERE NOT (id, a) IN (SELECT 2, 5) ORDER BY id",
        "SELECT id FROM u WHERE (id, a) NOT IN (SELECT 3, NULL) ORDER BY id",
        "SELECT id FROM z WHERE (b, id) IN (SELECT b, max(id) FROM z GROUP BY b) ORDER BY id",
        "SELECT id FROM z WHERE (b, id) NOT IN (SELECT b, max(id) FROM z GROUP BY b) ORDER BY id",
        "SELECT id FROM z WHERE (b, id) IN (SELECT b, max(id) FROM z GROUP BY b) OR id = 3 ORDER BY id",
    ],
    "quotients that are no number": [
        "SELECT id FROM q ORDER BY x / y DESC NULLS LAST, id",
        "SELECT id FROM q ORDER BY -(x / y), id",
        "SELECT x / y, count(*) FROM q GROUP BY 1 ORDER BY 1",
        "SELECT DISTINCT x / y FROM q WHERE y = 0 ORDER BY 1",
        "SELECT id FROM q WHERE x / y > 5 ORDER BY id",
        "SELECT id FROM q WHERE x / y = 'nan'::DOUBLE ORDER BY id",
        "SELECT id FROM q WHERE x % y IS NOT DISTINCT FROM 'nan'::DOUBLE ORDER BY id",
        "SELECT max(x / y), min(-(x / y)), count(DISTINCT x / y) FROM q",
        "SELECT p.id, f.id FROM q p JOIN f ON p.x / p.y = f.x ORDER BY 1, 2",
        "SELECT id FROM q WHERE -x > -1 ORDER BY id",
        "SELECT id FROM q ORDER BY -x, id",
        "SELECT sum(-x), -sum(x) FROM q WHERE id < 3",
    ],
    "first groups of floats": [
        "SELECT DISTINCT x FROM g ORDER BY x LIMIT 1",
        "SELECT DISTINCT x FROM g ORDER BY x DESC NULLS LAST LIMIT 3",
        "SELECT x FROM g GROUP BY x ORDER BY x DESC NULLS LAST LIMIT 2",
        "SELECT k, max(x) AS m FROM g GROUP BY k ORDER BY m DESC NULLS LAST, k LIMIT 2",
        "SELECT max(x) AS m FROM g GROUP BY k ORDER BY m DESC NULLS LAST LIMIT 2",
        "SELECT min(x) AS m FROM g GROUP BY k ORDER BY m LIMIT 2",
    ],
    "frames that slide over floats": [
        "SELECT id, sum(x) OVER (ORDER BY id ROWS 1 PRECEDING) FROM g ORDER BY id",
        "SELECT id, avg(x) OVER (ORDER BY id ROWS BETWEEN 1 PRECEDING AND 1 FOLLOWING) FROM g ORDER BY id",
        "SELECT id, sum(x) OVER (ORDER BY id RANGE BETWEEN 2 PRECEDING AND 1 PRECEDING) FROM g ORDER BY id",
        "SELECT id, sum(x) OVER (PARTITION BY k ORDER BY id ROWS 1 PRECEDING) FROM g ORDER BY id",
        "SELECT id, var_pop(x) OVER (ORDER BY id ROWS 1 PRECEDING) FROM g WHERE isfinite(x) ORDER BY id",
        "SELECT id, stddev(7.25) OVER (ORDER BY id ROWS 3 PRECEDING) FROM g ORDER BY id",
        "SELECT id, sum(id) OVER (ORDER BY id ROWS 2 PRECEDING) FROM g ORDER BY id",
    ],
    "products of intervals": [
        "SELECT INTERVAL '1 day' * 3, 2 * INTERVAL '1 hour', INTERVAL '3 hours' / 2 FROM u",
        "SELECT TIMESTAMP '2024-01-31 00:00:00' + INTERVAL '1 month' * id FROM u ORDER BY id",
        "SELECT id FROM t WHERE (b - a) / 2 > INTERVAL '6 hours' ORDER BY id",
        "SELECT a + INTERVAL '1 day' * id FROM t ORDER BY id",
    ],
    "intervals": [
        "SELECT id FROM t WHERE b - a > INTERVAL '1 day' ORDER BY id",
        "SELECT id FROM t WHERE b - a < INTERVAL '1 day' ORDER BY id",
        "SELECT id FROM t WHERE b - a BETWEEN INTERVAL '1 hour' AND INTERVAL '1 day' ORDER BY id",
        "SELECT id FROM t WHERE b - a = INTERVAL '12 hours'",
        "SELECT id, b - a > INTERVAL '1 day' FROM t ORDER BY id",
        "SELECT INTERVAL '1 day' = INTERVAL '24 hours', INTERVAL '1 month' < INTERVAL '40 days'",
        "SELECT k FROM i ORDER BY i, k",
        "SELECT k FROM i ORDER BY i DESC NULLS LAST, k",
        "SELECT k FROM i WHERE i > INTERVAL '1 day' ORDER BY k",
        "SELECT p.k, q.k FROM i p JOIN i q ON p.i < q.i ORDER BY 1, 2",
    ],
    "days": [
        "SELECT id FROM t WHERE d - DATE '2024-01-01' > 1 ORDER BY id",
        "SELECT id, d - DATE '2024-01-01' FROM t ORDER BY id",
        "SELECT id FROM t WHERE b::DATE - a::DATE BETWEEN 1 AND 3 ORDER BY id",
    ],
    "least and greatest values of what is computed": [
        "SELECT max(s::INT), min(s::INT) FROM t",
        "SELECT max(x), min(x) FROM (SELECT s::INT AS x FROM t) q",
        "SELECT max(x), min(x), count(x) FROM (SELECT n::TEXT AS x FROM t) q",
        "SELECT max(b::TIME), min(b::TIME) FROM t",
        "SELECT sum(c) FROM (SELECT 4 AS c FROM e) q",
        "SELECT count(DISTINCT c), min(coalesce(-3, id)) FROM (SELECT -3 AS c, id FROM e) q",
        "SELECT count(DISTINCT c), min(id), count(c) FROM (SELECT NULL::INT AS c, id FROM u) q",
        "SELECT max(c), min(c), sum(c), count(*) FROM (SELECT 4 AS c FROM u) q",
    ],
    "years": [
        "SELECT id FROM t WHERE year(a) < 2300 ORDER BY id",
        "SELECT id FROM t WHERE extract(year FROM a) BETWEEN 2000 AND 3000 ORDER BY id",
        "SELECT id FROM t WHERE year(a) <> 1500 ORDER BY id",
        "SELECT id FROM t WHERE year(a) >= 0 AND year(d) >= 0 ORDER BY id",
        "SELECT id FROM t WHERE year(a) NOT IN (1, 2) ORDER BY id",
        "SELECT id FROM t WHERE year(a) = 2024 AND year(d) < 9999 ORDER BY id",
        "SELECT id FROM t WHERE year(a) > 2261",
    ],
    "regular expressions with backslashes": [
        r"SELECT s FROM r WHERE s ~ '\\' ORDER BY s",
        r"SELECT s FROM r WHERE s ~ 'a\\b' ORDER BY s",
        r"SELECT s FROM r WHERE s !~ '\\' ORDER BY s",
        r"SELECT s FROM r WHERE regexp_matches(s, 'a\\b') ORDER BY s",
        r"SELECT s FROM r WHERE regexp_matches(s, '\\$') ORDER BY s",
        r"SELECT s FROM r WHERE regexp_matches(s, '\\|%') ORDER BY s",
        r"SELECT s FROM r WHERE regexp_matches(s, 'A\\B', 'i') ORDER BY s",
        "SELECT s FROM r WHERE s ~ '%' ORDER BY s",
        "SELECT s FROM r WHERE s ~ 'plain' ORDER BY s",
    ],
    "floats and decimals": [
        "SELECT id FROM t WHERE x > m ORDER BY id",
        "SELECT id FROM t WHERE m < x ORDER BY id",
        "SELECT id FROM t WHERE m = x ORDER BY id",
        "SELECT id FROM t WHERE m < 1e300 ORDER BY id",
        "SELECT id FROM t WHERE m <> 'NaN'::DOUBLE ORDER BY id",
        "SELECT id FROM t WHERE m BETWEEN 0.001::DOUBLE AND x ORDER BY id",
        "SELECT t.id, f.id FROM t JOIN f ON t.m < f.x ORDER BY 1, 2",
        "SELECT t.id, f.id FROM t JOIN f ON t.m = f.x ORDER BY 1, 2",
        "SELECT id FROM t WHERE m < 1.75 AND m > 0.5 ORDER BY id",
        "SELECT id FROM f WHERE x = 0.1::DECIMAL(3, 1) ORDER BY id",
    ],
    "sums of many digits": ["SELECT sum(v) FROM few", "SELECT v > 2, sum(v) FROM few GROUP BY 1 ORDER BY 1"],
    "patterns with another escape": [
        r"SELECT s FROM r WHERE s LIKE '!%' ESCAPE '!' ORDER BY s",
        r"SELECT s FROM r WHERE s LIKE 'a!%%' ESCAPE '!' ORDER BY s",
        r"SELECT s FROM r WHERE s NOT LIKE 'a\b' ESCAPE '!' ORDER BY s",
        r"SELECT s FROM r WHERE s ILIKE 'a|\b' ESCAPE '|' OR s LIKE '!%' ESCAPE '!' ORDER BY s",
    ],
    "rows": [
        "SELECT id FROM t WHERE (id, n) < (3, 5) ORDER BY id",
        "SELECT id FROM t WHERE (id, n) <= (2, 20) ORDER BY id",
        "SELECT id FROM t WHERE (id, n) > (1, 10) ORDER BY id",
        "SELECT id FROM t WHERE (id, s) = (2, '30') ORDER BY id",
        "SELECT id FROM t WHERE (id, s) <> (2, '30') ORDER BY id",
    ],
    "constants in sorts and groups": [
        "SELECT k, id FROM (SELECT 7 AS k, id FROM u UNION ALL SELECT 3, id FROM u) q ORDER BY k, id DESC LIMIT 2",
        """SELECT y, a, count(*) FROM (SELECT 2024 AS y, a FROM u) q GROUP BY ROLLUP (y, a)
           ORDER BY y NULLS FIRST, a NULLS FIRST, 3 LIMIT 2""",
        "SELECT b, count(*) FROM z WHERE b = 1 GROUP BY ROLLUP (b) ORDER BY b NULLS FIRST",
        """SELECT l.id, r.b FROM z l LEFT JOIN (SELECT * FROM z WHERE b = 1) r ON l.id = r.id
           ORDER BY r.b NULLS FIRST, l.id LIMIT 3""",
        """SELECT l.id, r.b FROM z l FULL JOIN (SELECT id + 5 AS id, 1 AS b FROM z) r ON l.id = r.id
           ORDER BY r.b NULLS FIRST, l.id NULLS LAST LIMIT 7""",
        """SELECT r.b, count(*) FROM z l LEFT JOIN (SELECT id, 1 AS b FROM z WHERE id > 3) r ON l.id = r.id
           GROUP BY r.b ORDER BY r.b NULLS FIRST""",
    ],
    "moments and spans as people write them": [
        "SELECT id FROM t WHERE b > '2024-01-01 11:59' ORDER BY id",
        "SELECT TIMESTAMP '2024-01-31 10:00', '2024-01-31T10:00'::TIMESTAMP",
        "SELECT id FROM t WHERE b BETWEEN '2024-01-01 12:00' AND TIMESTAMP '2024-01-02 00:00'",
        "SELECT id, count(*) OVER (ORDER BY d RANGE BETWEEN INTERVAL 9 DAYS PRECEDING AND CURRENT ROW) FROM t ORDER BY 1",
        "SELECT id, count(*) OVER w FROM t WINDOW w AS (ORDER BY b RANGE INTERVAL 1 DAY PRECEDING) ORDER BY 1",
    ],
    "what may be NULL": [
        "SELECT max(m) FROM (SELECT CASE WHEN b < a THEN a ELSE b END AS m FROM w) q",
        "SELECT DISTINCT CASE WHEN b < a THEN a ELSE b END AS m FROM w ORDER BY 1",
        "SELECT CASE WHEN a IS NULL THEN b ELSE a END AS m, count(*) FROM w GROUP BY 1 ORDER BY 1",
    ],
}


@pytest.fixture(scope="module")
def peer():
    con = duckdb.connect()
    for statement in SETUP:
        con.execute(statement)
    yield con
    con.close()


@pytest.fixture(scope="module", params=["auto", "always", "never"])
def con(request):
    with flashmesh.connect() as con:
        for statement in SETUP:
            con.execute(statement)
        con.execute(f"SET flashmesh.pushdown = '{request.param}'")
        yield con


@pytest.mark.parametrize("query", [query for queries in QUERIES.values() for query in queries])
def test_answers_are_those_of_duckdb(con, peer, query):
    expected = peer.execute(query).fetchall()
    assert str(con.execute(query).fetchall()) == str(expected)


def test_sums_of_decimals_do_not_wrap(con):
    query = "SELECT {} FROM (VALUES (9999999999999999999999999999.5::DECIMAL(38, 10)), (9999999999999999999999999999.5), (9999999999999999999999999999.5)) AS v(x)"
    for sums in "sum(x)", "sum(x) OVER ()":
        with pytest.raises(flashmesh.Error, match="(?i)too large|overflow"):
            con.execute(query.format(sums)).fetchall()


def test_values_of_inserts_may_be_subqueries():
    with flashmesh.connect() as con:
        con.execute("CREATE TABLE t (a INT, b INT)")
        con.execute("INSERT INTO t VALUES (7, (SELECT 3 WHERE false)), (8, (SELECT 4))")
        con.execute("INSERT INTO t VALUES ((SELECT max(a) FROM t), 1)")
        assert con.sql("SELECT * FROM t ORDER BY a, b").fetchall() == [(7, None), (8, 1), (8, 4)]
        con.execute("UPDATE t SET b = (SELECT 3 FROM t WHERE a = 99) WHERE a = 8")
        con.execute("DELETE FROM t WHERE (SELECT a FROM t WHERE a = 99) IS NULL AND a = 7")
        assert con.sql("SELECT * FROM t").fetchall() == [(8, None), (8, None)]


@pytest.mark.parametrize(
    ("column", "value"),
    [("INT", "7.5"), ("DECIMAL(12, 2)", "1.999"), ("DATE", "TIMESTAMP '2024-01-01 10:00:00'"), ("REAL", "1e300")],
)
def test_execute_refuses_what_insert_refuses(column, value):
    with flashmesh.connect() as con:
        con.execute(f"CREATE TABLE t (a {column})")
        con.execute("PREPARE i AS INSERT INTO t VALUES ($1)")
        for statement in f"INSERT INTO t VALUES ({value})", f"EXECUTE i({value})":
            with pytest.raises(flashmesh.Error, match="can't hold"):
                con.execute(statement)
        assert con.sql("SELECT count(*) FROM t").fetchall() == [(0,)]


def test_tables_of_with_stand_before_insert():
    with flashmesh.connect() as con:
        con.execute("CREATE TABLE t (k INT PRIMARY KEY, v INT)")
        con.execute("WITH a AS (SELECT 1 AS k), b AS (SELECT k + 1 AS k FROM a) INSERT INTO t SELECT k, 7 FROM b")
        con.execute("WITH a AS (SELECT 2 AS k) INSERT INTO t WITH b AS (SELECT * FROM a) SELECT k, 8 FROM b ON CONFLICT DO NOTHING")
        returned = con.execute("WITH a AS (SELECT 3 AS k) INSERT INTO t SELECT k, 9 FROM a RETURNING k + v").fetchall()
        assert returned == [(12,)]
        assert con.sql("SELECT * FROM t ORDER BY k").fetchall() == [(2, 7), (3, 9)]


def test_rows_with_null_are_neither_in_a_list_nor_not_in_it(con):
    """As in PostgreSQL; to DuckDB they are structs, and equal."""
    in_list = con.sql("SELECT id, (id, a) IN ((1, 5), (2, NULL)) FROM u ORDER BY id").fetchall()
    assert in_list == [(1, True), (2, None), (3, False)]
    not_in = con.sql("SELECT id, (id, a) NOT IN ((1, 5), (2, 3)) FROM u ORDER BY id").fetchall()
    assert not_in == [(1, False), (2, None), (3, True)]


@pytest.mark.parametrize("kind", ["float64", "float32"])
def test_whatever_is_no_number_is_one_value_in_a_table(kind):
    numpy = pytest.importorskip("numpy")
    values = numpy.array([numpy.nan, -numpy.nan, 1, -numpy.inf, numpy.inf], dtype=kind)
    with flashmesh.connect() as con:
        con.execute(f"CREATE TABLE t (k INT PRIMARY KEY, x {'DOUBLE' if kind == 'float64' else 'REAL'})")
        con.load("t", pyarrow.table({"k": range(5), "x": values}), mode="append")
        con.put("t", [{"k": 5, "x": float(-numpy.nan)}])
        assert [row[0] for row in con.sql("SELECT k FROM t ORDER BY x, k").fetchall()] == [3, 2, 4, 0, 1, 5]
        assert len(con.sql("SELECT DISTINCT x FROM t").fetchall()) == 4
        assert con.sql("SELECT count(*) FROM t WHERE x = 'nan'").fetchall() == [(3,)]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "America/New_York"])
def test_a_moment_without_its_zone_is_what_its_clocks_show(zone):
    with flashmesh.connect() as con:
        con.execute(f"SET datafusion.execution.time_zone = '{zone}'")
        con.execute("CREATE TABLE t (k INT, m TIMESTAMPTZ)")
        con.execute("INSERT INTO t VALUES (1, '2024-07-01 12:00:00Z'), (2, '2024-01-01 00:30:00Z'), (3, NULL)")
        rows = con.sql("SELECT m::TEXT, m::TIMESTAMP::TEXT, hour(m), hour(m::TIMESTAMP), try_cast(m AS TIMESTAMP)::TEXT FROM t WHERE k < 3").fetchall()
        for moment, clocks, hour, of_clocks, tried in rows:
            assert moment.startswith(clocks) and hour == of_clocks and tried == clocks
        found = con.sql("SELECT k FROM t WHERE m::TIMESTAMP < '2024-01-01 00:00:00'").fetchall()
        assert found == ([(2,)] if zone == "America/New_York" else [])


def test_tables_of_with_stand_before_changes():
    with flashmesh.connect() as con:
        con.execute("CREATE TABLE t (k INT PRIMARY KEY, v INT); INSERT INTO t VALUES (1, 1), (2, 2), (3, 3), (4, 4)")
        con.execute("WITH a AS (SELECT 1 AS k), b AS (SELECT k + 1 AS k FROM a) DELETE FROM t USING b WHERE t.k = b.k")
        con.execute("WITH a AS (SELECT 1 AS k) DELETE FROM t WHERE k IN (SELECT k FROM a AS x WHERE x.k > 0)")
        con.execute("WITH t AS (SELECT 3 AS k, 30 AS v) UPDATE t SET v = (SELECT q.v FROM t AS q) WHERE k = (SELECT k FROM t)")
        con.execute("WITH a AS (SELECT 4 AS k, 40 AS v) UPDATE t SET v = A.v FROM A WHERE t.k = A.k")
        assert con.sql("SELECT * FROM t ORDER BY k").fetchall() == [(3, 30), (4, 40)]
        con.execute(
            """WITH a(k, v) AS (VALUES (4, 44), (5, 55)) MERGE INTO t USING a ON t.k = a.k
               WHEN MATCHED THEN UPDATE SET v = a.v WHEN NOT MATCHED THEN INSERT (k, v) VALUES (a.k, a.v)"""
        )
        # A name that the query itself gives to a table.
        con.execute("WITH a AS (SELECT 3 AS k) DELETE FROM t WHERE k IN (WITH a AS (SELECT 5 AS k) SELECT k FROM a)")
        assert con.sql("SELECT * FROM t ORDER BY k").fetchall() == [(3, 30), (4, 44)]
        assert con.execute("WITH a AS (SELECT 3 AS k) DELETE FROM t USING a WHERE a.k = t.k RETURNING v").fetchall() == [(30,)]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT y, x FROM (VALUES (1.6, 2, 3), (2.4, 5, 6)) AS v(x, y, z) WHERE x > 1.5 AND x < 2",
        "SELECT y, x FROM (VALUES (1.6, 2, 3), (2.4, 5, 6) ORDER BY 1 LIMIT 1) AS v(x, y, z)",
        "WITH v(x, y, z) AS (VALUES (1.6, 2, 3), (2.4, 5, 6)) SELECT y, x FROM v WHERE x < 2",
        "SELECT id, a FROM u WHERE id IN (VALUES (1), (3))",
        "SELECT id, a FROM u WHERE EXISTS (SELECT 1 FROM (VALUES (1.5)) AS v(w) WHERE w < id) ORDER BY id",
    ],
)
def test_values_that_an_insert_reads_have_types_of_their_own(query):
    setup = [
        "CREATE TABLE u (id INT, a INT)",
        "INSERT INTO u VALUES (1, 5), (2, NULL), (3, 7)",
        "CREATE TABLE t (k INT, v VARCHAR)",
        f"INSERT INTO t {query}",
    ]
    with flashmesh.connect() as con, duckdb.connect() as oracle:
        for statement in setup:
            con.execute(statement)
            oracle.execute(statement)
        rows = oracle.sql("SELECT * FROM t ORDER BY ALL").fetchall()
        assert rows and con.sql("SELECT * FROM t ORDER BY ALL").fetchall() == rows


@pytest.mark.parametrize("function", ["sum", "avg", "var_samp", "var_pop", "stddev_samp", "stddev_pop"])
def test_frames_that_slide_agree_with_their_rows(function):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    values = [rng.choice([None, float("nan"), float("inf"), 1e18, 0.1, 0.1, *(rng.uniform(-5, 5) for _ in range(20))]) for _ in range(3000)]
    before, behind = rng.randrange(0, 60), rng.randrange(0, 20)
    with flashmesh.connect() as con:
        con.load("t", pyarrow.table({"id": range(len(values)), "x": values}))
        frame = f"(ORDER BY id ROWS BETWEEN {before} PRECEDING AND {behind} FOLLOWING)"
        got = con.sql(f"SELECT {function}(x) OVER {frame} FROM t ORDER BY id").fetchall()
    for at, (found,) in enumerate(got):
        rows = [value for value in values[max(0, at - before) : at + behind + 1] if value is not None]
        expected = by_hand(function, rows)
        assert found == expected or found == pytest.approx(expected, rel=1e-9, abs=1e-9, nan_ok=True), (at, rows)


def by_hand(function: str, rows: list[float]) -> float | None:
    """What the function says of some rows, which are not all NULL."""
    needed = 2 if function.endswith("samp") else 1
    if len(rows) < needed:
        return None
    if not all(map(math.isfinite, rows)):
        return sum(rows) / (len(rows) if function == "avg" else 1) if function in ("sum", "avg") else math.nan
    if function in ("sum", "avg"):
        return math.fsum(rows) / (len(rows) if function == "avg" else 1)
    mean = Fraction(0) + sum(map(Fraction, rows)) / len(rows)
    squares = sum((Fraction(row) - mean) ** 2 for row in rows)
    variance = float(squares / (len(rows) - needed + 1))
    return math.sqrt(variance) if function.startswith("stddev") else variance


def test_no_change_loses_digits():
    with flashmesh.connect() as con:
        con.execute("CREATE TABLE t (id INT PRIMARY KEY, v BIGINT); INSERT INTO t VALUES (1, 0)")
        conflict = "INSERT INTO t VALUES (1, 0) ON CONFLICT (id) DO UPDATE SET"
        merge = "MERGE INTO t USING (VALUES (1, '2.75')) AS s(id, x) ON t.id = s.id WHEN MATCHED THEN UPDATE SET v ="
        for statement in (
            f"{conflict} v = CAST('1.75' AS DOUBLE)",
            f"{merge} s.x::DECIMAL(10, 2)",
            "UPDATE t SET v = CAST('1.75' AS DOUBLE)",
        ):
            with pytest.raises(flashmesh.Error, match="can't hold"):
                con.execute(statement)
        with pytest.raises(flashmesh.Error, match="excluded.v"):
            con.execute(f"{conflict} excluded.v = 1")
        con.execute(f"{conflict} v = CAST(1.0 AS BIGINT) + 1")
        con.execute(f"{merge} t.v + s.x::DOUBLE::BIGINT")
        assert con.sql("SELECT v FROM t").fetchall() in ([(4,)], [(5,)])


def test_a_check_that_takes_the_place_of_another_is_tested():
    with flashmesh.connect() as con:
        con.execute("CREATE TABLE t (x INT, CHECK (x > 0)); INSERT INTO t VALUES (5)")
        for added in "CONSTRAINT t_check CHECK (x > 10)", "CHECK (x > 10)":
            with pytest.raises(flashmesh.Error, match="CHECK"):
                con.execute(f"ALTER TABLE t DROP CONSTRAINT t_check, ADD {added}")
        con.execute("ALTER TABLE t DROP CONSTRAINT t_check, ADD CONSTRAINT t_check CHECK (x > 4)")
        with pytest.raises(flashmesh.Error, match="CHECK"):
            con.execute("INSERT INTO t VALUES (3)")


def test_rows_of_executemany_see_those_before_them():
    with flashmesh.connect() as con:
        con.execute("CREATE TABLE t (id BIGINT, s TEXT); CREATE TABLE k (id BIGINT PRIMARY KEY, s TEXT)")
        con.executemany("INSERT INTO t VALUES ((SELECT count(*) FROM t), ?)", [("a",), ("b",), ("c",)])
        assert con.sql("SELECT id FROM t ORDER BY s").fetchall() == [(0,), (1,), (2,)]
        con.executemany("INSERT OR REPLACE INTO k VALUES (?, ?)", [(1, "a"), (1, "b")])
        assert con.sql("SELECT * FROM k").fetchall() == [(1, "b")]


def test_a_table_that_rows_leave_may_have_another_name():
    with flashmesh.connect() as con:
        con.execute("CREATE TABLE t (k INT, v INT); INSERT INTO t VALUES (1, 1), (2, 2), (3, 3), (4, 4)")
        con.execute("CREATE TABLE u (k INT); INSERT INTO u VALUES (2), (3)")
        assert con.execute("DELETE FROM t AS x WHERE x.k = 1 RETURNING x.v").fetchall() == [(1,)]
        con.execute("DELETE FROM t x USING u WHERE x.k = u.k AND u.k = 2")
        con.execute("DELETE FROM t AS x WHERE EXISTS (SELECT 1 FROM u WHERE u.k = x.k)")
        assert con.sql("SELECT k FROM t").fetchall() == [(4,)]
        # Which k is it?
        for statement in (
            "DELETE FROM t USING u WHERE k = u.k",
            "DELETE FROM t USING u WHERE k = 4",
            "DELETE FROM t USING t WHERE t.v > 0",
        ):
            with pytest.raises(flashmesh.Error):
                con.execute(statement)
        # Whose k is it?
        with pytest.raises(flashmesh.Error):
            con.execute("DELETE FROM t AS x WHERE EXISTS (SELECT 1 FROM t WHERE t.k = x.k)")
        for statement in (
            "UPDATE t SET u.v = 5 FROM u WHERE t.k = u.k",
            "UPDATE t SET nonsense.v = 1",
            "UPDATE t AS x SET t.v = 1",
            "UPDATE t RIGHT JOIN u ON t.k = u.k SET v = 1",
            "UPDATE t FULL JOIN u ON t.k = u.k SET v = 1",
        ):
            with pytest.raises(flashmesh.Error):
                con.execute(statement)
        con.execute("UPDATE t AS x SET x.v = x.v; UPDATE t SET t.v = t.v; UPDATE public.t SET public.t.v = v")
        with pytest.raises(flashmesh.Error, match="sets column v twice"):
            con.execute("UPDATE t SET v = 1, k = 2, v = 3")
        assert con.sql("SELECT * FROM t").fetchall() == [(4, 4)]


def test_keys_are_not_rounded():
    with flashmesh.connect() as con:
        con.execute("CREATE TABLE t (k INT PRIMARY KEY, v INT)")
        con.execute("INSERT INTO t VALUES (5, 1)")
        assert con.get_one("t", 5) == {"k": 5, "v": 1} == con.get_one("t", 5.0)
        with pytest.raises(flashmesh.Error, match="can't hold 5.5"):
            con.get_one("t", 5.5)
        assert con.execute("SELECT * FROM t WHERE k = ?", (5.5,)).fetchall() == []


def test_moments_are_stored_without_seconds():
    with flashmesh.connect() as con:
        con.execute("CREATE TABLE t (a TIMESTAMP, b TIMESTAMP(0))")
        con.execute("INSERT INTO t VALUES ('2024-01-31 10:00', '2024-01-31T10:00')")
        con.execute("CREATE TABLE v AS SELECT '2024-02-29 23:59' AS x; INSERT INTO t SELECT x, x FROM v")
        assert [str(value) for row in con.sql("SELECT * FROM t ORDER BY a").fetchall() for value in row] == [
            "2024-01-31 10:00:00",
            "2024-01-31 10:00:00",
            "2024-02-29 23:59:00",
            "2024-02-29 23:59:00",
        ]
