"""Friends of friends: searches in a graph beside the pages, and DataFrames on their answers."""

import random

import pyarrow as pa

import flashmesh
from flashmesh import col, lit
from flashmesh import functions as f

random.seed(3)
people = 2_000
edges: set[tuple[int, int]] = set()
while len(edges) < 8_000:
    # Few know many.
    a, b = int(people * random.random() ** 2), random.randrange(people)
    if a != b:
        edges.add((a, b))

db = flashmesh.connect()
db.load("person", pa.table({"id": range(people), "city": [f"city {i % 20}" for i in range(people)]}))
db.load("knows", pa.table({"a": [a for a, _ in edges], "b": [b for _, b in edges]}))
db.execute("CREATE INDEX friends ON knows USING adjacency (a, b)")

# Everybody within two hops of person 7, each once, with the least number of hops.
around = db.expand("friends", 7, 2, direction="both")
print(around.aggregate([col("depth")], [f.count(lit(1)).alias("people")]).sort(col("depth")))

neighbours: dict[int, set[int]] = {}
for a, b in edges:
    neighbours.setdefault(a, set()).add(b)
    neighbours.setdefault(b, set()).add(a)
friends = neighbours[7]
strangers = {n for friend in friends for n in neighbours[friend]} - friends - {7}
assert around.filter(col("depth") == 2).count() == len(strangers)

# Whom might they like to meet? Friends of friends in the same city.
suggestions = (
    around.filter(col("depth") == 2)
    .join(db.table("person"), left_on="vertex", right_on="id")
    .filter(col("city") == "city 7")
    .select("vertex", "city")
    .sort(col("vertex"))
)
print(suggestions)
assert suggestions.to_pydict()["vertex"] == sorted(n for n in strangers if n % 20 == 7)

# Seeds may come from a DataFrame: a whole city at once.
city = db.table("person").filter(col("city") == "city 0").select("id")
print("the city reaches", db.bfs("friends", city, direction="both").count(), "people")

path = db.shortest_path("friends", 7, 1_999, direction="both")
print("from 7 to 1999:", path.to_pydict())

# Who matters most?
print(db.page_rank("friends").sort(col("rank").sort(ascending=False)).limit(5))
