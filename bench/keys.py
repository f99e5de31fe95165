"""Rows by primary key: a million rows of 1 KB, flashmesh against RocksDB.

`get` of batches of random keys, cached and from flash: flashmesh with a page cache
that holds its index but not the rows, RocksDB with direct reads and its `multi_get`.
fio reads the same file in the same run.
"""

import argparse
import random
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import common

ROWS, VALUE_BYTES = 1_000_000, 1_000
# Fewer keys than twice 512 are one thread's work.
BATCH, ONE_THREAD_BATCH = 10_000, 1_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=10)
    parser.add_argument("--seed", type=int, default=42)
    arguments = parser.parse_args()
    generator = random.Random(arguments.seed)
    values = np.random.default_rng(arguments.seed).integers(0, 256, (ROWS, VALUE_BYTES), dtype=np.uint8)
    keys = np.random.default_rng(arguments.seed + 1).permutation(ROWS) * 7919

    flashmesh = load_flashmesh(keys, values)
    rocksdb = load_rocksdb(keys, values)
    print(common.describe_machine())

    def rate(get, batch: int) -> float:
        seconds = []
        for _ in range(arguments.batches):
            wanted = [int(keys[i]) for i in generator.sample(range(ROWS), batch)]
            arrow = pa.array(wanted)
            started = time.perf_counter()
            found = get(wanted, arrow)
            seconds.append(time.perf_counter() - started)
            assert found == batch, (found, batch)
        return batch / common.median(seconds)

    def by_flashmesh(_: list[int], arrow: pa.Array) -> int:
        return flashmesh.connection.table("kv").get(arrow).to_arrow_table().num_rows

    def by_rocksdb(wanted: list[int], _: pa.Array) -> int:
        return len(rocksdb.get([key.to_bytes(8, "big") for key in wanted]))

    flashmesh.execute("SET flashmesh.cache_size = '16MB'")
    rate(by_flashmesh, BATCH)
    fio = fio_reads_per_second(common.bench_dir() / "keys-flashmesh" / "card0.flash")
    both = rate(by_flashmesh, BATCH)
    one = rate(by_flashmesh, ONE_THREAD_BATCH)
    theirs = rate(by_rocksdb, BATCH)
    flashmesh.execute("SET flashmesh.cache_size = '4GB'")
    for start in range(0, ROWS, 10 * BATCH):
        by_flashmesh([], pa.array(keys[start : start + 10 * BATCH]))
    cached = rate(by_flashmesh, BATCH)

    print(f"{'fio, random reads of 8 KiB, depth 128':44}{fio:12.0f} a second")
    print(f"{'flashmesh, from flash, ' + str(BATCH) + ' keys a command':44}{both:12.0f} gets/s   {both / fio:.0%} of fio")
    print(f"{'flashmesh, ' + str(ONE_THREAD_BATCH) + ' keys a command, one thread':44}{one:12.0f} gets/s")
    print(f"{'RocksDB, multi_get, direct reads, one thread':44}{theirs:12.0f} gets/s")
    print(f"one thread: {one / theirs:.2f} x RocksDB's rate")
    print(f"{'flashmesh, cached':44}{cached:12.0f} gets/s")


def fio_reads_per_second(file: Path) -> float:
    """What the device gives."""
    options = ["--rw=randread", "--bs=8k", "--iodepth=128", "--runtime=5", "--time_based"]
    return common.fio_read(file, *options)["iops"]


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
