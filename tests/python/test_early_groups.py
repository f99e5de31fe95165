"""Aggregates over a join of which one side is grouped first, beside DuckDB."""

import random

import duckdb
import flashmesh
import pyarrow as pa
import pytest
from seeds import SEED

CUSTOMERS, ORDERS = 6_000, 80_000


@pytest.fixture(scope="module")
def tables() -> dict[str, pa.Table]:
    rng = random.Random(SEED)
    customers = [None, *range(CUSTOMERS - 1)]
    keys = [rng.choice([None, *range(0, CUSTOMERS * 2, 3)]) for _ in range(ORDERS)]
    some = lambda values: [rng.choice(values) for _ in range(ORDERS)]  # noqa: E731
    return {
        "c": pa.table(
            {
                "id": pa.array(customers, pa.int64()),
                "name": [f"name {row % 900}" for row in range(CUSTOMERS)],
                "place": pa.array([row % 7 for row in range(CUSTOMERS)], pa.int32()),
            }
        ),
        "o": pa.table(
            {
                "oid": pa.array(range(ORDERS), pa.int64()),
                "cid": pa.array(keys, pa.int64()),
                "n": pa.array(some([None, *range(-50, 50)]), pa.int32()),
                "big": pa.array(some([None, *range(50)]), pa.int64()),
                "amount": pa.array([str(value) for value in some(range(10**6))]).cast(pa.decimal128(12, 2)),
                "f": pa.array(some([0.5, 0.25, None, -8.0]), pa.float64()),
                "said": some(["x", "y", None, "special requests"]),
                "place": pa.array(some(range(7)), pa.int32()),
            }
        ),
    }


@pytest.fixture(scope="module", params=["auto", "always", "never"])
def con(request, tables):
    with flashmesh.connect() as con:
        con.execute(f"SET flashmesh.pushdown = '{request.param}'")
        for name, rows in tables.items():
            con.load(name, rows)
        yield con


@pytest.fixture(scope="module")
def oracle(tables):
    with duckdb.connect() as oracle:
        for name, rows in tables.items():
            oracle.register("given", rows)
            oracle.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
        yield oracle


# Those that are grouped early.
EARLY = [
    "SELECT c.id, count(o.oid) FROM c LEFT JOIN o ON c.id = o.cid GROUP BY c.id",
    "SELECT n, count(*) FROM (SELECT c.id, count(oid) AS n FROM c LEFT JOIN o ON id = cid AND said NOT LIKE '%special%' GROUP BY c.id) GROUP BY n",
    "SELECT c.name, count(*), count(o.n), sum(o.n), min(o.n), max(o.said), sum(amount), min(amount) FROM c LEFT JOIN o ON c.id = o.cid GROUP BY c.name",
    "SELECT c.name, count(*), sum(o.f), max(o.f) FROM c JOIN o ON c.id = o.cid GROUP BY c.name",
    "SELECT c.id, c.name, c.place, count(*) FROM o JOIN c ON c.id = o.cid GROUP BY c.id, c.name, c.place",
    "SELECT upper(name), place + 1, count(oid) AS orders FROM c LEFT JOIN o USING (place) WHERE false GROUP BY 1, 2",
    "SELECT upper(name) AS u, c.place + 1 AS p, count(oid) AS orders, sum(n) FROM o RIGHT JOIN c ON cid = id GROUP BY 1, 2 HAVING count(oid) > 1",
    "SELECT cid, name, count(*) FROM c LEFT JOIN o ON id = cid GROUP BY cid, name",
    "SELECT c.place, o.place, count(*), count(o.oid), sum(o.n) FROM c LEFT JOIN o ON c.id = o.cid AND c.place = o.place GROUP BY 1, 2",
    "SELECT name, count(oid) FROM c LEFT JOIN (SELECT oid, cid FROM o WHERE n > 0) ON id = cid GROUP BY name",
    "SELECT name, count(1), max(n) FROM c JOIN o ON id = cid WHERE c.place < 6 GROUP BY name ORDER BY 2, 1 LIMIT 7",
    "WITH w AS (SELECT cid AS k, amount FROM o WHERE said = 'x') SELECT name, sum(amount) FROM c LEFT JOIN w ON k = id GROUP BY name",
]

# Those that are like them.
LATE = [
    "SELECT name, count(DISTINCT n), sum(DISTINCT n) FROM c LEFT JOIN o ON id = cid GROUP BY name",
    "SELECT name, count(oid) FILTER (WHERE n > 0), count(*) FILTER (WHERE n IS NULL) FROM c LEFT JOIN o ON id = cid GROUP BY name",
    "SELECT name, count(coalesce(n, 1)), sum(n + c.place) FROM c LEFT JOIN o ON id = cid GROUP BY name",
    "SELECT name, sum(big), avg(n) FROM c JOIN o ON id = cid GROUP BY name",
    "SELECT name, o.place, count(oid) FROM c JOIN o ON id = cid GROUP BY name, o.place",
    "SELECT name, count(oid) FROM c LEFT JOIN o ON id = cid AND n > c.place GROUP BY name",
    "SELECT name, count(id) FROM c FULL JOIN o ON id = cid GROUP BY name",
    "SELECT count(oid), max(n) FROM c LEFT JOIN o ON id = cid",
    "SELECT name, c.place, count(oid) FROM c LEFT JOIN o ON id = cid GROUP BY ROLLUP (name, c.place)",
    "SELECT name, count(NULL), count(oid) FROM c LEFT JOIN o ON id = cid GROUP BY name",
    "SELECT name, count(oid) FROM c LEFT JOIN o ON id + 1 = cid - 1 GROUP BY name",
    "SELECT name, string_agg(said, ',' ORDER BY oid), first(said ORDER BY oid) FROM c JOIN o ON id = cid GROUP BY name",
]


@pytest.mark.parametrize("query", EARLY + LATE)
def test_it_is_as_duckdb_has_it(con, oracle, query: str) -> None:
    query = query if "LIMIT" in query else f"SELECT * FROM ({query}) ORDER BY ALL"
    assert con.execute(query).fetchall() == oracle.execute(query).fetchall()


def test_after_changes(tables) -> None:
    with flashmesh.connect() as con, duckdb.connect() as oracle:
        for name, rows in tables.items():
            con.load(name, rows)
            oracle.register("given", rows)
            oracle.execute(f"CREATE TABLE {name} AS SELECT * FROM given")
        for statement in [
            "DELETE FROM o WHERE n = 3",
            "UPDATE o SET cid = cid + 1 WHERE n = 4",
            "INSERT INTO o SELECT * FROM o WHERE n = 5",
        ]:
            for engine in [con, oracle]:
                engine.execute(statement)
            for query in EARLY[:4]:
                query = f"SELECT * FROM ({query}) ORDER BY ALL"
                assert con.execute(query).fetchall() == oracle.execute(query).fetchall(), (statement, query)


def test_the_plan_has_groups_below_the_join(tables) -> None:
    with flashmesh.connect() as con:
        for name, rows in tables.items():
            con.load(name, rows)
        for query, has_groups in [(EARLY[0], True), (EARLY[2], True), (EARLY[8], False), (LATE[0], False)]:
            plan = "\n".join(row[1] for row in con.execute(f"EXPLAIN {query}").fetchall())
            below = plan[plan.index("Join") :]
            assert ("gby=[cid" in below or "group_by=[cid" in below) == has_groups, plan
