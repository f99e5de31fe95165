"""Three queries of TPC-H as DataFrames, each beside its SQL: the same plan, the same answer."""

import datetime

import pyarrow as pa

import flashmesh
from flashmesh import col, lit
from flashmesh import functions as f

db = flashmesh.connect()
# Tables in the shape of TPC-H's, small, and the same in every run.
db.execute("""
    CREATE TABLE customer AS
    SELECT value AS c_custkey,
           CASE value % 5 WHEN 0 THEN 'BUILDING' WHEN 1 THEN 'MACHINERY' ELSE 'HOUSEHOLD' END AS c_mktsegment
    FROM generate_series(1, 1000) AS s(value);

    CREATE TABLE orders AS
    SELECT value AS o_orderkey, value * 7919 % 1000 + 1 AS o_custkey,
           DATE '1992-01-01' + CAST(value * 104729 % 2400 AS INT) AS o_orderdate
    FROM generate_series(1, 20000) AS s(value);

    CREATE TABLE lineitem AS
    SELECT value % 20000 + 1 AS l_orderkey,
           CAST(value * 31 % 50 + 1 AS DECIMAL(15, 2)) AS l_quantity,
           CAST(value * 7919 % 9000000 / 100.0 + 900 AS DECIMAL(15, 2)) AS l_extendedprice,
           CAST(value % 11 / 100.0 AS DECIMAL(15, 2)) AS l_discount,
           CAST(value % 9 / 100.0 AS DECIMAL(15, 2)) AS l_tax,
           CASE value % 4 WHEN 0 THEN 'R' WHEN 1 THEN 'A' ELSE 'N' END AS l_returnflag,
           CASE value % 2 WHEN 0 THEN 'O' ELSE 'F' END AS l_linestatus,
           DATE '1992-01-01' + CAST(value * 611953 % 2500 AS INT) AS l_shipdate
    FROM generate_series(1, 100000) AS s(value);
""")
customer, orders, lineitem = (db.table(name) for name in ("customer", "orders", "lineitem"))


def day(text: str) -> flashmesh.Expr:
    return lit(pa.scalar(datetime.date.fromisoformat(text)))


def same(frame: flashmesh.DataFrame, query: str) -> None:
    """The DataFrame gives what the SQL gives."""
    assert frame.fetchall() == db.sql(query).fetchall()
    print(frame)


discounted = col("l_extendedprice") * (lit(1) - col("l_discount"))

# Q1: what was shipped, by flags. The sums are made beside the pages: see the plan at the end.
q1 = (
    lineitem.filter(col("l_shipdate") <= day("1998-09-02"))
    .aggregate(
        [col("l_returnflag"), col("l_linestatus")],
        [
            f.sum(col("l_quantity")).alias("sum_qty"),
            f.sum(col("l_extendedprice")).alias("sum_base_price"),
            f.sum(discounted).alias("sum_disc_price"),
            f.avg(col("l_discount")).alias("avg_disc"),
            f.count(lit(1)).alias("count_order"),
        ],
    )
    .sort(col("l_returnflag"), col("l_linestatus"))
)
same(
    q1,
    """
    SELECT l_returnflag, l_linestatus, sum(l_quantity), sum(l_extendedprice),
           sum(l_extendedprice * (1 - l_discount)), avg(l_discount), count(*)
    FROM lineitem WHERE l_shipdate <= DATE '1998-09-02'
    GROUP BY l_returnflag, l_linestatus ORDER BY l_returnflag, l_linestatus
    """,
)

# Q3: the ten largest orders that were not shipped yet. Joins carry their keys into the scans.
q3 = (
    customer.filter(col("c_mktsegment") == "BUILDING")
    .join(orders.filter(col("o_orderdate") < day("1995-03-15")), left_on="c_custkey", right_on="o_custkey")
    .join(lineitem.filter(col("l_shipdate") > day("1995-03-15")), left_on="o_orderkey", right_on="l_orderkey")
    .aggregate([col("l_orderkey"), col("o_orderdate")], [f.sum(discounted).alias("revenue")])
    .sort(col("revenue").sort(ascending=False), col("o_orderdate"))
    .limit(10)
    .select("l_orderkey", "revenue", "o_orderdate")
)
same(
    q3,
    """
    SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate
    FROM customer JOIN orders ON c_custkey = o_custkey JOIN lineitem ON l_orderkey = o_orderkey
    WHERE c_mktsegment = 'BUILDING' AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15'
    GROUP BY l_orderkey, o_orderdate ORDER BY revenue DESC, o_orderdate LIMIT 10
    """,
)

# Q6: one sum over one scan. Predicates may be text, too.
q6 = lineitem.filter(
    col("l_shipdate") >= day("1994-01-01"),
    col("l_shipdate") < day("1995-01-01"),
    "l_discount BETWEEN 0.05 AND 0.07",
    col("l_quantity") < 24,
).aggregate([], [f.sum(col("l_extendedprice") * col("l_discount")).alias("revenue")])
same(
    q6,
    """
    SELECT sum(l_extendedprice * l_discount) FROM lineitem
    WHERE l_shipdate >= DATE '1994-01-01' AND l_shipdate < DATE '1995-01-01'
      AND l_discount BETWEEN 0.05 AND 0.07 AND l_quantity < 24
    """,
)

q6.explain(analyze=True)
