"""Fixtures of the Python tests."""

import random

import flashmesh
import pyarrow as pa
import pytest

ROWS = 200_000
SEED = 20_261


def readings(seed: int) -> pa.Table:
    """Rows with NULLs, few and many distinct values, text, and a key."""
    random_ = random.Random(seed)
    sensors = [random_.randrange(50) for _ in range(ROWS)]
    return pa.table(
        {
            "id": pa.array(range(ROWS), pa.int64()),
            "sensor": pa.array(sensors, pa.int32()),
            "celsius": pa.array(
                [None if random_.random() < 0.01 else round(random_.gauss(20, 15), 2) for _ in range(ROWS)]
            ),
            "note": pa.array([f"{random_.choice(('ok', 'warm', 'ERROR', 'cold'))} at {s}" for s in sensors]),
        }
    )


@pytest.fixture(scope="session")
def source() -> pa.Table:
    print(f"seed {SEED}")
    return readings(SEED)


@pytest.fixture(scope="session")
def stocked(source):
    """A database with tables that tests only read."""
    with flashmesh.connect() as connection:
        connection.load("reading", source)
        connection.execute("CREATE TABLE sensor (id INT PRIMARY KEY, room TEXT)")
        connection.execute("INSERT INTO sensor SELECT value, 'room ' || (value % 7) FROM generate_series(0, 49) AS s(value)")
        yield connection


@pytest.fixture
def db():
    with flashmesh.connect() as connection:
        yield connection
