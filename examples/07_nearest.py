"""Nearest neighbours: image-like codes by Hamming distance, exactly and by an index."""

import random

import pyarrow as pa

import flashmesh

random.seed(7)
# 20,000 codes of 128 bits in 200 clusters, as perceptual hashes of near-duplicate images would be.
centres = [random.getrandbits(128) for _ in range(200)]


def near(centre: int) -> bytes:
    for _ in range(12):
        centre ^= 1 << random.randrange(128)
    return centre.to_bytes(16, "big")


codes = [near(centres[i % 200]) for i in range(20_000)]
db = flashmesh.connect()
db.load("images", pa.table({"id": range(20_000), "code": pa.array(codes, pa.binary(16))}))

query = near(centres[42]).hex()
exact = db.sql(f"SELECT id, hamming_distance(code, X'{query}') AS bits FROM images ORDER BY bits, id LIMIT 5")
print(exact)

db.execute("CREATE INDEX images_code ON images USING lsh (code)")
found = db.sql(f"SELECT id, distance FROM nearest('images', 'code', X'{query}', 5) ORDER BY distance, id")
print(found)
assert [row["distance"] for row in found.to_pylist()] == [row["bits"] for row in exact.to_pylist()]

# Many queries are one pass: the nearest other image of each of the first thousand.
pairs = db.sql("""
    SELECT count(*) AS images, avg(distance) AS bits
    FROM nearest('images', 'code', (SELECT code FROM images WHERE id < 1000 ORDER BY id), 2)
    WHERE query <> id
""")
print(pairs)
