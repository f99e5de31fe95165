"""The order of subqueries and of what aggregates gather, beside DuckDB."""

from __future__ import annotations

import random

import duckdb
import flashmesh
import pytest
from seeds import SEED

ROWS = 20_000


def rows(connection, query: str) -> list[tuple]:
    return [tuple(row) for row in connection.execute(query).fetchall()]


@pytest.fixture(scope="module")
def both():
    """The same rows in flashmesh and in DuckDB, in no order; `k` is unique."""
    own, peer = flashmesh.connect(), duckdb.connect()
    for connection in (own, peer):
        connection.execute(
            f"""CREATE TABLE t AS SELECT
                (n * 7919) % {ROWS} AS k, n % 7 AS g,
                CASE WHEN n % 11 = 0 THEN NULL ELSE n % 101 END AS a,
                CASE WHEN n % 13 = 0 THEN NULL ELSE 'name ' || (n * 31 % 97) END AS s,
                (n * 17 % 1009) / 8.0 AS f
            FROM (SELECT i AS n FROM generate_series(0, {ROWS - 1}) AS numbers(i))"""
        )
    return own, peer


SUBQUERIES = [
    "SELECT * FROM ({q}) LIMIT 10",
    "SELECT k FROM ({q}) WHERE k % 3 = 0 LIMIT 10",
    "SELECT k + 1 AS more FROM ({q}) AS q LIMIT 10 OFFSET 5",
    "SELECT s, k FROM (SELECT s, k FROM ({q}) WHERE a > 50) LIMIT 20",
    "SELECT k FROM ({q})",
    "WITH q AS ({q}) SELECT k, a FROM q LIMIT 7",
    "SELECT k, row_number() OVER () AS n FROM ({q}) ORDER BY n LIMIT 20",
    "SELECT k, lag(k) OVER () AS before, lead(k, 2) OVER () AS after FROM ({q}) ORDER BY k LIMIT 20",
    "SELECT g, row_number() OVER (PARTITION BY g) AS n, k FROM ({q}) ORDER BY g, n LIMIT 50",
    "SELECT count(*) OVER () AS c, row_number() OVER () AS n, k FROM ({q}) ORDER BY n LIMIT 5",
    "SELECT sum(k) OVER (ROWS UNBOUNDED PRECEDING) AS s, k FROM ({q}) LIMIT 10",
    "SELECT unnest([k * 2]) FROM ({q}) LIMIT 8",
    "SELECT list(k) FROM ({q})",
    "SELECT g, list(k), string_agg(s, ';'), first(k), last(k) FROM ({q}) GROUP BY g ORDER BY g",
    "SELECT list(k) FILTER (WHERE a > 90), count(*) FROM ({q})",
    "SELECT list(k) FROM (SELECT k FROM ({q}) LIMIT 12)",
    "SELECT list(m) FROM (SELECT q.k * 2 AS m, q.g FROM ({q}) AS q WHERE q.g < 3)",
    "SELECT ARRAY(SELECT k FROM ({q}) LIMIT 5)",
    "SELECT count(*), sum(a) FROM ({q})",
    "SELECT count(*) FROM ({q}) AS x JOIN ({q}) AS y USING (k)",
    "SELECT k FROM t WHERE k IN (SELECT k FROM ({q}) LIMIT 9) ORDER BY k",
    "SELECT k FROM ({q}) UNION ALL SELECT k FROM ({q}) ORDER BY k LIMIT 4",
    "SELECT g, (SELECT list(q.k) FROM ({q}) AS q WHERE q.g = x.g AND q.k < 300) AS l FROM (SELECT DISTINCT g FROM t) AS x ORDER BY g",
]


@pytest.mark.parametrize("pushdown", ["always", "auto", "never"])
@pytest.mark.parametrize("query", SUBQUERIES)
def test_subqueries_keep_their_order(both, query: str, pushdown: str) -> None:
    own, peer = both
    own.execute(f"SET flashmesh.pushdown = '{pushdown}'")
    for order in ("k", "a DESC NULLS LAST, k", "s NULLS FIRST, f DESC, k", "g, k % 10, k DESC"):
        text = query.format(q=f"SELECT k, g, a, s FROM t ORDER BY {order}")
        assert rows(own, text) == rows(peer, text), text


def test_orders_hold_in_views_and_in_what_is_kept(both) -> None:
    own, _ = both
    own.execute("CREATE VIEW ordered AS SELECT k, a FROM t ORDER BY k DESC")
    assert rows(own, "SELECT k FROM ordered LIMIT 2") == [(ROWS - 1,), (ROWS - 2,)]
    assert rows(own, "SELECT list(k)[1:2] FROM ordered") == [([ROWS - 1, ROWS - 2],)]
    own.execute("PREPARE few AS SELECT k FROM (SELECT * FROM t ORDER BY k) LIMIT $1")
    assert rows(own, "EXECUTE few(2)") == [(0,), (1,)]
    own.execute("CREATE TABLE kept AS SELECT k FROM (SELECT k FROM t ORDER BY k) LIMIT 3")
    assert rows(own, "SELECT * FROM kept ORDER BY k") == [(0,), (1,), (2,)]
    assert rows(own, "SELECT list(k) = list(l), list(k) = list(k) FROM (SELECT k, k AS l FROM t ORDER BY random())") == [(True, True)]
    # A subquery as a key, of what is not there above.
    query = "SELECT count(*) FROM (SELECT k FROM t ORDER BY (SELECT max(x.a) FROM t AS x WHERE x.g = t.g), k LIMIT 3) AS q"
    assert rows(own, query) == [(3,)]
    own.execute("CREATE TABLE spans (i INTERVAL, n INT); INSERT INTO spans VALUES ('30 hours', 2), ('1 day', 1), ('1 month', 3)")
    assert rows(own, "SELECT list(n) FROM (SELECT * FROM spans ORDER BY i)") == [([1, 2, 3],)]
    # Nobody sees the order: nobody sorts.
    plan = own.execute("EXPLAIN SELECT count(*) FROM (SELECT * FROM t ORDER BY s)").fetchall()
    assert not any("Sort" in text for _, text in plan)
    plan = own.execute("EXPLAIN SELECT k FROM t ORDER BY k LIMIT 3").fetchall()
    assert plan[0][1].count("Sort:") == 1


@pytest.mark.parametrize("pushdown", ["always", "auto", "never"])
def test_gathered_values_are_in_their_order(both, pushdown: str) -> None:
    own, peer = both
    own.execute(f"SET flashmesh.pushdown = '{pushdown}'")
    chance = random.Random(f"{SEED} gathered")
    values = ["k", "a", "s", "f", "a + k", "[k, a]", "{'k': k, 's': s}"]
    for _ in range(40):
        keys = chance.sample(["a", "s", "f", "k % 5", "upper(s)", "-a"], chance.randint(1, 3))
        keys = [
            f"{key} {chance.choice(['', 'DESC', 'ASC'])} NULLS {chance.choice(['FIRST', 'LAST'])}"
            for key in keys
        ]
        order = ", ".join([*keys, chance.choice(["k", "k DESC"])])
        only = chance.choice(["", "FILTER (WHERE a > 40)", "FILTER (WHERE k < 0)"])
        value = chance.choice(values)
        other = chance.choice(["k", "s NULLS LAST, k"])
        query = f"""
            SELECT {chance.choice(['g', 'k % 1000'])} AS part, list({value} ORDER BY {order}) {only},
                string_agg(s, ' | ' ORDER BY {order}) {only}, list(s ORDER BY {other}), count(*), sum(k)
            FROM t WHERE k % 3 < {chance.randint(0, 3)} GROUP BY part ORDER BY part"""
        assert rows(own, query) == rows(peer, query), query
        query = f"SELECT list({value} ORDER BY {order}) {only}, string_agg(s, '' ORDER BY {order}) FROM t WHERE k < 500"
        assert rows(own, query) == rows(peer, query), query
    query = """
        SELECT g, a % 3 AS m, list(k ORDER BY f DESC, k), grouping(g) FROM t WHERE k < 900
        GROUP BY ROLLUP (g, m) ORDER BY ALL NULLS LAST"""
    assert rows(own, query) == rows(peer, query)
    own_nulls = "SELECT array_agg(a ORDER BY k) IGNORE NULLS FROM t WHERE k < 40"
    peer_nulls = "SELECT list(a ORDER BY k) FILTER (WHERE a IS NOT NULL) FROM t WHERE k < 40"
    assert rows(own, own_nulls) == rows(peer, peer_nulls)


LISTS_AS_TABLES = [
    "SELECT * FROM unnest(['x', 'y']) WITH ORDINALITY AS u(v, n) ORDER BY n",
    "SELECT k, n FROM t, generate_series(1, k) AS s(n) WHERE k < 4 ORDER BY ALL",
    "SELECT k, n FROM t, range(k) AS s(n) WHERE k < 4 ORDER BY ALL",
    "SELECT k, n FROM t CROSS JOIN LATERAL generate_series(k, k + 2) AS s(n) WHERE k < 4 ORDER BY ALL",
    "SELECT k, n FROM t LEFT JOIN LATERAL generate_series(1, k) AS s(n) ON TRUE WHERE k < 4 ORDER BY ALL",
    "SELECT k, (SELECT count(*) FROM range(k)) AS c FROM t WHERE k < 9 ORDER BY k",
    "SELECT k, (SELECT sum(n) FROM generate_series(1, k) AS s(n)) AS c FROM t WHERE k < 9 ORDER BY k",
    "SELECT ARRAY(SELECT k FROM t WHERE k < 5 ORDER BY k DESC)",
    "SELECT ARRAY(SELECT k FROM t WHERE k < 0)",
    "SELECT x.k, ARRAY(SELECT y.k FROM t AS y WHERE y.k < x.k ORDER BY y.k DESC) FROM t AS x WHERE x.k < 5 ORDER BY x.k",
]


@pytest.mark.parametrize("query", LISTS_AS_TABLES)
def test_lists_as_tables(both, query: str) -> None:
    own, peer = both
    assert rows(own, query) == rows(peer, query)


def test_ordinality_as_postgresql_names_it() -> None:
    own = flashmesh.connect()
    found = own.execute("SELECT * FROM unnest([7, 8]) WITH ORDINALITY ORDER BY ordinality")
    assert [column[0] for column in found.description] == ["unnest", "ordinality"]
    assert found.fetchall() == [(7, 1), (8, 2)]
    found = own.execute("SELECT g, ordinality FROM generate_series(5, 7) WITH ORDINALITY AS g ORDER BY g DESC")
    assert found.fetchall() == [(7, 3), (6, 2), (5, 1)]
    own.execute("CREATE TABLE l (id INT, tags TEXT[]); INSERT INTO l VALUES (1, ['a', 'b']), (2, []), (3, NULL)")
    found = own.execute("SELECT id, tag, n FROM l, unnest(tags) WITH ORDINALITY AS u(tag, n) ORDER BY id, n")
    assert found.fetchall() == [(1, "a", 1), (1, "b", 2)]
