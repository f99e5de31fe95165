"""Who has not logged in: how long they may stay, what they may send, and what they learn."""

import socket
import subprocess
import threading
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor

import adbc_driver_manager
import grpc
import pyarrow.flight as flight
import pytest
import trustme
from serving import PATIENCE, add_user, binary, eventually, rows
from test_flight import query
from test_security import HEADER, token

ADA, RITA = ("ada", "correct horses"), ("rita", "battery staples")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(3) + b"\x04" + bytes(5)


@pytest.fixture
def users(tmp_path):
    users = tmp_path / "users.toml"
    add_user(users, *ADA, "--admin")
    add_user(users, *RITA)
    return users


@pytest.fixture
def secret(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef" * 3)
    return secret


def strangers(server, count: int, said: bytes = b"") -> list[socket.socket]:
    """Connections that say this, and nothing more."""
    host, port = server.listen.rsplit(":", 1)
    opened = [socket.create_connection((host, int(port)), timeout=PATIENCE) for _ in range(count)]
    for connection in opened:
        connection.sendall(said)
    return opened


def is_closed(connection: socket.socket) -> bool:
    try:
        while connection.recv(65_536):
            pass
    except ConnectionError:
        pass
    return True


def refused(server, user: tuple[str, str] | None = None, **options: str) -> adbc_driver_manager.Error:
    with pytest.raises(adbc_driver_manager.Error) as raised, server.connect(*(user or ()), **options) as connection:
        rows(connection, "SELECT 1")
    return raised.value


# --- connections


@pytest.mark.parametrize("said", [b"", PREFACE[:10], PREFACE], ids=["nothing", "half a greeting", "a greeting"])
def test_strangers_keep_nobody_out(start, users, said):
    server = start("--users", users, "--max-connections", "8", "--login-time", "1h")
    silent = strangers(server, 20, said)
    with server.connect(*ADA) as connection:
        assert rows(connection, "SELECT 1") == [(1,)]
        more = strangers(server, 20, said)
        # Who has logged in stays.
        assert rows(connection, "SELECT 2") == [(2,)]
    for stranger in silent + more:
        stranger.close()


SLOW_REQUESTS = {
    "nothing": b"",
    "half a header": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
    "a body that never comes": b"POST /api/queries/1/kill HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\nx-flashmesh: 1\r\n\r\n",
}


@pytest.mark.parametrize("said", SLOW_REQUESTS.values(), ids=SLOW_REQUESTS)
def test_slow_requests_keep_nobody_from_the_page(server, said):
    host, port = server.http.rsplit(":", 1)
    slow = [socket.create_connection((host, int(port)), timeout=PATIENCE) for _ in range(300)]
    for connection in slow:
        try:
            connection.sendall(said)
        except ConnectionError:
            pass  # gave way already
    # The answer is there at once, a long one too.
    assert server.get("/healthz") == "ok\n"
    assert "</html>" in server.get("/")
    # An address has room for 128. Each of them has 30 s, which is waited for once.
    gave_way = slow if said.startswith(b"POST") else slow[:150]
    assert all(map(is_closed, gave_way))


@pytest.mark.parametrize("said", [b"", PREFACE], ids=["nothing", "a greeting"])
def test_strangers_have_little_time(start, said):
    server = start("--login-time", "1s")
    with server.connect() as connection:
        assert rows(connection, "SELECT 1") == [(1,)]
        [stranger] = strangers(server, 1, said)
        assert is_closed(stranger)
        assert rows(connection, "SELECT 2") == [(2,)]
        assert server.metrics()["connections"] >= 1


def test_strangers_of_tls_have_little_time(start, tmp_path):
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(tmp_path / "server.key")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "server.pem")
    server = start("--tls-cert", tmp_path / "server.pem", "--tls-key", tmp_path / "server.key", "--login-time", "1s")
    [stranger] = strangers(server, 1)
    assert is_closed(stranger)


@pytest.mark.parametrize("method", ["DoPut", "GetFlightInfo", "DoAction", "DoGet"])
def test_bodies_of_strangers_are_not_waited_for(start, users, method):
    server = start("--users", users)
    never = threading.Event()

    def body():
        never.wait()
        yield b""

    with grpc.insecure_channel(server.listen) as channel:
        call = channel.stream_stream(f"/arrow.flight.protocol.FlightService/{method}")
        try:
            with pytest.raises(grpc.RpcError) as raised:
                list(call(body(), timeout=PATIENCE))
            assert raised.value.code() == grpc.StatusCode.UNAUTHENTICATED
        finally:
            never.set()


# --- logins


def test_good_logins_in_a_flood_of_bad_ones(start, users):
    # In a slow build a guesser may wait for longer than a stranger has.
    server = start("--users", users, "--login-time", "5m")
    with server.connect(*ADA) as connection:
        assert rows(connection, "SELECT 1") == [(1,)]
    stop = threading.Event()
    tried = []

    def guess(number: int) -> None:
        while not stop.is_set():
            header = b64encode(f"user{number}:{len(tried)}".encode()).decode()
            with grpc.insecure_channel(server.listen) as channel:
                shake = channel.stream_stream("/arrow.flight.protocol.FlightService/Handshake")
                try:
                    list(shake(iter(()), metadata=[("authorization", f"Basic {header}")], timeout=PATIENCE))
                except grpc.RpcError as error:
                    tried.append(error.code())

    threads = [threading.Thread(target=guess, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: len(tried) >= 3, "logins are refused")
        for _ in range(5):
            with server.connect(*ADA) as connection:
                assert rows(connection, "SELECT 1") == [(1,)]
    finally:
        stop.set()
        for thread in threads:
            thread.join(PATIENCE)
    # Who guesses is not told anything else.
    assert set(tried) <= {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.RESOURCE_EXHAUSTED}


def test_a_right_password_is_not_known_for_another_user_or_after_a_change(start, users):
    server = start("--users", users)
    with server.connect(*ADA) as connection:
        assert rows(connection, "SELECT 1") == [(1,)]
    for user in [(RITA[0], ADA[1]), (ADA[0], RITA[1]), (ADA[0], ADA[1] + " ")]:
        assert refused(server, user).status_code == adbc_driver_manager.AdbcStatusCode.UNAUTHENTICATED
    text = users.read_text()
    changed = text.replace("m=19456,t=2", "m=19456,t=3")
    assert changed != text
    users.write_text(changed)
    assert refused(server, ADA).status_code == adbc_driver_manager.AdbcStatusCode.UNAUTHENTICATED


def test_strangers_learn_nothing_of_the_users_file(start, users):
    server = start("--users", users)
    with server.connect(*RITA) as reader:
        assert rows(reader, "SELECT 1") == [(1,)]
        whole = users.read_text()
        users.write_text(whole.replace("password = ", "pasword = "))
        errors = [str(refused(server, ADA)), str(refused(server, ("nobody", "x")))]
        with pytest.raises(adbc_driver_manager.Error) as raised:
            rows(reader, "SELECT 1")
        for error in [*errors, str(raised.value)]:
            assert "toml" not in error and "argon2" not in error and "pasword" not in error, error
        assert "users.toml" in server.log()
        users.write_text(whole)
        assert rows(reader, "SELECT 1") == [(1,)]


def test_strangers_write_no_lines_of_the_log(start, users):
    server = start("--users", users)
    refused(server, ("eve\n2026-01-01T00:00:00Z  INFO logged in user=ada", "x"))
    eventually(lambda: "wrong user name" in server.log(), "it is logged")
    log = server.log()
    assert not any(line.startswith("2026-01-01") for line in log.splitlines())
    [line] = [line for line in log.splitlines() if "wrong user name" in line]
    assert "127.0.0.1:" in line


# --- tokens


def logged_in(server, user: tuple[str, str]) -> dict[str, str]:
    """The driver's options for the token of a login."""
    with server.flight() as client:
        _, header = client.authenticate_basic_token(*user)
        return {HEADER: header.decode()}


def test_a_token_ends_with_its_session(start, users, secret):
    server = start("--users", users, "--token-secret", secret)
    login = logged_in(server, RITA)
    with server.flight() as client:
        options = flight.FlightCallOptions(headers=[(b"authorization", login[HEADER].encode())])
        client.get_flight_info(query("SELECT 1"), options)
        list(client.do_action(flight.Action("CloseSession", b""), options))
    assert "closed" in str(refused(server, **login))
    # One that was made offline belongs to no session.
    offline = token(secret, "rita")
    for _ in range(2):
        with server.connect(**offline) as connection:
            assert rows(connection, "SELECT 1") == [(1,)]


def test_a_token_ends_with_the_password(start, users, secret):
    server = start("--users", users, "--token-secret", secret)
    login = logged_in(server, RITA)
    with server.connect(**login) as connection:
        assert rows(connection, "SELECT 1") == [(1,)]
        text = users.read_text()
        of_rita = text.index("rita")
        users.write_text(text[:of_rita] + text[of_rita:].replace("m=19456", "m=19457", 1))
        with pytest.raises(adbc_driver_manager.Error, match="password was changed"):
            rows(connection, "SELECT 1")


def test_a_token_is_for_the_users_of_one_file(start, users, secret, tmp_path):
    other_users = tmp_path / "other.toml"
    add_user(other_users, "rita", "another password", "--admin")
    one = start("--users", users, "--token-secret", secret)
    other = start("--users", other_users, "--token-secret", secret)
    login = logged_in(one, RITA)
    assert refused(other, **login).status_code == adbc_driver_manager.AdbcStatusCode.UNAUTHENTICATED
    with one.connect(**login) as connection:
        assert rows(connection, "SELECT 1") == [(1,)]


# --- one option, one protection


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ((), "--tls-cert"),
        (("--allow-plaintext",), "--allow-anonymous"),
        (("--allow-anonymous",), "--allow-plaintext"),
        (("--allow-plaintext", "--allow-anonymous", "--http", "0.0.0.0:0"), "--allow-plaintext-page"),
    ],
)
def test_each_protection_is_left_out_by_its_own_name(tmp_path, options, wanted):
    http = () if "--http" in options else ("--http", "none")
    command = [binary(), "serve", "--db", tmp_path / "db", "--listen", "0.0.0.0:0", *http, *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
    assert ended.returncode not in (0, -6, 101) and wanted in ended.stderr
