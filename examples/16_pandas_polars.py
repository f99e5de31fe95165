"""To pandas and Polars and back: all of them speak Arrow, so nothing is written to text."""

import pandas
import polars

import flashmesh
from flashmesh import col
from flashmesh import functions as f

db = flashmesh.connect()

# A pandas.DataFrame becomes a table on flash …
trips = pandas.DataFrame(
    {
        "day": pandas.date_range("2026-01-01", periods=30).repeat(1000),
        "zone": [i % 40 for i in range(30_000)],
        "fare": [5 + i * 7919 % 400 / 10 for i in range(30_000)],
    }
)
assert db.load("trip", trips) == 30_000

# … and is asked; what is small comes back.
per_zone = db.table("trip").aggregate([col("zone")], [f.avg(col("fare")).alias("fare")]).sort(col("zone"))
frame = per_zone.to_pandas()
expected = trips.groupby("zone")["fare"].mean()
assert abs(frame.set_index("zone")["fare"] - expected).max() < 1e-9
print(frame.head(3))

# Data that stays in memory joins with tables on flash, here from Polars.
zones = polars.DataFrame({"zone": range(40), "borough": [f"borough {i % 5}" for i in range(40)]})
per_borough = (
    db.table("trip")
    .join(db.from_polars(zones), on="zone")
    .aggregate([col("borough")], [f.sum(col("fare")).alias("fares"), f.count(col("zone")).alias("trips")])
    .sort(col("borough"))
    .to_polars()
)
print(per_borough)
assert per_borough["trips"].sum() == 30_000

# With a name, SQL sees it too.
db.from_pandas(pandas.DataFrame({"zone": [3, 4], "tip": [1.5, 2.0]}), name="tip")
print(db.sql("SELECT t.zone, avg(fare + tip) AS total FROM trip t JOIN tip ON tip.zone = t.zone GROUP BY t.zone"))

# And a DataFrame of flashmesh is Arrow data to whoever reads that.
dearest = polars.DataFrame(db.table("trip").sort(col("fare").sort(ascending=False)).limit(5))
assert dearest["fare"].max() == trips["fare"].max()
