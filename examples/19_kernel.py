"""A kernel of one's own: C++ that runs beside the pages, in a sandbox.

Compiling takes the command line tool and a compiler for WebAssembly:
pip install 'flashmesh[kernels]'."""

import os
import subprocess
import tempfile
from pathlib import Path

import flashmesh
from flashmesh import col, lit

KERNELS = Path(__file__).parent / "kernels"
FLASHMESH = os.environ.get("FLASHMESH_BIN", "flashmesh")

db = flashmesh.connect()
with tempfile.TemporaryDirectory() as folder:
    for name in ["price_band", "fair_price", "geometric_mean"]:
        package = Path(folder) / f"{name}.fmk"
        subprocess.run([FLASHMESH, "kernel", "build", KERNELS / name, "-o", package], check=True)
        print("registered", db.register_kernel(package))

db.execute("""
    CREATE TABLE offer AS
    SELECT value AS id, value % 1000 / 4.0 AS price, value % 37 AS cost
    FROM generate_series(1, 200000) AS series(value)
""")

# It is a function like any other, and pushed below the scan like any other.
query = "SELECT count(*) AS offers FROM offer WHERE price_band(price, 100, 110)"
plan = db.explain(query)
assert "price_band(" in plan and "FilterExec" not in plan, plan
[(offers,)] = db.sql(query).fetchall()
[(expected,)] = db.sql("SELECT count(*) FROM offer WHERE price BETWEEN 100 AND 110").fetchall()
assert offers == expected > 0

# In expressions; this one calls price_band, through the store.
fair = db.function("fair_price")
found = db.table("offer").filter(fair(col("price"), col("cost").cast(float), lit(20.0))).count()
[(expected,)] = db.sql(
    "SELECT count(*) FROM offer WHERE price BETWEEN 0.9 * 20.0 AND 1.1 * 20.0 AND price >= cost"
).fetchall()
assert found == expected > 0

# And an aggregate.
print(db.sql("SELECT geometric_mean(price + 1), count(*) FROM offer"))
print(db.sql("SELECT name, kind, signature, version FROM system.functions"))
