"""Users, roles and grants by SQL: what each statement changes, from when on, and for whom."""

import random
import subprocess

import adbc_driver_manager
import pytest
from serving import PATIENCE, add_user, binary, execute, rows

ADA, BOB = ("ada", "correct horses"), ("bob", "it's a \"battery\"")


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def shell(folder, sql: str, expected: int = 0) -> str:
    """Runs SQL on the database itself, without a server."""
    command = [binary(), "--db", folder / "db", "-c", sql]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
    assert done.returncode == expected, done.stderr
    return done.stdout + done.stderr


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
    for sql in ["DROP USER ada", "ALTER USER ada NOADMIN"]:
        with pytest.raises(adbc_driver_manager.Error, match="admin any more"):
            execute(admin, sql)


def test_no_password_is_told(guarded, admin):
    """Neither the list of queries nor the log has one, whatever became of the statement."""
    for sql in [
        "CREATE USER bob PASSWORD 'ter-rific secret'",
        "CREATE USER bob PASSWORD 'ter-rific secret'",
        "ALTER USER nobody PASSWORD 'ter-rific secret'",
        "CREATE USER eve PASSWORD 'ter-rific secret' NONSENSE",
        "CREATE USER eve PASSWORD 'ter-rific secret' 'ter-rific secret'",
    ]:
        try:
            execute(admin, sql)
        except adbc_driver_manager.Error as error:
            assert "rific" not in str(error) or "NONSENSE" in sql  # noqa: PT017
    logged = rows(admin, "SELECT query, error FROM system.queries WHERE query LIKE '%PASSWORD%' AND state <> 'running'")
    assert len(logged) == 5 and "rific" not in str(logged), logged
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
