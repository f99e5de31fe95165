"""What the test suites of DuckDB and PostgreSQL found, with the answers that both give."""

from __future__ import annotations

import datetime

import duckdb
import flashmesh
import pytest

TABLES = """
    CREATE TABLE orders (id INT, customer STRUCT(id INT, name TEXT));
    INSERT INTO orders VALUES (1, {'id': 7, 'name': 'ann'});
    CREATE TABLE customer (id INT, name TEXT);
    INSERT INTO customer VALUES (8, 'bob');
    CREATE TABLE r (i INT, s TEXT);
    INSERT INTO r VALUES (1, 'a'), (2, NULL), (3, '');
    CREATE TABLE v (a INT, b INT, c INT);
    INSERT INTO v VALUES (1, 2, 3), (1, 2, 4), (2, 2, 3);
    CREATE TABLE m (a TIMESTAMP, b TIMESTAMP, x DOUBLE);
    INSERT INTO m VALUES ('2024-01-01', '2024-01-02', 1), ('2024-01-01', '2024-01-01 05:00', 2), ('2024-01-01', '2024-01-02', 3);
"""

QUERIES = [
    # A field of a struct, behind the table's name.
    "SELECT o.customer.name FROM orders AS o, customer",
    "SELECT orders.customer.name, customer.name FROM orders, customer",
    "SELECT count(*) FROM orders AS o, customer WHERE o.customer.id = customer.id",
    "SELECT (SELECT max(c.id) FROM customer AS c WHERE c.id > o.customer.id) FROM orders AS o",
    # A regular expression that takes all texts, and NULL.
    "SELECT i, regexp_matches(s, '.*') FROM r ORDER BY i",
    "SELECT i, s ~ '.*', NOT (s ~ '.*') FROM r ORDER BY i",
    "SELECT i FROM r WHERE NOT regexp_matches(s, '.*')",
    "SELECT i FROM r WHERE regexp_matches(s, '.*') IS NULL",
    "SELECT i FROM r WHERE regexp_matches(s, '.*') ORDER BY i",
    # Rows of columns as groups.
    "SELECT a, b, count(*) FROM v GROUP BY (a, b) ORDER BY a",
    "SELECT a, b, c, count(*) FROM v GROUP BY (a, b), c ORDER BY ALL",
    "SELECT a, b, c, count(*) FROM v GROUP BY GROUPING SETS (a, b, c), (a, b), (a) ORDER BY ALL",
    # Windows by what has no ranges.
    "SELECT rank() OVER (ORDER BY b - a), x FROM m ORDER BY x",
    "SELECT sum(x) OVER (ORDER BY b::TIME) AS s, x FROM m ORDER BY x",
    "SELECT count(*) OVER (ORDER BY b::TIME DESC), x FROM m ORDER BY x",
    "SELECT sum(x) OVER (ORDER BY x::TEXT::BLOB) AS s FROM m ORDER BY s",
    "SELECT sum(x) OVER (ORDER BY {'h': hour(b)}) AS s, x FROM m ORDER BY x",
    # Parts of intervals.
    "SELECT extract(microsecond FROM INTERVAL '26.3434 seconds')::BIGINT, extract(millisecond FROM INTERVAL '26.3434 seconds')::BIGINT",
    "SELECT extract(second FROM INTERVAL '3 hours 26.9 seconds')::BIGINT, extract(minute FROM INTERVAL '61 minutes')::BIGINT",
    "SELECT date_part('epoch', INTERVAL '2 years')::BIGINT, date_part('epoch', INTERVAL '14 months 3 days')::BIGINT",
    "SELECT date_part('epoch', INTERVAL '1.5 seconds')::DOUBLE",
    # Rows of a table that an outer join has none of.
    "SELECT o.id, count(c.*) FROM orders AS o LEFT JOIN customer AS c ON o.id = c.id GROUP BY o.id",
    "SELECT r.i, count(v.*), count(*), count(v.*) + 1 AS more FROM r LEFT JOIN v ON r.i = v.b AND v.c > 3 GROUP BY r.i ORDER BY r.i",
    "SELECT count(r.*), count(v.*) FROM r FULL JOIN v ON r.i = v.c",
    "SELECT count(v.*) FROM r JOIN v ON r.i = v.a",
    "SELECT o.id FROM orders AS o LEFT JOIN customer AS c ON o.id = c.id GROUP BY o.id HAVING count(c.*) = 0",
    "SELECT r.i, (SELECT count(v.*) FROM v WHERE v.a = r.i) FROM r LEFT JOIN customer AS c ON c.id = r.i ORDER BY r.i",
    "SELECT count(c.*) FROM (orders AS o LEFT JOIN customer AS c ON o.id = c.id) JOIN v ON v.a = o.id",
    # Names behind `*` are read as all others are.
    "SELECT * REPLACE (b + 100 AS B) FROM v ORDER BY a, c",
    "SELECT * EXCLUDE (C) FROM v ORDER BY ALL",
    "SELECT min(COLUMNS(* EXCLUDE (C))) FROM v",
    # Bytes as texts, where they are compared.
    "SELECT i FROM r WHERE s::BLOB = '\\x61'",
    "SELECT i FROM r WHERE s::BLOB IN ('\\x61', '\\x62') OR s::BLOB < '\\x00' ORDER BY i",
    # Maps.
    "SELECT map_entries(histogram(a)) FROM v",
    "SELECT histogram(a)[1], histogram(a)[7] FROM v",
    "SELECT m[[2, 0]], m[[3]] FROM (SELECT MAP([[0], [2, 0]], [10, 9]) AS m)",
    "SELECT (MAP {'a': 1}::MAP(VARCHAR, BIGINT))['a']",
    "SELECT column_name, ordinal_position FROM information_schema.columns WHERE table_name = 'v' ORDER BY 2",
    "SELECT extract(decade FROM d)::BIGINT, extract(century FROM d)::BIGINT, extract(millennium FROM d)::BIGINT FROM (VALUES (DATE '1995-05-05'), (DATE '2000-01-01'), (DATE '2001-01-01'), (DATE '0001-01-01')) AS v(d) ORDER BY d",
    # Parts of differences of timestamps.
    "SELECT extract(epoch FROM b - a)::DOUBLE, extract(hour FROM b - a)::BIGINT, extract(day FROM b - a)::BIGINT FROM m ORDER BY x",
    "SELECT extract(epoch FROM TIMESTAMP '2024-01-03 05:30:15.75' - TIMESTAMP '2024-01-01')::DOUBLE",
    "SELECT extract(epoch FROM TIMESTAMP '2024-01-01' - TIMESTAMP '1950-01-01')::DOUBLE",
    "SELECT extract(minute FROM d)::BIGINT, extract(second FROM d)::BIGINT, extract(microsecond FROM d)::BIGINT FROM (SELECT TIMESTAMP '2024-01-03 05:30:15.75' - TIMESTAMP '2024-01-01' AS d)",
    # The order of intervals is that of their length.
    "SELECT max(i) = INTERVAL '40 days', min(i) = INTERVAL '1 day' FROM (VALUES (INTERVAL '1 day'), (INTERVAL '53 hours'), (INTERVAL '1 month'), (INTERVAL '40 days'), (NULL)) AS v(i)",
    "SELECT g, max(i) FILTER (WHERE g > 0) IS NULL FROM (VALUES (0, INTERVAL '1 day'), (1, INTERVAL '2 days')) AS v(g, i) GROUP BY g ORDER BY g",
    # Booleans beside whole numbers.
    "SELECT i FROM r WHERE (i > 1) = 1 ORDER BY i",
    "SELECT i FROM r WHERE (i > 1) IN (0, 2) ORDER BY i",
    # Seconds as moments.
    "SELECT epoch(to_timestamp(1700000000.25::DOUBLE))::DOUBLE, epoch(to_timestamp(-1.5::DOUBLE))::DOUBLE",
]


@pytest.fixture(scope="module")
def both():
    own, peer = flashmesh.connect(), duckdb.connect()
    own.execute(TABLES)
    peer.execute(TABLES)
    return own, peer


@pytest.mark.parametrize("pushdown", ["always", "auto", "never"])
@pytest.mark.parametrize("query", QUERIES)
def test_answers_are_those_of_others(both, query: str, pushdown: str) -> None:
    own, peer = both
    own.execute(f"SET flashmesh.pushdown = '{pushdown}'")
    found = [tuple(row) for row in own.execute(query).fetchall()]
    assert found == peer.execute(query).fetchall()


def test_deletes_of_what_the_table_itself_says() -> None:
    own, peer = flashmesh.connect(), duckdb.connect()
    for statement in (
        "DELETE FROM t a WHERE a.id IN (SELECT id FROM t WHERE t.i > 4)",
        "DELETE FROM t AS a WHERE EXISTS (SELECT 1 FROM t WHERE t.i = a.i AND t.id < a.id)",
        "DELETE FROM t a WHERE i > (SELECT max(i) FROM t WHERE a.i <> i)",
        "DELETE FROM t a WHERE a.i NOT IN (SELECT t.i FROM t WHERE t.id < 3) AND EXISTS (SELECT t.* FROM t)",
    ):
        for connection in (own, peer):
            connection.execute("CREATE OR REPLACE TABLE t (id INT, i INT)")
            connection.execute("INSERT INTO t VALUES (1, 1), (2, 2), (3, 2), (4, 5), (5, 9), (6, 1)")
            connection.execute(statement)
        found = own.execute("SELECT * FROM t ORDER BY ALL").fetchall()
        assert found == peer.execute("SELECT * FROM t ORDER BY ALL").fetchall(), statement


def test_words_as_others_write_them(tmp_path) -> None:
    own, peer = flashmesh.connect(), duckdb.connect()
    file = tmp_path / "flights.csv"
    file.write_text("Quarter,\"Tail Number\",Delay\n1,N1,7\n2,N2,\n2,N3,9\n")
    for connection in (own, peer):
        connection.execute(f"CREATE TABLE flight AS SELECT * FROM '{file}'")
        connection.execute("CREATE TABLE listed (a INT, b TEXT,)")
        connection.execute("INSERT INTO listed VALUES (1, 'x'), (2, 'y'),")
        connection.execute("PREPARE p AS SELECT a FROM listed WHERE a > ? AND b <> ?")
    for query in (
        f"SELECT Quarter, delay FROM '{file}' WHERE QUARTER > 1 ORDER BY Delay NULLS LAST",
        "SELECT quarter, count(*) AS n, sum(f.DELAY) FROM flight AS f GROUP BY Quarter ORDER BY quarter",
        'SELECT "Tail Number" FROM flight WHERE delay = 9',
        "SELECT a, b, FROM listed ORDER BY a",
        "EXECUTE p(0, 'x')",
    ):
        assert own.execute(query).fetchall() == peer.execute(query).fetchall(), query
    assert own.execute(f"SELECT Quarter FROM '{file}'").description[0][0] == "Quarter"
    own.execute("CREATE TABLE lower_case (quarter INT, id INT); INSERT INTO lower_case VALUES (1, 1)")
    with pytest.raises(flashmesh.Error, match="no column named"):
        own.execute(f"SELECT Quarter FROM '{file}' WHERE Delay IN (SELECT quarter FROM lower_case)")
    for statement in ("PREPARE mixed AS SELECT ?, $1", "COPY loaded FROM 'x.jsonl'"):
        with pytest.raises(flashmesh.Error):
            own.execute(statement)
    with pytest.raises(flashmesh.Error, match="quarter"):
        own.execute(f"SELECT \"quarter\" FROM '{file}'")
    own.execute("CREATE TABLE loaded (q INT, tail TEXT, delay TEXT)")
    own.execute(f"COPY loaded FROM '{file}' (FORMAT csv, HEADER, NULL '9')")
    assert own.execute("SELECT * FROM loaded ORDER BY tail").fetchall() == [(1, "N1", "7"), (2, "N2", None), (2, "N3", None)]
    (tmp_path / "few.csv").write_text("007;3\n")
    own.execute(f"COPY loaded (tail, q) FROM '{tmp_path}/few.csv' (HEADER false, DELIMITER ';')")
    assert own.execute("SELECT * FROM loaded WHERE q = 3").fetchall() == [(3, "007", None)]


def test_maps_as_types() -> None:
    own, peer = flashmesh.connect(), duckdb.connect()
    for connection in (own, peer):
        connection.execute("CREATE TABLE m (i INT, b MAP(VARCHAR, INT), c MAP(INTEGER, DOUBLE[]))")
        connection.execute("INSERT INTO m VALUES (1, MAP {'a': 1, 'b': 2}, MAP {7: [0.5, 1.5]}), (2, NULL, MAP {})")
    for query in (
        "SELECT b['a'], b['z'], c[7], c[8] FROM m ORDER BY i",
        "SELECT i, cardinality(b), map_keys(b) FROM m ORDER BY i",
        "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'm' ORDER BY ordinal_position",
    ):
        assert own.execute(query).fetchall() == peer.execute(query).fetchall(), query


def test_keys_of_outer_joins_behind_a_partial_star() -> None:
    own, peer = flashmesh.connect(), duckdb.connect()
    for connection in (own, peer):
        connection.execute("CREATE TABLE a (i INT, j INT); INSERT INTO a VALUES (42, 80), (1, 2)")
        connection.execute("CREATE TABLE b (i INT, k INT); INSERT INTO b VALUES (43, 84), (1, 3)")
    for kind in ("FULL", "RIGHT", "LEFT", "INNER"):
        for columns in ("* EXCLUDE (k)", "* EXCLUDE (J)", "* REPLACE (j + 1 AS j)", "* EXCLUDE (j) REPLACE (i * 2 AS i)"):
            query = f"SELECT * FROM (SELECT {columns} FROM a {kind} JOIN b USING (i)) ORDER BY ALL NULLS LAST"
            assert own.execute(query).fetchall() == peer.execute(query).fetchall(), query


def test_rows_of_all_columns_are_not_counted_apart() -> None:
    own = flashmesh.connect()
    own.execute("CREATE TABLE t (a INT)")
    for query in ("SELECT count(DISTINCT *) FROM t", "SELECT count(DISTINCT t.*) FROM t"):
        with pytest.raises(flashmesh.Error, match="SELECT DISTINCT"):
            own.execute(query)


def test_patterns_of_files(tmp_path) -> None:
    own, peer = flashmesh.connect(), duckdb.connect()
    for number, name in enumerate(["a", "sub/b", "sub/deep/c", "d1/x", "d2/x", "d[3]/y", "by/k=1/h", "by/k=2/h"]):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        peer.execute(f"COPY (SELECT {number} AS n) TO '{tmp_path}/{name}.parquet'")
        peer.execute(f"COPY (SELECT {number} AS n) TO '{tmp_path}/{name}.csv'")
    for pattern in ("*", "sub/*", "sub/**/*", "*/x", "d?/x", "d[12]/x", "d[[]3]/*", "sub/*/*"):
        for ending in ("parquet", "csv"):
            query = f"SELECT n FROM '{tmp_path}/{pattern}.{ending}' ORDER BY n"
            assert own.execute(query).fetchall() == peer.execute(query).fetchall(), query
        query = f"SELECT file FROM glob('{tmp_path}/{pattern}.parquet') ORDER BY file"
        assert own.execute(query).fetchall() == peer.execute(query).fetchall(), query
    for pattern in ("k=*/*", "*/*", "**/h"):
        query = f"SELECT n, k::INT FROM '{tmp_path}/by/{pattern}.parquet' ORDER BY n"
        assert own.execute(query).fetchall() == peer.execute(query).fetchall(), query
    with pytest.raises(flashmesh.Error, match="no file matches"):
        own.execute(f"SELECT * FROM '{tmp_path}/none*.csv'")


def test_floats_as_moments() -> None:
    own = flashmesh.connect()
    own.execute("CREATE TABLE f (x DOUBLE); INSERT INTO f VALUES (1700000000.5)")
    expected = datetime.datetime(2023, 11, 14, 22, 13, 20, 500_000)
    assert own.execute("SELECT x::TIMESTAMP, to_timestamp(x)::TIMESTAMP FROM f").fetchall() == [(expected, expected)]
    assert own.execute("SELECT try_cast(1e300 AS TIMESTAMP), try_cast('NaN'::DOUBLE AS TIMESTAMP)").fetchall() == [(None, None)]
    for number in ("1700000000000.0", "'NaN'", "'-Infinity'"):
        with pytest.raises(flashmesh.Error, match="seconds since 1970 are no timestamp"):
            own.execute(f"SELECT to_timestamp({number}::DOUBLE)").fetchall()


def test_parameters_of_execute_may_be_of_now() -> None:
    own = flashmesh.connect()
    own.execute("PREPARE p AS SELECT $1::TIMESTAMPTZ <= now(), $2")
    assert own.execute("EXECUTE p(now(), 1 + 2)").fetchall() == [(True, 3)]


def test_tables_joined_by_one_column() -> None:
    """JOIN … USING of several tables, beside DuckDB."""
    own, peer = flashmesh.connect(), duckdb.connect()
    for connection in (own, peer):
        for name, numbers in {"w": (1, 2, 5), "x": (1, 2, 3), "y": (2, 3, 4), "z": (2, 4, 6)}.items():
            connection.execute(f"CREATE TABLE {name} (id INT, {name}1 INT, k INT)")
            rows = ", ".join(f"({number}, {number * 10}, {number % 2})" for number in numbers)
            connection.execute(f"INSERT INTO {name} VALUES {rows}")
    kinds = ["JOIN", "LEFT JOIN", "RIGHT JOIN", "FULL JOIN"]
    for first in kinds:
        for second in kinds:
            for third in kinds:
                joined = f"w {first} x USING (id) {second} y USING (id) {third} z USING (id)"
                for select in ("id", "id, w1, x1, y1, z1", "id + 1 AS more"):
                    query = f"SELECT {select} FROM {joined} ORDER BY ALL NULLS LAST"
                    assert own.execute(query).fetchall() == peer.execute(query).fetchall(), query
                query = f"SELECT id, count(*) AS n FROM {joined} WHERE id > 1 GROUP BY id ORDER BY id NULLS LAST"
                assert own.execute(query).fetchall() == peer.execute(query).fetchall(), query
            joined = f"w {first} x USING (id, k) {second} y USING (id)"
            query = f"SELECT id, w1, x1, y1 FROM {joined} ORDER BY ALL NULLS LAST"
            assert own.execute(query).fetchall() == peer.execute(query).fetchall(), query
    query = "SELECT DISTINCT ON (id) id, w1 FROM w JOIN x USING (id) JOIN y USING (id) ORDER BY id"
    assert own.execute(query).fetchall() == peer.execute(query).fetchall()
