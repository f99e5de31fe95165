"""ASOF JOIN, beside DuckDB's answers."""

from __future__ import annotations

import random

import duckdb
import flashmesh
import pytest
from seeds import SEED

COMPARISONS = [">=", ">", "<=", "<"]


@pytest.fixture(scope="module")
def engines():
    chance = random.Random(SEED)
    own, peer = flashmesh.connect(), duckdb.connect()

    def value(text: str, nulls: float = 0.05) -> str:
        return "NULL" if chance.random() < nulls else text

    def time() -> str:
        return f"TIMESTAMP '2024-01-01' + INTERVAL '{chance.randrange(4_000_000)} seconds'"

    trades = [
        f"({row}, {value(repr(chance.choice('abcdef')))}, {value(str(chance.randrange(3)))}, {value(time())})"
        for row in range(3000)
    ]
    # No two prices of one time: which of them is the nearest is nobody's to say.
    taken: set[int] = set()
    prices = []
    for row in range(20_000):
        second = chance.randrange(4_000_000)
        if second in taken:
            continue
        taken.add(second)
        at = f"TIMESTAMP '2024-01-01' + INTERVAL '{second} seconds'"
        symbol, venue = value(repr(chance.choice("abcde"))), value(str(chance.randrange(3)))
        prices.append(f"({row}, {symbol}, {venue}, {value(at)}, {value(str(chance.randrange(100)), 0.3)})")
    for connection in (own, peer):
        connection.execute("CREATE TABLE trade (id BIGINT, symbol VARCHAR, venue INTEGER, ts TIMESTAMP)")
        connection.execute("CREATE TABLE price (id BIGINT, symbol VARCHAR, venue INTEGER, ts TIMESTAMP, price INTEGER)")
        connection.execute("CREATE TABLE nothing (symbol VARCHAR, ts TIMESTAMP)")
        connection.execute(f"INSERT INTO trade VALUES {', '.join(trades)}")
        connection.execute(f"INSERT INTO price VALUES {', '.join(prices)}")
    return own, peer


def same(engines, query: str) -> None:
    own, peer = (connection.execute(query).fetchall() for connection in engines)
    assert own == peer, query
    assert own, query


@pytest.mark.parametrize("comparison", COMPARISONS)
@pytest.mark.parametrize("kind", ["", "LEFT"])
def test_each_row_meets_the_nearest(engines, comparison: str, kind: str) -> None:
    join = f"ASOF {kind} JOIN price AS p"
    on = f"t.symbol = p.symbol AND t.ts {comparison} p.ts"
    for pushdown in ("always", "auto", "never"):
        engines[0].execute(f"SET flashmesh.pushdown = '{pushdown}'")
        same(engines, f"SELECT t.*, p.* FROM trade AS t {join} ON {on} ORDER BY t.id")
        same(engines, f"SELECT t.id, p.price FROM trade AS t {join} ON {on} AND p.venue = t.venue ORDER BY t.id")
    # Without keys; the other way round; computed; with the sides' rows chosen before and after.
    same(engines, f"SELECT t.id, p.id FROM trade AS t {join} ON t.ts {comparison} p.ts ORDER BY t.id")
    turned = {">=": "<=", ">": "<", "<=": ">=", "<": ">"}[comparison]
    same(engines, f"SELECT t.id, p.id FROM trade t {join} ON p.ts {turned} t.ts AND p.symbol = t.symbol ORDER BY 1")
    same(engines, f"SELECT t.id, p.id FROM trade t {join} ON upper(t.symbol) = upper(p.symbol) AND t.ts {comparison} p.ts + INTERVAL '1 day' ORDER BY 1")
    chosen = "t.symbol IN ('a', 'b') AND t.id % 3 = 1 AND p.price > 20"
    same(engines, f"SELECT t.id, p.price FROM trade t {join} ON {on} WHERE {chosen} ORDER BY t.id")
    inner = "(SELECT * FROM price WHERE price > 20) AS p"
    same(engines, f"SELECT t.id, p.price FROM trade t ASOF {kind} JOIN {inner} ON {on} WHERE t.venue = 1 ORDER BY t.id")
    same(engines, f"SELECT p.symbol, count(*), sum(p.price) FROM trade t {join} ON {on} GROUP BY p.symbol ORDER BY 1 NULLS LAST")


def test_it_stands_where_tables_do(engines) -> None:
    on = "t.symbol = p.symbol AND t.ts >= p.ts"
    for query in [
        # Beside other joins, several of them, in subqueries and WITH.
        f"SELECT t.id, p.price, v.n FROM trade t ASOF JOIN price p ON {on} JOIN (VALUES (0, 'x'), (1, 'y')) AS v(k, n) ON v.k = t.venue ORDER BY 1",
        f"SELECT t.id, p.id, q.id FROM trade t ASOF JOIN price p ON {on} ASOF LEFT JOIN price q ON t.symbol = q.symbol AND t.ts < q.ts ORDER BY 1",
        f"WITH j AS (SELECT t.id, p.price FROM trade t ASOF LEFT JOIN price p ON {on}) SELECT max(id), sum(price) FROM j",
        f"SELECT id FROM trade WHERE id IN (SELECT t.id FROM trade t ASOF JOIN price p ON {on} WHERE p.price = 7) ORDER BY 1",
        f"SELECT count(*) FROM trade t ASOF JOIN price p ON {on} UNION ALL SELECT count(*) FROM trade t ASOF JOIN price p ON {on} WHERE p.price IS NULL ORDER BY 1",
        f"SELECT (SELECT count(p.id) FROM trade t ASOF LEFT JOIN price p ON {on}), t.id FROM trade t ASOF JOIN price p ON {on} ORDER BY t.id LIMIT 3",
        "SELECT t.id, n.symbol FROM trade t ASOF LEFT JOIN nothing n ON t.symbol = n.symbol AND t.ts >= n.ts ORDER BY 1 LIMIT 5",
        "SELECT count(*) FROM trade t ASOF JOIN nothing n ON t.symbol = n.symbol AND t.ts >= n.ts",
        "SELECT count(*) FROM nothing n ASOF LEFT JOIN price p ON n.symbol = p.symbol AND n.ts >= p.ts",
    ]:
        same(engines, query)
    own = engines[0]
    own.execute(f"CREATE VIEW met AS SELECT t.id, p.price FROM trade t ASOF LEFT JOIN price p ON {on}")
    direct = own.execute(f"SELECT t.id, p.price FROM trade t ASOF LEFT JOIN price p ON {on} ORDER BY 1").fetchall()
    assert own.execute("SELECT * FROM met ORDER BY 1").fetchall() == direct
    wanted = f"SELECT t.id, p.price FROM trade t ASOF LEFT JOIN price p ON {on} WHERE t.id = $1"
    assert own.execute(wanted, [17]).fetchall() == [direct[17]]


def test_types_are_compared_as_elsewhere(engines) -> None:
    query = """SELECT l.k, r.v FROM (VALUES (1, 2.5), (2, 7.0), (3, 0.5)) AS l(k, t)
        ASOF LEFT JOIN (VALUES (1, 2, 'a'), (2, 5, 'b'), (2, 9, 'c')) AS r(k, t, v) ON l.k = r.k AND l.t >= r.t ORDER BY 1"""
    same(engines, query)
    # Both zeros are one, and NaN is itself.
    floats = """SELECT l.id, r.id FROM (VALUES (1, '-0.0'::DOUBLE, 5.0), (2, '0.0', 1.0), (3, 'nan', 9.0), (4, '0.0', 2.0)) AS l(id, k, t)
        ASOF LEFT JOIN (VALUES (1, '0.0'::DOUBLE, 4.0), (2, '-0.0', 4.5), (3, 'nan', 8.0), (4, '0.0', 1.5)) AS r(id, k, t)
        ON l.k = r.k AND l.t >= r.t {} ORDER BY l.id"""
    own = engines[0]
    assert own.execute(floats.format("")).fetchall() == [(1, 2), (2, None), (3, 3), (4, 4)]
    assert own.execute(floats.format("WHERE l.k = 0.0")).fetchall() == [(1, 2), (2, None), (4, 4)]
    zeros = "SELECT r.id FROM (SELECT '-0.0'::DOUBLE AS t) AS l ASOF JOIN (SELECT 1 AS id, '0.0'::DOUBLE AS t) AS r ON l.t >= r.t"
    assert own.execute(zeros).fetchall() == [(1,)]


def test_a_table_may_be_called_asof(engines) -> None:
    own = engines[0]
    own.execute("CREATE TABLE asof AS SELECT 1 AS k")
    own.execute("CREATE TABLE other AS SELECT 1 AS k, 2 AS v")
    for query in [
        "SELECT v FROM asof JOIN other ON asof.k = other.k",
        "WITH c AS MATERIALIZED (SELECT 1) SELECT v FROM asof JOIN other ON asof.k = other.k",
        "WITH c AS MATERIALIZED (SELECT 1) SELECT v FROM other AS asof JOIN asof AS a ON asof.k = a.k",
    ]:
        assert own.execute(query).fetchall() == [(2,)], query
    for dialect in ("mysql", "duckdb", "postgresql", "generic"):
        own.execute(f"SET datafusion.sql_parser.dialect = '{dialect}'")
        asked = "SELECT other.v FROM asof AS a ASOF JOIN other ON a.k >= other.k"
        assert own.execute(asked).fetchall() == [(2,)], dialect
    own.execute("CREATE VIEW of_dialect AS SELECT other.v FROM asof AS a ASOF JOIN other ON a.k >= other.k")
    assert own.execute("SELECT v FROM of_dialect").fetchall() == [(2,)]
    assert own.execute("SHOW FUNCTIONS LIKE 'flashmesh:%'").fetchall() == []


def test_filters_of_the_left_side_go_below_it(engines) -> None:
    own = engines[0]
    on = "t.symbol = p.symbol AND t.ts >= p.ts"
    rows = own.execute(f"EXPLAIN SELECT p.price FROM trade t ASOF JOIN price p ON {on} WHERE t.venue = 1 AND p.price > 3").fetchall()
    plan = "\n".join(text for _, text in rows)
    assert "AsOfJoinExec: Inner" in plan, plan
    scans = [line for line in plan.splitlines() if "FlashScanExec" in line]
    trade, price = [next(line for line in scans if f"table={name}" in line or name in line) for name in ("trade", "price")]
    assert "venue" in trade, trade
    assert "> 3" not in price, price


def test_what_it_can_not_be_is_an_error(engines) -> None:
    own = engines[0]
    advice = "ASOF JOIN takes one comparison"
    for on, said in [
        ("t.symbol = p.symbol", advice),
        ("t.ts >= p.ts AND t.id >= p.id", advice),
        ("t.ts >= p.ts OR t.id = p.id", advice),
        ("t.ts >= p.ts AND p.price > 3", advice),
        ("t.ts <> p.ts", advice),
        ("t.ts >= t.ts", advice),
    ]:
        with pytest.raises(Exception, match=said):
            own.execute(f"SELECT * FROM trade t ASOF JOIN price p ON {on}")
    lateral = "SELECT * FROM trade t ASOF JOIN LATERAL (SELECT * FROM price WHERE symbol = t.symbol) p ON t.ts >= p.ts"
    with pytest.raises(Exception, match="ASOF JOIN LATERAL is not supported"):
        own.execute(lateral)
    again = """SELECT t.id, (SELECT v.price FROM price v WHERE v.id > p.id ORDER BY v.price LIMIT 1)
        FROM trade t ASOF JOIN price p ON t.symbol = p.symbol AND t.ts >= p.ts"""
    with pytest.raises(Exception, match="where they come from ASOF JOIN"):
        own.execute(again)
    with pytest.raises(Exception, match="ASOF JOIN without ON"):
        own.execute("SELECT * FROM trade t ASOF JOIN price p UNION SELECT * FROM trade c JOIN price d ON c.id = d.id")
    with pytest.raises(Exception, match="not Right; put the tables the other way round"):
        own.execute("SELECT * FROM trade t ASOF RIGHT JOIN price p ON t.ts >= p.ts")
    with pytest.raises(Exception, match="ASOF JOIN without ON"):
        own.execute("SELECT * FROM trade t ASOF JOIN price p USING (symbol, ts)")
