"""Data of the benchmarks of search, neighbours, graphs and keys: seeded, so the same on every machine.

| file | what it is |
|---|---|
| log.parquet, log.txt | 8 million lines of words in Zipf's distribution; NEEDLE in 0.01 % of them |
| codes.npy, code_queries.npy | a million 256-bit codes in clusters, of which 12 % of the bits differ; 1,000 more |
| edges.parquet | an R-MAT graph (Graph500's parameters), scale 20, 16 edges a vertex |
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import common

SEED = 42
NEEDLE = "xqzt-needle"
LOG_BLOCKS, LOG_BLOCK_LINES = 80, 100_000
VOCABULARY, WORDS_A_LINE = 20_000, 16
NEEDLE_SHARE = 1e-4
CODES, CODE_BYTES, CLUSTERS, FLIPPED = 1_000_000, 32, 2_000, 0.12
SCALE, EDGES_A_VERTEX = 20, 16
VECTORS, DIMENSIONS, VECTOR_CLUSTERS, NOISE = 500_000, 128, 1_000, 0.6


def folder() -> Path:
    """Where the files are."""
    path = common.bench_dir() / "search"
    path.mkdir(exist_ok=True)
    return path


def log() -> tuple[Path, Path]:
    """The log as Parquet and as text."""
    parquet, text = folder() / "log.parquet", folder() / "log.txt"
    if parquet.exists() and text.exists():
        return parquet, text
    common.note("generating 8 million log lines")
    random = np.random.default_rng(SEED)
    words = np.array(
        ["".join(chr(97 + c) for c in random.integers(0, 26, random.integers(3, 11))) for _ in range(VOCABULARY)]
    )
    weights = 1 / np.arange(1, VOCABULARY + 1)
    weights /= weights.sum()
    levels = np.array(["INFO", "WARN", "ERROR", "DEBUG"])
    unfinished = parquet.with_suffix(".unfinished")
    writer = None
    with open(text, "w") as lines_file:
        for block in range(LOG_BLOCKS):
            lines = [" ".join(line) for line in random.choice(words, (LOG_BLOCK_LINES, WORDS_A_LINE), p=weights)]
            for i in np.flatnonzero(random.random(LOG_BLOCK_LINES) < NEEDLE_SHARE):
                lines[i] = f"{lines[i][:40]} {NEEDLE} {lines[i][40:]}"
            ids = np.arange(LOG_BLOCK_LINES) + block * LOG_BLOCK_LINES
            table = pa.table({
                "id": ids,
                "ts": pa.array(1_700_000_000_000_000 + ids * 1000, pa.timestamp("us")),
                "level": levels[random.choice(4, LOG_BLOCK_LINES, p=[0.8, 0.1, 0.02, 0.08])],
                "line": lines,
            })
            writer = writer or pq.ParquetWriter(unfinished, table.schema, compression="zstd")
            writer.write_table(table)
            lines_file.write("\n".join(lines) + "\n")
    writer.close()
    unfinished.rename(parquet)
    return parquet, text


def codes() -> tuple[np.ndarray, np.ndarray]:
    """Codes and queries, as rows of bytes."""
    files = folder() / "codes.npy", folder() / "code_queries.npy"
    if not all(file.exists() for file in files):
        random = np.random.default_rng(SEED)
        centres = random.integers(0, 256, (CLUSTERS, CODE_BYTES), dtype=np.uint8)

        def near(count: int) -> np.ndarray:
            flips = np.packbits(random.random((count, 8 * CODE_BYTES)) < FLIPPED, axis=1)
            return centres[random.integers(0, CLUSTERS, count)] ^ flips

        np.save(files[0], np.concatenate([near(100_000) for _ in range(CODES // 100_000)]))
        np.save(files[1], near(1_000))
    return np.load(files[0]), np.load(files[1])


def vectors() -> tuple[np.ndarray, np.ndarray]:
    """Vectors in clusters, and queries."""
    random = np.random.default_rng(1)
    centres = random.standard_normal((VECTOR_CLUSTERS, DIMENSIONS), dtype=np.float32)

    def near(count: int) -> np.ndarray:
        noise = NOISE * random.standard_normal((count, DIMENSIONS), dtype=np.float32)
        return (centres[random.integers(0, VECTOR_CLUSTERS, count)] + noise).astype(np.float32)

    return near(VECTORS), near(1_000)


def edges() -> Path:
    """The edges of an R-MAT graph (Chakrabarti, Zhan and Faloutsos, 2004)."""
    parquet = folder() / "edges.parquet"
    if not parquet.exists():
        random = np.random.default_rng(SEED)
        count = EDGES_A_VERTEX << SCALE
        source, target = np.zeros(count, np.int64), np.zeros(count, np.int64)
        for bit in range(SCALE):
            draw = random.random(count)
            # Quadrants of probability 0.57, 0.19, 0.19 and 0.05.
            source |= (draw >= 0.76).astype(np.int64) << bit
            target |= (((draw >= 0.57) & (draw < 0.76)) | (draw >= 0.95)).astype(np.int64) << bit
        names = random.permutation(1 << SCALE)
        pq.write_table(pa.table({"src": names[source], "dst": names[target]}), parquet)
    return parquet


def fixed_binary(rows: np.ndarray) -> pa.Array:
    """Rows of bytes as an Arrow array."""
    buffer = pa.py_buffer(np.ascontiguousarray(rows).tobytes())
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(rows.shape[1]), len(rows), [None, buffer])
