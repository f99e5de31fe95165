"""Bulk ingest through the ADBC driver: every mode, and all or nothing."""

import random

import adbc_driver_manager
import pyarrow as pa
import pytest
from serving import PATIENCE, eventually, rows

SOME = pa.table({"id": [1, 2, 3], "name": ["a", None, ""]})


def ingest(connection, table: str, data, mode: str, **options) -> int:
    with connection.cursor() as cursor:
        return cursor.adbc_ingest(table, data, mode=mode, **options)


def count(connection, table: str) -> int:
    [(count,)] = rows(connection, f"SELECT count(*) FROM {table}")
    return count


def test_modes(connection, table):
    with pytest.raises(adbc_driver_manager.ProgrammingError, match="does not exist"):
        ingest(connection, table, SOME, "append")
    assert ingest(connection, table, SOME, "create") == 3
    with pytest.raises(adbc_driver_manager.ProgrammingError, match="already exists"):
        ingest(connection, table, SOME, "create")
    assert ingest(connection, table, SOME, "append") == 3
    assert count(connection, table) == 6
    assert ingest(connection, table, SOME.slice(1), "replace") == 2
    assert rows(connection, f"SELECT * FROM {table} ORDER BY id") == [(2, None), (3, "")]
    assert ingest(connection, table, SOME, "create_append") == 3
    assert ingest(connection, f"{table}_new", SOME, "create_append") == 3
    # The driver sends nothing at all for a stream without batches; one batch of no rows it sends.
    empty = pa.RecordBatchReader.from_batches(SOME.schema, [SOME.to_batches()[0].slice(3)])
    assert ingest(connection, f"{table}_empty", empty, "create") == 0
    assert count(connection, f"{table}_empty") == 0
    assert ingest(connection, f"{table}_schema", SOME, "create", db_schema_name="public") == 3


def test_what_is_not_supported_is_refused(connection, table):
    for options in [{"temporary": True, "db_schema_name": "public"}, {"catalog_name": "elsewhere"}, {"db_schema_name": "system"}]:
        with pytest.raises(adbc_driver_manager.Error):
            ingest(connection, table, SOME, "create", **options)
    with pytest.raises(adbc_driver_manager.Error, match=table):
        count(connection, table)


def test_many_batches_arrive_whole(connection, table):
    seed = random.randrange(2**32)
    print("seed", seed)
    generator = random.Random(seed)
    schema = pa.schema({"id": pa.int64(), "text": pa.string()})
    sizes = [generator.randrange(100_000) for _ in range(8)]

    def batches():
        start = 0
        for size in sizes:
            ids = range(start, start + size)
            yield pa.record_batch([pa.array(ids), pa.array([f"row {id}" for id in ids])], schema=schema)
            start += size

    total = sum(sizes)
    reader = pa.RecordBatchReader.from_batches(schema, batches())
    assert ingest(connection, table, reader, "create") == total
    checked = f"SELECT count(*), sum(id), count(*) FILTER (WHERE text = 'row ' || id) FROM {table}"
    assert rows(connection, checked) == [(total, total * (total - 1) // 2, total)]


@pytest.mark.parametrize("mode", ["create", "append", "replace"])
def test_a_stream_that_breaks_leaves_nothing(server, connection, table, mode):
    schema = SOME.schema
    text, before = f"bulk ingest into {table} ", 0
    if mode != "create":
        ingest(connection, table, SOME, "create")
        before = server.ended(text)["id"]

    def batches():
        for start in range(0, 1_000_000, 100_000):
            if start == 800_000:
                raise ValueError("the reader broke")
            ids = pa.array(range(start, start + 100_000))
            yield pa.record_batch([ids, ids.cast(pa.string())], schema=schema)

    reader = pa.RecordBatchReader.from_batches(schema, batches())
    with pytest.raises(adbc_driver_manager.Error, match="the reader broke"):
        ingest(connection, table, reader, mode)
    # The server may hear of it later than its client is told.
    eventually(lambda: (server.query(text) or {"id": 0})["id"] > before, "the server has it")
    assert server.ended(text)["state"] in ("cancelled", "failed")
    if mode == "create":
        with pytest.raises(adbc_driver_manager.Error, match=table):
            count(connection, table)
    else:
        assert rows(connection, f"SELECT * FROM {table} ORDER BY id") == [(1, "a"), (2, None), (3, "")]
    # The table is not left locked.
    assert ingest(connection, table, SOME, "create_append") == 3
    eventually(lambda: server.metrics()["memory_used_bytes"] == 0, f"memory is given back within {PATIENCE} s")


def test_columns_must_match(connection, table):
    ingest(connection, table, SOME, "create")
    with pytest.raises(adbc_driver_manager.Error):
        ingest(connection, table, pa.table({"id": ["not a number"], "name": ["x"]}), "append")
    with pytest.raises(adbc_driver_manager.Error):
        ingest(connection, table, pa.table({"other": [1]}), "append")
    assert count(connection, table) == 3


def test_what_is_in_the_way_and_what_is_missing_have_kinds_of_their_own(connection, table):
    ingest(connection, table, SOME, "create")
    for other in [pa.table({"other": [1]}), pa.table({"id": [[1]], "name": ["x"]})]:
        for mode in ["create_append", "append"]:
            with pytest.raises(adbc_driver_manager.Error) as refused:
                ingest(connection, table, other, mode)
            assert refused.value.status_code == adbc_driver_manager.AdbcStatusCode.ALREADY_EXISTS
    with pytest.raises(adbc_driver_manager.Error, match="nowhere") as refused:
        ingest(connection, table, SOME, "create", db_schema_name="nowhere")
    assert refused.value.status_code == adbc_driver_manager.AdbcStatusCode.NOT_FOUND
    assert count(connection, table) == 3
