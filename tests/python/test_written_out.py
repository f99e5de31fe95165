"""Stars, limits, names and rows that are written out before a statement is planned, with DuckDB's answers."""

from __future__ import annotations

import duckdb
import flashmesh
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

TABLES = """
    CREATE TABLE t (id INT, a INT, b INT);
    INSERT INTO t VALUES (1, 10, 100), (2, 20, 200), (3, 30, NULL);
    CREATE TABLE u (id INT, c INT, a INT);
    INSERT INTO u VALUES (1, -1, 7), (3, -3, 8), (4, -4, 9);
    CREATE TABLE s (j STRUCT(t STRUCT(a INT)), a INT);
    INSERT INTO s VALUES ({'t': {'a': 5}}, 6);
    CREATE TABLE d (a INT, c TEXT, i INT);
    INSERT INTO d VALUES (1, 'x', 1), (1, 'y', 2), (2, 'x', 3), (2, NULL, 4), (NULL, 'z', 5), (NULL, 'z', 6), (3, 'a', 7);
    CREATE TABLE e (id INT PRIMARY KEY, n INT, salary DECIMAL(10, 2));
    INSERT INTO e VALUES (1, 5, 4000.00), (2, 3, 1234.56), (3, 1, NULL);
    CREATE TABLE m (a TIMESTAMP, b TIMESTAMP, i INTERVAL);
    INSERT INTO m VALUES ('2024-01-01', '2024-01-02', '30 hours'), ('2024-01-01', '2024-01-01 05:00', '1 month'), (NULL, '2024-01-01', NULL);
"""

QUERIES = [
    # `*` with what is said of it, beside USING.
    "SELECT * EXCLUDE (id) FROM t JOIN u USING (id) ORDER BY ALL",
    "SELECT * EXCLUDE (id, b) FROM t LEFT JOIN u USING (id) ORDER BY ALL",
    "SELECT * EXCLUDE (a) FROM t FULL JOIN u USING (id) ORDER BY ALL",
    "SELECT * REPLACE (id * 10 AS id) FROM t JOIN u USING (id) ORDER BY ALL",
    "SELECT * RENAME (id AS key) FROM t FULL JOIN u USING (id) ORDER BY ALL",
    "SELECT * EXCLUDE (b) REPLACE (c + 1 AS c) RENAME (id AS key) FROM t JOIN u USING (id) ORDER BY ALL",
    "SELECT COLUMNS('id|b') FROM t FULL JOIN u USING (id) ORDER BY ALL",
    "SELECT * REPLACE (a + b AS b) FROM t ORDER BY id",
    "SELECT * EXCLUDE (a) REPLACE (upper('x') AS b) FROM t ORDER BY id",
    "SELECT * EXCLUDE (id) FROM t NATURAL JOIN (SELECT id FROM u) AS n ORDER BY ALL",
    # A query that names itself.
    "WITH RECURSIVE r(n, k) AS (SELECT 1, 5 UNION ALL SELECT * REPLACE (n + 1 AS n) FROM r WHERE n < 4) SELECT * FROM r ORDER BY n",
    "WITH RECURSIVE r AS (SELECT 1 AS n, 5 AS k UNION ALL SELECT n + 1, COLUMNS('k') FROM r WHERE n < 4) SELECT * FROM r ORDER BY n",
    # Numbers of rows that queries give.
    "SELECT id FROM t ORDER BY id LIMIT (SELECT 2)",
    "SELECT id FROM t ORDER BY id LIMIT (SELECT count(*) - 1 FROM u) OFFSET (SELECT min(id) FROM u)",
    "WITH n AS (SELECT 1 AS k) SELECT id FROM t ORDER BY id LIMIT (SELECT k FROM n)",
    "SELECT id FROM t ORDER BY id LIMIT (SELECT NULL::INT)",
    "SELECT (SELECT max(id) FROM (SELECT id FROM t ORDER BY id LIMIT (SELECT 2)))",
    # Rows of other tables' columns.
    "SELECT id, k, x FROM t, LATERAL (VALUES ('a', a), ('b', b)) AS v(k, x) ORDER BY ALL",
    "SELECT t.id, v.x FROM t CROSS JOIN LATERAL (VALUES (t.a), (t.b + 1)) AS v(x) ORDER BY ALL",
    "SELECT id, sum(x) FROM t, (VALUES (a), (b)) AS v(x) GROUP BY id ORDER BY id",
    "SELECT id, x FROM t LEFT JOIN LATERAL (VALUES (a), (b)) AS v(x) ON true ORDER BY ALL",
    "SELECT id, (SELECT max(x) FROM (VALUES (a), (b)) AS v(x)) FROM t ORDER BY id",
    "SELECT id, x FROM t, unnest([t.a, t.b]) AS v(x) ORDER BY ALL",
    "SELECT id, (SELECT list_sum([t.a, u.c]) FROM u WHERE u.id = t.id) FROM t ORDER BY id",
    "WITH n AS (SELECT 7 AS k) SELECT [(SELECT k FROM n), 8]",
    # What stands before a table's name.
    "SELECT j.t.a FROM s",
    "SELECT s.j.t.a FROM s",
    "SELECT id FROM t WHERE EXISTS (SELECT 1 FROM s WHERE s.j.t.a = t.id + 4)",
    # Fractions of seconds that are cut off are rounded.
    "SELECT '2024-01-01 10:00:59.7'::TIMESTAMP::TIMESTAMP_S::TEXT",
    "SELECT '1960-01-01 10:00:59.4'::TIMESTAMP::TIMESTAMP_S::TEXT, '1960-01-01 10:00:59.6'::TIMESTAMP::TIMESTAMP_S::TEXT",
    "SELECT '2024-01-01 10:00:59.1236'::TIMESTAMP::TIMESTAMP_MS::TEXT",
    "SELECT '2024-01-01 10:00:59.7'::TIMESTAMP_S::TEXT",
    "SELECT NULL::TIMESTAMP::TIMESTAMP_S",
    # Lengths of time beside texts.
    "SELECT count(*) FROM m WHERE b - a > '5 hours'",
    "SELECT count(*) FROM m WHERE '05:00:00' = b - a",
    "SELECT count(*) FROM m WHERE i > '1 day'",
    "SELECT count(*) FROM m WHERE i = '30 days'",
    "SELECT count(*) FROM m WHERE b - a BETWEEN '5 hours' AND '1 day'",
    "SELECT b - a IN ('24 hours', '1 minute') FROM m ORDER BY a, b",
    # The first rows by another order.
    "SELECT DISTINCT ON (a) a, c, i FROM d ORDER BY c DESC NULLS LAST, i",
    "SELECT DISTINCT ON (a) * FROM d ORDER BY i",
    "SELECT DISTINCT ON (a, c) a, c, i FROM d ORDER BY c, a, i DESC",
    "SELECT DISTINCT ON (k) a + 1 AS k, -i AS j FROM d ORDER BY j",
    "SELECT DISTINCT ON (1) a % 2, i FROM d ORDER BY 2 DESC",
    "SELECT DISTINCT ON (a % 2) a % 2 AS p, sum(i) AS s FROM d GROUP BY a ORDER BY s DESC LIMIT 1",
    "SELECT DISTINCT ON (a) i FROM d ORDER BY c DESC NULLS LAST, i LIMIT 2 OFFSET 1",
    # A key of some of the groups determines no others.
    "SELECT e.id, p.c FROM e, u AS p GROUP BY 1, 2 ORDER BY 1, 2 DESC",
    "SELECT id, count(*) FROM (SELECT e.id, p.c FROM e, u AS p GROUP BY 1, 2) GROUP BY id, c ORDER BY ALL",
    "SELECT id, count(*) FROM (SELECT e.id, p.c FROM e, u AS p GROUP BY 1, 2) GROUP BY id ORDER BY ALL",
    "WITH q AS (SELECT e.id, p.c FROM e, u AS p GROUP BY 1, 2) SELECT id, count(*), sum(c) FROM q GROUP BY id, c ORDER BY ALL",
    "WITH q AS (SELECT e.id, p.c FROM e, u AS p GROUP BY 1, 2) SELECT id, sum(c) FROM q GROUP BY id ORDER BY ALL",
    "SELECT DISTINCT id, c FROM (SELECT e.id, p.c, e.n FROM e, u AS p GROUP BY 1, 2, 3) ORDER BY 1, 2",
    "SELECT e.id, e.n, p.c, sum(p.a) AS s FROM e JOIN u AS p ON e.n < p.id GROUP BY e.id, e.n, p.c HAVING sum(p.a) > 7 ORDER BY e.id, p.c",
    "SELECT e.id, p.c, row_number() OVER (ORDER BY e.id, p.c DESC) FROM e, u AS p GROUP BY 1, 2 ORDER BY 1, 2",
    "SELECT e.id, e.n, count(*) FROM e JOIN u AS p ON e.id = p.id GROUP BY e.id, e.n ORDER BY e.id, e.n",
    "SELECT count(*) FROM (SELECT e.id, p.c FROM e LEFT JOIN u AS p ON true GROUP BY ROLLUP (1, 2) ORDER BY 1, 2)",
    # Windows over groupings, in an order.
    "SELECT sum(i) AS s, a, rank() OVER (PARTITION BY grouping(a) ORDER BY sum(i)) AS r FROM d GROUP BY ROLLUP (a) ORDER BY r, s, a",
    "SELECT a, grouping(a) AS g, rank() OVER (PARTITION BY grouping(a) ORDER BY sum(i)) AS r FROM d GROUP BY ROLLUP (a) ORDER BY g DESC, CASE WHEN grouping(a) = 0 THEN a END, r LIMIT 3",
    # Arithmetic beside comparisons.
    "SELECT i - INTERVAL '1 day' = INTERVAL '29 days', i > INTERVAL '1 day' FROM m ORDER BY a, b",
    "SELECT i + INTERVAL '1 day' = INTERVAL '31 days', i + INTERVAL '1 day' > INTERVAL '1 day' FROM m ORDER BY a, b",
    "SELECT CASE WHEN 1 > 0 THEN INTERVAL '1 day' + INTERVAL '1 hour' END = INTERVAL '25 hours'",
    "SELECT a + (i - INTERVAL '1 day'), i > INTERVAL '1 day' FROM m ORDER BY a, b",
    "SELECT salary / 3.0, id > 1 FROM e ORDER BY id",
    "SELECT sum(salary / 3.0)::TEXT, count(*) FILTER (WHERE id > 1) FROM e",
    # Orders by what is not selected, or is so under another name.
    "SELECT sum(i) AS i FROM d GROUP BY a ORDER BY sum(i)",
    "SELECT lower(d.c) AS c FROM d ORDER BY d.c NULLS FIRST, d.i LIMIT 3",
    "SELECT -d.i AS i, c FROM d ORDER BY d.i",
    "SELECT -d.i AS i, c FROM d ORDER BY i",
    "SELECT upper(d.c) AS c, count(*) FROM d GROUP BY d.c ORDER BY d.c DESC NULLS LAST",
    "SELECT id, unnest([1, 2]) AS x FROM t ORDER BY b DESC NULLS FIRST, x",
    "SELECT i FROM (SELECT -d.i AS i FROM d ORDER BY d.i LIMIT 3) ORDER BY i",
    "SELECT a + 1, i FROM d WHERE a > 0 ORDER BY a + 1 DESC, i DESC",
    # Decimals that are rounded, beside others.
    "SELECT id, round(salary, 1) = salary, greatest(round(salary, 1), salary) FROM e ORDER BY id",
    "SELECT id FROM e WHERE salary > (SELECT round(avg(salary), 1) FROM e)",
    "SELECT x.id FROM e AS x JOIN e AS y ON x.salary = round(y.salary, 1)",
    "SELECT id FROM e WHERE round(salary, 1) IN (SELECT salary FROM e)",
    "SELECT id FROM e WHERE round(salary, -3) = 4000 OR round(salary, 1) < salary - 0.03 ORDER BY id",
    "SELECT * FROM (SELECT a, count(DISTINCT c) FROM d GROUP BY a) AS z ORDER BY ALL",
    'SELECT * FROM (SELECT i % 2 AS "A", i FROM d) ORDER BY ALL DESC LIMIT 3',
    'WITH z AS (SELECT i % 2 AS "A", i FROM d) SELECT *, i + 1 FROM z ORDER BY ALL',
    "SELECT id, (SELECT c FROM (SELECT * FROM u WHERE u.id = t.id ORDER BY ALL LIMIT 1)) FROM t ORDER BY ALL",
    "SELECT id FROM t UNION ALL BY NAME SELECT id, -c AS b FROM u ORDER BY ALL",
    "SELECT * FROM t UNION SELECT * FROM t ORDER BY ALL DESC",
    "VALUES (2), (1) ORDER BY ALL",
    "SELECT -i AS i FROM d ORDER BY -i",
    "SELECT -i AS i FROM d ORDER BY -i + 0 LIMIT 2",
    "SELECT id, unnest([3, 1, 2]) AS x FROM t ORDER BY -x, id",
    "SELECT id, unnest([3, 1, 2]) AS x FROM t ORDER BY x % 2, x, id DESC",
    "SELECT t.id AS k, a AS id FROM t ORDER BY -id, t.id",
    "SELECT DISTINCT ON (a, c) a, c FROM d ORDER BY a, a DESC, c",
    # Stars within what counts their rows, and of what can't be planned by itself.
    "WITH RECURSIVE r AS (SELECT 1 AS n, 5 AS k UNION ALL SELECT * REPLACE (n + 1 AS n) FROM r WHERE n < 4) SELECT count(*) FROM (SELECT n FROM r ORDER BY n LIMIT 50%)",
    "WITH RECURSIVE r AS (SELECT 1 AS n, 5 AS k UNION ALL SELECT * REPLACE (n + 1 AS n) FROM r WHERE n < 4) SELECT n FROM r ORDER BY n LIMIT (SELECT count(*) - 1 FROM r)",
    "WITH q AS (SELECT * REPLACE (a + 1 AS a) FROM t) SELECT count(*) FROM (SELECT * FROM q LIMIT 50%)",
    "SELECT t.id, m.c FROM t, LATERAL (SELECT * REPLACE (c + 1 AS c) FROM (SELECT * FROM u WHERE u.id = t.id) AS q) AS m ORDER BY 1",
    'SELECT * REPLACE (5 AS a) FROM (SELECT 1 AS a, 2 AS "B")',
    "SELECT * EXCLUDE (id), id + 1 AS k FROM (SELECT id FROM t) AS x JOIN (SELECT id FROM u) AS y USING (id) ORDER BY k",
    "SELECT * FROM (SELECT grouping(e.id) AS g, e.id, u.c FROM e, u GROUP BY e.id, u.c) ORDER BY ALL",
    # What an OFFSET passes over, below another order.
    "SELECT * FROM (SELECT i FROM d ORDER BY i LIMIT 2 OFFSET 3) ORDER BY i",
    "SELECT * FROM (SELECT i FROM d ORDER BY i LIMIT 4 OFFSET 3) AS z ORDER BY i DESC",
    "WITH p AS (SELECT i, c FROM d ORDER BY i LIMIT 2 OFFSET 2) SELECT * FROM p ORDER BY ALL",
    "SELECT i FROM (SELECT i FROM d ORDER BY -i OFFSET 5) ORDER BY i",
    "SELECT i, row_number() OVER (ORDER BY i) FROM (SELECT i FROM d ORDER BY -i OFFSET 3) ORDER BY i",
    "SELECT DISTINCT i FROM (SELECT i FROM d ORDER BY i LIMIT 3 OFFSET 2) ORDER BY i",
    "SELECT x.i, u.c FROM (SELECT i FROM d ORDER BY i LIMIT 3 OFFSET 2) AS x LEFT JOIN u ON u.id = x.i ORDER BY x.i",
    "SELECT i FROM d ORDER BY i LIMIT 2 OFFSET 3",
    # Conditions without columns above an aggregate of no groups.
    "SELECT * FROM (SELECT 'a' AS k, count(*) AS n FROM u HAVING count(*) >= 0) WHERE k = 'b'",
    "SELECT count(*) FROM u HAVING count(*) >= 0 AND (SELECT false)",
    "SELECT t.id, w.x FROM t LEFT JOIN (SELECT 1 AS x FROM u HAVING count(*) >= 0) AS w ON w.x = 2 ORDER BY 1",
    # Rows of lists beside a key.
    "SELECT DISTINCT id FROM (SELECT id, unnest([1, 2]) FROM e) ORDER BY id",
    "SELECT t.b FROM t JOIN (SELECT id, unnest([1, 2]) AS x FROM e) AS q ON q.id = t.id ORDER BY 1",
    "SELECT id, x FROM e, unnest([3, 1, 2]) AS v(x) ORDER BY id, x DESC",
    "SELECT count(*) FROM t JOIN (SELECT e.id, p.c FROM e, u AS p GROUP BY 1, 2) AS q ON t.id = q.id",
    "SELECT t.id FROM t LEFT JOIN (SELECT e.id, p.c FROM e, u AS p WHERE p.c < -1 GROUP BY 1, 2) AS q ON t.id = q.id ORDER BY 1",
    "SELECT price / 3.0 > 0.8333333 FROM (SELECT 2.50::DECIMAL(8, 2) AS price)",
    # Functions in other words.
    "SELECT regexp_split_to_array('a1b22c', '[0-9]+'), string_split_regex('abc', 'x'), regexp_split_to_array(NULL, 'a')",
    "SELECT regexp_split_to_table('a b  c', '\\s+') ORDER BY 1",
    "SELECT isoyear(DATE '2024-12-30'), millisecond(b), microsecond(b) FROM m ORDER BY a, b",
    "SELECT to_quarters(2) = INTERVAL '6 months', to_decades(1) = INTERVAL '10 years', to_centuries(1) = INTERVAL '100 years'",
    "SELECT row_to_json({'a': 1, 'b': 'x'})::TEXT, array_to_json([1, 2])::TEXT",
    "SELECT generate_subscripts([7, 8, 9], 1) ORDER BY 1",
    # DISTINCT beside another table: what it gives does not determine columns of that.
    "SELECT x, y FROM (SELECT DISTINCT a AS x FROM t), (SELECT id AS y FROM u) GROUP BY x, y ORDER BY x, y",
    "SELECT x, count(*) FROM (SELECT x, y FROM (SELECT DISTINCT a AS x FROM t), (SELECT id AS y FROM u) GROUP BY x, y) GROUP BY x ORDER BY x",
    "SELECT DISTINCT x + y FROM (SELECT DISTINCT a AS x FROM t), (SELECT DISTINCT id AS y FROM u) ORDER BY 1",
    # Keys that stand twice.
    "SELECT c, a, i AS c2, count(*) AS n FROM d GROUP BY c, a, c, i ORDER BY i",
    "SELECT e.id, c, e.n AS k, sum(c) AS s FROM e, u GROUP BY e.id, e.id, c, e.n ORDER BY ALL",
    "SELECT a, i, sum(i) AS s FROM d GROUP BY a, a, i ORDER BY i",
    # A default for rows that are not there, which differs from row to row.
    "SELECT id, lag(b, 1, a) OVER (ORDER BY id), lead(b, 2, id * 2) OVER (ORDER BY id DESC) FROM t ORDER BY id",
    "SELECT i, lag(a, 1, i + 0) OVER (PARTITION BY c ORDER BY i) FROM d ORDER BY i",
    "SELECT i, lag(abs(a) IGNORE NULLS) OVER (ORDER BY i DESC) FROM d ORDER BY i",
    "SELECT i, first_value(upper(c) IGNORE NULLS) OVER (ORDER BY i DESC) FROM d ORDER BY i",
    # Functions by their other names, and what they do at the edges.
    "SELECT string_split('', ','), string_split('a,b,', ','), str_split('abc', ''), string_split(NULL, ',')",
    "SELECT list_distinct([1, NULL, 1, NULL]), list_sort(array_distinct(['b', 'a', 'b'])), list_distinct(NULL::INT[])",
    "SELECT map_extract(MAP {'a': 1}, 'b'), map_extract(MAP {'a': 1}, 'a'), element_at(MAP {'a': 1}, 'a')",
    "SELECT try_strptime('2024-02-30', '%Y-%m-%d'), try_strptime('2024-02-29 10:11', '%Y-%m-%d %H:%M')",
    "SELECT mode() WITHIN GROUP (ORDER BY c), mode() WITHIN GROUP (ORDER BY a) FROM d WHERE i > 1 AND i < 5",
    "SELECT a, grouping_id(a) FROM d GROUP BY ROLLUP (a) ORDER BY 1, 2",
    "SELECT date_trunc('decade', a), date_trunc('century', a), date_trunc('millennium', b + i) FROM m ORDER BY ALL",
    "SELECT b + INTERVAL (1) DAY, b - INTERVAL (2) HOURS FROM m ORDER BY ALL",
    # Rows of tables.
    "SELECT t FROM t ORDER BY id",
    "SELECT x, x.a FROM t AS x WHERE x.id > 1 ORDER BY x.id",
    "SELECT list(u ORDER BY u.id), max(t.id) FROM t JOIN u USING (id)",
    "SELECT to_json(t)::VARCHAR FROM t ORDER BY id",
    "SELECT T, u FROM t LEFT JOIN u ON t.id = u.id ORDER BY t.id",
    "WITH t AS (SELECT 1 AS x, 'y' AS z) SELECT t FROM t",
    "SELECT q.a + (SELECT max(t.id) FROM t), q FROM (SELECT a FROM u) q ORDER BY 1",
    "SELECT s FROM (SELECT s FROM s) ORDER BY ALL",
    "SELECT d FROM (SELECT 1 AS d, 2 AS e) d",
    "SELECT list_transform([1, 2], lambda t : t + 1), id FROM t ORDER BY id",
    "SELECT x FROM range(3) x ORDER BY x",
    "SELECT sum(x), max(x) + 1 FROM range(4) x",
    "SELECT g FROM generate_series(1, 3) g WHERE g > 1 ORDER BY g",
    "SELECT x FROM unnest([1, 2]) AS x ORDER BY x",
    "SELECT w.id, x FROM (SELECT id, [a, b] AS xs FROM t) w, unnest(w.xs) AS x ORDER BY ALL NULLS LAST",
    "SELECT k, K + 1 FROM (SELECT id AS \"K\" FROM t) k ORDER BY 1",
    "SELECT s.j.t.a, (s.j).t.a + s.a FROM s",
    "SELECT q.l[1], q.l[1] + q.l[2] FROM (SELECT [a, id] AS l FROM t) q ORDER BY ALL",
    "WITH w AS (SELECT a FROM (SELECT id AS a FROM t) a) SELECT * FROM w ORDER BY 1",
    "WITH k AS (SELECT 1 AS k), j AS (SELECT k FROM k) SELECT * FROM j",
    "WITH w AS (SELECT x FROM (VALUES (1)) x(x)) SELECT * FROM w",
    "WITH RECURSIVE n AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM n WHERE n < 3) SELECT n FROM n ORDER BY 1",
    "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 3), m AS (SELECT n FROM n) SELECT * FROM m ORDER BY 1",
    "WITH RECURSIVE t AS (SELECT 1 AS t UNION ALL SELECT t + 1 FROM t WHERE t < 3) SELECT t FROM t ORDER BY 1",
    "WITH w AS (SELECT t FROM t) SELECT * FROM w ORDER BY ALL",
    "WITH w AS (SELECT x FROM t AS x), v AS (SELECT w FROM w) SELECT v FROM v ORDER BY ALL",
    "WITH w AS (WITH t AS (SELECT 5 AS t) SELECT t FROM t) SELECT * FROM w",
    "SELECT * FROM (WITH w AS (SELECT count(t) AS n FROM t) SELECT n FROM w)",
    # Fewer names than columns.
    "SELECT q.a, a_1 FROM t AS q(a) ORDER BY 1",
    "SELECT p FROM t AS q(p) ORDER BY p",
    "SELECT * FROM t AS q(p, r) ORDER BY p",
    "SELECT q.p, q.b, x FROM t AS q(p) JOIN (SELECT id, c FROM u) AS w(x) ON p = x ORDER BY 1",
    "SELECT v.x FROM (VALUES (1, 2), (3, 4)) AS v(x) ORDER BY x",
    "WITH w(x) AS (SELECT id, a FROM t) SELECT * FROM w ORDER BY x",
    "WITH w(x) AS (SELECT * FROM t), v(y) AS (TABLE w) SELECT y, a, b FROM v ORDER BY y",
    # Names in front.
    "SELECT x: id, y: a + b FROM t ORDER BY x",
    "SELECT n: count(*), s: sum(a) FILTER (WHERE id > 1) FROM t",
    "SELECT DISTINCT c: c IS DISTINCT FROM 'x', k: {'v': i > 3} FROM d ORDER BY ALL",
    "SELECT x : id, \"Y y\":a::TEXT, z1: '10:00' || b FROM t ORDER BY 1",
    "SELECT a: max(id), (SELECT z: min(c) FROM u) AS m FROM t UNION ALL SELECT b: 1, 2 ORDER BY ALL",
    "SELECT * EXCEPT (a), z: a FROM t ORDER BY z",
    "SELECT {'a': 1, 'b': 2}::STRUCT(a INT, b INT) AS x, y: 3",
    # Constants that no row comes to.
    "SELECT try('x'::INT), try(CAST('x' AS DATE)), try('7'::INT)",
    "SELECT CASE WHEN id > 0 THEN 1 ELSE 'x'::INT END FROM t ORDER BY id",
    "SELECT CASE id WHEN 9 THEN DATE 'x' ELSE DATE '2024-01-01' END FROM t ORDER BY id",
    "SELECT coalesce(id, 'x'::INT) FROM t WHERE CASE WHEN id < 9 THEN true ELSE 'x'::BOOLEAN END ORDER BY 1",
    "SELECT list_unique([1, 1, NULL]), typeof(list_unique([1])), list_count([1, NULL]), list_count([]) / 2",
]

REFUSED = [
    ("SELECT * REPLACE (1 AS nosuch) FROM t", "REPLACE names 'nosuch'"),
    ("SELECT * EXCLUDE (nosuch) FROM t JOIN u USING (id)", "no column named 'nosuch'"),
    ("SELECT nosuch.t.a FROM t", "no column named 'nosuch'"),
    ("SELECT flashmesh.nosuch.t.a FROM t", "no column named 'flashmesh'"),
    ("DELETE FROM t WHERE nosuch.t.a = 10", "no column named 'nosuch'"),
    ("UPDATE t SET a = 0 WHERE nosuch.t.a = 10", "no column named 'nosuch'"),
    ("SELECT id FROM t LIMIT (SELECT id FROM u)", "several values"),
    ("SELECT id FROM t LIMIT (SELECT -1)", "less than none"),
    ("CREATE VIEW w AS SELECT id FROM t LIMIT (SELECT 2)", "a view takes no LIMIT"),
    ("SELECT c COLLATE NOCASE FROM d", "COLLATE NOCASE outside comparisons"),
    ("SELECT CASE WHEN id > 2 THEN 'x'::INT ELSE 1 END FROM t", "Cannot cast string 'x' to value of Int32"),
    ("SELECT 'x'::INT FROM t", "Cannot cast string 'x' to value of Int32"),
    ("SELECT nosuch FROM t AS q(p)", "no column named 'nosuch'"),
    ("SELECT * FROM t AS q(a, b, c, d)", "4"),
    ("SELECT \"t\" FROM t", "no column named 't'"),
]


@pytest.fixture(scope="module", params=["auto", "always", "never"])
def con(request):
    with flashmesh.connect() as con:
        con.execute(f"SET flashmesh.pushdown = '{request.param}'")
        con.execute(TABLES)
        yield con


@pytest.fixture(scope="module")
def oracle():
    with duckdb.connect() as oracle:
        oracle.execute(TABLES)
        yield oracle


@pytest.mark.parametrize("query", QUERIES)
def test_it_is_as_duckdb_has_it(con, oracle, query: str) -> None:
    expected = oracle.execute(query)
    names, rows = [column[0] for column in expected.description], expected.fetchall()
    ours = con.execute(query)
    if query.startswith(("SELECT *", "SELECT COLUMNS")):
        assert [column[0] for column in ours.description] == names
    assert ours.fetchall() == rows


@pytest.mark.parametrize("query, why", REFUSED)
def test_it_is_refused(con, query: str, why: str) -> None:
    before = con.sql("SELECT * FROM t ORDER BY id").fetchall()
    with pytest.raises(flashmesh.Error, match=why):
        con.sql(query).fetchall()
    assert con.sql("SELECT * FROM t ORDER BY id").fetchall() == before


def test_what_is_stored_is_of_the_type_that_it_has_in_the_end() -> None:
    with flashmesh.connect() as con, duckdb.connect() as oracle:
        for database in [con, oracle]:
            database.execute("CREATE TABLE a (id INT, v INT); INSERT INTO a VALUES (1, 10), (2, 20), (3, NULL)")
            database.execute("CREATE TABLE c AS SELECT 1 AS x UNION ALL SELECT 2.5")
            database.execute("CREATE TABLE q AS SELECT id, CASE WHEN id = 1 THEN 1 ELSE 2.5 END AS x FROM a")
            database.execute("CREATE TABLE d AS SELECT DATE '2024-01-01' AS x UNION ALL SELECT TIMESTAMP '2024-01-01 10:00:00'")
            database.execute("CREATE TABLE l AS SELECT id, coalesce(v, 0.25) AS x, if(v > 15, v, 0.5) AS y FROM a")
            database.execute("CREATE TABLE w AS WITH s AS (SELECT NULL AS x UNION ALL SELECT 2.5) SELECT * FROM s")
        for table in ["c", "q", "d", "l", "w"]:
            query = f"SELECT * FROM {table} ORDER BY ALL"
            ours, theirs = con.sql(query).fetchall(), oracle.execute(query).fetchall()
            assert [tuple(map(str, row)) for row in ours] != [], table
            assert ours == theirs or [[float(x) for x in row] for row in ours] == [[float(x) for x in row] for row in theirs], table
        con.execute("CREATE TABLE b1 (k INT PRIMARY KEY, x BIGINT); INSERT INTO b1 VALUES (1, 5)")
        for lossy in [
            "UPDATE b1 SET x = CASE WHEN k = 2 THEN 1 ELSE 2.5 END",
            "INSERT INTO b1 SELECT 2, 1 UNION ALL SELECT 3, 2.5",
            "INSERT INTO b1 VALUES (50, CASE WHEN 1 = 2 THEN 1 ELSE 7.5 END)",
        ]:
            with pytest.raises(flashmesh.Error):
                con.execute(lossy)
        con.execute("UPDATE b1 SET x = CASE WHEN k = 2 THEN 1 ELSE 2.0 END")
        con.execute("INSERT INTO b1 SELECT 2, 1 UNION ALL SELECT 3, 4.0")
        assert con.sql("SELECT * FROM b1 ORDER BY k").fetchall() == [(1, 2), (2, 1), (3, 4)]


def test_rows_of_values_are_of_one_type() -> None:
    with flashmesh.connect() as con:
        con.execute("CREATE TABLE p (k INTEGER PRIMARY KEY, a INTEGER)")
        con.execute("INSERT INTO p VALUES (1, CASE WHEN TRUE THEN CAST(NULL AS INTEGER) WHEN FALSE THEN 1 END), (2, 100)")
        assert con.sql("SELECT * FROM p ORDER BY k").fetchall() == [(1, None), (2, 100)]


def test_a_schema_in_use_is_before_its_tables() -> None:
    with flashmesh.connect() as con:
        con.execute("CREATE SCHEMA sales; CREATE TABLE sales.t (a INT); INSERT INTO sales.t VALUES (1); USE sales")
        assert con.sql("SELECT sales.t.a, flashmesh.sales.t.a FROM t").fetchall() == [(1, 1)]
        with pytest.raises(flashmesh.Error, match="no column named 'public'"):
            con.sql("SELECT public.t.a FROM t").fetchall()
        con.execute("CREATE TEMP TABLE own (a INT); INSERT INTO own VALUES (5)")
        assert con.sql("SELECT temp.own.a FROM own").fetchall() == [(5,)]


def test_columns_may_be_called_as_statements() -> None:
    with flashmesh.connect() as con:
        for query, expected in [
            ("SELECT id, (desc || 'y') FROM (SELECT 1 AS id, 'x' AS desc)", (1, "xy")),
            ("SELECT id, (show + 1) AS x FROM (SELECT 1 AS id, 2 AS show)", (1, 3)),
            ("SELECT 1 IS DISTINCT FROM (desc) FROM (SELECT 2 AS desc)", (True,)),
        ]:
            assert con.sql(query).fetchall() == [expected]


def test_columns_of_a_view_are_those_of_its_making() -> None:
    with flashmesh.connect() as con:
        con.execute("CREATE TABLE t (a INT, b INT); INSERT INTO t VALUES (1, 2)")
        con.execute("CREATE VIEW v AS SELECT * REPLACE (a + 1 AS a) FROM t")
        assert con.sql("SELECT * FROM v").fetchall() == [(2, 2)]


def test_constraints_are_where_the_standard_has_them() -> None:
    with flashmesh.connect() as con:
        con.execute("CREATE TABLE k (a INT, b INT, c TEXT UNIQUE, PRIMARY KEY (a, b), CONSTRAINT small CHECK (a < 10))")
        query = "SELECT table_name, constraint_type FROM information_schema.table_constraints ORDER BY ALL"
        assert con.sql(query).fetchall() == [("k", "CHECK"), ("k", "PRIMARY KEY"), ("k", "UNIQUE")]
        query = """
            SELECT k.column_name, k.ordinal_position, t.constraint_type
            FROM information_schema.key_column_usage AS k JOIN flashmesh.information_schema.table_constraints AS t
                USING (constraint_schema, constraint_name, table_name)
            WHERE t.table_schema = 'public' ORDER BY 3, 2"""
        assert con.sql(query).fetchall() == [("a", 1, "PRIMARY KEY"), ("b", 2, "PRIMARY KEY"), ("c", 1, "UNIQUE")]
        query = "SELECT constraint_name, check_clause FROM information_schema.check_constraints"
        assert con.sql(query).fetchall() == [("small", "a < 10")]


def test_statements_that_show_something_are_tables() -> None:
    with flashmesh.connect() as con, duckdb.connect() as oracle:
        for database in [con, oracle]:
            database.execute("CREATE TABLE t (a INT, \"it's\" TEXT, c DOUBLE)")
            database.execute("INSERT INTO t VALUES (1, 'x', NULL), (2, NULL, 2.5)")
            database.execute("CREATE TABLE keyed (a INT PRIMARY KEY, b INT UNIQUE, c TEXT NOT NULL DEFAULT 'x')")
        for query in [
            "SELECT column_name FROM (DESCRIBE t) WHERE column_name <> 'c'",
            "FROM (DESCRIBE t)",
            "FROM (DESCRIBE keyed)",
            "SELECT d.column_name FROM (DESCRIBE SELECT a + 1 AS b, 'it''s' AS s FROM t) AS d ORDER BY 1 DESC",
            "FROM (SHOW TABLES)",
            "SELECT column_name, min, max, count FROM (SUMMARIZE t) ORDER BY column_name",
            "SELECT count(*) FROM (DESCRIBE t) AS x JOIN (SUMMARIZE t) AS y ON x.column_name = y.column_name",
        ]:
            assert con.sql(query).fetchall() == oracle.execute(query).fetchall(), query
        for query in [
            "SELECT * FROM (SHOW TABLES; DROP TABLE t)",
            "SELECT * FROM (DESCRIBE DELETE FROM t)",
            "SELECT * FROM (DESCRIBE ANALYZE DELETE FROM t)",
            "CREATE VIEW v AS SELECT * FROM (DESCRIBE t)",
            "SELECT * FROM \"flashmesh:shown\"('DELETE FROM t')",
        ]:
            with pytest.raises(flashmesh.Error):
                con.sql(query).fetchall()
        assert con.sql("SELECT count(*) FROM t").fetchall() == [(2,)]


def test_each_row_knows_its_file(tmp_path) -> None:
    for year, values in [(2023, "a,b\n1,x\n2,y\n"), (2024, "a,b\n3,z\n")]:
        (tmp_path / "keys" / f"y={year}").mkdir(parents=True)
        (tmp_path / "keys" / f"y={year}" / "part.csv").write_text(values)
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "more.csv").write_text("b,c\nw,7\n")
    (tmp_path / "more" / "one.csv").write_text("a,b\n9,-\n")
    pq.write_table(pa.table({"a": [1, 2]}), tmp_path / "p.parquet")
    pq.write_table(pa.table({"a": [3], "k": ["q"]}), tmp_path / "q.parquet")
    with flashmesh.connect() as con, duckdb.connect() as oracle:
        for query in [
            "SELECT a, b, filename FROM read_csv('{}/keys/y=*/*.csv', filename = true) ORDER BY a",
            "SELECT file FROM read_csv('{}/keys/y=*/*.csv', filename = 'file') WHERE file LIKE '%2024%'",
            "SELECT filename, count(*) FROM read_csv('{}/keys/y=*/*.csv', filename = true) GROUP BY ALL ORDER BY ALL",
            "SELECT count(*) FROM read_csv('{}/keys/y=*/*.csv', filename = true) WHERE a > 1",
            "SELECT CAST(y AS INT), a FROM read_csv('{}/keys/y=*/*.csv', filename = true) WHERE y = 2023 ORDER BY a",
            "SELECT * FROM read_parquet(['{0}/p.parquet', '{0}/q.parquet'], filename = true, union_by_name = true) ORDER BY a",
            "SELECT x.a, y.filename FROM read_parquet('{0}/p.parquet', filename = true) x JOIN read_parquet('{0}/p.parquet', filename = true) y USING (a) ORDER BY a",
            "SELECT a, b, c FROM read_csv(['{0}/more/one.csv', '{0}/more/more.csv'], union_by_name = true) ORDER BY b",
            "SELECT a, b, c, filename FROM read_csv(['{0}/more/one.csv', '{0}/more/more.csv'], union_by_name = true, filename = true) ORDER BY b",
            "SELECT a, b, filename FROM read_csv('{0}/more/one.csv', nullstr = '-', filename = true)",
        ]:
            query = query.format(tmp_path)
            assert con.sql(query).fetchall() == oracle.execute(query).fetchall(), query
        with pytest.raises(flashmesh.Error, match="the files have a column 'a'"):
            con.sql(f"SELECT * FROM read_parquet('{tmp_path}/p.parquet', filename = 'a')")
        with pytest.raises(flashmesh.Error, match="keys"):
            con.sql(f"SELECT * FROM read_csv('{tmp_path}/keys/y=*/*.csv', union_by_name = true)")


def test_parquet_files_tell_of_themselves(tmp_path) -> None:
    rows = pa.table(
        {
            "id": pa.array(range(1000), pa.int64()),
            "d": pa.array([None, *range(999)], pa.int32()).cast(pa.date32()),
            "s": [f"text {row % 7}" for row in range(1000)],
            "n": pa.array([str(row) for row in range(1000)]).cast(pa.decimal128(9, 2)),
            "l": [{"x": [row], "y": 1.5} for row in range(1000)],
            "b": pa.array([row % 2 == 0 for row in range(1000)]),
        }
    )
    for number in range(2):
        pq.write_table(rows, tmp_path / f"{number}.parquet", row_group_size=400, compression="zstd")
    with flashmesh.connect() as con, duckdb.connect() as oracle:
        for query in [
            "SELECT file_name, num_rows, num_row_groups, format_version, created_by FROM parquet_file_metadata('{}')",
            "SELECT name, type, repetition_type, num_children, converted_type, scale, precision FROM parquet_schema('{}') WHERE name <> 'schema'",
            "SELECT file_name, row_group_id, row_group_num_rows, row_group_num_columns, column_id, num_values, path_in_schema, type, stats_null_count,"
            " total_compressed_size, total_uncompressed_size, data_page_offset FROM parquet_metadata('{}')",
            "SELECT path_in_schema, stats_min_value, stats_max_value FROM parquet_metadata('{}') WHERE path_in_schema IN ('id', 'd', 's', 'n', 'b')",
        ]:
            query = query.format(tmp_path / "*.parquet") + " ORDER BY ALL"
            assert con.execute(query).fetchall() == oracle.execute(query).fetchall(), query
        (tmp_path / "torn.parquet").write_bytes((tmp_path / "0.parquet").read_bytes()[:-100])
        (tmp_path / "no.parquet").write_text("PAR1")
        for file in ["torn.parquet", "no.parquet", "nowhere.parquet"]:
            for function in ["parquet_file_metadata", "parquet_schema", "parquet_metadata"]:
                with pytest.raises(flashmesh.Error, match=file):
                    con.execute(f"SELECT * FROM {function}('{tmp_path / file}')").fetchall()


def test_files_have_what_is_no_number(tmp_path) -> None:
    """The least and greatest values in Parquet files are those of numbers alone."""
    nan = float("nan")
    pq.write_table(pa.table({"f": [1.0, nan, 2.0], "k": [1, 2, 3]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"f": pa.array([1.0, 1.0], pa.float32()), "k": [4, 5]}), tmp_path / "b.parquet")
    pq.write_table(pa.table({"f": [1.0, nan, 1.5], "k": [6, 7, 8]}), tmp_path / "c.parquet")
    pq.write_table(pa.table({"f": [3.0, nan, 3.0], "k": [9, 10, 11]}), tmp_path / "d.parquet")
    with flashmesh.connect() as con, duckdb.connect() as oracle:
        for file in ["a", "b", "c", "d"]:
            oracle.execute(f"CREATE TABLE {file} AS SELECT * FROM '{tmp_path}/{file}.parquet'")
            for query in [
                "SELECT k FROM '{}' WHERE f > 2 ORDER BY k",
                "SELECT k FROM '{}' WHERE f >= 3 AND k > 0 ORDER BY k",
                "SELECT k FROM '{}' WHERE 5 < f ORDER BY k",
                "SELECT k FROM '{}' WHERE f <> 1 ORDER BY k",
                "SELECT k FROM '{}' WHERE f = 'NaN' ORDER BY k",
                "SELECT k FROM '{}' WHERE isnan(f) ORDER BY k",
                "SELECT k FROM '{}' WHERE f IN (7, 'NaN'::DOUBLE) ORDER BY k",
                "SELECT k FROM '{}' WHERE NOT (f < 5) ORDER BY k",
                "SELECT k FROM '{}' WHERE f < 2 ORDER BY k",
                "SELECT k FROM '{}' WHERE f = 1 ORDER BY k",
                "SELECT count(*) FROM '{}' WHERE f BETWEEN 1.5 AND 'NaN'",
                "SELECT isnan(max(f)), min(f), max(k), count(*) FROM '{}'",
                "SELECT isnan(max(f)) FROM '{}' WHERE k > 0",
                "SELECT isnan(f), k FROM '{}' ORDER BY f DESC, k LIMIT 1",
                "SELECT x.k FROM '{0}' x JOIN '{0}' y ON x.f = y.f AND isnan(y.f) ORDER BY 1",
            ]:
                # DuckDB passes over it in files, too, and not in tables.
                expected = oracle.execute(query.replace("'{}'", file).replace("'{0}'", file)).fetchall()
                query = query.format(tmp_path / f"{file}.parquet")
                assert con.sql(query).fetchall() == expected, query


def test_dates_that_are_written_otherwise(tmp_path) -> None:
    (tmp_path / "a.csv").write_text("d,t,s,n\n31/12/2023,31/12/2023 23:59,31/12,1\n01/02/2024,01/02/2024 00:05,x,2\n,,,\n")
    (tmp_path / "b.csv").write_text("d,n\n31.12.2023,1\n01.02.2024\n")
    with flashmesh.connect() as con, duckdb.connect() as oracle:
        for query in [
            "SELECT * FROM read_csv('{}/a.csv', dateformat = '%d/%m/%Y') ORDER BY n",
            "SELECT t, s, n FROM read_csv('{}/a.csv', timestampformat = '%d/%m/%Y %H:%M') ORDER BY n",
            "SELECT d + 1, t + INTERVAL '1 hour', s FROM read_csv('{}/a.csv', dateformat = '%d/%m/%Y', timestampformat = '%d/%m/%Y %H:%M', header = true) ORDER BY n",
            "SELECT d FROM read_csv('{}/a.csv', dateformat = '%d/%m/%Y', types = {{'d': 'DATE'}}) WHERE d > '2024-01-01'",
            "SELECT * FROM read_csv('{}/b.csv', dateformat = '%d.%m.%Y', null_padding = true) ORDER BY d",
        ]:
            query = query.format(tmp_path)
            assert con.sql(query).fetchall() == oracle.execute(query).fetchall(), query
        query = "SELECT d::TEXT FROM read_csv('{}/a.csv', dateformat = '%d/%m/%Y', nullstr = '31/12/2023') ORDER BY n"
        assert con.sql(query.format(tmp_path)).fetchall() == [(None,), ("2024-02-01",), (None,)]
        # One that is written as in ISO 8601 stays so.
        (tmp_path / "c.csv").write_text("d,e\n31/12/2023,2024-01-01\n")
        query = "SELECT d::TEXT, e::TEXT FROM read_csv('{}/c.csv', dateformat = '%d/%m/%Y')"
        assert con.sql(query.format(tmp_path)).fetchall() == [("2023-12-31", "2024-01-01")]
        with pytest.raises(flashmesh.Error):
            con.sql(f"SELECT * FROM read_csv('{tmp_path}/a.csv', dateformat = '%m/%d/%Y', types = {{'d': 'DATE'}})").fetchall()
        con.execute("CREATE TABLE t (d DATE, n INT)")
        con.execute(f"INSERT INTO t SELECT d, n FROM read_csv('{tmp_path}/a.csv', dateformat = '%d/%m/%Y')")
        assert con.sql("SELECT max(d)::TEXT FROM t").fetchall() == [("2024-02-01",)]
