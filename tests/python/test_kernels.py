"""Kernels: from C++ to functions of an embedded database and of a server."""

import os
import subprocess
import sys
from pathlib import Path

import flashmesh
import pyarrow as pa
import pytest
from conftest import binary
from flashmesh import col, lit

PLACES = ["embedded", "server"]
KERNELS = Path(__file__).parents[2] / "examples" / "kernels"


@pytest.fixture(scope="session")
def package(tmp_path_factory):
    """Compiles kernels; gives the path of a package."""
    folder = tmp_path_factory.mktemp("packages")

    def build(name: str) -> Path:
        path = folder / f"{name}.fmk"
        if not path.exists():
            # The compiler is in the Python that runs the tests.
            environment = {**os.environ, "VIRTUAL_ENV": sys.prefix}
            command = [binary(), "kernel", "build", KERNELS / name, "-o", path]
            subprocess.run(command, check=True, env=environment)
        return path

    return build


def test_kernels_are_functions(db, package):
    db.load("offer", pa.table({"price": [1.0, 5.0, None, 9.5], "name": ["a", "ü", None, "Zz"]}))
    for name in ("price_band", "shout", "geometric_mean"):
        assert db.register_kernel(package(name)) == name
    for pushdown in ("always", "never"):
        db.settings.pushdown = pushdown
        query = "SELECT price_band(price, 2, 9.5), shout(name) FROM offer ORDER BY name"
        assert db.sql(query).fetchall() == [(True, "ZZ"), (False, "A"), (True, "ü"), (None, None)]
        [(mean,)] = db.sql("SELECT geometric_mean(price) FROM offer").fetchall()
        assert mean == pytest.approx(47.5 ** (1 / 3))
    listed = db.sql("SELECT name, kind, version FROM system.functions ORDER BY name").fetchall()
    assert listed == [("geometric_mean", "aggregate", 1), ("price_band", "filter", 1), ("shout", "scalar", 1)]
    with pytest.raises(flashmesh.Error, match="already exists"):
        db.register_kernel(package("shout"))
    assert db.register_kernel(package("shout").read_bytes(), or_replace=True) == "shout"
    db.execute("DROP FUNCTION shout")
    with pytest.raises(flashmesh.Error, match="shout"):
        db.sql("SELECT shout('x')").fetchall()
    with pytest.raises(flashmesh.Error, match="kernel package"):
        db.register_kernel(b"no module")


def test_kernels_in_expressions(package):
    # Of an embedded database only.
    with flashmesh.connect() as con:
        con.execute("CREATE TABLE t AS SELECT value, CAST(value AS DOUBLE) AS x FROM generate_series(1, 1000) AS s(value)")
        con.register_kernel(package("price_band"))
        band = con.function("price_band")
        frame = con.table("t").filter(band(col("x"), lit(10.0), lit(19.0)))
        assert frame.count() == 10
        assert "FilterExec" not in con.explain(frame)
        with pytest.raises(flashmesh.Error, match="no function"):
            con.function("nothing")


def test_a_table_kernel_reads_pages(db, package):
    db.load("numbers", pa.table({"x": pa.array(range(100_000), pa.int64())}))
    db.register_kernel(package("page_summary"))
    query = "SELECT count(*) > 1, sum(row_count) FROM page_summary('numbers', 'x')"
    assert db.sql(query).fetchall() == [(True, 100_000)]
    with pytest.raises(flashmesh.Error, match="no column"):
        db.sql("SELECT * FROM page_summary('numbers', 'y')").fetchall()


def test_distances_are_a_top_k(db, package):
    vectors = [[float(i % 7), float(i % 11), float(i)] for i in range(500)]
    table = pa.table({"id": pa.array(range(500)), "v": pa.array(vectors, pa.list_(pa.float32(), 3))})
    db.load("points", table)
    db.register_kernel(package("manhattan"))
    query = "SELECT id FROM points ORDER BY manhattan(v, [3.0, 4.0, 250.0]), id LIMIT 5"
    near = sorted(range(500), key=lambda i: (abs(vectors[i][0] - 3) + abs(vectors[i][1] - 4) + abs(i - 250), i))
    for pushdown in ("always", "never"):
        db.settings.pushdown = pushdown
        assert [row[0] for row in db.sql(query).fetchall()] == near[:5]
