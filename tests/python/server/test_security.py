"""Who may connect and what they may do: users, tokens, grants, TLS, and what stays out of logs."""

import hmac
import json
import re
import ssl
import subprocess
import threading
import urllib.error
from base64 import b64encode, urlsafe_b64encode

import adbc_driver_flightsql
import adbc_driver_manager
import pytest
import trustme
from serving import ENDLESS, PATIENCE, Server, add_user, binary, eventually, execute, rows

ADMIN, READER, WRITER = ("ada", "correct horses"), ("rita", "battery: staples"), ("wim", "Grüße, 世界!!")
HEADER = adbc_driver_flightsql.DatabaseOptions.AUTHORIZATION_HEADER.value


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    """A users file: an admin, one who may read `shared`, one who may also write and create `w_…`."""
    users = tmp_path_factory.mktemp("users") / "users.toml"
    add_user(users, *ADMIN, "--admin")
    add_user(users, *READER)
    add_user(users, *WRITER)
    everything = 'grants = [{ tables = "*.*", rights = ["read"] }]'
    text = users.read_text()
    assert text.count(everything) == 2
    reader, writer = text.index(everything), text.rindex(everything)
    may_write = 'grants = [{ tables = "shared", rights = ["read", "write"] }, { tables = "w_*", rights = ["read", "write", "create"] }]'
    may_read = 'grants = [{ tables = "shared", rights = ["read"] }]'
    users.write_text(
        text[:reader] + may_read + text[reader + len(everything) : writer] + may_write + text[writer + len(everything) :]
    )
    return users


@pytest.fixture(scope="module")
def secret(tmp_path_factory):
    secret = tmp_path_factory.mktemp("secret") / "secret"
    secret.write_text("0123456789abcdef" * 3)
    return secret


@pytest.fixture(scope="module")
def guarded(tmp_path_factory, users, secret):
    """A server with these users, and the tables `shared` and `hidden`."""
    server = Server(
        tmp_path_factory.mktemp("guarded"), "--users", users, "--token-secret", secret, "--log", "debug"
    )
    with server.connect(*ADMIN) as admin:
        execute(admin, "CREATE TABLE shared AS SELECT 1 AS id")
        execute(admin, "CREATE TABLE hidden AS SELECT 2 AS id")
    yield server
    server.stop()


def token(secret, name: str) -> dict[str, str]:
    """The driver's options for a token made offline."""
    command = [binary(), "user", "token", name, "--token-secret", secret]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    return {HEADER: f"Bearer {made}"}


def forged(claims: dict, secret) -> dict[str, str]:
    """The same for a token that says whatever it likes, signed with the right secret (RFC 7515)."""

    def encoded(part: bytes) -> bytes:
        return urlsafe_b64encode(part).rstrip(b"=")

    signed = encoded(b'{"alg":"HS256","typ":"JWT"}') + b"." + encoded(json.dumps(claims).encode())
    signature = hmac.digest(secret.read_bytes(), signed, "sha256")
    return {HEADER: f"Bearer {(signed + b'.' + encoded(signature)).decode()}"}


def denied(connection, sql: str, message: str = "may not") -> None:
    with pytest.raises(adbc_driver_manager.Error, match=message):
        rows(connection, sql)


# --- who may connect


@pytest.mark.parametrize("user", [ADMIN, READER, WRITER], ids=lambda user: user[0])
def test_the_right_password(guarded, user):
    with guarded.connect(*user) as connection:
        assert rows(connection, "SELECT id FROM shared") == [(1,)]


@pytest.mark.parametrize(
    ("name", "password"),
    [("ada", "wrong"), ("ada", ""), ("nobody", ADMIN[1]), ("", ADMIN[1]), ("ADA", ADMIN[1]), ("ada", ADMIN[1] + " ")],
)
def test_the_wrong_password(guarded, name, password):
    with pytest.raises(adbc_driver_manager.Error) as raised, guarded.connect(name, password) as connection:
        rows(connection, "SELECT 1")
    assert raised.value.status_code == adbc_driver_manager.AdbcStatusCode.UNAUTHENTICATED


def test_passwords_of_every_length(start, tmp_path):
    # Drivers differ in whether they pad base64.
    passwords = ["x" * length for length in range(1, 5)]
    for password in passwords:
        add_user(tmp_path / "users.toml", f"user{len(password)}", password)
    server = start("--users", tmp_path / "users.toml")
    for password in passwords:
        with server.connect(f"user{len(password)}", password) as connection:
            assert rows(connection, "SELECT 1") == [(1,)]


def test_no_password_at_all(guarded):
    with pytest.raises(adbc_driver_manager.Error) as raised, guarded.connect() as connection:
        rows(connection, "SELECT 1")
    assert raised.value.status_code == adbc_driver_manager.AdbcStatusCode.UNAUTHENTICATED


def test_tokens(guarded, secret, tmp_path):
    with guarded.connect(**token(secret, "rita")) as connection:
        assert rows(connection, "SELECT id FROM shared") == [(1,)]
        denied(connection, "SELECT id FROM hidden", "hidden")
    with guarded.connect(**forged({"sub": "ada", "exp": 1 << 40}, secret)) as connection:
        assert rows(connection, "SELECT id FROM hidden") == [(2,)]
    other = tmp_path / "other"
    other.write_text("another secret, just as long as the first")
    good = token(secret, "rita")[HEADER]
    for bad in [
        token(other, "ada"),
        token(secret, "nobody"),
        forged({"sub": "ada", "exp": 1}, secret),
        forged({"sub": "ada"}, secret),
        forged({"exp": 1 << 40}, secret),
        {HEADER: good[:-2]},
        {HEADER: "Bearer "},
        {HEADER: "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZGEiLCJleHAiOjk5OTk5OTk5OTl9."},
        {HEADER: "Negotiate x"},
    ]:
        with pytest.raises(adbc_driver_manager.Error) as raised, guarded.connect(**bad) as connection:
            rows(connection, "SELECT 1")
        assert raised.value.status_code == adbc_driver_manager.AdbcStatusCode.UNAUTHENTICATED


def test_a_token_outlives_a_restart_and_a_login_without_a_secret_does_not(start, users, secret):
    for options, survives in [(["--token-secret", secret], True), ([], False)]:
        server = start("--users", users, *options)
        with server.connect(*ADMIN) as connection:
            assert rows(connection, "SELECT 1") == [(1,)]
            server.stop()
            server.start()

            def outcome() -> str | None:
                try:
                    rows(connection, "SELECT 1")
                except adbc_driver_manager.Error as error:
                    lost = adbc_driver_manager.AdbcStatusCode.UNAUTHENTICATED
                    return "refused" if error.status_code == lost else None
                return "served"

            assert eventually(outcome, "the driver reconnects") == ("served" if survives else "refused")


def test_sessions_expire(start, users):
    server = start("--users", users, "--session-idle", "1s")
    with server.connect(*ADMIN) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY VIEW mine AS SELECT 1 AS one")
        eventually(lambda: server.metrics()["sessions"] == 0, "the session ends")
        # The login is still good; what the session held is gone.
        denied(connection, "SELECT one FROM mine", "mine")
        assert rows(connection, "SELECT 1") == [(1,)]


def test_logins_expire(start, users):
    server = start("--users", users, "--token-lifetime", "1s")
    with server.connect(*ADMIN) as connection:

        def expired() -> bool:
            try:
                rows(connection, "SELECT 1")
            except adbc_driver_manager.Error as error:
                return "expired" in str(error)
            return False

        eventually(expired, "the login expires")
    with server.connect(*ADMIN) as connection:
        assert rows(connection, "SELECT 1") == [(1,)]


def test_the_users_file_is_read_anew(start, tmp_path):
    users = tmp_path / "users.toml"
    add_user(users, *READER)
    server = start("--users", users)
    with server.connect(*READER) as reader:
        assert rows(reader, "SELECT 1") == [(1,)]
        denied(reader, "CREATE TABLE public.t AS SELECT 1 AS x")
        add_user(users, *ADMIN, "--admin")
        with server.connect(*ADMIN) as admin:
            execute(admin, "CREATE TABLE t AS SELECT 1 AS x")
            # A session of a user whose grants changed has the new ones.
            users.write_text(users.read_text().replace('"read"]', '"read", "write"]'))
            assert execute(reader, "INSERT INTO t VALUES (2)") >= 0
            users.write_text(users.read_text().replace('"rita"', '"someone else"'))
            denied(reader, "SELECT 1", "no user 'rita'")
            # A file that can't be read lets nobody in, and says why.
            whole = users.read_text()
            users.write_text(whole + "\nnonsense")
            with pytest.raises(adbc_driver_manager.Error):
                rows(admin, "SELECT 1")
            users.write_text(whole)
            assert rows(admin, "SELECT count(*) FROM t") == [(2,)]


# --- what they may do


@pytest.fixture
def reader(guarded):
    with guarded.connect(*READER) as connection:
        yield connection


@pytest.fixture
def writer(guarded):
    with guarded.connect(*WRITER) as connection:
        yield connection


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO shared VALUES (3)",
        "INSERT INTO hidden VALUES (3)",
        "CREATE TABLE mine AS SELECT 1 AS x",
        "CREATE TABLE mine (x INT)",
        "CREATE OR REPLACE TABLE shared AS SELECT 1 AS x",
        "DROP TABLE shared",
        "DROP TABLE IF EXISTS shared",
        "CREATE SCHEMA mine",
        "DROP SCHEMA public CASCADE",
        "CREATE INDEX i ON shared USING hash (id)",
        "SELECT * FROM hidden",
        "SELECT (SELECT max(id) FROM hidden)",
        "SELECT * FROM shared WHERE id IN (SELECT id FROM hidden)",
        "WITH h AS (SELECT * FROM hidden) SELECT * FROM h",
        "SELECT * FROM lookup('hidden', 'id', 1)",
        "SELECT * FROM fetch('hidden', 0)",
        "EXPLAIN SELECT * FROM hidden",
        "EXPLAIN ANALYZE SELECT * FROM hidden",
        "COPY (SELECT 1) TO '/tmp/flashmesh-must-not-be-written.csv'",
        "COPY shared TO '/tmp/flashmesh-must-not-be-written.parquet'",
        "COPY shared FROM '/etc/passwd'",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM \"/etc/passwd\"",
        "SELECT * FROM 'file:///etc/passwd'",
        "CREATE EXTERNAL TABLE p STORED AS CSV LOCATION '/etc/passwd'",
        "CREATE EXTERNAL TABLE p STORED AS CSV LOCATION 's3://bucket/x'",
        "CREATE FUNCTION f(BIGINT) RETURNS BIGINT RETURN $1 + 1",
        "SET flashmesh.cache_size = '1GB'",
        "SET datafusion.runtime.memory_limit = '100G'",
        "SET datafusion.runtime.temp_directory = '/tmp'",
    ],
)
def test_what_a_reader_may_not_do(reader, guarded, sql):
    with pytest.raises(adbc_driver_manager.Error):
        with reader.cursor() as cursor:
            cursor.execute(sql)
            cursor.fetchall()
    with guarded.connect(*ADMIN) as admin:
        assert rows(admin, "SELECT id FROM shared") == [(1,)]
        assert rows(admin, "SELECT id FROM hidden") == [(2,)]


def test_functions_of_files_read_none(reader):
    for function in ("parquet_metadata", "read_csv", "read_parquet", "read_json"):
        said = []
        for path in ("/etc/passwd", "/etc/nothing"):
            with pytest.raises(adbc_driver_manager.Error) as refused:
                rows(reader, f"SELECT * FROM {function}('{path}')")
            # Where the name is spelt out in digits, too.
            said.append(str(refused.value).replace(path, "…").replace(path.encode().hex(), "…"))
        assert said[0] == said[1]


def test_a_reader_sees_nothing_of_other_tables(reader):
    for sql in (
        "SELECT table_name FROM information_schema.tables WHERE table_name = 'hidden'",
        "SELECT column_name FROM information_schema.columns WHERE table_name = 'hidden'",
    ):
        assert rows(reader, sql) == []
    assert rows(reader, "SELECT table_name FROM information_schema.tables WHERE table_name = 'shared'") == [("shared",)]
    names = str(reader.adbc_get_objects(depth="all").read_all().to_pylist())
    assert "shared" in names and "hidden" not in names


def test_a_reader_ingests_nothing(reader):
    import pyarrow as pa

    data = pa.table({"id": [1]})
    for name, mode in [("shared", "append"), ("shared", "replace"), ("mine", "create"), ("hidden", "append")]:
        with reader.cursor() as cursor, pytest.raises(adbc_driver_manager.Error):
            cursor.adbc_ingest(name, data, mode=mode)
    assert rows(reader, "SELECT id FROM shared") == [(1,)]


def test_options_of_ones_own_session(reader):
    execute(reader, "SET datafusion.execution.batch_size = 1000")


def test_what_a_writer_may_do(writer):
    execute(writer, "CREATE TABLE w_one AS SELECT 1 AS id")
    assert execute(writer, "INSERT INTO w_one VALUES (2)") >= 0
    assert rows(writer, "SELECT count(*) FROM w_one") == [(2,)]
    denied(writer, "CREATE TABLE other AS SELECT 1 AS id")
    denied(writer, "DROP TABLE shared")
    execute(writer, "DROP TABLE w_one")


def test_queries_of_others_are_neither_seen_nor_killed(guarded, reader, table):
    admin = guarded.connect(*ADMIN)
    cursor = admin.cursor()

    def run() -> None:
        with pytest.raises(adbc_driver_manager.Error):
            cursor.execute(ENDLESS.format(table))
            cursor.fetchall()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        with guarded.connect(*ADMIN) as other:
            listed = "SELECT id FROM system.queries WHERE state = 'running' AND query LIKE '%" + table + " %'"
            [(id,)] = eventually(lambda: rows(other, listed), "the query runs")
            assert rows(reader, "SELECT id FROM system.queries WHERE \"user\" <> 'rita'") == []
            with pytest.raises(adbc_driver_manager.Error, match=f"no query {id} of yours"):
                execute(reader, f"KILL QUERY {id}")
            assert rows(other, listed) == [(id,)]
            execute(other, f"KILL QUERY {id}")
    finally:
        thread.join(PATIENCE)
    cursor.close()
    admin.close()


def test_the_page_is_for_admins(guarded):
    def status(user: tuple[str, str] | None, path: str) -> int:
        header = {"Authorization": "Basic " + b64encode(":".join(user).encode()).decode()} if user else {}
        try:
            guarded.get(path, **header)
        except urllib.error.HTTPError as error:
            return error.code
        return 200

    for path in ("/", "/api/queries"):
        assert [status(user, path) for user in (None, ("ada", "wrong"), READER, ADMIN)] == [401, 401, 401, 200]
    assert status(None, "/healthz") == 200


def test_another_sites_page_cannot_kill(server):
    import urllib.request

    request = urllib.request.Request(f"{server.page}/api/queries/1/kill", method="POST", data=b"")
    with pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(request, timeout=PATIENCE)


def test_the_log_has_no_secrets(guarded, secret):
    for name, password in (ADMIN, READER, WRITER):
        with guarded.connect(name, password) as connection:
            rows(connection, "SELECT 1")
    with pytest.raises(adbc_driver_manager.Error), guarded.connect("ada", "a wrong one") as connection:
        rows(connection, "SELECT 1")
    options = token(secret, "rita")
    with guarded.connect(**options) as connection:
        rows(connection, "SELECT 1")
    log = guarded.log()
    assert "logged in" in log and "wrong user name or password" in log
    for name, password in (ADMIN, READER, WRITER):
        assert password not in log
        assert b64encode(f"{name}:{password}".encode()).decode() not in log
    assert "a wrong one" not in log and secret.read_text() not in log
    assert options[HEADER].removeprefix("Bearer ") not in log
    assert not re.search(r"eyJ[\w-]+\.[\w-]+\.", log), "a token is in the log"


def test_json_logs(start):
    server = start("--log-format", "json")
    server.stop()
    lines = [json.loads(line) for line in server.log().splitlines()]
    assert {"INFO", "WARN"} <= {line["level"] for line in lines}


# --- TLS, and what is not served without it


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A certificate authority, and PEM files of it, of the server and of a client."""
    folder = tmp_path_factory.mktemp("tls")
    authority, other = trustme.CA(), trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    other.cert_pem.write_to_path(folder / "other-ca.pem")
    for name, issuer in [("server", authority), ("client", authority), ("stranger", other)]:
        issued = issuer.issue_cert("127.0.0.1", "localhost")
        issued.private_key_pem.write_to_path(folder / f"{name}.key")
        issued.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
    return folder


def tls_options(certificates, authority: str = "ca", client: str | None = None) -> dict[str, str]:
    names = adbc_driver_flightsql.DatabaseOptions
    options = {names.TLS_ROOT_CERTS.value: (certificates / f"{authority}.pem").read_text()}
    if client:
        options[names.MTLS_CERT_CHAIN.value] = (certificates / f"{client}.pem").read_text()
        options[names.MTLS_PRIVATE_KEY.value] = (certificates / f"{client}.key").read_text()
    return options


def one(server, *user: str, **options: str) -> list[tuple]:
    with server.connect(*user, **options) as connection:
        return rows(connection, "SELECT 1")


def test_tls(start, certificates, users):
    server = start("--tls-cert", certificates / "server.pem", "--tls-key", certificates / "server.key", "--users", users)
    assert server.uri.startswith("grpc+tls://")
    assert one(server, *READER, **tls_options(certificates)) == [(1,)]
    with pytest.raises(adbc_driver_manager.Error):
        one(server, *READER, **tls_options(certificates, "other-ca"))
    server.uri = server.uri.replace("grpc+tls", "grpc")
    with pytest.raises(adbc_driver_manager.Error):
        one(server, *READER)


def test_mutual_tls(start, certificates):
    server = start(
        *("--tls-cert", certificates / "server.pem", "--tls-key", certificates / "server.key"),
        *("--tls-client-ca", certificates / "ca.pem"),
    )
    assert one(server, **tls_options(certificates, client="client")) == [(1,)]
    for client in (None, "stranger"):
        with pytest.raises(adbc_driver_manager.Error):
            one(server, **tls_options(certificates, client=client))


def test_users_of_certificates(start, certificates, tmp_path):
    """Whoever shows the certificate of a user is that user, without a password."""
    users = tmp_path / "users.toml"
    add_user(users, *ADMIN, "--admin")
    add_user(users, *READER)
    users.write_text(users.read_text().replace("[users.\"rita\"]", '[users."rita"]\ncertificate = "localhost"'))
    server = start(
        *("--tls-cert", certificates / "server.pem", "--tls-key", certificates / "server.key"),
        *("--tls-client-ca", certificates / "ca.pem", "--users", users),
    )
    shown = tls_options(certificates, client="client")
    with server.connect(**shown) as rita:
        assert rows(rita, "SELECT 1") == [(1,)]
        denied(rita, "CREATE TABLE t AS SELECT 1 AS x")
        # A password goes before it.
        with server.connect(*ADMIN, **shown) as admin:
            execute(admin, "CREATE TABLE t AS SELECT 1 AS x")
        assert rows(rita, "SELECT x FROM t") == [(1,)]
        users.write_text(users.read_text().replace('"localhost"', '"elsewhere"'))
        denied(rita, "SELECT 1", "no user has the certificate of localhost")


def test_a_certificate_is_renewed_while_the_server_runs(start, certificates, tmp_path):
    for name in ("pem", "key"):
        (tmp_path / f"own.{name}").write_bytes((certificates / f"server.{name}").read_bytes())
    server = start("--tls-cert", tmp_path / "own.pem", "--tls-key", tmp_path / "own.key")
    address = server.uri.split("//")[1].split(":")
    assert one(server, **tls_options(certificates)) == [(1,)]
    before = ssl.get_server_certificate(tuple(address))
    with server.connect(**tls_options(certificates)) as connected:
        # Half of it is none; what was there goes on.
        (tmp_path / "own.pem").write_bytes((certificates / "stranger.pem").read_bytes())
        eventually(lambda: "the one of before goes on" in server.log(), "the server notices")
        assert ssl.get_server_certificate(tuple(address)) == before
        (tmp_path / "own.key").write_bytes((certificates / "stranger.key").read_bytes())
        eventually(lambda: ssl.get_server_certificate(tuple(address)) != before, "the new certificate is shown")
        assert rows(connected, "SELECT 1") == [(1,)]
    assert one(server, **tls_options(certificates, "other-ca")) == [(1,)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--listen", "0.0.0.0:0"], "--tls-cert"),
        (["--listen", "[::]:0"], "--tls-cert"),
        (["--http", "0.0.0.0:0"], "--allow-plaintext-page"),
        (["--tls-cert", "{server}.pem", "--tls-key", "{server}.key", "--listen", "0.0.0.0:0"], "--users"),
        (["--tls-cert", "{server}.pem"], "--tls-key"),
        (["--tls-cert", "{server}.pem", "--tls-key", "nowhere.key"], "nowhere.key"),
        (["--tls-cert", "{server}.key", "--tls-key", "{server}.pem"], "certificate"),
        (["--users", "nowhere.toml"], "nowhere.toml"),
        (["--token-secret", "/dev/null"], "32"),
        (["--http", "nonsense"], "nonsense"),
        (["--log", "flashmesh=loud"], "loud"),
    ],
)
def test_options_that_are_refused(tmp_path, certificates, options, message):
    options = [option.replace("{server}", str(certificates / "server")) for option in options]
    # Given first, so that those of the test win.
    defaults = [part for name in ("--listen", "--http") if name not in options for part in (name, "127.0.0.1:0")]
    command = [binary(), "serve", "--db", tmp_path / "db", *defaults, *options]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
    assert refused.returncode not in (0, -6, 101) and message in refused.stderr
    assert "Flight SQL:" not in refused.stdout


def test_other_machines_are_served_when_that_is_asked_for(start):
    server = start("--allow-plaintext", "--allow-anonymous", listen="0.0.0.0:0")
    server.uri = server.uri.replace("0.0.0.0", "127.0.0.1")
    assert one(server) == [(1,)]


def test_passwords_are_hashed_and_the_file_is_private(users):
    text = users.read_text()
    assert text.count("$argon2id$") == 3 and not any(password in text for _, password in (ADMIN, READER, WRITER))


def test_a_user_is_not_added_twice_nor_without_a_password(tmp_path):
    users = tmp_path / "users.toml"
    add_user(users, *ADMIN)
    assert users.stat().st_mode & 0o777 == 0o600
    for user in (ADMIN, ("bob", "")):
        with pytest.raises(subprocess.CalledProcessError):
            add_user(users, *user)
    assert "bob" not in users.read_text()
