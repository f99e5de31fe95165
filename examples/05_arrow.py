"""Results are Arrow data: what reads Arrow reads them, without copies."""

import flashmesh
import pyarrow as pa
import pyarrow.compute as pc

db = flashmesh.connect()
db.sql("""
    CREATE TABLE trip AS
    SELECT value AS id, value % 24 AS hour, value * 37 % 1000 / 10.0 AS km
    FROM generate_series(1, 100000) AS series(value)
""")
table = pa.table(db.sql("SELECT hour, km FROM trip WHERE hour BETWEEN 7 AND 9"))
print(table.schema)
print(table.num_rows, "trips, the longest", pc.max(table["km"]), "km")
