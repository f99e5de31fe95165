"""Logged-in users who try for more than was granted: files, other tables' names and rows, settings."""

import itertools
import struct
import urllib.error
import urllib.request

import adbc_driver_manager
import pyarrow as pa
import pyarrow.flight as flight
import pyarrow.parquet
import pytest
from serving import ENDLESS, PATIENCE, Server, add_user, eventually, execute, rows
from test_flight import command, descriptor, field, fields, query

UNAUTHORIZED = adbc_driver_manager.AdbcStatusCode.UNAUTHORIZED
GRANTS = {
    "ada": None,
    "eve": "[]",
    "rita": '[{ tables = "shared", rights = ["read"] }]',
    "wim": '[{ tables = "shared", rights = ["write"] }]',
    "cleo": '[{ tables = "c_*", rights = ["create"] }]',
}
# The name of a table that is there and one that is not, of the same length.
HIDDEN, ABSENT = "hidden", "absent"


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    """`ada` is an admin; the others have what GRANTS says. The password is the name."""
    users = tmp_path_factory.mktemp("users") / "users.toml"
    everything = 'grants = [{ tables = "*.*", rights = ["read"] }]'
    for name, grants in GRANTS.items():
        if grants is None:
            add_user(users, name, name, "--admin")
        else:
            add_user(users, name, name)
            users.write_text(users.read_text().replace(everything, f"grants = {grants}"))
    return users


@pytest.fixture(scope="module")
def guarded(tmp_path_factory, users):
    server = Server(tmp_path_factory.mktemp("guarded"), "--users", users)
    with server.connect("ada", "ada") as ada:
        for sql in (
            "CREATE TABLE shared AS SELECT 1 AS id",
            "CREATE TABLE hidden (ssn BIGINT PRIMARY KEY, salary BIGINT, note TEXT)",
            "INSERT INTO hidden VALUES (7, 100, 'secret'), (8, 200, 'secret')",
            "CREATE INDEX hidden_g ON hidden USING adjacency (ssn, salary)",
            "CREATE SCHEMA vault",
            "CREATE TABLE vault.gold AS SELECT 1 AS bars",
            "CREATE TABLE c_twice AS SELECT 4711 AS pin UNION ALL SELECT 4711",
        ):
            execute(ada, sql)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def owner(guarded):
    """A connection of the admin for all tests."""
    with guarded.connect("ada", "ada") as connection:
        yield connection


@pytest.fixture(autouse=True)
def the_server_is_well(guarded, owner):
    yield
    assert guarded.process.poll() is None, guarded.log()
    assert rows(owner, "SELECT count(*), sum(salary) FROM hidden") == [(2, 300)]
    assert rows(owner, "SELECT id FROM shared") == [(1,)]
    assert "panicked" not in guarded.log()


@pytest.fixture
def eve(guarded):
    """A connection of one who was granted nothing."""
    with guarded.connect("eve", "eve") as connection:
        yield connection


def refusal(connection, sql: str) -> tuple[int, str]:
    """Code and message of a statement that must fail."""
    with pytest.raises(adbc_driver_manager.Error) as raised:
        rows(connection, sql)
    return raised.value.status_code, str(raised.value)


class Raw:
    """Flight by hand, in one session of a user."""

    def __init__(self, server: Server, user: str) -> None:
        self.client = server.flight()
        # The session is the token's.
        self.options = flight.FlightCallOptions(headers=[self.client.authenticate_basic_token(user, user)])

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def info(self, wanted: flight.FlightDescriptor) -> flight.FlightInfo:
        return self.client.get_flight_info(wanted, self.options)

    def schema(self, sql: str) -> pa.Schema:
        return self.client.get_schema(query(sql), self.options).schema

    def prepare(self, sql: str) -> bytes:
        """The handle of a prepared statement."""
        [result] = self.action("CreatePreparedStatement", command("ActionCreatePreparedStatementRequest", field(1, sql)))
        return dict(fields(dict(fields(result))[2]))[1]

    def action(self, name: str, body: bytes) -> list[bytes]:
        return [result.body.to_pybytes() for result in self.client.do_action((name, body), self.options)]

    def get(self, ticket: bytes) -> pa.Table:
        return self.client.do_get(flight.Ticket(ticket), self.options).read_all()


# --- files of the server

COPIES = [
    "EXPLAIN ANALYZE COPY (SELECT 'pwned' AS a) TO '{}'",
    "EXPLAIN ANALYZE VERBOSE COPY (SELECT 'pwned' AS a) TO '{}' STORED AS CSV",
    "EXPLAIN COPY (SELECT 'pwned' AS a) TO '{}'",
    "COPY (SELECT 'pwned' AS a) TO '{}'",
    "PREPARE p AS COPY (SELECT 'pwned' AS a) TO '{}'",
    "PREPARE p AS EXPLAIN ANALYZE COPY (SELECT 'pwned' AS a) TO '{}'",
    "CREATE VIEW p AS EXPLAIN ANALYZE COPY (SELECT 'pwned' AS a) TO '{}'",
    "WITH x AS (SELECT 1) EXPLAIN ANALYZE COPY (SELECT 'pwned' AS a) TO '{}'",
    "EXPLAIN ANALYZE INSERT INTO '{}' SELECT 'pwned'",
]


@pytest.mark.parametrize("copy", COPIES)
def test_no_statement_writes_a_file(guarded, users, eve, tmp_path, copy):
    before = users.read_text()
    ssh = tmp_path / ".ssh"
    ssh.mkdir()
    for target in (tmp_path / "x.csv", guarded.folder / "db" / "x.csv", ssh / "authorized_keys.csv", users):
        refusal(eve, copy.format(target))
        assert not target.exists() or target == users
    assert users.read_text() == before


def test_copying_is_named_as_what_is_denied(eve, tmp_path):
    for copy in COPIES[:4]:
        code, message = refusal(eve, copy.format(tmp_path / "x.csv"))
        assert code == UNAUTHORIZED and "may not write files of the server" in message


def test_no_statement_writes_a_file_in_another_dialect(eve, tmp_path):
    execute(eve, "SET datafusion.sql_parser.dialect = 'postgres'")
    refusal(eve, f"EXPLAIN (ANALYZE) COPY (SELECT 1 AS a) TO '{tmp_path}/x.csv'")
    refusal(eve, f"EXPLAIN (ANALYZE, VERBOSE) COPY (SELECT 1 AS a) TO '{tmp_path}/x.csv'")
    assert list(tmp_path.iterdir()) == []


def test_no_prepared_statement_writes_a_file(guarded, tmp_path):
    with Raw(guarded, "eve") as raw:
        for copy in COPIES[:4]:
            for ask in (raw.prepare, raw.schema):
                # pyarrow has no type of its own for it everywhere.
                with pytest.raises((pa.ArrowException, OSError), match="may not write files"):
                    ask(copy.format(tmp_path / "x.csv"))
    assert list(tmp_path.iterdir()) == []


def test_stores_that_an_admin_opened_are_no_users(guarded, eve, tmp_path):
    pa.parquet.write_table(pa.table({"id": [1]}), tmp_path / "x.parquet")
    with guarded.connect("ada", "ada") as ada:
        assert rows(ada, f"SELECT id FROM '{tmp_path}/x.parquet'") == [(1,)]
    refusal(eve, f"SELECT id FROM '{tmp_path}/x.parquet'")
    refusal(eve, f"EXPLAIN ANALYZE COPY (SELECT 1 AS a) TO '{tmp_path}/y.csv'")
    for target in ("s3://bucket/evil.csv", "https://127.0.0.1:1/evil.csv", "gs://bucket/evil.csv"):
        code, _ = refusal(eve, f"EXPLAIN ANALYZE COPY (SELECT 1 AS a) TO '{target}'")
        assert code == UNAUTHORIZED


def test_an_admin_still_copies(guarded, tmp_path):
    with guarded.connect("ada", "ada") as ada:
        rows(ada, f"EXPLAIN ANALYZE COPY (SELECT 1 AS a) TO '{tmp_path}/x.csv'")
        execute(ada, f"COPY (SELECT 1 AS a) TO '{tmp_path}/y.csv'")
    assert (tmp_path / "y.csv").exists()


# --- names that may not be seen

# Each says the same of a table that is there and of one that is not.
ORACLES = [
    "SELECT * FROM {}",
    "SELECT * FROM public.{}",
    "SELECT nope FROM {}",
    "SELECT * FROM vault.{}",
    "EXPLAIN SELECT * FROM {}",
    "EXPLAIN ANALYZE SELECT * FROM {}",
    "DESCRIBE {}",
    "SHOW COLUMNS FROM {}",
    "SELECT * FROM fetch('{}', [0])",
    "SELECT * FROM fetch('{}', 'x')",
    "SELECT * FROM matches('{}', 'nope', 'x')",
    "SELECT * FROM matches('{}', 'note', 'x')",
    "SELECT * FROM matches('{}', 'ssn', 'x')",
    "SELECT * FROM nearest('{}', 'nope', X'00')",
    "SELECT * FROM nearest('{}', 'ssn', X'00')",
    "SELECT * FROM lookup('{}', 'abc')",
    "SELECT * FROM lookup('{}', 7)",
    "SELECT * FROM lookup('public.{}', 7)",
    "EXPLAIN SELECT * FROM lookup('{}', 7)",
    "SELECT * FROM lookup('{}', (SELECT 7))",
    "SELECT * FROM bfs('{}_g', 7)",
    "SELECT * FROM bfs('{}_g', 'x')",
    "SELECT * FROM bfs('{}_pkey', 7)",
    "SELECT * FROM expand('{}_g', 7, 1)",
    "SELECT * FROM shortest_path('{}_g', 7, 8, 'nope')",
    "SELECT * FROM connected_components('{}_g')",
    "SELECT * FROM page_rank('{}_g')",
    "CREATE VIEW {} AS SELECT 1 AS a",
    "CREATE OR REPLACE VIEW {} AS SELECT 1 AS a",
    "CREATE TABLE {} (a INT)",
    "CREATE TABLE {} AS SELECT 1 AS a",
    "CREATE OR REPLACE TABLE {} AS SELECT 1 AS a",
    "CREATE TABLE IF NOT EXISTS {} (a INT)",
    "CREATE TEMPORARY TABLE {} (a INT)",
    "CREATE TABLE {} (a INT, a INT)",
    "CREATE EXTERNAL TABLE {} STORED AS CSV LOCATION '/etc/passwd'",
    "CREATE INDEX i ON {} USING hash (ssn)",
    "CREATE INDEX i ON {} (nope)",
    "CREATE INDEX IF NOT EXISTS {}_g ON {} (ssn)",
    "CREATE UNIQUE INDEX i ON {} (salary)",
    "DROP INDEX {}_g",
    "DROP INDEX {}_pkey",
    "DROP TABLE {}",
    "DROP VIEW {}",
    "INSERT INTO {} VALUES (1, 2, 'x')",
    "INSERT INTO {} (ssn) VALUES (1)",
    "INSERT INTO {} SELECT 1",
    "INSERT OVERWRITE {} VALUES (1, 2, 'x')",
    "DELETE FROM {}",
    "UPDATE {} SET salary = 1",
    "INSERT INTO {} VALUES (1, 2, 'x') ON CONFLICT DO NOTHING",
    "EXPLAIN DELETE FROM {}",
    "TRUNCATE TABLE {}",
    "PREPARE p AS SELECT * FROM {}",
    "PREPARE p AS INSERT INTO {} VALUES (1, 2, 'x')",
    "CREATE VIEW v AS SELECT * FROM {}",
    "COPY {} TO '/tmp/x.csv'",
    "SELECT 1 WHERE EXISTS (SELECT 1 FROM {})",
]


def same(name: str, text: str) -> str:
    return text.replace(name, "NAME")


@pytest.mark.parametrize("oracle", ORACLES)
def test_a_hidden_name_looks_like_one_that_is_not_there(eve, oracle):
    hidden, absent = (refusal(eve, oracle.replace("{}", name)) for name in (HIDDEN, ABSENT))
    assert (hidden[0], same(HIDDEN, hidden[1])) == (absent[0], same(ABSENT, absent[1]))
    for column in ("ssn, ", "salary,", "Int64"):
        assert column not in hidden[1]


@pytest.mark.parametrize("statement", ["DROP TABLE IF EXISTS {}", "DROP INDEX IF EXISTS {}_g", "DROP VIEW IF EXISTS {}"])
def test_dropping_if_it_exists_tells_nothing(eve, statement):
    for name in (HIDDEN, ABSENT):
        execute(eve, statement.replace("{}", name))


def test_hidden_schemas_look_like_missing_ones(eve):
    for oracle in ("SELECT * FROM {}.gold", "CREATE TABLE {}.t (a INT)", "DROP SCHEMA {}", "CREATE SCHEMA {}", "DROP TABLE {}.gold"):
        there, missing = (refusal(eve, oracle.replace("{}", name)) for name in ("vault", "void_"))
        assert (there[0], same("vault", there[1])) == (missing[0], same("void_", missing[1]))
    assert ("vault",) not in rows(eve, "SELECT schema_name FROM information_schema.schemata")
    assert "vault" not in str(eve.adbc_get_objects(depth="db_schemas").read_all().to_pylist())


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM {}",
        "SELECT * FROM fetch('{}', [0])",
        "SELECT * FROM lookup('{}', 7)",
        "SELECT * FROM matches('{}', 'note', 'x')",
        "SELECT * FROM nearest('{}', 'note', X'00')",
        "SELECT * FROM page_rank('{}_g')",
        "DESCRIBE {}",
        "INSERT INTO {} VALUES (?, ?, ?)",
    ],
)
def test_asking_for_a_schema_tells_nothing(guarded, sql):
    with Raw(guarded, "eve") as raw:
        for ask in (raw.schema, raw.prepare, lambda sql: raw.info(query(sql))):
            messages = []
            for name in (HIDDEN, ABSENT):
                with pytest.raises((pa.ArrowException, OSError)) as raised:
                    ask(sql.replace("{}", name))
                messages.append((type(raised.value), same(name, str(raised.value).split("gRPC client debug context")[0])))
            assert messages[0] == messages[1]


def test_keys_of_a_hidden_table(guarded):
    with Raw(guarded, "eve") as raw:
        messages = []
        for name in (HIDDEN, ABSENT):
            ticket = command("CommandGetPrimaryKeys", field(3, name))
            with pytest.raises(pa.ArrowException) as raised:
                raw.get(ticket)
            messages.append(same(name, str(raised.value).split("gRPC client debug context")[0]))
        assert messages[0] == messages[1]


@pytest.mark.parametrize("mode", ["create", "append", "replace", "create_append"])
def test_ingest_tells_nothing(eve, mode):
    messages = []
    for name in (HIDDEN, ABSENT):
        with eve.cursor() as cursor, pytest.raises(adbc_driver_manager.Error) as raised:
            cursor.adbc_ingest(name, pa.table({"ssn": [1]}), mode=mode)
        messages.append((raised.value.status_code, same(name, str(raised.value))))
    assert messages[0] == messages[1]


# --- rows that may not be read

READS = [
    "SELECT * FROM hidden",
    "SELECT count(*) FROM hidden",
    "SELECT min(ssn), max(ssn) FROM hidden",
    "SELECT * FROM hidden LIMIT 0",
    "SELECT * FROM hidden WHERE false",
    "SELECT * FROM fetch('hidden', [0])",
    "SELECT * FROM lookup('hidden', 7)",
    "SELECT * FROM bfs('hidden_g', 7)",
    "SELECT * FROM page_rank('hidden_g')",
]
AROUND = [
    "{}",
    "WITH h AS ({}) SELECT 1 FROM h",
    "SELECT 1 FROM ({}) AS h",
    "SELECT 1 UNION ALL SELECT 1 FROM ({}) AS h",
    "SELECT 1 WHERE EXISTS ({})",
    "SELECT (SELECT count(*) FROM ({}) AS h)",
    "SELECT 1 FROM generate_series(1, 2) AS s(v) JOIN ({}) AS h ON true",
    "SELECT 1 WHERE 1 IN (SELECT 1 FROM ({}) AS h)",
    "EXPLAIN {}",
    "EXPLAIN ANALYZE {}",
    "PREPARE p AS {}",
    "CREATE VIEW v AS {}",
    "CREATE TABLE t AS {}",
]


@pytest.mark.parametrize("around", AROUND)
def test_no_statement_reads_a_hidden_table(eve, around):
    for read in READS:
        refusal(eve, around.replace("{}", read))


def test_who_may_write_may_not_read(guarded):
    with guarded.connect("wim", "wim") as wim:
        execute(wim, "SET datafusion.explain.show_statistics = true")
        for sql in (
            "SELECT count(*), min(id), max(id) FROM shared",
            "EXPLAIN SELECT * FROM shared",
            "EXPLAIN ANALYZE SELECT * FROM shared",
            "SELECT * FROM fetch('shared', [0])",
            "INSERT INTO shared SELECT id FROM shared",
            "DELETE FROM shared",
            "UPDATE shared SET id = 7 WHERE id = 1",
            "EXPLAIN UPDATE shared SET id = 7",
            "EXPLAIN ANALYZE INSERT INTO shared SELECT id FROM shared",
        ):
            code, message = refusal(wim, sql)
            assert code == UNAUTHORIZED and "may not read public.shared" in message


def test_who_may_read_may_not_write(guarded):
    with guarded.connect("rita", "rita") as rita:
        for sql in (
            "INSERT INTO shared VALUES (2)",
            "INSERT OVERWRITE shared VALUES (2)",
            "EXPLAIN ANALYZE INSERT INTO shared VALUES (2)",
            "PREPARE p AS INSERT INTO shared VALUES (2)",
            "DELETE FROM shared",
            "UPDATE shared SET id = 2",
            "TRUNCATE TABLE shared",
        ):
            code, message = refusal(rita, sql)
            assert code == UNAUTHORIZED and "may not write public.shared" in message


def test_a_key_that_is_there_twice_is_not_told_to_who_may_not_read(guarded):
    with guarded.connect("cleo", "cleo") as cleo:
        _, message = refusal(cleo, "CREATE UNIQUE INDEX c_pin ON c_twice (pin)")
        assert "two rows" in message and "4711" not in message
    with guarded.connect("ada", "ada") as ada:
        assert "4711" in refusal(ada, "CREATE UNIQUE INDEX c_pin ON c_twice (pin)")[1]


def substrait(*relation: bytes) -> flight.FlightDescriptor:
    """A Substrait plan of one relation with the column `ssn`."""
    root = field(2, field(1, b"".join(relation)) + field(2, "ssn"))
    return descriptor("CommandStatementSubstraitPlan", field(1, field(1, field(3, root))))


def test_substrait_reads_and_writes_nothing(guarded):
    columns = field(1, "ssn") + field(2, field(1, field(7, field(2, 1))) + field(3, 2))
    named = field(7, field(1, HIDDEN))
    file = field(6, field(1, field(3, "file:///etc/passwd") + field(9, b"")))
    read = field(1, field(2, columns) + named)
    write = field(19, field(1, field(1, HIDDEN)) + field(3, columns) + field(4, 1) + field(5, read))
    create = field(20, field(1, field(1, HIDDEN)) + field(3, columns) + field(5, 1) + field(6, 2))
    with Raw(guarded, "eve") as raw:
        for relation in (read, field(1, field(2, columns) + file), write, create):
            with pytest.raises(pa.ArrowException):
                raw.info(substrait(relation))
    with Raw(guarded, "ada") as raw:
        # It is not that the plan makes no sense.
        assert raw.info(substrait(read)).schema.names == ["ssn"]


def test_substrait_of_any_depth_is_refused(guarded):
    columns = field(1, "ssn") + field(2, field(1, field(7, field(2, 1))) + field(3, 2))
    relation = field(1, field(2, columns) + field(7, field(1, "people")))
    expression = field(1, field(1, 1))
    for _ in range(20_000):
        relation = field(2, field(2, relation))  # filters of filters
        expression = field(11, field(2, expression))  # casts of casts
    with Raw(guarded, "ada") as raw:
        for deep in (relation, field(2, field(2, field(1, field(2, columns))) + field(3, expression))):
            with pytest.raises(pa.ArrowException, match="recursion limit"):
                raw.info(substrait(deep))
    with guarded.connect("ada", "ada") as ada:
        assert rows(ada, "SELECT 1") == [(1,)]


# --- others' statements


def test_tickets_of_others_are_not_there(guarded):
    with Raw(guarded, "ada") as ada, Raw(guarded, "eve") as eve:
        infos = [ada.info(query("SELECT * FROM hidden")) for _ in range(3)]
        theirs = [info.endpoints[0].ticket.ticket for info in infos]
        guesses = [
            command("TicketStatementQuery", field(1, struct.pack("<QI", id, endpoint)))
            for id, endpoint in itertools.product(range(1, 200), range(2))
        ]
        for ticket in [*theirs, *guesses]:
            with pytest.raises(pa.ArrowException, match="no such ticket"):
                eve.get(ticket)
        assert ada.get(theirs[0]).num_rows == 2


def test_statements_of_others_go_on(guarded, eve, table):
    with Raw(guarded, "ada") as ada, Raw(guarded, "eve") as raw:
        info = ada.info(query(ENDLESS.format(table)))
        reader = ada.client.do_get(info.endpoints[0].ticket, ada.options)

        def running() -> list[tuple]:
            with guarded.connect("ada", "ada") as other:
                listed = f"SELECT id FROM system.queries WHERE state = 'running' AND query LIKE '%{table} %'"
                return rows(other, listed)

        [(id,)] = eventually(running, "the query runs")
        assert rows(eve, "SELECT count(*) FROM system.queries WHERE query LIKE '%hidden%' AND \"user\" <> 'eve'") == [(0,)]
        refusal(eve, f"KILL QUERY {id}")
        for name, body in [
            ("CancelFlightInfo", field(1, info.serialize())),
            ("CancelQuery", command("ActionCancelQueryRequest", field(1, info.serialize()))),
        ]:
            try:
                raw.action(name, body)
            except pa.ArrowException:
                pass
        assert running() == [(id,)]
        with guarded.connect("ada", "ada") as other:
            execute(other, f"KILL QUERY {id}")
        # pyarrow takes the server's "cancelled" for Ctrl-C.
        with pytest.raises((pa.ArrowException, KeyboardInterrupt)):
            reader.read_all()


# --- settings


@pytest.mark.parametrize(
    "sql",
    [
        "SET flashmesh.cache_size = '1MB'",
        "SET FlashMesh.\"cache_size\" = '1MB'",
        "SET datafusion.runtime.memory_limit = '100G'",
        "SET datafusion.runtime.temp_directory = '/tmp'",
        "SET datafusion.catalog.location = '/etc'",
        "SET datafusion.catalog.information_schema = 'false'",
        "SET datafusion.sql_parser.recursion_limit = 1000000",
        "SET datafusion.execution.perfect_hash_join_small_build_threshold = 1000000000000",
        "RESET flashmesh.cache_size",
        "RESET datafusion.runtime.memory_limit",
        "PREPARE p AS SET flashmesh.cache_size = '1MB'",
        "EXPLAIN ANALYZE SET flashmesh.cache_size = '1MB'",
    ],
)
def test_settings_that_are_an_admins(eve, sql):
    refusal(eve, sql)
    assert rows(eve, "SELECT 1") == [(1,)]


def option(name: str, value: bytes) -> bytes:
    """A `SetSessionOptionsRequest` with one option."""
    return field(1, field(1, name) + field(2, value))


def test_session_options_have_the_same_bounds(guarded):
    with Raw(guarded, "eve") as raw:
        for name, value in [
            ("flashmesh.cache_size", field(1, "1MB")),
            ("datafusion.runtime.memory_limit", field(1, "100G")),
            ("datafusion.execution.batch_size", field(1, "100000000000000")),
            ("datafusion.execution.target_partitions", field(1, "100000")),
            ("schema", field(1, "vault")),
            # Unset.
            ("flashmesh.cache_size", b""),
        ]:
            [result] = raw.action("SetSessionOptions", option(name, value))
            assert name.encode() in result, f"{name} was set"
        for value in (field(1, "1000"), b""):
            assert raw.action("SetSessionOptions", option("datafusion.execution.batch_size", value)) == [b""]


HUGE = "100000000000000"


@pytest.mark.parametrize("user", ["eve", "ada"])
@pytest.mark.parametrize(
    ("name", "value", "sql"),
    [
        ("batch_size", HUGE, "SELECT * FROM generate_series(1, 2)"),
        ("batch_size", HUGE, "SELECT a.v FROM generate_series(1, 9) a(v) JOIN generate_series(1, 9) b(v) ON a.v = b.v ORDER BY 1"),
        ("target_partitions", "100000", "SELECT x, count(*) FROM generate_series(1, 10) t(x) GROUP BY x"),
    ],
)
def test_settings_that_would_end_the_process(guarded, user, name, value, sql):
    name = f"datafusion.execution.{name}"
    with guarded.connect(user, user) as connection:
        for statement in (f"SET {name} = {value}", f"SET {name} = '{value}'", f"PREPARE p AS SET {name} = {value}"):
            _, message = refusal(connection, statement)
        assert f"{name} can't be {value}" in refusal(connection, f"SET {name} = {value}")[1]
        assert len(rows(connection, sql)) > 0
        with connection.cursor() as cursor, pytest.raises(adbc_driver_manager.Error):
            cursor.adbc_prepare(f"SET {name} = {value}")
            cursor.execute(f"SET {name} = {value}")
        assert len(rows(connection, sql)) > 0


def test_settings_of_ones_own_session(eve):
    for sql in (
        "SET datafusion.execution.batch_size = 1000",
        "SET datafusion.execution.target_partitions = 4",
        "SET datafusion.execution.time_zone = '+01:00'",
        "SET TIME ZONE = '+02:00'",
        "SET flashmesh.pushdown = 'never'",
        "SET datafusion.explain.format = 'tree'",
        "RESET datafusion.execution.batch_size",
        "RESET flashmesh.pushdown",
    ):
        execute(eve, sql)
    assert rows(eve, "SELECT 1") == [(1,)]


# --- the page


def page(server: Server, path: str, host: str | None = None, **headers: str) -> tuple[int, dict[str, str]]:
    """Status and headers of a request."""
    request = urllib.request.Request(server.page + path, headers=headers)
    if host is not None:
        request.add_header("Host", host)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.status, dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers)


def test_a_name_that_was_bound_to_the_servers_address_reaches_no_page(start):
    server = start()
    port = server.http.rsplit(":", 1)[1]
    for host in (f"evil.example:{port}", "evil.example", f"127.0.0.1.evil.example:{port}", f"localhost.evil.example:{port}"):
        for path in ("/", "/api/queries"):
            assert page(server, path, host)[0] == 421, (host, path)
    for host in (None, f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}", f"10.1.2.3:{port}", f"devbox:{port}"):
        assert page(server, "/api/queries", host)[0] == 200, host
    # What is watched by other machines has no secrets.
    assert page(server, "/healthz", f"flash.example:{port}")[0] == 200


def test_no_other_site_frames_the_page(server):
    status, headers = page(server, "/")
    assert status == 200
    assert headers["x-frame-options"] == "DENY"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
