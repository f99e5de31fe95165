"""10,000 random rows of lineitem with all columns: flashmesh against DuckDB.

Both have the same table: lineitem with its row number as a column `id`. The
rows wanted are named in two ways, the same SQL for both engines: as a list of
literals, and as a table of ids to join with. DuckDB also gets its fastest way,
its own row ids. "flashmesh-pax" is the table in the layout in which columns
share pages. Every run wants other rows. Warm: the same connection again. Cold:
a new connection, and the database's files dropped from the kernel's cache.
"""

import argparse
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import common

ROWS_WANTED = 10_000
# The cold run before has opened the database anew: caches of every kind are to be warm again.
WARMING_RUNS = 3


class FlashmeshPax(common.Flashmesh):
    """flashmesh with all columns of a row in one page."""

    name = "flashmesh-pax"

    def create_table(self, table: str, parquet: Path) -> None:
        self.execute(f"CREATE TABLE {table} WITH (layout = 'pax') AS SELECT * FROM '{parquet}'")


WAYS = (
    (common.Flashmesh.name, "list"),
    (common.Flashmesh.name, "join"),
    (FlashmeshPax.name, "list"),
    (FlashmeshPax.name, "join"),
    (common.DuckDB.name, "list"),
    (common.DuckDB.name, "join"),
    (common.DuckDB.name, "row ids"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale-factor", default="1")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=42)
    arguments = parser.parse_args()
    generator = random.Random(arguments.seed)

    parquet, row_count = numbered_lineitem(arguments.scale_factor)
    engines = {}
    for make in (common.Flashmesh, FlashmeshPax, common.DuckDB):
        database = common.bench_dir() / f"random-rows-{make.name}"
        common.remove(database)
        engine = make(database)
        engine.create_table("numbered", parquet)
        engines[make.name] = (engine, database, make)

    print(common.describe_machine())
    print(
        f"{ROWS_WANTED} random rows of {row_count}, all columns, "
        f"median of {arguments.runs} runs, ms (seed {arguments.seed})\n"
    )
    print(f"{'':34}{'warm':>10}{'cold':>10}")
    figures = {}
    for name, how in WAYS:
        warm, cold = [], []
        for _ in range(arguments.runs):
            ids = generator.sample(range(row_count), ROWS_WANTED)
            cold.append(measure(engines, name, how, ids, is_cold=True))
            warm.append(measure(engines, name, how, ids, is_cold=False))
        figures[name, how] = (common.median(warm), common.median(cold))
        print(f"{name + ', by ' + how:34}" + "".join(f"{value * 1000:10.1f}" for value in figures[name, how]), flush=True)
    for index, temperature in enumerate(("warm", "cold")):
        best = {name: min(v[index] for (n, _), v in figures.items() if n == name) for name in engines}
        for ours in (common.Flashmesh.name, FlashmeshPax.name):
            print(f"{temperature}: the best way of each, {ours} / DuckDB = {best[ours] / best['DuckDB']:.2f}")
    for engine, database, _ in engines.values():
        engine.close()
        common.remove(database)


def numbered_lineitem(scale_factor: str):
    """lineitem with its row number as column `id`, as a Parquet file, and its number of rows."""
    source = common.tpch_parquet(scale_factor) / "lineitem.parquet"
    path = common.bench_dir() / f"lineitem-numbered-sf{scale_factor}.parquet"
    reader = pq.ParquetFile(source)
    if not path.exists():
        unfinished = path.with_suffix(".unfinished")
        first = 0
        schema = reader.schema_arrow.insert(0, pa.field("id", pa.int64()))
        with pq.ParquetWriter(unfinished, schema) as writer:
            for batch in reader.iter_batches(batch_size=122_880):
                ids = pa.array(range(first, first + batch.num_rows), pa.int64())
                writer.write_batch(pa.RecordBatch.from_arrays([ids, *batch.columns], schema=schema))
                first += batch.num_rows
        unfinished.rename(path)
    return path, reader.metadata.num_rows


def measure(engines: dict, name: str, how: str, ids: list[int], is_cold: bool) -> float:
    """Seconds to fetch these rows; checks that they are these rows."""
    engine, database, make = engines[name]
    if how == "join":
        engine.execute("DROP TABLE IF EXISTS wanted")
        engine.execute("CREATE TABLE wanted AS SELECT * FROM (VALUES " + ",".join(f"({id})" for id in ids) + ") AS t(id)")
        query = "SELECT * FROM numbered WHERE id IN (SELECT id FROM wanted)"
    else:
        column = "rowid" if how == "row ids" else "id"
        query = f"SELECT * FROM numbered WHERE {column} IN ({','.join(map(str, ids))})"
    if is_cold:
        engine.close()
        common.evict(database)
        engine = make(database)
        engines[name] = (engine, database, make)
    else:
        for _ in range(WARMING_RUNS):
            engine.run(query)
    result = None

    def fetch() -> None:
        nonlocal result
        result = engine.run(query)

    seconds = common.timed(fetch)
    assert pc.sum(result["id"]).as_py() == sum(ids) and result.num_rows == len(ids), "wrong rows"
    return seconds


if __name__ == "__main__":
    main()
