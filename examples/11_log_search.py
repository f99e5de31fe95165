"""Searching logs: an index finds the pages, the rest of the question runs beside them."""

import pyarrow as pa

import flashmesh
from flashmesh import col, lit
from flashmesh import functions as f

SERVICES = ["auth", "billing", "search", "mail"]


def line(i: int) -> str:
    if i % 5003 == 0:
        return f"ERROR disk /dev/nvme{i % 4}n1 failed after {i} hours"
    return f"INFO request {i} served in {i * 7919 % 300} ms from cache {i % 64}"


count = 200_000
db = flashmesh.connect()
db.load(
    "log",
    pa.table(
        {
            "at": pa.array(range(count), pa.timestamp("s")),
            "service": [SERVICES[i % 4] for i in range(count)],
            "message": [line(i) for i in range(count)],
        }
    ),
)
# Kept up by every later load, and used without being named.
db.execute("CREATE INDEX log_message ON log USING ngram (message)")

log = db.table("log")
failures = log.filter(f.contains(col("message"), lit("disk /dev/nvme2")))
print(failures.select("at", "service", "message"))
assert failures.count() == sum(i % 4 == 2 for i in range(0, count, 5003))

# By service, from the text: what SQL has for strings, DataFrames have too.
by_service = (
    log.filter(f.regexp_like(col("message"), lit("failed after [0-9]+ hours")))
    .with_column("hours", f.split_part(col("message"), lit(" "), lit(6)).cast(pa.int64()))
    .aggregate([col("service")], [f.count(lit(1)).alias("failures"), f.max(col("hours")).alias("oldest")])
    .sort(col("service"))
)
print(by_service)
assert sum(row["failures"] for row in by_service.to_pylist()) == len(range(0, count, 5003))

# Where a text occurs: row and byte offset, for each occurrence.
found = log.matches("message", "nvme3").limit(3)
print(found)

# The index skipped most pages: `pages_skipped_index` of the scan.
failures.explain(analyze=True)
