"""Rows by primary key: a million rows of 1 KB, flashmesh against RocksDB.

`get` of batches of random keys, warm (all cached) and from flash: flashmesh with
a page cache that holds its index but not the rows, RocksDB with direct reads, its
`multi_get`, and one thread each.
"""

import argparse
import random
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import common

ROWS, VALUE_BYTES = 1_000_000, 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=10_000)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--seed", type=int, default=42)
    arguments = parser.parse_args()
    generator = random.Random(arguments.seed)
    values = np.random.default_rng(arguments.seed).integers(0, 256, (ROWS, VALUE_BYTES), dtype=np.uint8)
    keys = np.random.default_rng(arguments.seed + 1).permutation(ROWS) * 7919

    flashmesh = load_flashmesh(keys, values)
    rocksdb = load_rocksdb(keys, values)
    print(common.describe_machine())

    def rate(get) -> float:
        seconds = []
        for _ in range(arguments.batches):
            wanted = [int(keys[i]) for i in generator.sample(range(ROWS), arguments.batch)]
            started = time.perf_counter()
            found = get(wanted)
            seconds.append(time.perf_counter() - started)
            assert found == len(wanted), (found, len(wanted))
        return arguments.batch / common.median(seconds)

    def by_flashmesh(wanted: list[int]) -> int:
        return flashmesh.connection.table("kv").get(wanted).to_arrow_table().num_rows

    def by_rocksdb(wanted: list[int]) -> int:
        return len(rocksdb.get([key.to_bytes(8, "big") for key in wanted]))

    flashmesh.execute("SET flashmesh.cache_size = '16MB'")
    by_flashmesh([int(key) for key in keys[: arguments.batch]])
    cold = {"flashmesh": rate(by_flashmesh), "RocksDB multi_get, direct reads": rate(by_rocksdb)}
    flashmesh.execute("SET flashmesh.cache_size = '4GB'")
    flashmesh.run("SELECT count(*) FROM kv WHERE v = X'00'")
    warm = rate(by_flashmesh)
    for name, value in cold.items():
        print(f"from flash, {name:36}{value:12.0f} gets/s")
    print(f"from flash: {cold['flashmesh'] / cold['RocksDB multi_get, direct reads']:.2f} x RocksDB's rate")
    print(f"cached, {'flashmesh':40}{warm:12.0f} gets/s")


def load_flashmesh(keys, values):
    database = common.bench_dir() / "keys-flashmesh"
    common.remove(database)
    engine = common.Flashmesh(database)
    file = common.bench_dir() / "keys.parquet"
    buffer = pa.py_buffer(values.tobytes())
    offsets = pa.py_buffer((np.arange(ROWS + 1, dtype=np.int64) * VALUE_BYTES).tobytes())
    column = pa.LargeBinaryArray.from_buffers(pa.large_binary(), ROWS, [None, offsets, buffer])
    pq.write_table(pa.table({"k": keys, "v": column}), file, compression="none")
    engine.execute("CREATE TABLE kv (k BIGINT PRIMARY KEY, v BYTEA)")
    engine.execute(f"INSERT INTO kv SELECT k, v FROM '{file}'")
    file.unlink()
    return engine


def load_rocksdb(keys, values):
    from rocksdict import BlockBasedOptions, Cache, Options, Rdict

    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_use_direct_reads(True)
    blocks = BlockBasedOptions()
    blocks.set_block_cache(Cache(8 << 20))
    blocks.set_block_size(8192)
    blocks.set_bloom_filter(10, False)
    options.set_block_based_table_factory(blocks)
    database = common.bench_dir() / "keys-rocksdb"
    common.remove(database)
    store = Rdict(str(database), options)
    for key, value in zip(keys, values):
        store[int(key).to_bytes(8, "big")] = value.tobytes()
    store.flush()
    store.compact_range(None, None)
    return store


if __name__ == "__main__":
    main()
