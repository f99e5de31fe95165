"""What the ADBC driver does not reach: Flight and Flight SQL messages by hand, Substrait, garbage."""

import random
import socket

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from serving import ENDLESS, eventually, execute, rows

# Field numbers of FlightSql.proto and Flight.proto; protobuf's wire format needs no library for this.


def field(number: int, value: bytes | str | int) -> bytes:
    """One field of a protobuf message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    value = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def fields(message: bytes) -> list[tuple[int, bytes | int]]:
    """The fields of a message with lengths and varints only."""

    def read(at: int) -> tuple[int, int]:
        value = shift = 0
        while True:
            value |= (message[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if message[at - 1] < 128:
                return value, at

    found, at = [], 0
    while at < len(message):
        key, at = read(at)
        value, at = read(at)
        if key & 7 == 2:
            value, at = message[at : at + value], at + value
        found.append((key >> 3, value))
    return found


def command(name: str, *parts: bytes) -> bytes:
    """A Flight SQL command in the `Any` that it travels in."""
    return field(1, f"type.googleapis.com/arrow.flight.protocol.sql.{name}") + field(2, b"".join(parts))


def descriptor(name: str, *parts: bytes) -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_command(command(name, *parts))


def query(sql: str) -> flight.FlightDescriptor:
    return descriptor("CommandStatementQuery", field(1, sql))


@pytest.fixture
def client(server):
    """One connection, which is one session."""
    with server.flight() as client:
        yield client


def fetched(client, info: flight.FlightInfo) -> pa.Table:
    return pa.concat_tables(client.do_get(endpoint.ticket).read_all() for endpoint in info.endpoints)


def execute_one(client, sql: str) -> None:
    fetched(client, client.get_flight_info(query(sql)))


def test_a_statement(client):
    info = client.get_flight_info(query("SELECT 1 AS a, 'x' AS b"))
    assert info.schema.names == ["a", "b"]
    assert fetched(client, info).to_pylist() == [{"a": 1, "b": "x"}]


def test_the_schema_of_a_statement(client, server, table):
    assert client.get_schema(query(f"SELECT 1 AS {table}")).schema.names == [table]
    assert server.query(table) is None
    tables = client.get_schema(descriptor("CommandGetTables", field(5, 1))).schema
    assert tables.names == ["catalog_name", "db_schema_name", "table_name", "table_type", "table_schema"]


METADATA = {
    "CommandGetCatalogs": [],
    "CommandGetDbSchemas": [],
    "CommandGetTables": [],
    "CommandGetTableTypes": [],
    "CommandGetSqlInfo": [],
    "CommandGetXdbcTypeInfo": [],
    "CommandGetExportedKeys": [field(3, "t")],
    "CommandGetImportedKeys": [field(3, "t")],
    "CommandGetCrossReference": [field(3, "t"), field(6, "u")],
}


@pytest.mark.parametrize("name", METADATA)
def test_metadata_has_the_schema_that_was_announced(client, name):
    info = client.get_flight_info(descriptor(name, *METADATA[name]))
    result = fetched(client, info)
    assert result.schema.equals(info.schema)
    assert result.num_rows > 0 or "Keys" in name or "Reference" in name


def test_types(client):
    all_types = fetched(client, client.get_flight_info(descriptor("CommandGetXdbcTypeInfo"))).to_pylist()
    assert {"BIGINT", "VARCHAR", "DECIMAL", "TIMESTAMP"} <= {each["type_name"] for each in all_types}
    only = fetched(client, client.get_flight_info(descriptor("CommandGetXdbcTypeInfo", field(1, 12)))).to_pylist()
    assert [each["type_name"] for each in only] == ["VARCHAR"]


def test_primary_keys(client, connection, table):
    execute(connection, f"CREATE TABLE {table} (a BIGINT, b VARCHAR, c INT, PRIMARY KEY (b, a))")
    keys = fetched(client, client.get_flight_info(descriptor("CommandGetPrimaryKeys", field(3, table)))).to_pylist()
    assert [(key["column_name"], key["key_sequence"]) for key in keys] == [("b", 1), ("a", 2)]
    info = client.get_flight_info(descriptor("CommandGetPrimaryKeys", field(3, "nowhere")))
    with pytest.raises(pa.ArrowKeyError, match="nowhere"):
        fetched(client, info)


def test_actions(client):
    names = {action.type for action in client.list_actions()}
    assert {"CreatePreparedStatement", "ClosePreparedStatement", "CancelQuery", "CancelFlightInfo", "SetSessionOptions"} <= names
    with pytest.raises(pa.ArrowInvalid, match="there is no action 'Dance'"):
        list(client.do_action("Dance"))


def cancel_flight_info(client, info: flight.FlightInfo) -> list:
    [answer] = client.do_action(("CancelFlightInfo", field(1, info.serialize())))
    return fields(answer.body.to_pybytes())


def cancel_query(client, info: flight.FlightInfo) -> list:
    """The older action, which is Flight SQL's."""
    request = command("ActionCancelQueryRequest", field(1, info.serialize()))
    [answer] = client.do_action(("CancelQuery", request))
    return fields(dict(fields(answer.body.to_pybytes()))[2])


@pytest.mark.parametrize("cancel", [cancel_flight_info, cancel_query])
def test_cancelling_by_flight_info(server, client, table, cancel):
    info = client.get_flight_info(query(ENDLESS.format(table)))
    reader = client.do_get(info.endpoints[0].ticket)
    server.running(table)
    cancelled, not_cancellable = 1, 3
    assert cancel(client, info) == [(1, cancelled)]
    # (`read_all` would take it for a Ctrl-C of ours.)
    with pytest.raises(flight.FlightCancelledError):
        reader.read_chunk()
    assert server.ended(table)["state"] == "cancelled"
    assert cancel(client, info) == [(1, not_cancellable)]


def test_another_connection_of_the_user_fetches_a_statement(server, client, table):
    info = client.get_flight_info(query(f"SELECT random() AS {table}"))
    with server.flight() as other:
        assert fetched(other, info).num_rows == 1
    with pytest.raises(pa.ArrowKeyError, match="no such ticket"):
        fetched(client, info)


def test_large_results_have_several_endpoints(client, connection, table):
    count = 1_500_000
    execute(connection, f"CREATE TABLE {table} AS SELECT value AS id FROM generate_series(1, {count}) AS s(value)")
    info = client.get_flight_info(query(f"SELECT id FROM {table}"))
    assert info.total_records == count
    assert len(info.endpoints) > 1 and not info.ordered
    # In any order, and one after another: none waits for another to be read.
    ids = pa.concat_tables(client.do_get(endpoint.ticket).read_all() for endpoint in reversed(info.endpoints))["id"]
    assert sorted(ids.to_pylist()) == list(range(1, count + 1))
    assert len(client.get_flight_info(query(f"SELECT id FROM {table} ORDER BY id")).endpoints) == 1


def test_the_query_of_several_endpoints_ends_with_the_last(server, client, connection, table):
    execute(connection, f"CREATE TABLE {table} AS SELECT value AS id FROM generate_series(1, 1500000) AS s(value)")
    sql = f"SELECT id FROM {table} WHERE id >= 0"
    first, *others = client.get_flight_info(query(sql)).endpoints
    got = client.do_get(first.ticket).read_all().num_rows
    assert server.query(sql)["state"] == "running"
    got += sum(client.do_get(endpoint.ticket).read_all().num_rows for endpoint in others)
    ended = server.ended(sql)
    assert (got, ended["rows"], ended["state"]) == (1_500_000, 1_500_000, "finished")


def sorted_rows(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in table.column_names])


def renew(client, endpoint: flight.FlightEndpoint) -> flight.FlightEndpoint:
    (result,) = client.do_action(("RenewFlightEndpoint", field(1, endpoint.serialize())))
    return flight.FlightEndpoint.deserialize(result.body.to_pybytes())


def test_a_ticket_can_be_fetched_again(start):
    server, table = start("--ticket-lifetime", "1h"), "t"
    with server.flight() as client, server.connect() as connection:
        fetch_again(server, client, connection, table)


def fetch_again(server, client, connection, table):
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    made = "SELECT value AS id, value % 1000 AS k FROM generate_series(1, 1500000) AS s(value)"
    execute(connection, f"CREATE TABLE {table} AS {made}")
    execute(connection, f"CREATE TABLE {table}_gone AS SELECT 1 AS a")
    statements = [
        "SELECT 1 AS a",
        f"SELECT a FROM {table}_gone",
        f"SELECT id, k FROM {table}",
        f"SELECT id FROM {table} WHERE k <> 3",
        f"SELECT id * 2 AS twice FROM {table}",
        f"SELECT k, count(*) AS n, sum(id) AS s FROM {table} GROUP BY k",
        f"SELECT id FROM {table} ORDER BY k DESC, id DESC LIMIT 7",
        f"SELECT max(a.id) AS m FROM {table} AS a JOIN {table} AS b ON a.id = b.k",
    ]
    infos = [client.get_flight_info(query(sql)) for sql in statements]
    first = [[sorted_rows(client.do_get(end.ticket).read_all()) for end in info.endpoints] for info in infos]
    assert [len(info.endpoints) > 1 for info in infos] == [False, False, True, True, True, False, False, False]
    assert all(end.expiration_time is not None for info in infos for end in info.endpoints)
    # What is committed meanwhile is not in it.
    execute(connection, f"DELETE FROM {table} WHERE id % 5 = 0")
    execute(connection, f"INSERT INTO {table} VALUES (0, 3), (-1, 999)")
    execute(connection, f"VACUUM {table}")
    execute(connection, f"DROP TABLE {table}_gone")
    again = [(at, place) for at, info in enumerate(infos) for place in range(len(info.endpoints))]
    chance.shuffle(again)
    with server.flight() as other:
        for at, place in again + again[:5]:
            endpoint = infos[at].endpoints[place]
            got = chance.choice([client, other]).do_get(endpoint.ticket).read_all()
            assert sorted_rows(got).equals(first[at][place]), statements[at]
    # Each is a query of its own, which is called what the first is and can be ended as it is.
    listed = "SELECT count(*) FROM system.queries WHERE query LIKE '%twice%' AND query NOT LIKE '%system%' AND state = 'finished' AND tag = 'two'"
    options = flight.FlightCallOptions(headers=[(b"flashmesh-tag", b"two")])
    info = client.get_flight_info(query(f"SELECT sum(id) AS twice FROM {table}"), options)
    assert [fetched(client, info) for _ in range(3)] == [fetched(client, info)] * 3
    eventually(lambda: rows(connection, listed) == [(4,)], "four queries have ended")
    sql = ENDLESS.format("again").replace("count(*)", f"count(*), (SELECT max(id) FROM {table})")
    assert client.get_flight_info(query(sql)).endpoints[0].expiration_time is None
    slow = f"SELECT count(*) AS slow FROM {table} AS a JOIN {table} AS b ON a.k = b.k AND a.id * b.id < 0"
    info = client.get_flight_info(query(slow))
    reader = client.do_get(info.endpoints[0].ticket)
    again = client.do_get(info.endpoints[0].ticket)
    runs = lambda: sum(one["state"] == "running" and "slow" in one["sql"] for one in server.overview()["queries"])
    eventually(lambda: runs() == 2, "both run")
    assert cancel_flight_info(client, info) == [(1, 1)]
    eventually(lambda: runs() == 0, "neither runs any more")
    for one in (reader, again):
        with pytest.raises(flight.FlightCancelledError):
            one.read_chunk()


def test_a_ticket_lasts_for_longer(client, table):
    [endpoint] = client.get_flight_info(query(f"SELECT 2 AS {table}")).endpoints
    renewed = renew(client, endpoint)
    assert renewed.ticket == endpoint.ticket and renewed.expiration_time.value >= endpoint.expiration_time.value
    client.do_get(endpoint.ticket).read_all()
    assert renew(client, endpoint).expiration_time.value >= renewed.expiration_time.value
    assert client.do_get(endpoint.ticket).read_all().to_pydict() == {table: [2]}
    for broken in (b"", field(1, b"\xff"), field(1, field(1, field(1, b"x")))):
        with pytest.raises(pa.ArrowException):
            list(client.do_action(("RenewFlightEndpoint", broken)))


def test_what_differs_each_time_is_fetched_once(client, connection, table):
    execute(connection, f"CREATE TABLE {table} AS SELECT 1 AS id")
    for sql in ("SELECT random() AS a", "SELECT now() AS a", f"SELECT max(id), random() AS a FROM {table}", "SELECT * FROM system.queries"):
        [endpoint] = client.get_flight_info(query(sql)).endpoints
        assert endpoint.expiration_time is None
        with pytest.raises(pa.ArrowException, match="nothing to renew"):
            renew(client, endpoint)
        client.do_get(endpoint.ticket).read_all()
        for ask in (lambda: client.do_get(endpoint.ticket).read_all(), lambda: renew(client, endpoint)):
            with pytest.raises(pa.ArrowException, match="no such ticket"):
                ask()
    info = client.get_flight_info(query(f"DELETE FROM {table} WHERE id = 1"))
    assert info.endpoints[0].expiration_time is None


def test_other_settings_are_another_result(client, table):
    [endpoint] = client.get_flight_info(query(f"SELECT 3 AS {table}")).endpoints
    client.do_get(endpoint.ticket).read_all()
    fetched(client, client.get_flight_info(query("SET datafusion.execution.batch_size = 1000")))
    with pytest.raises(pa.ArrowException, match="settings have changed"):
        client.do_get(endpoint.ticket).read_all()


def test_tickets_expire(start):
    for lifetime in ("none", "1s"):
        server = start("--ticket-lifetime", lifetime)
        with server.flight() as client:
            execute_one(client, "CREATE TABLE t AS SELECT value AS id FROM generate_series(1, 1500000) AS s(value)")
            whole, *_ = client.get_flight_info(query("SELECT id FROM t")).endpoints
            [endpoint] = client.get_flight_info(query("SELECT 1 AS a")).endpoints
            assert (endpoint.expiration_time is None) == (lifetime == "none")

            def is_over(ticket, why: str) -> bool:
                try:
                    client.do_get(ticket).read_all()
                except pa.ArrowException as error:
                    return why in str(error)
                return False

            # It is looked for such tickets now and then.
            eventually(lambda: is_over(endpoint.ticket, "no such ticket"), "the ticket is worth nothing any more")
            # Of this one other parts were not fetched yet.
            eventually(lambda: is_over(whole.ticket, "fetched already"), "nor is a part of a result")


def test_substrait(client, connection, table):
    datafusion = pytest.importorskip("datafusion")
    from datafusion import substrait

    execute(connection, f"CREATE TABLE {table} (id BIGINT, name VARCHAR)")
    execute(connection, f"INSERT INTO {table} VALUES (1, 'a'), (2, NULL), (3, 'c'), (4, 'c')")
    # The plan is made elsewhere, from a table of the same name and columns.
    context = datafusion.SessionContext()
    schema = pa.schema({"id": pa.int64(), "name": pa.string()})
    context.register_record_batches(table, [[pa.record_batch([[], []], schema=schema)]])
    sql = f"SELECT name, sum(id) AS total FROM {table} WHERE id > 1 GROUP BY name"
    plan = substrait.Serde.serialize_bytes(sql, context)
    info = client.get_flight_info(descriptor("CommandStatementSubstraitPlan", field(1, field(1, plan))))
    found = sorted(fetched(client, info).to_pylist(), key=str)
    assert [tuple(row.values()) for row in found] == [("c", 7), (None, 2)]
    for broken in (b"", plan[: len(plan) // 2], b"\xff" * 20):
        with pytest.raises(pa.ArrowException):
            info = client.get_flight_info(descriptor("CommandStatementSubstraitPlan", field(1, field(1, broken))))
            fetched(client, info)


def test_polling(server, table):
    # pyarrow has no call for it, so the request goes over gRPC by hand.
    grpc = pytest.importorskip("grpc")
    with grpc.insecure_channel(server.listen) as channel:
        poll = channel.unary_unary("/arrow.flight.protocol.FlightService/PollFlightInfo")
        info = dict(fields(poll(query(f"SELECT 1 AS {table}").serialize())))
        # The info is there and no descriptor to poll again with: it is whole.
        assert 1 in info and 2 not in info
        assert flight.FlightInfo.deserialize(info[1]).schema.names == [table]


def test_closing_a_session(start):
    server = start()
    with server.flight() as client:
        info = client.get_flight_info(query("SELECT 1 AS a"))
        assert server.metrics()["sessions"] == 1
        list(client.do_action("CloseSession"))
        assert server.metrics()["sessions"] == 0
        with pytest.raises(pa.ArrowException, match="no such ticket"):
            fetched(client, info)


def unpacked(result: flight.Result) -> dict[int, bytes | int]:
    """The fields of an action's result."""
    return dict(fields(dict(fields(result.body.to_pybytes()))[2]))


def begin(client) -> bytes:
    (result,) = client.do_action(("BeginTransaction", command("ActionBeginTransactionRequest")))
    return unpacked(result)[1]


def end(client, id: bytes, action: int) -> None:
    list(client.do_action(("EndTransaction", command("ActionEndTransactionRequest", field(1, id), field(2, action)))))


def within(id: bytes | None, sql: str) -> flight.FlightDescriptor:
    return descriptor("CommandStatementQuery", field(1, sql), *([field(2, id)] if id else []))


def test_transactions_by_their_ids(start, table):
    server = start()
    with server.flight() as client, server.flight() as other:
        values = lambda client, id=None: fetched(client, client.get_flight_info(within(id, f"SELECT * FROM {table}")))["x"].to_pylist()
        run = lambda id, sql: fetched(client, client.get_flight_info(within(id, sql)))
        run(None, f"CREATE TABLE {table} AS SELECT 1 AS x")
        id = begin(client)
        run(id, f"INSERT INTO {table} VALUES (2)")
        assert sorted(values(client, id)) == [1, 2] and values(other) == [1]
        # What names no transaction would be committed by itself; what names another one is of none.
        with pytest.raises(pa.ArrowException, match="name its id"):
            run(None, f"INSERT INTO {table} VALUES (3)")
        with pytest.raises(pa.ArrowException, match="no such transaction"):
            run(b"x" * 16, f"INSERT INTO {table} VALUES (3)")
        with pytest.raises(pa.ArrowException, match="has begun already"):
            begin(client)
        savepoint = command("ActionBeginSavepointRequest", field(1, id), field(2, "here"))
        for keep in (True, False):
            (result,) = client.do_action(("BeginSavepoint", savepoint))
            run(id, f"DELETE FROM {table}" if not keep else f"INSERT INTO {table} VALUES (4)")
            ended = command("ActionEndSavepointRequest", field(1, unpacked(result)[1]), field(2, 1 if keep else 2))
            list(client.do_action(("EndSavepoint", ended)))
        assert sorted(values(client, id)) == [1, 2, 4]
        with pytest.raises(pa.ArrowException, match="no way to end it"):
            end(client, id, 7)
        end(client, id, 1)
        assert sorted(values(client)) == sorted(values(other)) == [1, 2, 4]
        with pytest.raises(pa.ArrowException, match="no such transaction"):
            end(client, id, 2)
        id = begin(client)
        run(id, f"DROP TABLE {table}")
        end(client, id, 2)
        # Ended by a statement it is over too.
        id = begin(client)
        run(id, f"DELETE FROM {table}")
        run(id, "ROLLBACK")
        assert sorted(values(client)) == [1, 2, 4]
        with pytest.raises(pa.ArrowException, match="no such transaction"):
            run(id, f"DELETE FROM {table}")


COMMANDS = [*METADATA, "CommandStatementQuery", "CommandPreparedStatementQuery", "CommandStatementSubstraitPlan", "TicketStatementQuery"]
ACTIONS = ["CreatePreparedStatement", "ClosePreparedStatement", "CreatePreparedSubstraitPlan", "CancelQuery", "CancelFlightInfo", "SetSessionOptions"]


def test_garbage_never_ends_the_server(server, client, connection):
    seed = random.randrange(2**32)
    print("seed", seed)
    generator = random.Random(seed)
    whole = client.get_flight_info(query("SELECT 1 AS a"))

    def garbage() -> bytes:
        made = generator.randbytes(generator.randrange(40))
        match generator.randrange(5):
            case 0:
                return made
            case 1:
                return command(generator.choice(COMMANDS), made)
            case 2:
                return command(generator.choice(COMMANDS), field(generator.randrange(1, 7), made))
            case 3:
                return command("TicketStatementQuery", field(1, made[:12]))
            case _:
                damaged = bytearray(whole.endpoints[0].ticket.ticket + made)
                damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
                return bytes(damaged)

    def put(data: bytes) -> None:
        writer, reader = client.do_put(flight.FlightDescriptor.for_command(data), pa.schema({"x": pa.int64()}))
        writer.write_batch(pa.record_batch([[1]], names=["x"]))
        writer.close()

    # What a client may not send at all, it does not; everything else the server answers, if only with an error.
    answers = (pa.ArrowException, flight.FlightError, NotImplementedError, KeyError, UnicodeDecodeError)
    for _ in range(400):
        data = garbage()
        for call in (
            lambda: client.get_flight_info(flight.FlightDescriptor.for_command(data)),
            lambda: client.get_flight_info(flight.FlightDescriptor.for_path(data.hex())),
            lambda: client.get_schema(flight.FlightDescriptor.for_command(data)),
            lambda: client.do_get(flight.Ticket(data)).read_all(),
            lambda: list(client.do_action((generator.choice(ACTIONS), data))),
            lambda: put(data),
        ):
            try:
                call()
            except answers:
                pass
    assert rows(connection, "SELECT 1") == [(1,)]
    assert "panicked" not in server.log()


def test_garbage_on_the_wire(server, connection):
    seed = random.randrange(2**32)
    print("seed", seed)
    generator = random.Random(seed)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    before = server.metrics()["connections"]
    for start in (b"", preface, preface + b"\0\0\0\4\0\0\0\0\0", b"GET / HTTP/1.1\r\n\r\n"):
        for _ in range(10):
            with socket.create_connection(server.listen.split(":")) as wire:
                wire.sendall(start + generator.randbytes(generator.randrange(1000)))
    assert rows(connection, "SELECT 1") == [(1,)]
    eventually(lambda: server.metrics()["connections"] <= before + 1, "the connections are gone")
    assert "panicked" not in server.log()
