"""YCSB's workloads A, B, C and F: flashmesh against RocksDB with synced writes.

To the definition of the core workload (Cooper et al., SoCC 2010; YCSB 0.17): records of ten fields of
100 bytes under keys `user` + the FNV hash of their number; keys asked for by the scrambled zipfian
distribution of constant 0.99; a read gives all fields, an update sets one of them. A: half reads, half
updates; B: 95 % reads; C: reads alone; F: half reads, half read-modify-writes, which are a read and an
update. Eight client threads do the operations of a run.

An update is what YCSB's binding of RocksDB makes of it, in both: the record is got, one field of it is
replaced, and the record is put, durable when the call returns. Both have a cache of the same size, and
flashmesh a page cache of its own where RocksDB also has the kernel's. Each run goes through the
workloads, and in each the engines take turns with the same operations. At the end a sample of the
records is looked at.
"""

import argparse
import random
import threading

import numpy as np
import pyarrow as pa

import common

FIELDS, FIELD_BYTES = 10, 100
NAMES = [f"field{number}" for number in range(FIELDS)]
# Share of reads; the others are updates, or read-modify-writes.
WORKLOADS = {"A": 0.5, "B": 0.95, "C": 1.0, "F": 0.5}
ZIPFIAN = 0.99
# The zipfian distribution is one of so many items, whose ranks are hashed to the records.
RANKS = 10_000_000_000
LOAD_BATCH = 20_000


def fnv_hash(numbers: np.ndarray) -> np.ndarray:
    """The 64-bit FNV-1a hash of each number's eight bytes, lowest first, as YCSB has it: not negative."""
    hashes = np.full(numbers.shape, 0xCBF29CE484222325, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for byte in range(8):
            octet = (numbers.astype(np.uint64) >> np.uint64(8 * byte)) & np.uint64(0xFF)
            hashes = (hashes ^ octet) * np.uint64(1099511628211)
    return np.abs(hashes.view(np.int64)).astype(np.uint64)


def zeta(count: int) -> float:
    """The sum of 1 / i ** ZIPFIAN for i from 1 to `count`: the first million terms, then Euler and Maclaurin."""
    exact = min(count, 1_000_000)
    total = float(np.sum(np.arange(1, exact + 1, dtype=np.float64) ** -ZIPFIAN))
    if count > exact:
        power = 1 - ZIPFIAN
        total += (count**power - exact**power) / power + (count**-ZIPFIAN - exact**-ZIPFIAN) / 2
    return total


def chosen_records(generator: np.random.Generator, count: int, records: int) -> np.ndarray:
    """Numbers of records by the scrambled zipfian distribution (Gray et al., SIGMOD 1994)."""
    total, of_two = zeta(RANKS), zeta(2)
    alpha = 1 / (1 - ZIPFIAN)
    eta = (1 - (2 / RANKS) ** (1 - ZIPFIAN)) / (1 - of_two / total)
    uniform = generator.random(count)
    ranks = (RANKS * (eta * uniform - eta + 1) ** alpha).astype(np.int64)
    ranks = np.where(uniform * total < of_two, 1, ranks)
    ranks = np.where(uniform * total < 1, 0, ranks)
    return (fnv_hash(ranks) % np.uint64(records)).astype(np.int64)


def keys_of(numbers: np.ndarray) -> list[str]:
    return [f"user{value}" for value in fnv_hash(numbers)]


def texts(generator: np.random.Generator, count: int) -> np.ndarray:
    """So many fields' bytes, printable ones."""
    return generator.integers(32, 127, (count, FIELD_BYTES), dtype=np.uint8)


class Flashmesh:
    name = "flashmesh"

    def __init__(self, folder, cache: int, layout: str):
        self.connection = common.Flashmesh(folder, cache_size=cache).connection
        columns = ", ".join(f"{name} VARCHAR" for name in NAMES)
        # Whole records are read and written.
        self.connection.execute(
            f"CREATE TABLE usertable (ycsb_key VARCHAR PRIMARY KEY, {columns}) WITH (layout = '{layout}')"
        )

    def load(self, keys: list[str], fields: list[np.ndarray]):
        offsets = pa.py_buffer((np.arange(len(keys) + 1, dtype=np.int32) * FIELD_BYTES).tobytes())
        columns = [
            pa.StringArray.from_buffers(len(keys), offsets, pa.py_buffer(field.tobytes())) for field in fields
        ]
        rows = pa.table([pa.array(keys), *columns], names=["ycsb_key", *NAMES])
        self.connection.load("usertable", rows, mode="append")

    def loaded(self):
        self.connection.execute("VACUUM usertable")

    def read(self, key: str) -> dict[str, str]:
        record = self.connection.get_one("usertable", key)
        del record["ycsb_key"]
        return record

    def update(self, key: str, name: str, value: str):
        record = self.connection.get_one("usertable", key)
        self.connection.put("usertable", [{**record, name: value}])

    def count(self) -> int:
        return self.connection.sql("SELECT count(*) FROM usertable").fetchall()[0][0]

    def close(self):
        self.connection.close()


class RocksDB:
    name = "RocksDB"

    def __init__(self, folder, cache: int):
        from rocksdict import BlockBasedOptions, Cache, Options, Rdict, WriteOptions

        options = Options(raw_mode=True)
        options.create_if_missing(True)
        blocks = BlockBasedOptions()
        blocks.set_block_cache(Cache(cache))
        blocks.set_bloom_filter(10, False)
        options.set_block_based_table_factory(blocks)
        self.store = Rdict(str(folder), options)
        self.durable = WriteOptions()
        self.durable.sync = True

    def load(self, keys: list[str], fields: list[np.ndarray]):
        from rocksdict import WriteBatch

        batch = WriteBatch(raw_mode=True)
        for row, key in enumerate(keys):
            batch.put(key.encode(), b"".join(field[row].tobytes() for field in fields))
        self.store.write(batch)

    def loaded(self):
        self.store.flush()
        self.store.compact_range(None, None)
        self.store.set_write_options(self.durable)

    def read(self, key: str) -> dict[str, str]:
        record = self.store[key.encode()]
        starts = range(0, FIELDS * FIELD_BYTES, FIELD_BYTES)
        return {name: record[at : at + FIELD_BYTES].decode() for name, at in zip(NAMES, starts)}

    def update(self, key: str, name: str, value: str):
        record = self.store[key.encode()]
        at = NAMES.index(name) * FIELD_BYTES
        self.store[key.encode()] = record[:at] + value.encode() + record[at + FIELD_BYTES :]

    def count(self) -> int:
        return sum(1 for _ in self.store.keys())

    def close(self):
        self.store.close()


class Operations:
    """What a run does, made before it: keys, whether each is read alone, and what is written."""

    def __init__(self, generator: np.random.Generator, count: int, records: int, workload: str):
        self.modifies = workload == "F"
        self.keys = keys_of(chosen_records(generator, count, records))
        self.reads = (generator.random(count) < WORKLOADS[workload]).tolist()
        self.names = [NAMES[field] for field in generator.integers(0, FIELDS, count)]
        self.values = [row.tobytes().decode() for row in texts(generator, count)]

    def of_client(self, engine, client: int, clients: int):
        for at in range(client, len(self.keys), clients):
            key = self.keys[at]
            if self.reads[at] or self.modifies:
                assert len(engine.read(key)) == FIELDS
            if not self.reads[at]:
                engine.update(key, self.names[at], self.values[at])


def rate(engine, operations: Operations, clients: int) -> float:
    """Operations a second."""
    failed = []

    def run(client: int):
        try:
            operations.of_client(engine, client, clients)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=run, args=(client,)) for client in range(clients)]

    def all_of_them():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    seconds = common.timed(all_of_them)
    if failed:
        raise failed[0]
    return len(operations.keys) / seconds


class Written:
    """Which values a field may have at the end: that which was loaded, or one that was written."""

    def __init__(self, numbers: list[int]):
        self.numbers = numbers
        self.values = {}

    def add_loaded(self, first: int, keys: list[str], fields: list[np.ndarray]):
        for number in self.numbers:
            if first <= number < first + len(keys):
                for name, field in zip(NAMES, fields):
                    self.values[keys[number - first], name] = {field[number - first].tobytes().decode()}

    def add(self, operations: Operations):
        for key, is_read, name, value in zip(operations.keys, operations.reads, operations.names, operations.values):
            if not is_read and (key, name) in self.values:
                self.values[key, name].add(value)

    def difference(self, engine) -> str | None:
        for key in {key for key, _ in self.values}:
            for name, value in engine.read(key).items():
                if value not in self.values[key, name]:
                    return f"{name} of {key} is {value!r}, which nobody wrote"
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--operations", type=int, default=20_000, help="of each workload in each run")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--cache-mb", type=int, default=2048, help="page cache, and RocksDB's block cache")
    parser.add_argument("--layout", choices=("pax", "column"), default="pax", help="of flashmesh's table")
    parser.add_argument("--workload", action="append", choices=list(WORKLOADS), help="only this one; may be repeated")
    parser.add_argument("--seed", type=int, default=42)
    arguments = parser.parse_args()
    generator = np.random.default_rng(arguments.seed)
    workloads = arguments.workload or list(WORKLOADS)

    engines = []
    for make, options in ((Flashmesh, {"layout": arguments.layout}), (RocksDB, {})):
        folder = common.bench_dir() / f"ycsb-{make.name}"
        common.remove(folder)
        engines.append(make(folder, arguments.cache_mb << 20, **options))
    # The records that are asked for most are among them.
    popular = chosen_records(np.random.default_rng(arguments.seed), 200, arguments.records).tolist()
    others = random.Random(arguments.seed).sample(range(arguments.records), min(200, arguments.records))
    written = Written(sorted({*popular, *others}))
    for first in range(0, arguments.records, LOAD_BATCH):
        count = min(LOAD_BATCH, arguments.records - first)
        keys = keys_of(np.arange(first, first + count))
        fields = [texts(generator, count) for _ in NAMES]
        written.add_loaded(first, keys, fields)
        for engine in engines:
            engine.load(keys, fields)
    for engine in engines:
        engine.loaded()
    common.note(f"{arguments.records} records are loaded")

    rates = {(workload, engine.name): [] for workload in workloads for engine in engines}
    # The first run warms the caches.
    for run in range(arguments.runs + 1):
        for workload in workloads:
            operations = Operations(generator, arguments.operations, arguments.records, workload)
            written.add(operations)
            for engine in engines[:: -1 if run % 2 else 1]:
                figure = rate(engine, operations, arguments.clients)
                if run > 0:
                    rates[workload, engine.name].append(figure)
    different = []
    for engine in engines:
        if engine.count() != arguments.records:
            different.append(f"{engine.name} has {engine.count()} records")
        if difference := written.difference(engine):
            different.append(f"{engine.name}: {difference}")
        engine.close()
        common.remove(common.bench_dir() / f"ycsb-{engine.name}")

    print(common.describe_machine(("flashmesh", "rocksdict")))
    print(
        f"YCSB, {arguments.records} records, {arguments.clients} clients, operations a second, "
        f"medians of {arguments.runs} runs of {arguments.operations}\n"
    )
    print(f"{'':12}" + "".join(f"{engine.name:>12}" for engine in engines) + f"{'ratio':>8}")
    for workload in workloads:
        ours, theirs = (common.median(rates[workload, engine.name]) for engine in engines)
        print(f"{workload:12}{ours:12.0f}{theirs:12.0f}{ours / theirs:8.2f}")
    for text in different:
        print(f"DIFFERENT {text}")
    return 1 if different else 0


if __name__ == "__main__":
    raise SystemExit(main())
