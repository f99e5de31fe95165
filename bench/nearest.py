"""Nearest neighbours: flashmesh against FAISS (codes) and Lance (vectors), in SQL, interleaved.

Exact: the ten nearest of a million 256-bit codes to one code, and to 100 in one
Program. With an lsh index: to 1,000 codes at once; and vectors of 128 floats one
query after the other, with a page cache of 32 MB.
"""

import argparse
import os

# FAISS's threads otherwise spin after each search, on the cores of whoever comes next.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import shutil
import time

import numpy as np
import pyarrow as pa

import common
import search_data

K = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--skip-vectors", action="store_true", help="codes only")
    arguments = parser.parse_args()
    print(common.describe_machine())
    search_codes(arguments.runs)
    if not arguments.skip_vectors:
        search_vectors()


def search_codes(runs: int) -> None:
    import faiss

    faiss.omp_set_num_threads(common.THREADS)
    codes, queries = search_data.codes()
    engine = fresh("nearest-codes")
    load(engine, "codes", {"id": np.arange(len(codes)), "code": search_data.fixed_binary(codes)})
    load(engine, "queries", {"q": search_data.fixed_binary(queries)})
    flat = faiss.IndexBinaryFlat(8 * codes.shape[1])
    flat.add(codes)
    one = f"SELECT id, hamming_distance(code, X'{queries[0].tobytes().hex()}') AS d FROM codes ORDER BY d LIMIT {K}"
    assert engine.run(one)["d"].to_pylist() == flat.search(queries[:1], K)[0][0].tolist()

    def batch(count: int) -> pa.Table:
        subquery = f"(SELECT q FROM queries LIMIT {count})"
        return engine.run(f"SELECT query, distance FROM nearest('codes', 'code', {subquery}, {K})")

    exact = flat.search(queries, K)[0]
    assert sum(batch(100)["distance"].to_pylist()) == int(exact[:100].sum())
    seconds = common.interleaved(
        {
            "one, flashmesh": lambda: engine.run(one),
            "one, FAISS flat": lambda: flat.search(queries[:1], K),
            "100 at once, flashmesh": lambda: batch(100),
            "100 at once, FAISS flat": lambda: flat.search(queries[:100], K),
        },
        runs,
    )
    for name, value in seconds.items():
        print(f"{name:32}{value * 1000:10.2f} ms")
    print(f"one query: {seconds['one, FAISS flat'] / seconds['one, flashmesh']:.2f} x FAISS's rate")
    print(f"100 at once: {seconds['100 at once, FAISS flat'] / seconds['100 at once, flashmesh']:.2f} x FAISS's rate")

    started = time.perf_counter()
    engine.execute("CREATE INDEX codes_lsh ON codes USING lsh (code)")
    print(f"lsh index on codes: built in {time.perf_counter() - started:.1f} s")
    ivf = faiss.IndexBinaryIVF(faiss.IndexBinaryFlat(256), 256, 1024)
    ivf.train(codes[:200_000])
    ivf.add(codes)
    ivf.nprobe = 16

    def recall(distances: np.ndarray) -> float:
        return float(np.mean([np.sum(found <= truth[-1]) / K for found, truth in zip(distances, exact)]))

    found = batch(len(queries)).group_by("query").aggregate([("distance", "list")]).sort_by("query")
    ours = recall(np.array([sorted(row) for row in found["distance_list"].to_pylist()]))
    theirs = recall(ivf.search(queries, K)[0])
    seconds = common.interleaved(
        {"flashmesh lsh": lambda: batch(len(queries)), "FAISS IVF": lambda: ivf.search(queries, K)}, runs
    )
    for name, value, quality in zip(seconds, seconds.values(), (ours, theirs)):
        print(f"{len(queries)} codes at once, {name:16}{len(queries) / value:10.0f} queries/s at recall {quality:.3f}")
    print(f"lsh: {seconds['FAISS IVF'] / seconds['flashmesh lsh']:.2f} x FAISS IVF's rate")
    engine.close()


def search_vectors() -> None:
    import faiss
    import lance

    vectors, queries = search_data.vectors()
    flat = faiss.IndexFlatL2(vectors.shape[1])
    flat.add(vectors)
    truth = flat.search(queries, K)[1]
    engine = fresh("nearest-vectors")
    lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), vectors.shape[1])
    load(engine, "vectors", {"id": np.arange(len(vectors)), "v": lists})
    started = time.perf_counter()
    engine.execute("CREATE INDEX vectors_lsh ON vectors USING lsh (v)")
    print(f"lsh index on vectors: built in {time.perf_counter() - started:.1f} s")
    engine.execute("SET flashmesh.cache_size = '32MB'")
    folder = common.bench_dir() / "vectors.lance"
    shutil.rmtree(folder, ignore_errors=True)
    dataset = lance.write_dataset(pa.table({"id": np.arange(len(vectors)), "v": lists}), str(folder))
    dataset.create_index("v", "IVF_PQ", num_partitions=512, num_sub_vectors=16)

    def by_flashmesh(query: np.ndarray) -> list[int]:
        vector = ",".join(map(repr, query.tolist()))
        return engine.run(f"SELECT id FROM nearest('vectors', 'v', [{vector}], {K})")["id"].to_pylist()

    def by_lance(query: np.ndarray) -> list[int]:
        nearest = {"column": "v", "q": query, "k": K, "nprobes": 50, "refine_factor": 20}
        return dataset.to_table(columns=["id", "_distance"], nearest=nearest)["id"].to_pylist()

    for name, search in (("flashmesh lsh, 32 MB cache", by_flashmesh), ("Lance IVF_PQ", by_lance)):
        search(queries[-1])
        started = time.perf_counter()
        found = [search(query) for query in queries[:200]]
        rate = 200 / (time.perf_counter() - started)
        quality = np.mean([len(set(ids) & set(expected)) / K for ids, expected in zip(found, truth)])
        print(f"{name:32}{rate:10.0f} queries/s at recall@10 {quality:.3f}", flush=True)
    engine.close()


def fresh(name: str) -> common.Flashmesh:
    """An empty database."""
    database = common.bench_dir() / name
    common.remove(database)
    return common.Flashmesh(database)


def load(engine: common.Flashmesh, table: str, columns: dict) -> None:
    """Makes a table of arrays, by way of a Parquet file."""
    import pyarrow.parquet as pq

    file = common.bench_dir() / f"{table}.{os.getpid()}.parquet"
    pq.write_table(pa.table(columns), file)
    engine.create_table(table, file)
    file.unlink()


if __name__ == "__main__":
    main()
