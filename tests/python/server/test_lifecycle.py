"""Queries that are cancelled, clients that vanish, limits, and how a server ends."""

import base64
import contextlib
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import adbc_driver_manager
import grpc
import pytest
from serving import ENDLESS, PATIENCE, Server, add_user, eventually, execute, rows

# A client that tells when it has the first batch and then neither reads on nor goes away.
STALLED_CLIENT = """
import sys
import adbc_driver_flightsql.dbapi
connection = adbc_driver_flightsql.dbapi.connect(sys.argv[1], autocommit=True)
cursor = connection.cursor()
cursor.execute(sys.argv[2])
reader = cursor.fetch_record_batch()
reader.read_next_batch()
print("fetching", flush=True)
sys.stdin.read()
"""

# Looks at 10^11 pairs of rows for each batch.
GREEDY = (
    "SELECT count(*) FROM generate_series(1, 10000000) AS a(x), generate_series(1, 10000000) AS b(y) "
    "WHERE x * y < 0 /* {} */"
)

# So many rows that no buffer on the way holds them.
LONG = "SELECT value, 'some text ' || value AS t FROM generate_series(1, 100000000000) AS s(value) /* {} */"


def nothing_is_left(server) -> None:
    """No query runs, none holds memory, nor a place among those that may run."""

    def is_quiet() -> bool:
        metrics = server.metrics()
        return metrics["queries_running"] == metrics["queries_waiting"] == metrics["memory_used_bytes"] == 0

    eventually(is_quiet, "running queries and their memory are gone")


def test_times_of_queries_have_a_bucket_for_all(server):
    with server.connect() as connection:
        rows(connection, "SELECT 1")
    eventually(lambda: server.metrics()["query_seconds_count"] >= 1, "the query is counted")
    metrics = server.metrics()
    # What is at most +Inf is all: histogram_quantile looks for it.
    assert metrics['query_seconds_bucket{le="+Inf"}'] == metrics["query_seconds_count"]


@pytest.fixture
def endless(server, table):
    """A query that does not end, in a thread, and what its client raised."""
    raised = []
    connection = server.connect()
    cursor = connection.cursor()

    def run() -> None:
        try:
            cursor.execute(ENDLESS.format(table))
            cursor.fetchall()
        except adbc_driver_manager.Error as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    query = server.running(table)
    yield query["id"], cursor, lambda: (thread.join(PATIENCE), raised)[1]
    cursor.adbc_cancel()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    cursor.close()
    connection.close()


def test_cancel(server, endless, table):
    _, cursor, outcome = endless
    cursor.adbc_cancel()
    [error] = outcome()
    assert error.status_code == adbc_driver_manager.AdbcStatusCode.CANCELLED
    assert server.ended(table)["state"] == "cancelled"
    nothing_is_left(server)


def test_kill_query(server, connection, endless, table):
    id, _, outcome = endless
    listed = rows(connection, "SELECT id, state, \"user\" FROM system.queries WHERE id = ?", (id,))
    assert listed == [(id, "running", "anonymous")]
    execute(connection, f"KILL QUERY {id}")
    [error] = outcome()
    assert "cancelled" in str(error)
    assert server.ended(table)["state"] == "cancelled"
    nothing_is_left(server)
    with pytest.raises(adbc_driver_manager.Error, match=f"no query {id}"):
        execute(connection, f"KILL QUERY {id}")


def test_the_log_of_queries(server, connection, table):
    execute(connection, f"CREATE TABLE {table} AS SELECT value AS id FROM generate_series(1, 1000) AS s(value)")
    rows(connection, f"SELECT id FROM {table} WHERE id > 990")
    with pytest.raises(adbc_driver_manager.Error):
        rows(connection, f"SELECT 1 / (id - id) FROM {table}")
    server.ended(f"(id - id) FROM {table}")
    log = rows(
        connection,
        f"""SELECT query, state, rows, plan, error, took_ms >= 0 FROM system.queries
            WHERE query LIKE '%{table}%' AND query NOT LIKE '%system.queries%' ORDER BY id""",
    )
    (_, created, changed, *_), (_, asked, fetched, plan, *_), (*_, failed, _, _, error, _) = log
    assert (created, changed, asked, fetched, failed) == ("finished", 1000, "finished", 10, "failed")
    assert "FlashScanExec" in plan and "pushed" in plan
    assert "ivide" in error
    metrics = server.metrics()
    assert metrics['queries_total{state="failed"}'] >= 1 and metrics["rows_sent_total"] >= 10


@pytest.mark.parametrize("statement", [ENDLESS, LONG])
def test_a_client_that_vanishes_frees_all(server, table, statement):
    sql = statement.format(table)
    before = server.metrics()
    client = subprocess.Popen(
        [sys.executable, "-c", STALLED_CLIENT, server.uri, sql], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        if statement is LONG:
            assert client.stdout.readline() == "fetching\n"
            assert server.query(table)["rows"] > 0
        server.running(table)
    finally:
        client.kill()
        client.communicate()
    assert server.ended(table)["state"] == "cancelled"
    nothing_is_left(server)
    eventually(lambda: server.metrics()["connections"] <= before["connections"], "its connection is gone")
    eventually(lambda: server.metrics()["sessions"] <= before["sessions"], "its session is gone")


def test_the_servers_memory_stays_bounded_while_a_client_reads_nothing(server, table):
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(LONG.format(table))
        reader = cursor.fetch_record_batch()
        reader.read_next_batch()
        rows_sent = eventually(lambda: server.query(table)["rows"], "rows are sent")
        # Whatever is sent ahead, it is a few windows of the connection and not the result.
        assert rows_sent < 100_000_000
        reader.close()
    assert server.ended(table)["state"] == "cancelled"


def test_no_query_keeps_the_server_from_answering(tmp_path, table):
    server = Server(tmp_path, "--threads", "2")
    client = subprocess.Popen(
        [sys.executable, "-c", STALLED_CLIENT, server.uri, GREEDY.format(table)], stdin=subprocess.PIPE, text=True
    )
    try:
        id = server.running(table)["id"]
        # It holds the rows of one side: the join begins.
        eventually(lambda: server.metrics()["memory_used_bytes"] >= 80_000_000, "the join begins")
        server.kill_query(id)
        assert server.ended(table)["state"] == "cancelled"
        assert server.metrics()["queries_running"] == 0
        # The join looks at 10^11 pairs of rows before it gives its thread up, unless it is stopped.
        nothing_is_left(server)
    finally:
        client.kill()
        client.communicate()
        server.kill()


def test_time_limit(start, table):
    server = start("--query-time-limit", "1s")
    with server.connect() as connection:
        with pytest.raises(adbc_driver_manager.Error, match="longer than the server allows"):
            rows(connection, ENDLESS.format(table))
        assert server.ended(table)["state"] == "failed"
        assert rows(connection, "SELECT 1") == [(1,)]


def test_queries_beyond_the_limit_wait_and_then_are_refused(start, table):
    server = start("--max-queries", "1", "--queue-time", "1s")
    with server.connect() as one, server.connect() as other, ThreadPoolExecutor() as threads:
        first = threads.submit(rows, one, ENDLESS.format(table))
        id = server.running(table)["id"]
        with pytest.raises(adbc_driver_manager.Error, match="runs 1 queries, which is its limit"):
            rows(other, "SELECT 1")
        server.kill_query(id)
        with pytest.raises(adbc_driver_manager.Error, match="cancelled"):
            first.result(PATIENCE)
        assert rows(other, "SELECT 1") == [(1,)]


def test_a_full_server_can_be_looked_at(start, table):
    server = start("--max-queries", "1", "--queue-time", "1s")
    look = f"SELECT id, segments_done, segments FROM system.queries AS q WHERE state = 'running' AND query = '{ENDLESS.format(table)}'"
    with server.connect() as one, server.connect() as other, ThreadPoolExecutor() as threads:
        first = threads.submit(rows, one, ENDLESS.format(table))
        id = server.running(table)["id"]
        assert rows(other, f"{look} ORDER BY id LIMIT 1") == [(id, 0, 0)]
        # More than a look is a query as any other.
        for more in (
            "SELECT count(*) FROM system.queries",
            "SELECT id FROM system.queries WHERE id IN (SELECT id FROM system.queries)",
            "SELECT a.id FROM system.queries AS a, system.queries AS b",
        ):
            with pytest.raises(adbc_driver_manager.Error, match="runs 1 queries, which is its limit"):
                rows(other, more)
        execute(other, f"KILL QUERY {id}")
        with pytest.raises(adbc_driver_manager.Error, match="cancelled"):
            first.result(PATIENCE)
        asked = [query["sql"] for query in server.overview()["queries"]]
        assert f"KILL QUERY {id}" in asked and not any(sql.startswith(look) for sql in asked)


def test_a_query_gets_its_turn_when_another_ends(start, table):
    server = start("--max-queries", "1", "--queue-time", "60s")
    with server.connect() as one, server.connect() as other, ThreadPoolExecutor() as threads:
        first = threads.submit(rows, one, ENDLESS.format(table))
        id = server.running(table)["id"]
        second = threads.submit(rows, other, "SELECT 1")
        eventually(lambda: server.metrics()["queries_waiting"] == 1, "the second waits")
        server.kill_query(id)
        assert second.result(PATIENCE) == [(1,)]
        with pytest.raises(adbc_driver_manager.Error):
            first.result(PATIENCE)


def test_messages_beyond_the_limit_are_refused(start):
    server = start("--max-message", "1MB")
    with server.connect() as connection:
        with pytest.raises(adbc_driver_manager.Error, match="(?i)too large|limit"):
            rows(connection, f"SELECT '{'x' * 2_000_000}'")
        assert rows(connection, "SELECT 1") == [(1,)]


def test_connections_beyond_the_limit_wait(start):
    server = start("--max-connections", "1")
    with ThreadPoolExecutor() as threads:
        one = server.connect()
        assert rows(one, "SELECT 1") == [(1,)]
        second = threads.submit(lambda: server.connect())
        assert server.metrics()["connections"] == 1
        one.close()
        with second.result(PATIENCE) as other:
            assert rows(other, "SELECT 2") == [(2,)]


def test_sessions_beyond_the_limit_are_refused(start):
    server = start("--max-sessions", "1")
    with server.connect() as one:
        assert rows(one, "SELECT 1") == [(1,)]
        with pytest.raises(adbc_driver_manager.Error, match="1 sessions open"), server.connect() as other:
            rows(other, "SELECT 1")


def test_memory_limit(start):
    server = start("--memory-limit", "16MB", "--spill-limit", "1MB")
    greedy = "SELECT array_agg(value || 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxx') FROM generate_series(1, 2000000) AS s(value)"
    with server.connect() as connection:
        with pytest.raises(adbc_driver_manager.Error, match="(?i)resources exhausted|memory"):
            rows(connection, greedy)
        nothing_is_left(server)
        assert rows(connection, "SELECT 1") == [(1,)]


@contextlib.contextmanager
def closed_at_last(*resources):
    """Closes what has lost its server: the driver then says so, and frees it all the same."""
    yield
    for resource in resources:
        with contextlib.suppress(adbc_driver_manager.OperationalError):
            resource.close()


def test_sigterm_lets_running_requests_finish(start, table):
    server = start()
    connection = server.connect()
    cursor = connection.cursor()
    with closed_at_last(cursor, connection):
        cursor.execute(f"SELECT value AS {table} FROM generate_series(1, 20000000) AS s(value)")
        reader = cursor.fetch_record_batch()
        fetched = reader.read_next_batch().num_rows
        server.running(table)
        server.terminate()
        eventually(lambda: "stopping" in server.log(), "the server notices the signal")
        assert fetched + sum(batch.num_rows for batch in reader) == 20_000_000
        server.stop()


def test_reconnecting_after_a_restart(start):
    server = start()
    with server.connect() as connection:
        execute(connection, "CREATE TABLE t AS SELECT 42 AS answer")
        server.stop()
        with pytest.raises(adbc_driver_manager.Error):
            rows(connection, "SELECT * FROM t")
        server.start()
        # The same connection, and a new one.
        assert eventually(lambda: retried(connection, "SELECT * FROM t"), "the driver reconnects") == [(42,)]
    with server.connect() as connection:
        assert rows(connection, "SELECT * FROM t") == [(42,)]


def retried(connection, sql: str) -> list[tuple] | None:
    try:
        return rows(connection, sql)
    except adbc_driver_manager.OperationalError:
        return None


def test_what_was_committed_outlives_a_kill(start):
    server = start()
    with server.connect() as connection:
        execute(connection, "CREATE TABLE t AS SELECT 42 AS answer")
        server.kill()
    server.start()
    with server.connect() as connection:
        assert rows(connection, "SELECT * FROM t") == [(42,)]


def test_a_read_only_database(start):
    server = start()
    with server.connect() as connection:
        execute(connection, "CREATE TABLE t AS SELECT 42 AS answer")
    server.stop()
    server.options = ("--read-only",)
    server.start()
    with server.connect() as connection:
        assert rows(connection, "SELECT * FROM t") == [(42,)]
        for sql in ("INSERT INTO t VALUES (1)", "CREATE TABLE u AS SELECT 1 AS x", "DROP TABLE t"):
            with pytest.raises(adbc_driver_manager.Error, match="read-only"):
                execute(connection, sql)


def test_grpc_health(start, tmp_path):
    """As balancers and Kubernetes ask: without a login, by gRPC."""
    users = tmp_path / "users.toml"
    add_user(users, "ada", "secret", "--admin")
    server = start("--users", users)
    with grpc.insecure_channel(server.listen) as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check", lambda service: b"\x0a" + bytes([len(service)]) + service)
        # `HealthCheckResponse`: field 1 is the state, of which 1 is SERVING.
        assert check(b"", timeout=PATIENCE) == b"\x08\x01"
        assert check(b"arrow.flight.protocol.FlightService", timeout=PATIENCE) == b"\x08\x01"
        with pytest.raises(grpc.RpcError) as error:
            check(b"nothing", timeout=PATIENCE)
        assert error.value.code() == grpc.StatusCode.NOT_FOUND


def test_grpc_reflection(start, tmp_path):
    """Tools that know nothing of Flight (grpcurl, Postman) learn it from the server, and can use it."""
    from google.protobuf.descriptor_pool import DescriptorPool
    from google.protobuf.message_factory import GetMessageClass
    from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

    users = tmp_path / "users.toml"
    add_user(users, "ada", "secret", "--admin")
    server = start("--users", users)
    with grpc.insecure_channel(server.listen) as channel:
        known = ProtoReflectionDescriptorDatabase(channel)
        name = "arrow.flight.protocol.FlightService"
        assert {name, "grpc.health.v1.Health"} <= set(known.get_services())
        pool = DescriptorPool(known)
        service = pool.FindServiceByName(name)
        assert len(service.methods) == 10
        handshake = service.FindMethodByName("Handshake")
        assert handshake.client_streaming and handshake.server_streaming

        def call(method: str, request, *, headers):
            of = service.FindMethodByName(method)
            answer = GetMessageClass(of.output_type)
            made = {(False, False): channel.unary_unary, (False, True): channel.unary_stream}
            make = made[of.client_streaming, of.server_streaming]
            path = f"/{name}/{method}"
            return make(path, GetMessageClass(of.input_type).SerializeToString, answer.FromString)(request, metadata=headers, timeout=PATIENCE)

        def message(name: str, **fields):
            return GetMessageClass(pool.FindMessageTypeByName(f"arrow.flight.protocol.{name}"))(**fields)

        login = "Basic " + base64.b64encode(b"ada:secret").decode()
        stream = channel.stream_stream(f"/{name}/Handshake", lambda none: none, lambda answer: answer)
        answers = stream(iter([b""]), metadata=[("authorization", login)], timeout=PATIENCE)
        list(answers)
        [bearer] = [value for key, value in answers.initial_metadata() if key == "authorization"]
        headers = [("authorization", bearer)]
        sql = b"SELECT 42 AS answer"
        kind = b"type.googleapis.com/arrow.flight.protocol.sql.CommandStatementQuery"
        body = b"\x0a" + bytes([len(sql)]) + sql
        command = b"\x0a" + bytes([len(kind)]) + kind + b"\x12" + bytes([len(body)]) + body
        info = call("GetFlightInfo", message("FlightDescriptor", type="CMD", cmd=command), headers=headers)
        [endpoint] = info.endpoint
        assert info.flight_descriptor.cmd == command and endpoint.expiration_time.seconds > 0
        parts = list(call("DoGet", endpoint.ticket, headers=headers))
        assert any(part.data_body for part in parts)
        assert any(action.type == "RenewFlightEndpoint" for action in call("ListActions", message("Empty"), headers=headers))


def test_healthz(server):
    assert server.get("/healthz") == "ok\n"
