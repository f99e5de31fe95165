"""Near-duplicate images by codes of 128 bits: top-k in the store, many queries as one command."""

import random

import pyarrow as pa

import flashmesh
from flashmesh import col
from flashmesh import functions as f

random.seed(11)
originals = [random.getrandbits(128) for _ in range(100)]


def variant(of: int) -> bytes:
    """A code near an original: another crop or compression flips a few bits."""
    for _ in range(random.randrange(10)):
        of ^= 1 << random.randrange(128)
    return of.to_bytes(16, "big")


codes = [variant(originals[i % 100]) for i in range(10_000)]
db = flashmesh.connect()
db.load(
    "image",
    pa.table(
        {
            "id": range(10_000),
            "path": [f"/photos/{i:05}.jpg" for i in range(10_000)],
            "code": pa.array(codes, pa.binary(16)),
        }
    ),
)
image = db.table("image")
query = variant(originals[42])

# As an expression: sort by distance, take the first five. Only five rows leave the store.
exact = (
    image.select(col("id"), col("path"), f.hamming_distance(col("code"), query).alias("bits"))
    .sort(col("bits"), col("id"))
    .limit(5)
)
print(exact)
best = min(bin(int.from_bytes(query) ^ int.from_bytes(code)).count("1") for code in codes)
assert exact.to_pylist()[0]["bits"] == best

# As a search, which composes like any DataFrame: joined, filtered, counted.
near = image.nearest("code", query, k=120).filter(col("distance") <= 20)
assert all(row["id"] % 100 == 42 for row in near.to_pylist())
print(near.count(), "variants of image 42 within 20 bits")

# All images of a folder at once are one pass over the codes. `query` counts the codes given.
folder = image.filter(col("id") < 500).sort(col("id")).select("code")
twins = db.nearest("image", "code", folder, k=2).filter(col("query") != col("id"))
same_original = twins.filter(col("query") % 100 == col("id") % 100).count()
print(f"{same_original} of {twins.count()} nearest others show the same original")
assert same_original / twins.count() > 0.95

# With an index the search looks at a part of the codes, and may miss some.
db.execute("CREATE INDEX image_code ON image USING lsh (code)")
found = {row["id"] for row in image.nearest("code", query, k=50).to_pylist()}
every = {row["id"] for row in db.nearest("image", "code", query, k=50, exact=True).to_pylist()}
print(f"the index found {len(found & every)} of the nearest 50")
assert len(found) == 50
