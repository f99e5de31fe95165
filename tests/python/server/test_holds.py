"""Clients that read nothing, ask for too much or send what is forged: they end, and others go on."""

import contextlib
import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import adbc_driver_manager
import grpc
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from serving import PATIENCE, add_user, eventually, execute, rows
from test_flight import command, descriptor, field, fields, query
from test_lifecycle import GREEDY, LONG, nothing_is_left

ADA, EVE = ("ada", "correct horses"), ("eve", "battery staples")


@contextlib.contextmanager
def stalled(server, sql: str, **login):
    """Reads a first batch of the statement, and then nothing more."""
    with server.flight() as client:
        options = None
        if login:
            header = client.authenticate_basic_token(login["user"], login["password"])
            options = flight.FlightCallOptions(headers=[header])
        info = client.get_flight_info(query(sql), options)
        reader = client.do_get(info.endpoints[0].ticket, options)
        reader.read_chunk()
        yield reader
        reader.cancel()


@pytest.fixture
def users(tmp_path):
    users = tmp_path / "users.toml"
    add_user(users, *ADA, "--admin")
    add_user(users, *EVE)
    return users


# --- readers that stall


def by_sql(server, id: int) -> None:
    with server.connect() as connection:
        execute(connection, f"KILL QUERY {id}")


def by_page(server, id: int) -> None:
    server.kill_query(id)


@pytest.mark.parametrize("kill", [by_sql, by_page])
def test_a_stalled_reader_can_be_killed(start, table, kill):
    server = start("--max-queries", "1")
    with stalled(server, LONG.format(table)) as reader:
        kill(server, server.running(table)["id"])
        assert server.ended(table)["state"] == "cancelled"
        # Its place is free, while the client is still there.
        with server.connect() as connection:
            assert rows(connection, "SELECT 1") == [(1,)]
        nothing_is_left(server)
        # When it reads on at last, it is told.
        with pytest.raises(flight.FlightCancelledError, match="cancelled"):
            # (Not read_all: pyarrow makes Ctrl-C of the error there.)
            while reader.read_chunk():
                pass


def test_the_time_of_a_stalled_reader_is_limited(start, table):
    server = start("--max-queries", "1", "--query-time-limit", "2s")
    with stalled(server, LONG.format(table)):
        ended = server.ended(table)
        assert ended["state"] == "failed" and "--query-time-limit" in ended["error"]
        with server.connect() as connection:
            assert rows(connection, "SELECT 1") == [(1,)]


@pytest.mark.parametrize("change", ["removed", "another password", "fewer rights"])
def test_what_a_user_runs_ends_with_their_rights(start, users, table, change):
    server = start("--users", users)
    with server.connect(*ADA) as ada:
        execute(ada, f"CREATE TABLE {table} AS SELECT value AS id FROM generate_series(1, 1000) AS s(value)")
    sql = f"SELECT a.id FROM {table} AS a, {table} AS b, {table} AS c, {table} AS d"

    def state() -> str:
        with server.connect(*ADA) as ada:
            states = rows(ada, f"SELECT state FROM system.queries WHERE query = '{sql}'")
            return states[0][0]

    with stalled(server, sql, user=EVE[0], password=EVE[1]):
        assert state() == "running"
        text = users.read_text()
        # What does not concern them changes nothing.
        users.write_text(text + "\n")
        with pytest.raises(adbc_driver_manager.Error), server.connect("nobody", "x") as connection:
            rows(connection, "SELECT 1")
        assert state() == "running"
        if change == "removed":
            users.write_text(text.replace("[users.eve]", "[users.someone]").replace('[users."eve"]', "[users.someone]"))
        elif change == "fewer rights":
            users.write_text(text.replace('rights = ["read"]', "rights = []"))
        else:
            of_eve = text.index("eve")
            users.write_text(text[:of_eve] + text[of_eve:].replace("$argon2id$v=19$m=19456", "$argon2id$v=19$m=19457", 1))
        assert eventually(lambda: state() != "running", "the query ends")
        assert state() == "cancelled"


# --- planning


def literals(table: str) -> str:
    """A statement whose planning takes seconds."""
    return f"SELECT 1 /* {table} */ WHERE 1 IN ({', '.join(str(number) for number in range(2, 1_000_000))})"


def test_planning_can_be_killed(server, table):
    with server.connect() as connection, server.connect() as other, ThreadPoolExecutor() as threads:
        planned = threads.submit(rows, connection, literals(table))
        id = eventually(lambda: server.query(table), "it is planned")["id"]
        execute(other, f"KILL QUERY {id}")
        with pytest.raises(adbc_driver_manager.Error, match="cancelled"):
            planned.result(PATIENCE)
        assert server.query(table)["state"] == "cancelled"


def test_planning_takes_no_longer_than_a_query_may(start, table):
    server = start("--query-time-limit", "1s")
    with server.connect() as connection, pytest.raises(adbc_driver_manager.Error, match="longer than the server allows"):
        rows(connection, literals(table))


def test_long_plans_are_not_kept_whole(server, connection, table):
    numbers = ", ".join(str(number) for number in range(100_000))
    rows(connection, f"SELECT count(*) AS {table} FROM generate_series(1, 10) AS s(value) WHERE value * 2 IN ({numbers})")
    plan = server.plan(server.ended(table)["id"])
    assert 0 < len(plan) < 70_000


@pytest.mark.parametrize(
    "call", ["array_repeat(1, 2147483647)", "range(0, 2000000000)", "repeat('x', 2000000000)", "lpad('x', 2000000000, 'y')"]
)
def test_functions_make_no_results_of_any_size(server, connection, call):
    # As a constant, and where its argument is known when it runs.
    for sql in (f"SELECT {call}", f"SELECT {call.replace('2', 'n + 2', 1)} FROM (VALUES (0)) AS t(n)"):
        with pytest.raises(adbc_driver_manager.Error, match="may make"):
            rows(connection, sql)
    assert rows(connection, "SELECT array_length(range(0, 1000))") == [(1000,)]


# --- statements and parameters


def test_execute_streams(server, connection, table):
    execute(connection, f"PREPARE p AS {LONG.format(table)}")
    with connection.cursor() as cursor:
        cursor.execute("EXECUTE p")
        reader = cursor.fetch_record_batch()
        assert reader.read_next_batch().num_rows > 0
        reader.close()


def test_execute_of_a_change(connection, table):
    execute(connection, f"CREATE TABLE {table} (id BIGINT)")
    execute(connection, f"PREPARE p AS INSERT INTO {table} VALUES (1)")
    for _ in range(2):
        execute(connection, "EXECUTE p")
    assert rows(connection, f"SELECT id FROM {table}") == [(1,), (1,)]


def test_a_query_is_not_run_for_any_number_of_rows(connection):
    many = pa.table({"x": range(2_000)})
    with pytest.raises(adbc_driver_manager.Error, match="2000 rows of parameters"):
        rows(connection, "SELECT CAST(? AS BIGINT)", many)
    assert len(rows(connection, "SELECT CAST(? AS BIGINT)", many.slice(0, 20))) == 20


def test_parameters_are_bounded(start):
    server = start("--max-user-prepared", "1MB")
    with server.connect() as connection:
        execute(connection, "CREATE TABLE t (x BIGINT)")
        with connection.cursor() as cursor, pytest.raises(adbc_driver_manager.Error, match="--max-user-prepared"):
            cursor.executemany("INSERT INTO t VALUES (?)", pa.table({"x": range(500_000)}))
        with connection.cursor() as cursor:
            cursor.executemany("INSERT INTO t VALUES (?)", pa.table({"x": range(10_000)}))
        assert rows(connection, "SELECT count(*) FROM t") == [(10_000,)]


def test_prepared_statements_are_bounded(start):
    server = start("--max-user-prepared", "1MB")
    with server.connect() as connection, contextlib.ExitStack() as open_statements:
        with pytest.raises(adbc_driver_manager.Error, match="--max-user-prepared"):
            for _ in range(20):
                cursor = open_statements.enter_context(connection.cursor())
                cursor.adbc_prepare(f"SELECT '{'x' * 100_000}', ?")
        open_statements.close()
        assert rows(connection, "SELECT 1") == [(1,)]


# --- a user's part


def test_one_user_leaves_places_for_others(start, users, table):
    server = start("--users", users, "--max-queries", "4", "--max-user-queries", "1", "--queue-time", "1s")
    with server.connect(*EVE) as eve, server.connect(*ADA) as ada, stalled(server, LONG.format(table), user=EVE[0], password=EVE[1]):
        with pytest.raises(adbc_driver_manager.Error, match="user 'eve' runs 1 queries"):
            rows(eve, "SELECT 1")
        assert rows(ada, "SELECT 1") == [(1,)]


def test_one_user_leaves_sessions_for_others(start, users):
    server = start("--users", users, "--max-user-sessions", "1")
    with server.connect(*EVE) as eve:
        assert rows(eve, "SELECT 1") == [(1,)]
        with pytest.raises(adbc_driver_manager.Error, match="user 'eve' has 1 sessions open"), server.connect(*EVE) as second:
            rows(second, "SELECT 1")
        with server.connect(*ADA) as ada:
            assert rows(ada, "SELECT 1") == [(1,)]


def test_one_user_leaves_memory_for_others(start, users):
    server = start("--users", users, "--max-user-memory", "4MB", "--spill-limit", "1MB")
    greedy = "SELECT array_agg(value || 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxx') FROM generate_series(1, 2000000) AS s(value)"
    with server.connect(*EVE) as eve:
        with pytest.raises(adbc_driver_manager.Error, match="(?i)resources exhausted|memory"):
            rows(eve, greedy)
        assert rows(eve, "SELECT 1") == [(1,)]


def test_one_user_leaves_spill_files_for_others(start, users):
    server = start("--users", users, "--max-user-memory", "64MB", "--max-user-spill", "4MB")
    greedy = "SELECT count(*) FROM (SELECT md5(value::text) AS k, count(*) FROM generate_series(1, 3000000) AS s(value) GROUP BY 1)"
    with server.connect(*EVE) as eve, server.connect(*ADA) as ada:
        with pytest.raises(adbc_driver_manager.Error, match="--max-user-spill"):
            rows(eve, greedy)
        assert rows(eve, "SELECT 1") == [(1,)]
        # What failed has given everything back.
        small = "SELECT count(*) FROM (SELECT md5(value::text) AS x FROM generate_series(1, 1000) AS s(value) ORDER BY 1)"
        assert rows(eve, small) == rows(ada, small) == [(1000,)]


# --- forged messages


def forged(codec: str, said: int) -> tuple[bytes, bytes]:
    """A batch of parameters that says its first buffer has so many bytes: header and body."""
    batch = pa.record_batch([pa.array([0] * 100_000, pa.int64())], names=["$1"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    _, message = messages.read_next_message(), messages.read_next_message()
    body = bytearray(message.body.to_pybytes())
    # The validity has no bytes: the first are those of the values.
    assert struct.unpack("<q", body[:8]) == (800_000,)
    body[:8] = struct.pack("<q", said)
    return message.metadata.to_pybytes(), bytes(body)


def schema_header() -> bytes:
    schema = pa.schema([("$1", pa.int64())]).serialize().to_pybytes()
    return schema[8 : 8 + struct.unpack("<i", schema[4:8])[0]]


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
@pytest.mark.parametrize("said", [1 << 50, 1 << 40, -7])
def test_forged_lengths_are_refused(server, codec, said):
    with grpc.insecure_channel(server.listen) as channel:
        act = channel.unary_stream("/arrow.flight.protocol.FlightService/DoAction")
        asked = command("ActionCreatePreparedStatementRequest", field(1, "SELECT CAST(? AS BIGINT)"))
        [answer] = act(field(1, "CreatePreparedStatement") + field(2, asked))
        created = dict(fields(dict(fields(dict(fields(answer))[1]))[2]))
        header, body = forged(codec, said)
        bind = descriptor("CommandPreparedStatementQuery", field(1, created[1])).serialize()
        data = [field(1, bind) + field(2, schema_header()), field(2, header) + field(1000, body)]
        put = channel.stream_stream("/arrow.flight.protocol.FlightService/DoPut")
        with pytest.raises(grpc.RpcError) as raised:
            list(put(iter(data)))
        assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert server.process.poll() is None
    with server.connect() as connection:
        assert rows(connection, "SELECT 1") == [(1,)]


def test_compressed_data_is_taken(connection, table):
    data = pa.table({"x": [0] * 100_000})
    with connection.cursor() as cursor:
        cursor.adbc_ingest(table, data, mode="create")
    assert rows(connection, f"SELECT count(*) FROM {table}") == [(100_000,)]


def test_large_messages_of_many_requests_take_turns(start):
    server = start("--max-message", "1MB")
    data = pa.table({"x": range(100_000)})

    def load(number: int) -> None:
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.adbc_ingest(f"t{number}", data, mode="create")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(load, range(8)))
    with server.connect() as connection:
        assert rows(connection, "SELECT count(*) FROM t0, (SELECT 1)") == [(100_000,)]


# --- a statement's number


def test_a_statement_tells_its_number(server, table):
    with stalled(server, LONG.format(table)), server.flight() as client:
        info = client.get_flight_info(query(f"SELECT 1 AS other_{table}"))
        client.do_get(info.endpoints[0].ticket).read_all()
        assert int(info.app_metadata) == server.ended(f"other_{table}")["id"]
        assert int(info.app_metadata) != server.running(LONG.format(table))["id"]


def test_a_statement_has_the_tag_that_its_client_gave(server, table):
    options = flight.FlightCallOptions(headers=[(b"flashmesh-tag", f"tag of {table}".encode())])
    sql = f"SELECT 1 AS tagged_{table}"
    with server.flight() as client:
        info = client.get_flight_info(query(sql), options)
        client.do_get(info.endpoints[0].ticket).read_all()
    with server.connect() as connection:
        found = rows(connection, f"SELECT id, query FROM system.queries WHERE tag = 'tag of {table}'")
    assert found == [(int(info.app_metadata), sql)]


def test_a_join_that_finds_nothing_ends_when_its_time_is_up(start, table):
    server = start("--query-time-limit", "3s", "--threads", "2")
    done = threading.Event()

    def ask() -> None:
        with server.connect() as connection, contextlib.suppress(adbc_driver_manager.Error):
            rows(connection, GREEDY.format(table))
        done.set()

    threading.Thread(target=ask, daemon=True).start()
    assert done.wait(PATIENCE)
    nothing_is_left(server)
