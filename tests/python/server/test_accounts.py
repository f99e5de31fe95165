"""Users, roles and grants by SQL: what each statement changes, from when on, and for whom."""

import contextlib
import queue
import random
import subprocess

import adbc_driver_manager
import grpc
import pyarrow
import pyarrow.flight
import pytest
from serving import PATIENCE, add_user, binary, eventually, execute, rows

ADA, BOB = ("ada", "correct horses"), ("bob", "it's a \"battery\"")


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def shell(folder, sql: str, expected: int = 0) -> str:
    """Runs SQL on the database itself, without a server."""
    command = [binary(), "--db", folder / "db", "-c", sql]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
    assert done.returncode == expected, done.stderr
    return done.stdout + done.stderr


def arrow_flight_command(sql: str, kind: str = "CommandStatementQuery") -> bytes:
    """The command of a statement in Flight SQL, in its `Any`."""
    url = f"type.googleapis.com/arrow.flight.protocol.sql.{kind}".encode()
    return field(1, url) + field(2, field(1, sql.encode()))


def field(number: int, value: bytes) -> bytes:
    """A field of a message of protobuf that has a length."""
    length, bytes_of_length = len(value), bytearray()
    while True:
        bytes_of_length.append(length & 0x7F | (0x80 if length > 0x7F else 0))
        length >>= 7
        if not length:
            return bytes([number << 3 | 2]) + bytes(bytes_of_length) + value


def denied(connection, sql: str, message: str = "may not") -> None:
    with pytest.raises(adbc_driver_manager.Error, match=message):
        rows(connection, sql)


@pytest.fixture
def guarded(start, tmp_path):
    """A server of a database with one user, an admin, and two tables."""
    (tmp_path / "made").mkdir()
    shell(
        tmp_path / "made",
        f"CREATE USER ada PASSWORD {quoted(ADA[1])} ADMIN; CREATE TABLE shared AS SELECT 1 AS id; CREATE TABLE hidden AS SELECT 2 AS id",
    )
    return start("--log", "debug", database=tmp_path / "made" / "db")


@pytest.fixture
def admin(guarded):
    with guarded.connect(*ADA) as connection:
        yield connection


def test_a_database_with_users_asks_for_logins(guarded, start, tmp_path):
    with pytest.raises(adbc_driver_manager.Error, match="user name and a password"), guarded.connect() as nobody:
        rows(nobody, "SELECT 1")
    with pytest.raises(adbc_driver_manager.Error, match="wrong user name"), guarded.connect("ada", "x") as nobody:
        rows(nobody, "SELECT 1")
    with guarded.connect(*ADA) as ada:
        assert rows(ada, "SELECT count(*) FROM hidden") == [(1,)]
    guarded.stop()
    # Who says that everybody is trusted gets that.
    trusting = start("--allow-anonymous", database=tmp_path / "made" / "db")
    with trusting.connect() as anybody:
        assert rows(anybody, "SELECT count(*) FROM hidden") == [(1,)]


def test_nobody_can_log_in_without_users(tmp_path):
    command = [binary(), "serve", "--db", tmp_path / "db", "--require-login", "--listen", "127.0.0.1:0", "--http", "none"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
    assert refused.returncode == 1 and "CREATE USER" in refused.stderr


def test_an_open_server_closes_when_the_first_user_is_made(start):
    server = start()
    with server.connect() as anybody:
        execute(anybody, "CREATE TABLE t AS SELECT 1 AS id")
        with pytest.raises(adbc_driver_manager.Error, match="no admin could log in"):
            execute(anybody, "CREATE USER bob PASSWORD 'x'")
        # A token of somebody of that name, from when nobody was asked for a password.
        early = server.flight()
        header = early.authenticate_basic_token("ada", "guessed")
        execute(anybody, f"CREATE USER ada PASSWORD {quoted(ADA[1])} ADMIN")

    def is_closed() -> bool:
        try:
            with server.connect() as anybody:
                return rows(anybody, "SELECT 1") != [(1,)]
        except adbc_driver_manager.Error as error:
            return "user name and a password" in str(error)

    eventually(is_closed, "the server asks for a login")
    with pytest.raises(pyarrow.flight.FlightUnauthenticatedError):
        early.get_flight_info(
            pyarrow.flight.FlightDescriptor.for_command(arrow_flight_command("SELECT 1")),
            pyarrow.flight.FlightCallOptions(headers=[header]),
        )
    with server.connect(*ADA) as ada:
        assert rows(ada, "SELECT id FROM t") == [(1,)]


def test_who_stands_in_the_file_has_no_account_in_the_database(start, tmp_path):
    """One name may be two people: that of the file shall not get what the other one may."""
    (tmp_path / "made").mkdir()
    shell(tmp_path / "made", "CREATE USER bob PASSWORD 'x' ADMIN")
    users = tmp_path / "users.toml"
    add_user(users, *BOB)
    server = start("--users", users, database=tmp_path / "made" / "db")
    with server.connect(*BOB) as bob:
        denied(bob, "ALTER USER bob PASSWORD 'mine'")
        assert rows(bob, "SELECT * FROM system.users") == []


def test_a_transaction_goes_on_when_its_user_gets_more(guarded, admin):
    execute(admin, f"CREATE USER bob PASSWORD {quoted(BOB[1])}")
    execute(admin, "GRANT READ, WRITE ON shared TO bob")
    with guarded.connect(*BOB) as bob:
        execute(bob, "BEGIN")
        execute(bob, "INSERT INTO shared VALUES (2)")
        execute(admin, "GRANT READ ON hidden TO bob")
        denied(bob, "SELECT * FROM hidden", "not found")
        execute(bob, "INSERT INTO shared VALUES (3)")
        execute(bob, "COMMIT")
        assert rows(bob, "SELECT count(*) FROM hidden") == [(1,)]
    assert rows(admin, "SELECT count(*) FROM shared") == [(3,)]


def test_a_request_that_was_held_has_no_rights_of_before(guarded, admin):
    """Its headers came while its user was an admin, its statement when they were none any more."""
    execute(admin, "CREATE USER eve PASSWORD 'secret' ADMIN")
    channel = grpc.insecure_channel(guarded.listen)
    name, token = guarded.flight().authenticate_basic_token("eve", "secret")
    login = [(name.decode(), token.decode())]
    messages = queue.SimpleQueue()
    put = channel.stream_stream("/arrow.flight.protocol.FlightService/DoPut")
    answers = put(iter(messages.get, None), metadata=login)
    # The server has the headers when it has answered a request that came later on the connection.
    list(channel.unary_stream("/arrow.flight.protocol.FlightService/ListActions")(b"", metadata=login))
    execute(admin, "DROP USER eve")
    command = arrow_flight_command("CREATE USER backdoor PASSWORD 'x' ADMIN", "CommandStatementUpdate")
    # The first message of the stream has a descriptor, which is one of a command.
    messages.put(field(1, bytes([1 << 3, 2]) + field(2, command)))
    messages.put(None)
    with pytest.raises(grpc.RpcError) as refused:
        list(answers)
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED, refused.value
    assert rows(admin, "SELECT name FROM system.users") == [("ada",)]
    channel.close()


def test_grants_count_at_once_and_so_does_their_end(guarded, admin):
    execute(admin, f"CREATE USER bob PASSWORD {quoted(BOB[1])}")
    with guarded.connect(*BOB) as bob:
        assert rows(bob, "SELECT 1") == [(1,)]
        denied(bob, "SELECT * FROM shared", "not found")
        execute(admin, "GRANT SELECT ON shared TO bob")
        assert rows(bob, "SELECT * FROM shared") == [(1,)]
        denied(bob, "SELECT * FROM hidden", "not found")
        denied(bob, "INSERT INTO shared VALUES (3)")
        execute(admin, "GRANT WRITE ON shared TO bob")
        execute(bob, "INSERT INTO shared VALUES (3)")
        execute(admin, "REVOKE READ, WRITE ON shared FROM bob")
        denied(bob, "SELECT * FROM shared", "not found")
        execute(admin, "CREATE ROLE reader")
        execute(admin, "GRANT READ ON public.* TO reader")
        execute(admin, "GRANT reader TO bob")
        assert rows(bob, "SELECT count(*) FROM hidden") == [(1,)]
        assert rows(bob, "SHOW GRANTS") == [("bob", "read", "table", "public.*", None)]
        with pytest.raises(adbc_driver_manager.Error, match="role reader"):
            execute(admin, "REVOKE READ ON hidden FROM bob")
        execute(admin, "REVOKE reader FROM bob")
        denied(bob, "SELECT * FROM hidden", "not found")
        execute(admin, "DROP USER bob")
        denied(bob, "SELECT 1", "no user 'bob'")


def test_only_admins_change_accounts_and_everybody_their_password(guarded, admin):
    execute(admin, f"CREATE USER bob PASSWORD {quoted(BOB[1])}")
    with guarded.connect(*BOB) as bob:
        for sql in [
            "CREATE USER eve PASSWORD 'x'",
            "CREATE ROLE r",
            "ALTER USER bob ADMIN",
            "ALTER USER bob PASSWORD 'x' ADMIN",
            "ALTER USER ada PASSWORD 'x'",
            "GRANT READ ON hidden TO bob",
            "DROP USER ada",
            "CALL change_accounts('GRANT READ ON hidden TO bob')",
            "EXPLAIN CALL change_accounts('GRANT READ ON hidden TO bob')",
        ]:
            with pytest.raises(adbc_driver_manager.Error):
                execute(bob, sql)
        assert rows(bob, "SELECT name, admin FROM system.users") == [("bob", False)]
        # The driver asks once more, to close its statement, and learns that it worked.
        with pytest.raises(adbc_driver_manager.Error, match="password was changed"):
            execute(bob, "ALTER USER bob PASSWORD 'another one'")
        denied(bob, "SELECT 1", "password was changed")
    with pytest.raises(adbc_driver_manager.Error), guarded.connect(*BOB) as nobody:
        rows(nobody, "SELECT 1")
    with guarded.connect("bob", "another one") as bob:
        assert rows(bob, "SELECT 1") == [(1,)]
    assert rows(admin, "SELECT name, kind, admin, has_password FROM system.users ORDER BY name") == [
        ("ada", "user", True, True),
        ("bob", "user", False, True),
    ]
    for sql in ["DROP USER ada", "ALTER USER ada NOADMIN", "ALTER USER ada PASSWORD NULL"]:
        with pytest.raises(adbc_driver_manager.Error, match="no admin could log in"):
            execute(admin, sql)


def test_no_password_is_told(guarded, admin):
    """Neither the list of queries nor the log has one, whatever became of the statement."""
    client = guarded.flight()
    header = client.authenticate_basic_token(*ADA)
    options = pyarrow.flight.FlightCallOptions(headers=[header])
    called = "CREATE USER eve PASSWORD 'ter-rific secret'"
    statements = [
        "CREATE USER bob PASSWORD 'ter-rific secret'",
        "CREATE USER bob PASSWORD 'ter-rific secret'",
        "ALTER USER nobody PASSWORD 'ter-rific secret'",
        "CREATE USER eve PASSWORD 'ter-rific secret' NONSENSE",
        "CREATE USER eve PASSWORD 'ter-rific secret' 'ter-rific secret'",
        'CREATE USER eve PASSWORD "ter-rific secret"',
        "CREATE USER eve PASSWORD $$ter-rific secret$$",
        "CREATE USER eve PASSWORD terrific",
        "CREATE USER eve PASSWORD = 'ter-rific secret'",
        "CREATE OR REPLACE USER eve PASSWORD 'ter-rific secret'",
        "CREATE USER eve IDENTIFIED BY 'ter-rific secret'",
        f"CALL change_accounts({quoted(called)})",
        f"EXPLAIN CALL change_accounts({quoted(called)})",
        "EXPLAIN CREATE USER eve PASSWORD 'ter-rific secret'",
        "EXPLAIN CREATE USER eve PASSWORD='ter-rific secret'",
        "PREPARE p AS CREATE USER eve PASSWORD='ter-rific secret'",
    ]
    for sql in statements:
        # As requests of their own, so that each is logged once, whatever became of it.
        command = arrow_flight_command(sql)
        with contextlib.suppress(pyarrow.flight.FlightError, pyarrow.ArrowException):
            client.get_flight_info(pyarrow.flight.FlightDescriptor.for_command(command), options)
    found = "SELECT query, error FROM system.queries WHERE query LIKE '%PASSWORD%' OR query LIKE '%IDENTIFIED%'"
    logged = [query for query in rows(admin, found) if not query[0].startswith("SELECT query")]
    assert len(logged) == len(statements) and "rific" not in str(logged), logged
    assert "rific" not in guarded.log()
    users = (guarded.database / "catalog.redb").read_bytes()
    assert b"rific" not in users and b"argon2id" in users


def test_the_file_stands_beside_the_database(start, tmp_path):
    (tmp_path / "made").mkdir()
    shell(tmp_path / "made", f"CREATE USER ada PASSWORD {quoted(ADA[1])} ADMIN; CREATE USER bob PASSWORD 'x'")
    users = tmp_path / "users.toml"
    add_user(users, *BOB)
    server = start("--users", users, database=tmp_path / "made" / "db")
    with server.connect(*ADA) as ada:
        assert rows(ada, "SELECT 1") == [(1,)]
        execute(ada, "CREATE ROLE analyst")
    # Who is in both is who the file says.
    with server.connect(*BOB) as bob:
        assert rows(bob, "SHOW GRANTS") == [("bob", "read", "table", "*.*", None)]
    with pytest.raises(adbc_driver_manager.Error), server.connect("bob", "x") as nobody:
        rows(nobody, "SELECT 1")


def test_random_grants_do_what_a_model_says(guarded, admin):
    """Statements in any order, against sets of (grantee, right, pattern)."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    execute(admin, "CREATE SCHEMA s")
    tables = ["public.a1", "public.a2", "public.b", "s.a1"]
    for table in tables:
        execute(admin, f"CREATE TABLE {table} AS SELECT 1 AS id")
    execute(admin, f"CREATE USER bob PASSWORD {quoted(BOB[1])}")
    execute(admin, "CREATE ROLE r1")
    execute(admin, "CREATE ROLE r2")
    patterns = ["public.a1", "public.a*", "public.*", "s.*", "*.*", "*.a1"]
    granted, roles = set(), set()

    def matches(pattern: str, table: str) -> bool:
        return all(
            name.startswith(part[:-1]) if part.endswith("*") else name == part
            for part, name in zip(pattern.split("."), table.split("."), strict=True)
        )

    def may(right: str, table: str) -> bool:
        return any(r == right and g in {"bob", *roles} and matches(p, table) for g, r, p in granted)

    with guarded.connect(*BOB) as bob:
        for _ in range(60):
            grantee, right, pattern = draw.choice(["bob", "r1", "r2"]), draw.choice(["read", "write"]), draw.choice(patterns)
            what = draw.random()
            if what < 0.5:
                execute(admin, f"GRANT {right} ON {pattern} TO {grantee}")
                granted.add((grantee, right, pattern))
            elif what < 0.8:
                statement = f"REVOKE {right} ON {pattern} FROM {grantee}"
                if (grantee, right, pattern) in granted:
                    execute(admin, statement)
                    granted.discard((grantee, right, pattern))
                else:
                    with pytest.raises(adbc_driver_manager.Error, match="was not granted"):
                        execute(admin, statement)
            else:
                role = draw.choice(["r1", "r2"])
                execute(admin, f"GRANT {role} TO bob" if role not in roles else f"REVOKE {role} FROM bob")
                roles ^= {role}
            table = draw.choice(tables)
            for right, sql in [("read", f"SELECT count(id) FROM {table}"), ("write", f"INSERT INTO {table} VALUES (1)")]:
                if may(right, table):
                    execute(bob, sql)
                else:
                    with pytest.raises(adbc_driver_manager.Error, match="not found|may not|doesn't exist|does not exist"):
                        execute(bob, sql)
        shown = {(g, right, name) for g, right, kind, name, role in rows(admin, "SHOW GRANTS") if role is None}
        assert shown == granted
