"""Kernels that do not end: whoever asked for them leaves or is killed, and nobody else waits."""

import base64
import threading

import adbc_driver_manager
import pytest
from serving import eventually, execute, rows

# A call ends by itself after ten seconds, and a segment of a table is a call for each 8,192 rows.
SOON = 8


def number(value: int) -> bytes:
    """LEB128."""
    low, high = value & 0x7F, value >> 7
    return bytes([low]) if high == 0 else bytes([low | 0x80]) + number(high)


def section(id: int, content: bytes) -> bytes:
    return bytes([id]) + number(len(content)) + content


def named(name: str) -> bytes:
    return number(len(name)) + name.encode()


def spinning() -> str:
    """CREATE FUNCTION of `spin(x BIGINT) RETURNS BIGINT`, whose calls loop for ever."""
    manifest = (
        '[kernel]\nname = "spin"\nkind = "scalar"\nversion = "1.0.0"\n'
        'signature = "(x BIGINT) RETURNS BIGINT"\n[limits]\ntime_per_call_ms = 10000\n'
    )
    loop = b"\x00\x03\x40\x0c\x00\x0b\x0b"
    module = b"\0asm\x01\0\0\0" + b"".join(
        [
            section(1, b"\x01\x60\x03\x7f\x7f\x7f\x00"),
            section(3, b"\x01\x00"),
            section(5, b"\x01\x00\x01"),
            section(7, b"\x02" + named("memory") + b"\x02\x00" + named("spin") + b"\x00\x00"),
            section(10, b"\x01" + number(len(loop)) + loop),
            section(0, named("flashmesh.manifest") + manifest.encode()),
            section(0, named("flashmesh.source") + b"0" * 64),
        ]
    )
    package = base64.b64encode(module).decode()
    return f"CREATE FUNCTION spin() LANGUAGE hls AS 'data:application/wasm;base64,{package}'"


@pytest.fixture
def spinner(start):
    server = start("--threads", 2)
    with server.connect() as connection:
        execute(connection, spinning())
        execute(connection, "CREATE TABLE t AS SELECT value AS a FROM generate_series(1, 100000) AS s(value)")
        execute(connection, "CREATE TABLE made (a BIGINT)")
        yield server, connection


def within(seconds: float, work) -> object:
    """What `work` gives; fails when it takes longer."""
    result = []
    thread = threading.Thread(target=lambda: result.append(work()), daemon=True)
    thread.start()
    thread.join(seconds)
    assert result, f"no answer within {seconds} s"
    return result[0]


def test_planning_runs_no_kernels(spinner):
    server, connection = spinner
    calls = " + ".join(f"spin({i})" for i in range(20))
    plan = within(SOON, lambda: rows(connection, f"EXPLAIN SELECT {calls}"))
    assert "spin(" in str(plan)


@pytest.mark.parametrize("statement", ["SELECT sum(spin(a)) FROM t", "SELECT spin(7)", "INSERT INTO made SELECT spin(a) FROM t"])
def test_a_query_that_is_killed_ends(spinner, statement):
    server, connection = spinner
    sqls = [f"{statement} -- {i}" for i in range(4)]
    ends = []

    def run(sql: str) -> None:
        with server.connect() as own:
            try:
                rows(own, sql)
            except adbc_driver_manager.Error as error:
                ends.append(str(error))

    threads = [threading.Thread(target=run, args=[sql], daemon=True) for sql in sqls]
    for thread in threads:
        thread.start()
    ids = [server.running(sql)["id"] for sql in sqls]
    # While twice as many kernels as threads run, others are answered.
    assert within(SOON, lambda: rows(connection, "SELECT count(*) FROM t")) == [(100_000,)]
    eventually(lambda: server.metrics()["memory_used_bytes"] > 0, "kernels run")
    for id in ids:
        within(SOON, lambda id=id: execute(connection, f"KILL QUERY {id}"))
    for thread in threads:
        thread.join(SOON)
    assert len(ends) == 4 and all("cancel" in end.lower() for end in ends), ends
    # A kernel that runs holds its memory.
    eventually(lambda: server.metrics()["memory_used_bytes"] == 0, "their kernels end", SOON)


def test_a_query_out_of_its_time_ends(start):
    server = start("--threads", 2, "--query-time-limit", "1s")
    with server.connect() as connection:
        execute(connection, spinning())
        with pytest.raises(adbc_driver_manager.Error, match="query-time-limit"):
            rows(connection, "SELECT spin(1)")
        eventually(lambda: server.metrics()["memory_used_bytes"] == 0, "its kernels end", SOON)
