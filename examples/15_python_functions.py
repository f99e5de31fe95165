"""Functions written in Python run above the scan, on the rows that it leaves."""

import math

import datafusion
import pyarrow as pa
import pyarrow.compute as pc

import flashmesh
from flashmesh import col
from flashmesh import functions as f

db = flashmesh.connect()
db.execute("""
    CREATE TABLE visit AS
    SELECT value AS id, 'https://example.org/' || (value % 300) || '?q=' || (value % 7) AS url, value % 1000 AS ms
    FROM generate_series(1, 200000) AS s(value)
""")

calls = 0


def query_parameter(urls: pa.Array) -> pa.Array:
    """Gets whole arrays: one call for thousands of rows."""
    global calls
    calls += len(urls)
    return pc.list_element(pc.split_pattern(urls, "?q="), 1)


parameter = flashmesh.udf(query_parameter, [pa.string()], pa.string(), "immutable", "query_parameter")

slow = (
    db.table("visit")
    .filter(col("ms") > 990, parameter(col("url")) == "3")
    .aggregate([], [f.count(col("id")).alias("visits")])
)
(answer,) = slow.to_pydict()["visits"]
assert answer == sum(i % 1000 > 990 and i % 7 == 3 for i in range(1, 200_001))
# The store dropped the fast visits first: the function saw 1,800 of 200,000 rows.
print(answer, "slow visits;", calls, "rows went through Python")
assert calls < 4_000
slow.explain()


class GeometricMean(datafusion.Accumulator):
    """An aggregate: `update` sees rows, `merge` the states of other threads."""

    def __init__(self) -> None:
        self.logs, self.count = 0.0, 0

    def update(self, values: pa.Array) -> None:
        self.logs += pc.sum(pc.ln(values)).as_py() or 0.0
        self.count += len(values)

    def merge(self, states: list[pa.Array]) -> None:
        self.logs += pc.sum(states[0]).as_py()
        self.count += pc.sum(states[1]).as_py()

    def state(self) -> list[pa.Scalar]:
        return [pa.scalar(self.logs), pa.scalar(self.count)]

    def evaluate(self) -> pa.Scalar:
        return pa.scalar(math.exp(self.logs / self.count))


mean = flashmesh.udaf(GeometricMean, [pa.float64()], pa.float64(), [pa.float64(), pa.int64()], "immutable")
times = db.table("visit").filter(col("ms") > 0).aggregate([], [mean(col("ms")).alias("ms")])
expected = math.exp(sum(math.log(ms) for ms in range(1, 1000)) / 999)
assert math.isclose(times.to_pydict()["ms"][0], expected)
print(times)
