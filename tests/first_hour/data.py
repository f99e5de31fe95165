"""The files that the new user has lying about, and what is true of them.

Everything follows from the seed. What a check expects is computed here from the arrays, by NumPy or
plain Python, and by neither of the two engines.
"""

import datetime
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

SEED = 20_261_126
ORDERS = 1_000_000
CUSTOMERS = 50_000
ITEMS = 500
DOCUMENTS = 200_000
VECTORS = 100_000
DIMENSIONS = 64
CLUSTERS = 200
VERTICES = 50_000
EDGES = 400_000

FIRST_DAY = datetime.date(2025, 1, 1)
STATUSES = ["new", "paid", "sent", "returned"]
COUNTRIES = "Austria Belgium Chile Denmark Egypt France Ghana Hungary India Japan".split()
#: Stands in a few documents; its words stand in many.
PHRASE = "torn page found"
#: The vector whose neighbours are looked for, by its id.
LIKE_THIS = 4242
#: The ends of a path in the graph.
FROM, TO = 1, 777


@dataclass
class Truth:
    """What is true of the files."""

    #: id, customer_id, day (days since FIRST_DAY), item, quantity, cents, status (number in STATUSES).
    orders: dict[str, np.ndarray]
    #: country (number in COUNTRIES) of customer i + 1.
    country: np.ndarray
    #: Numbers of the documents with PHRASE, from 1 on.
    found: list[int]
    #: The ten vectors nearest to LIKE_THIS, itself first: id and distance.
    nearest: list[tuple[int, float]]
    #: Vertices by their number of hops from FROM.
    reached: list[int]
    #: Hops from FROM to TO.
    hops: int

    @property
    def spent(self) -> np.ndarray:
        return self.orders["quantity"] * self.orders["cents"]

    def by_item(self, chosen: np.ndarray | slice = slice(None)) -> list[tuple[str, int]]:
        """Items with what was spent on them, the dearest first; names break ties."""
        sums = np.bincount(self.orders["item"][chosen], self.spent[chosen], minlength=ITEMS).astype(int)
        return sorted(((f"item {n}", int(sums[n])) for n in range(ITEMS) if sums[n]), key=lambda row: (-row[1], row[0]))

    def by_country(self) -> list[tuple[str, int]]:
        countries = self.country[self.orders["customer_id"] - 1]
        sums = np.bincount(countries, self.spent).astype(int)
        return sorted(zip(COUNTRIES, map(int, sums)), key=lambda row: -row[1])

    def by_month(self) -> list[int]:
        """Cents of each month."""
        months = np.array([(FIRST_DAY + datetime.timedelta(n)).month for n in range(365)])[self.orders["day"]]
        return [int(n) for n in np.bincount(months, self.spent)[1:]]

    def with_status(self, status: str) -> int:
        return int((self.orders["status"] == STATUSES.index(status)).sum())


def make(folder: Path) -> Truth:
    """Writes the files and tells what is true of them."""
    generator = np.random.default_rng(SEED)
    orders = _orders(generator, folder)
    country = _customers(generator, folder)
    found = _documents(generator, folder)
    nearest = _vectors(generator, folder)
    reached, hops = _edges(generator, folder)
    return Truth(orders, country, found, nearest, reached, hops)


def _orders(generator: np.random.Generator, folder: Path) -> dict[str, np.ndarray]:
    orders = {
        "id": np.arange(1, ORDERS + 1),
        "customer_id": generator.integers(1, CUSTOMERS + 1, ORDERS),
        "day": np.sort(generator.integers(0, 365, ORDERS)),
        # A few items sell often, most do not.
        "item": np.minimum(generator.zipf(1.3, ORDERS), ITEMS) - 1,
        "quantity": generator.integers(1, 11, ORDERS),
        "cents": generator.integers(100, 100_000, ORDERS),
        "status": generator.choice(len(STATUSES), ORDERS, p=[0.1, 0.3, 0.55, 0.05]),
    }
    days = np.datetime64(FIRST_DAY) + orders["day"].astype("timedelta64[D]")
    items = pa.array([f"item {n}" for n in range(ITEMS)])
    table = pa.table(
        {
            "id": orders["id"],
            "customer_id": orders["customer_id"],
            "day": pa.array(days, pa.date32()),
            "item": items.take(pa.array(orders["item"])),
            "quantity": orders["quantity"],
            "cents": orders["cents"],
            "status": pa.array(STATUSES).take(pa.array(orders["status"])),
        }
    )
    pa.csv.write_csv(table, folder / "orders.csv", pa.csv.WriteOptions(quoting_style="needed"))
    pq.write_table(table, folder / "orders.parquet")
    return orders


def _customers(generator: np.random.Generator, folder: Path) -> np.ndarray:
    country = generator.integers(0, len(COUNTRIES), CUSTOMERS)
    names = [f"{first} {last}" for first in ("Ada", "Bob", "Cleo", "Dan", "Eve") for last in range(CUSTOMERS // 5)]
    table = pa.table(
        {
            "id": np.arange(1, CUSTOMERS + 1),
            "name": names,
            "country": pa.array(COUNTRIES).take(pa.array(country)),
        }
    )
    pq.write_table(table, folder / "customers.parquet")
    return country


def _documents(generator: np.random.Generator, folder: Path) -> list[int]:
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    vocabulary = ["".join(generator.choice(letters, generator.integers(3, 10))) for _ in range(5000)]
    vocabulary += PHRASE.split()
    words = generator.integers(0, len(vocabulary), (DOCUMENTS, 30))
    bodies = [" ".join([vocabulary[word] for word in row]) for row in words]
    found = sorted(int(n) for n in generator.choice(DOCUMENTS, 41, replace=False))
    for number in found:
        bodies[number] = f"{bodies[number]} {PHRASE} {vocabulary[number % 5000]}"
    found = [number + 1 for number, body in enumerate(bodies) if PHRASE in body]
    table = pa.table({"id": np.arange(1, DOCUMENTS + 1), "body": bodies})
    pq.write_table(table, folder / "documents.parquet")
    return found


def _vectors(generator: np.random.Generator, folder: Path) -> list[tuple[int, float]]:
    centres = generator.normal(0, 1, (CLUSTERS, DIMENSIONS))
    of = generator.integers(0, CLUSTERS, VECTORS)
    vectors = (centres[of] + generator.normal(0, 0.3, (VECTORS, DIMENSIONS))).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), DIMENSIONS)
    pq.write_table(pa.table({"id": np.arange(1, VECTORS + 1), "x": column}), folder / "vectors.parquet")
    distances = np.linalg.norm(vectors - vectors[LIKE_THIS - 1], axis=1)
    return [(int(n) + 1, float(distances[n])) for n in np.argsort(distances)[:10]]


def _edges(generator: np.random.Generator, folder: Path) -> tuple[list[int], int]:
    # Some know many.
    sources = (generator.pareto(1.5, EDGES) * 200).astype(np.int64) % VERTICES + 1
    targets = generator.integers(1, VERTICES + 1, EDGES)
    pq.write_table(pa.table({"a": sources, "b": targets}), folder / "knows.parquet")
    neighbours: dict[int, list[int]] = {}
    for source, target in zip(sources.tolist(), targets.tolist()):
        neighbours.setdefault(source, []).append(target)
    depths = {FROM: 0}
    waiting = deque([FROM])
    while waiting:
        vertex = waiting.popleft()
        for neighbour in neighbours.get(vertex, ()):
            if neighbour not in depths:
                depths[neighbour] = depths[vertex] + 1
                waiting.append(neighbour)
    levels = np.bincount(list(depths.values()))
    return [int(n) for n in levels], depths[TO]
