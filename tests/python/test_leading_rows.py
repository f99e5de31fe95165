"""The first rows of each partition of a window, beside DuckDB: in streams of many rows, of few and of many partitions."""

import random

import duckdb
import flashmesh
import pyarrow as pa
import pytest
from seeds import SEED

ROWS = 60_000


@pytest.fixture(scope="module")
def rows() -> pa.Table:
    rng = random.Random(SEED)
    some = lambda values: [rng.choice(values) for _ in range(ROWS)]  # noqa: E731
    numbers = list(range(ROWS))
    rng.shuffle(numbers)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "few": pa.array(some([*range(12), None]), pa.int32()),
            "many": pa.array(some(range(ROWS // 3)), pa.int64()),
            "word": pa.array(some(["a", "b", "", None, "a longer text of more than twelve bytes"])),
            "f": pa.array(some([0.0, 1.5, -1.5, float("inf"), float("-inf"), None, *range(40)]), pa.float64()),
            "d": pa.array(some([None, *range(300)]), pa.int32()).cast(pa.date32()),
            "ts": pa.array(some(range(10**15, 10**15 + 5000)), pa.timestamp("us")),
            "n": pa.array(some(range(500)), pa.int64()).cast(pa.decimal128(19, 0)),
            "falling": pa.array([-row for row in range(ROWS)], pa.int64()),
        }
    )


@pytest.fixture(scope="module", params=["auto", "always", "never"])
def con(request, rows):
    with flashmesh.connect() as con:
        con.execute(f"SET flashmesh.pushdown = '{request.param}'")
        con.execute("SET datafusion.execution.batch_size = 1000")
        con.load("t", rows)
        yield con


@pytest.fixture(scope="module")
def oracle(rows):
    with duckdb.connect() as oracle:
        oracle.execute("CREATE TABLE t AS SELECT * FROM rows")
        yield oracle


PARTITIONS = ["few", "many", "word", "few, word", "d", "n", "few % 3", "ts, few"]
ORDERS = ["id", "id DESC", "f, id", "f DESC NULLS FIRST, id DESC", "d NULLS FIRST, id", "word DESC NULLS LAST, n, id", "ts DESC, id", "falling", "n, d DESC NULLS FIRST, id"]


@pytest.mark.parametrize("partition", PARTITIONS)
def test_numbers_of_rows(con, oracle, partition: str) -> None:
    rng = random.Random(f"{SEED} {partition}")
    for order in ORDERS:
        most = rng.choice([1, 2, 3, 7, 40, 200])
        bound = rng.choice(["r <= {}", "r < {} + 1", "{} >= r", "r = {}", "r BETWEEN 1 AND {} AND id >= 0"]).format(most)
        query = (
            f"SELECT id, r, k FROM (SELECT id, row_number() OVER w AS r, rank() OVER w AS k FROM t WINDOW w AS (PARTITION BY {partition} ORDER BY {order}))"
            f" WHERE {bound} ORDER BY id"
        )
        assert con.execute(query).fetchall() == oracle.execute(query).fetchall(), query


@pytest.mark.parametrize("order", ["f", "f DESC NULLS LAST", "d", "word", "n DESC", "f, d", "ts", "id % 5"])
def test_ranks_with_ties(con, oracle, order: str) -> None:
    for most in [1, 3, 20]:
        for partition in ["few", "word", "many"]:
            for function in ["rank", "dense_rank"]:
                query = f"SELECT id FROM t QUALIFY {function}() OVER (PARTITION BY {partition} ORDER BY {order}) <= {most} ORDER BY id"
                assert con.execute(query).fetchall() == oracle.execute(query).fetchall(), query
            # Any of those that are as good.
            query = f"SELECT count(*), count(DISTINCT {partition}), min(r), max(r) FROM (SELECT *, row_number() OVER (PARTITION BY {partition} ORDER BY {order}) AS r FROM t) WHERE r <= {most}"
            assert con.execute(query).fetchall() == oracle.execute(query).fetchall(), query


def test_other_windows_see_all_rows(con, oracle) -> None:
    for query in [
        "SELECT id, s FROM (SELECT id, row_number() OVER w AS r, count(*) OVER w AS s FROM t WINDOW w AS (PARTITION BY few ORDER BY id)) WHERE r <= 2 ORDER BY id",
        "SELECT id, s FROM (SELECT id, row_number() OVER (PARTITION BY few ORDER BY id) AS r, sum(id) OVER (PARTITION BY few) AS s FROM t) WHERE r <= 2 ORDER BY id",
        "SELECT id, s FROM (SELECT id, row_number() OVER (PARTITION BY few ORDER BY id) AS r, row_number() OVER (PARTITION BY few ORDER BY id DESC) AS s FROM t) WHERE r <= 2 ORDER BY id",
        "SELECT id, l FROM (SELECT id, row_number() OVER w AS r, lead(id) OVER w AS l FROM t WINDOW w AS (PARTITION BY few ORDER BY id)) WHERE r = 2 ORDER BY id",
        "SELECT few, count(*) FROM (SELECT few, rank() OVER (PARTITION BY few) AS r FROM t) WHERE r <= 1 GROUP BY few ORDER BY few",
        "SELECT few, count(*) FROM (SELECT few, row_number() OVER (PARTITION BY few) AS r FROM t) WHERE r <= 5 GROUP BY few ORDER BY few",
        "SELECT count(*) FROM (SELECT row_number() OVER (PARTITION BY few ORDER BY id) AS r FROM t) WHERE r > 3",
        "SELECT count(*) FROM (SELECT row_number() OVER (PARTITION BY few ORDER BY id) AS r FROM t) WHERE r <= 3 OR r = 100",
        "SELECT count(*) FROM (SELECT row_number() OVER (PARTITION BY few ORDER BY id) AS r FROM t) WHERE r <= 0",
        "SELECT count(*) FROM (SELECT row_number() OVER (PARTITION BY f ORDER BY id) AS r FROM t WHERE f <> 0) WHERE r <= 3",
    ]:
        assert con.execute(query).fetchall() == oracle.execute(query).fetchall(), query


def test_ranks_of_all_rows(con, oracle) -> None:
    rng = random.Random(SEED)
    for partition in ["", *(f"PARTITION BY {of}" for of in [*PARTITIONS, "f", "word, d"])]:
        order = rng.choice(["f", "d NULLS FIRST", "word DESC NULLS LAST, d", "n", "few, many"])
        query = (
            f"SELECT id, row_number() OVER u, rank() OVER w, dense_rank() OVER w FROM t"
            f" WINDOW w AS ({partition} ORDER BY {order}), u AS ({partition} ORDER BY {order}, id) ORDER BY id"
        )
        assert con.execute(query).fetchall() == oracle.execute(query).fetchall(), query


def test_an_order_by_chance_is_one(con) -> None:
    """Of many rows the first are as likely as the last."""
    query = "SELECT avg(falling) FROM t QUALIFY row_number() OVER (PARTITION BY few ORDER BY random()) <= 100"
    query = query.replace("SELECT avg(falling) FROM t", "SELECT falling FROM t")
    ((mean,),) = con.execute(f"SELECT avg(falling) FROM ({query})").fetchall()
    # The deviation of a mean of 1,300 rows is 480.
    assert abs(mean + ROWS / 2) < 8 * 480
    plan = "\n".join(row[1] for row in con.execute(f"EXPLAIN {query}").fetchall())
    assert "LeadingRowsExec" not in plan


def test_rows_are_held_back(rows) -> None:
    """What is not sorted is seen in the plan; where partitions have a row each, all pass."""
    with flashmesh.connect() as con:
        con.load("t", rows)
        query = "SELECT id FROM (SELECT id, row_number() OVER (PARTITION BY few ORDER BY id) AS r FROM t) WHERE r <= 3"
        plan = "\n".join(row[1] for row in con.execute(f"EXPLAIN ANALYZE {query}").fetchall())
        line = next(line for line in plan.splitlines() if "LeadingRowsExec: first=3" in line)
        assert "output_rows=60.0" not in line, plan
