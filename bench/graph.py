"""Graph searches on R-MAT scale 20, 16 edges a vertex: flashmesh against DuckDB and Kuzu.

A breadth-first search over all levels from the vertex of most edges, and the
vertices within two hops of it. Warm, interleaved, medians; answers are compared.
"""

import argparse
import shutil
import time

import common
import search_data


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--skip-kuzu", action="store_true", help="leave out Kuzu, which takes long to load")
    arguments = parser.parse_args()
    parquet = search_data.edges()
    flashmesh, duckdb = common.fresh_engines("graph", "edges", parquet)
    started = time.perf_counter()
    flashmesh.execute("CREATE INDEX neighbours ON edges USING adjacency (src, dst)")
    print(common.describe_machine())
    print(f"adjacency index: built in {time.perf_counter() - started:.1f} s")
    hub = duckdb.run("SELECT src FROM edges GROUP BY src ORDER BY count(*) DESC, src LIMIT 1")["src"][0].as_py()

    levels = f"SELECT depth, count(*) AS n FROM bfs('neighbours', {hub}) GROUP BY depth ORDER BY depth"
    recursion = f"""
        WITH RECURSIVE found(vertex, depth) USING KEY (vertex) AS (
            SELECT {hub}::BIGINT, 0
            UNION SELECT e.dst, f.depth + 1 FROM found f JOIN edges e ON e.src = f.vertex
            WHERE NOT EXISTS (SELECT 1 FROM recurring.found r WHERE r.vertex = e.dst))
        SELECT depth, count(*) AS n FROM found GROUP BY depth ORDER BY depth"""
    assert flashmesh.run(levels)["n"].to_pylist() == duckdb.run(recursion)["n"].to_pylist()
    # The hub itself is not its own neighbour here, and may be in a join.
    two_hops = f"SELECT count(*) AS n FROM expand('neighbours', {hub}, 2) WHERE vertex <> {hub}"
    join = f"""
        SELECT count(*) AS n FROM (SELECT dst FROM edges WHERE src = {hub}
            UNION SELECT b.dst FROM edges a JOIN edges b ON b.src = a.dst WHERE a.src = {hub}) WHERE dst <> {hub}"""
    assert flashmesh.run(two_hops)["n"] == duckdb.run(join)["n"]
    contestants = {
        "BFS, flashmesh": lambda: flashmesh.run(levels),
        "BFS, DuckDB USING KEY": lambda: duckdb.run(recursion),
        "two hops, flashmesh": lambda: flashmesh.run(two_hops),
        "two hops, DuckDB": lambda: duckdb.run(join),
    }
    if not arguments.skip_kuzu:
        kuzu = load_kuzu(parquet)
        paths = f"MATCH p = (a:v {{id: {hub}}})-[:e* shortest 1..30]->(b:v) RETURN count(b)"
        contestants["BFS, Kuzu shortest"] = lambda: kuzu.execute(paths).get_all()
    seconds = common.interleaved(contestants, arguments.runs)
    for name, value in seconds.items():
        print(f"{name:28}{value * 1000:10.1f} ms")
    print(f"BFS: {seconds['BFS, flashmesh'] / seconds['BFS, DuckDB USING KEY']:.3f} x DuckDB", end="")
    if not arguments.skip_kuzu:
        print(f", {seconds['BFS, flashmesh'] / seconds['BFS, Kuzu shortest']:.2f} x Kuzu", end="")
    print(f"\ntwo hops: {seconds['two hops, flashmesh'] / seconds['two hops, DuckDB']:.3f} x DuckDB")


def load_kuzu(parquet):
    """The graph in Kuzu."""
    import kuzu

    database = common.bench_dir() / "graph-kuzu"
    shutil.rmtree(database, ignore_errors=True)
    common.remove(database)
    connection = kuzu.Connection(kuzu.Database(str(database)), num_threads=common.THREADS)
    connection.execute("CREATE NODE TABLE v(id INT64 PRIMARY KEY)")
    connection.execute("CREATE REL TABLE e(FROM v TO v)")
    vertices = (1 << search_data.SCALE) - 1
    connection.execute(f"COPY v FROM (UNWIND range(0, {vertices}) AS id RETURN id)")
    connection.execute(f"COPY e FROM '{parquet}'")
    return connection


if __name__ == "__main__":
    main()
