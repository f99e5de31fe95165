"""Load time of the TPC-H tables from Parquet: flashmesh against DuckDB.

Both create each table from its Parquet file in a new database and close it, so
that what is left to write is written. The Parquet files are in memory (the
kernel's cache) for both; the runs alternate.
"""

import argparse

import common


def load(make_engine, database, parquet) -> float:
    common.remove(database)

    def run() -> None:
        engine = make_engine(database)
        common.load_tpch(engine, parquet)
        engine.close()

    return common.timed(run)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale-factor", default="1")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()

    parquet = common.tpch_parquet(arguments.scale_factor)
    for file in parquet.iterdir():
        file.read_bytes()
    databases = {engine.name: common.bench_dir() / f"load-{engine.name}" for engine in (common.Flashmesh, common.DuckDB)}
    seconds = {name: [] for name in databases}
    for _ in range(arguments.runs):
        for engine in (common.Flashmesh, common.DuckDB):
            seconds[engine.name].append(load(engine, databases[engine.name], parquet))
    for database in databases.values():
        common.remove(database)

    print(common.describe_machine())
    print(f"TPC-H scale factor {arguments.scale_factor}, loading all tables, median of {arguments.runs} runs\n")
    ours = common.median(seconds["flashmesh"])
    for name, values in seconds.items():
        middle = common.median(values)
        print(f"{name:12}{middle:8.2f} s   {ours / middle:6.2f} = flashmesh / this")


if __name__ == "__main__":
    main()
