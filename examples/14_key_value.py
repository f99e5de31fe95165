"""A key-value store: rows by key without SQL, and everything else when you need it."""

import pyarrow as pa

import flashmesh
from flashmesh import col
from flashmesh import functions as f

count = 300_000
db = flashmesh.connect()
db.execute("CREATE TABLE session (token BIGINT PRIMARY KEY, user_id INT, payload TEXT)")
tokens = [i * 2_654_435_761 % 2**40 for i in range(count)]
db.load(
    "session",
    pa.table(
        {
            "token": pa.array(tokens, pa.int64()),
            "user_id": pa.array([i % 1000 for i in range(count)], pa.int32()),
            "payload": [f"{{'cart': {i % 17}}}" for i in range(count)],
        }
    ),
    mode="append",
)
session = db.table("session")

# One key, or many at once as one command to the store; unknown keys give no row.
(row,) = session.get([tokens[1234]]).to_pylist()
assert row["user_id"] == 1234 % 1000
batch = session.get([*tokens[::100], -1])
assert batch.count() == count // 100

# Keys may be an Arrow array, and what comes is a DataFrame like any other.
keys = pa.array(tokens[:5000])
per_cart = session.get(keys).aggregate([col("payload")], [f.count(col("token")).alias("sessions")])
print(per_cart.sort(col("sessions").sort(ascending=False)).limit(3))

# A lookup is lazy: it becomes part of the plan that it stands in.
users = db.from_arrow(pa.table({"user_id": pa.array([7], pa.int32()), "name": ["Ada"]}))
ours = db.lookup("session", tokens[:5000]).join(users, on="user_id")
assert ours.count() == 5
print(ours.select("name", "token", "payload"))

# Keys are unique, whoever writes.
try:
    db.execute(f"INSERT INTO session VALUES ({tokens[0]}, 1, '')")
except flashmesh.Error as refused:
    print("refused:", refused)
else:
    raise AssertionError("a key twice")
