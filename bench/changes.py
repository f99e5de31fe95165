"""Changing rows: flashmesh against DuckDB, in turns.

Each run makes both databases anew. One in a hundred rows of lineitem is deleted,
one in a hundred updated; a million rows, half of them with keys that are there,
are inserted with ON CONFLICT DO UPDATE. Every change is committed when it
returns. Then TPC-H queries 1 and 6 on the changed table are set against
themselves before the changes, and again after VACUUM. The contents are compared
between the engines. Writes of single rows are what writes.py measures.
"""

import argparse

import common

KEYED = 1_000_000
CHANGES = {
    "DELETE 1 % of lineitem": "DELETE FROM lineitem WHERE l_orderkey % 100 = 7",
    "UPDATE 1 % of lineitem": "UPDATE lineitem SET l_quantity = l_quantity + 1 WHERE l_orderkey % 100 = 9",
    "upsert of 1,000,000 rows": f"""
        INSERT INTO keyed SELECT value + {KEYED // 2}, value, 'new ' || value FROM numbers
        ON CONFLICT (id) DO UPDATE SET n = keyed.n + excluded.n, name = excluded.name""",
}
CONTENTS = [
    "SELECT count(*), sum(l_quantity), sum(l_orderkey) FROM lineitem",
    "SELECT count(*), sum(id), sum(n), sum(length(name)) FROM keyed",
]


def prepare(make_engine, database, parquet):
    common.remove(database)
    engine = make_engine(database)
    engine.create_table("lineitem", parquet / "lineitem.parquet")
    values = "generate_series(0, {})" if engine.name == "flashmesh" else "range({} + 1)"
    column = "value" if engine.name == "flashmesh" else "range"
    engine.execute(f"CREATE TABLE numbers AS SELECT {column} AS value FROM {values.format(KEYED - 1)}")
    engine.execute("CREATE TABLE keyed (id BIGINT PRIMARY KEY, n BIGINT, name VARCHAR)")
    engine.execute("INSERT INTO keyed SELECT value, 0, 'old ' || value FROM numbers")
    return engine


def queries(engine, runs: int) -> float:
    both = list(common.tpch_queries([1, 6]).values())
    times = [common.timed(lambda: [engine.run(query) for query in both]) for _ in range(runs + 1)]
    return common.median(times[1:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale-factor", default="1")
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()

    parquet = common.tpch_parquet(arguments.scale_factor)
    makers = {engine.name: engine for engine in (common.Flashmesh, common.DuckDB)}
    seconds = {(name, change): [] for name in makers for change in CHANGES}
    slower = {name: [] for name in makers}
    vacuumed = {name: [] for name in makers}
    different = False
    for _ in range(arguments.runs):
        engines = {
            name: prepare(maker, common.bench_dir() / f"changes-{name}", parquet) for name, maker in makers.items()
        }
        before = {name: queries(engine, 5) for name, engine in engines.items()}
        for change, statement in CHANGES.items():
            for name, engine in engines.items():
                seconds[name, change].append(common.timed(lambda: engine.execute(statement)))
        for name, engine in engines.items():
            slower[name].append(queries(engine, 5) / before[name])
        for query in CONTENTS:
            ours, theirs = (engine.run(query) for engine in engines.values())
            if difference := common.same_result(ours, theirs, 1e-9):
                print(f"DIFFERENT {query}: {difference}")
                different = True
        for name, engine in engines.items():
            engine.execute("VACUUM" if name == "DuckDB" else "VACUUM lineitem")
            vacuumed[name].append(queries(engine, 5) / before[name])
        for name, engine in engines.items():
            engine.close()
            common.remove(common.bench_dir() / f"changes-{name}")

    print(common.describe_machine())
    print(f"TPC-H scale factor {arguments.scale_factor}, medians of {arguments.runs} runs, s\n")
    print(f"{'':28}" + "".join(f"{name:>12}" for name in makers) + f"{'ratio':>8}")
    for change in CHANGES:
        ours, theirs = (common.median(seconds[name, change]) for name in makers)
        print(f"{change:28}{ours:12.3f}{theirs:12.3f}{ours / theirs:8.2f}")
    ratios = "".join(f"{common.median(values):12.2f}" for values in slower.values())
    print(f"{'queries 1 and 6, after/before':28}{ratios}")
    ratios = "".join(f"{common.median(values):12.2f}" for values in vacuumed.values())
    print(f"{'… after VACUUM':28}{ratios}")
    return 1 if different else 0


if __name__ == "__main__":
    raise SystemExit(main())
