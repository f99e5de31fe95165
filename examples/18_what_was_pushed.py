"""What ran beside the pages, what did not, and why: EXPLAIN, and the switch to compare with."""

import flashmesh
from flashmesh import col
from flashmesh import functions as f

db = flashmesh.connect()
db.execute("""
    CREATE TABLE reading AS
    SELECT value AS id, value % 100 AS sensor, value * 7919 % 10007 / 10.0 AS celsius
    FROM generate_series(1, 500000) AS series(value)
""")
hottest = (
    db.table("reading")
    .filter(col("celsius") > 990)
    .aggregate([col("sensor")], [f.max(col("celsius")).alias("hottest"), f.count(col("id")).alias("readings")])
)

# The plan before it runs: `filter=[…]`, `partial=[…]` and the like stand in the scan's line.
print(db.explain(hottest))

# And after: rows and bytes, from flash and to the host.
plan = db.explain(hottest, analyze=True)
(scan,) = (line for line in plan.splitlines() if "FlashScanExec" in line)
print(scan.strip())
assert "FilterExec" not in plan and "mode=Partial" not in plan

# SQL and what follows it are one plan: the filter on `c` is below the projection that made it.
composed = db.sql("SELECT id, celsius + 0.5 AS c FROM reading").filter(col("id") < 1000)
assert "FilterExec" not in db.explain(composed)

# The same with nothing pushed, as without flashmesh: all rows come to the host.
db.settings.pushdown = "never"
unpushed = db.explain(hottest, analyze=True)
assert "FilterExec" in unpushed and "mode=Partial" in unpushed
on_host = sorted(hottest.fetchall())
db.settings.pushdown = "auto"
assert sorted(hottest.fetchall()) == on_host
print(db.settings)
