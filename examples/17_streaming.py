"""Results larger than memory: read them batch by batch, hand them on, write them to files."""

import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import flashmesh
from flashmesh import col

rows = 1_000_000
db = flashmesh.connect()
db.execute(f"""
    CREATE TABLE point AS
    SELECT value AS id, value * 7919 % 1000003 AS x FROM generate_series(1, {rows}) AS s(value)
""")
frame = db.table("point").with_column("y", col("x") * 2)

# A DataFrame is iterable: the query runs while its batches are read, and no further ahead.
total = largest = 0
for batch in frame:
    batch = batch.to_pyarrow()
    total += batch.num_rows
    largest = max(largest, batch.num_rows)
assert total == rows
print(f"{total:,} rows, {largest:,} at a time")

# Stopping early stops the query: dropping the stream frees what it holds.
first = next(iter(frame)).to_pyarrow()
assert first.column_names == ["id", "x", "y"]

# Other libraries pull the same way, through Arrow's C stream.
reader = pa.RecordBatchReader.from_stream(frame)
assert sum(pc.sum(batch["y"]).as_py() for batch in reader) == 2 * db.sql("SELECT sum(x) FROM point").fetchall()[0][0]

with tempfile.TemporaryDirectory() as folder:
    # DataFusion's writers, fed by a stream; and a reader in, for data from anywhere.
    path = Path(folder, "points.parquet")
    frame.filter(col("id") % 10 == 0).write_parquet(str(path))
    assert db.load("tenth", path) == rows // 10
    batches = (pa.record_batch({"id": pa.array(range(i, i + 1000))}) for i in range(0, 50_000, 1000))
    schema = pa.schema({"id": pa.int64()})
    assert db.load("fed", pa.RecordBatchReader.from_batches(schema, batches)) == 50_000
print(db.table("tenth").count(), "rows came back from Parquet")
