"""Transactions that were begun by BEGIN, of clients whose drivers connect anew without a word."""

import adbc_driver_manager
import pyarrow as pa
import pyarrow.flight as flight
import pytest
from serving import add_user, eventually, execute, rows
from test_flight import command, execute_one, field, query

#: Drivers of other languages keep cookies by themselves (JDBC's does).
COOKIES = {"adbc.flight.sql.rpc.with_cookie_middleware": "true"}


def answered(connection, sql: str) -> str | None:
    """Runs a statement as soon as the server is there again, and gives the error that it answers."""

    def ask():
        try:
            execute(connection, sql)
        except adbc_driver_manager.Error as error:
            return None if "UNAVAILABLE" in str(error).upper() else (str(error),)
        return ("",)

    [answer] = eventually(ask, "the server answers")
    return answer or None


@pytest.mark.parametrize("login", [False, True])
def test_a_server_that_was_started_again_says_that_the_transaction_is_lost(start, tmp_path, login):
    options, keywords = [], dict(COOKIES)
    if login:
        (tmp_path / "secret").write_text("a secret of more than thirty-two bytes")
        add_user(tmp_path / "users", "ada", "secret", "--admin")
        options = ["--users", tmp_path / "users", "--token-secret", tmp_path / "secret"]
        keywords |= {"user": "ada", "password": "secret"}
    server = start(*options)
    with server.connect(**keywords) as connection:
        execute(connection, "CREATE TABLE account (id INT PRIMARY KEY, amount INT)")
        execute(connection, "INSERT INTO account VALUES (1, 100), (2, 100)")
        for _ in range(2):
            execute(connection, "BEGIN")
            execute(connection, "UPDATE account SET amount = amount - 7 WHERE id = 1")
            server.kill()
            server.start()
            # It would commit by itself.
            error = answered(connection, "UPDATE account SET amount = amount + 7 WHERE id = 2")
            assert error and "lost the session" in error, error
            # It is said once: a client that has understood begins anew.
            assert rows(connection, "SELECT amount FROM account") == [(100,), (100,)]
        execute(connection, "BEGIN")
        execute(connection, "UPDATE account SET amount = amount - 7 WHERE id = 1")
        execute(connection, "UPDATE account SET amount = amount + 7 WHERE id = 2")
        execute(connection, "COMMIT")
        server.kill()
        server.start()
        # Who is in no transaction is told nothing.
        assert answered(connection, "SELECT 1") is None
        assert rows(connection, "SELECT amount FROM account ORDER BY id") == [(93,), (107,)]


class Cookies(flight.ClientMiddlewareFactory):
    """What a server has a client keep."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []
        self.kept: str | None = None

    def start_call(self, info):
        jar = self

        class Middleware(flight.ClientMiddleware):
            def sending_headers(self):
                return {"cookie": f"theirs=1; {jar.kept}"} if jar.kept else {}

            def received_headers(self, headers):
                jar.told.extend(value for name, values in headers.items() if name.lower() == "set-cookie" for value in values)

        return Middleware()


@pytest.fixture
def keeping(start):
    """A server's client, and what it keeps."""
    server, jar = start(), Cookies()
    with flight.connect(server.uri.replace("grpc://", "grpc+tcp://"), middleware=[jar]) as client:
        yield server, client, jar


def test_a_client_is_told_which_transaction_it_is_in(keeping):
    server, client, jar = keeping
    execute_one(client, "SELECT 1")
    assert jar.told == []
    for _ in range(2):
        execute_one(client, "BEGIN")
        cookie = jar.told[-1]
        assert cookie.startswith("flashmesh-transaction=") and "Max-Age" not in cookie
        jar.kept, jar.told = cookie, []
        # It knows by now.
        execute_one(client, "SELECT 1")
        assert jar.told == []
        execute_one(client, "COMMIT")
        assert jar.told[0] == "flashmesh-transaction=; Max-Age=0"
        jar.kept, jar.told = None, []
    # One of a transaction that has ended here, and ones that nobody has told: a request that was on
    # its way when COMMIT was answered is no error, others are.
    jar.kept = cookie
    execute_one(client, "SELECT 1")
    jar.kept = "flashmesh-transaction=0000000000000001.1"
    with pytest.raises(pa.ArrowException, match="lost the session"):
        execute_one(client, "SELECT 1")
    for other in ("flashmesh-transaction=", "flashmesh-transaction=1", "flashmesh-transaction=ä.1", "=;;="):
        jar.kept = other.encode().decode("latin-1")
        execute_one(client, "SELECT 1")
    # That of another session which is in a transaction is no loss to one that was there: drivers may
    # share what they keep. One that begins with it has lost its connection, and the server does not
    # know yet that the other one has ended.
    with server.flight() as other, server.flight() as anew:
        execute_one(other, "SELECT 1")
        jar.kept = None
        execute_one(client, "BEGIN")
        shared = flight.FlightCallOptions(headers=[(b"cookie", jar.told[-1].encode())])
        other.get_flight_info(query("SELECT 1"), shared)
        with pytest.raises(pa.ArrowException, match="lost the session"):
            anew.get_flight_info(query("SELECT 1"), shared)
        anew.get_flight_info(query("SELECT 1"), shared)
        execute_one(client, "ROLLBACK")


def test_what_only_gives_up_takes_no_notice_away(keeping):
    _, client, jar = keeping
    execute_one(client, "SELECT 1")
    info = client.get_flight_info(query("SELECT 1"))
    jar.kept = "flashmesh-transaction=00000000000000ff.3"
    # Drivers keep errors of these to themselves.
    close = field(1, b"a handle that is none")
    list(client.do_action(("ClosePreparedStatement", command("ActionClosePreparedStatementRequest", close))))
    list(client.do_action(("CancelFlightInfo", field(1, info.serialize()))))
    assert jar.told == []
    with pytest.raises(pa.ArrowException, match="lost the session"):
        execute_one(client, "SELECT 1")
    jar.kept = None
    execute_one(client, "BEGIN")
    # Whoever ends the session has ended the transaction, too.
    jar.kept = jar.told[-1]
    list(client.do_action("CloseSession"))
    assert jar.told[-1] == "flashmesh-transaction=; Max-Age=0"
