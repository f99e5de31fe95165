"""PEP 249: the public compliance suite, and what flashmesh adds."""

import datetime
import threading

import dbapi20
import flashmesh
import pyarrow as pa
import pytest
from flashmesh import dbapi

PLACES = ["file", "server", "rack"]


@pytest.fixture
def con(path):
    with dbapi.connect(path) as connection:
        yield connection


class Compliance(dbapi20.DatabaseAPI20Test):
    """The suite; its tests run below, one by one, as it knows nothing of fixtures."""

    __test__ = False
    driver = dbapi

    # Optional, and flashmesh has none: procedures, several result sets, sizes.
    def test_callproc(self):
        assert not hasattr(dbapi.Cursor, "callproc")

    def test_nextset(self):
        assert not hasattr(dbapi.Cursor, "nextset")

    def test_setoutputsize(self):
        with dbapi.connect(*self.connect_args) as connection, connection.cursor() as cursor:
            cursor.setoutputsize(1000)
            cursor.setoutputsize(2000, 0)

    # An extension: errors are attributes of connections, too.
    is_error_attribute_supported = True


SUITE = sorted(name for name in dir(Compliance) if name.startswith("test"))


@pytest.mark.parametrize("test", SUITE)
def test_compliance(test, path):
    case = Compliance(test)
    case.connect_args = (path,)
    try:
        case.setUp()
        getattr(case, test)()
    finally:
        case.tearDown()


# Transactions.


def count(connection):
    return connection.execute("SELECT count(*) FROM t").fetchone()[0]


def test_changes_wait_for_a_commit(path):
    with dbapi.connect(path) as con:
        con.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT)")
        con.commit()
        con.execute("INSERT INTO t VALUES (?, ?)", [1, "a"])
        con.rollback()
        assert count(con) == 0
        con.cursor().executemany("INSERT INTO t VALUES (?, ?)", [(i, str(i)) for i in range(50)])
        con.commit()
        con.execute("DELETE FROM t")
        # Statements may end transactions themselves.
        con.execute("ROLLBACK")
        con.rollback()
        con.execute("DELETE FROM t WHERE id = 1")
    with pytest.raises(ZeroDivisionError):
        with dbapi.connect(path) as con:
            assert count(con) == 49
            con.execute("DELETE FROM t")
            1 / 0  # noqa: B018
    with dbapi.connect(path, autocommit=True) as con:
        con.execute("DELETE FROM t WHERE id = 2")
        con.rollback()
        assert count(con) == 48
        con.autocommit = False
        con.execute("DELETE FROM t")
        con.autocommit = True
        con.rollback()
        assert count(con) == 0


def test_a_statement_that_fails_leaves_the_transaction(con):
    con.execute("CREATE TABLE t (id BIGINT PRIMARY KEY)")
    con.commit()
    con.execute("INSERT INTO t VALUES (1)")
    with pytest.raises(dbapi.IntegrityError):
        con.execute("INSERT INTO t VALUES (1)")
    con.commit()
    assert count(con) == 1


def test_threads_share_a_connection(con):
    con.execute("CREATE TABLE t (id BIGINT)")
    con.commit()

    def work(number):
        con.execute("INSERT INTO t VALUES (?)", [number])

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    con.commit()
    assert count(con) == 8


# Rows, types and errors.


def test_columns_have_types(con):
    cursor = con.cursor()
    assert cursor.description is None and cursor.rowcount == -1
    cursor.execute("SELECT 1 AS i, 1.5 AS f, 'x' AS s, X'00' AS b, DATE '2024-01-01' AS d, now() AS t, true AS o")
    kinds = [dbapi.NUMBER, dbapi.NUMBER, dbapi.STRING, dbapi.BINARY, dbapi.DATETIME, dbapi.DATETIME, dbapi.NUMBER]
    assert [column[0] for column in cursor.description] == list("ifsbdto")
    for column, kind in zip(cursor.description, kinds, strict=True):
        assert column[1] == kind and kind == column[1], column
        assert not any(column[1] == other for other in {dbapi.STRING, dbapi.BINARY, dbapi.NUMBER, dbapi.DATETIME, dbapi.ROWID} - {kind})
    assert len({dbapi.STRING, dbapi.BINARY, dbapi.NUMBER, dbapi.DATETIME, dbapi.ROWID}) == 5
    assert cursor.rowcount == 1 and len(cursor.fetchone()) == 7
    assert cursor.execute("SELECT $a AS x", {"a": dbapi.Date(2024, 1, 2)}).fetchall() == [(datetime.date(2024, 1, 2),)]
    assert cursor.execute("SELECT 5 AS n").fetch_arrow_table() == pa.table({"n": [5]}).cast(pa.schema([pa.field("n", pa.int64(), False)]))
    assert [row for (row,) in cursor.execute("SELECT value FROM generate_series(1, 3) AS s(value)")] == [1, 2, 3]


def test_errors_have_kinds(con):
    con.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, v TEXT NOT NULL)")
    con.execute("INSERT INTO t VALUES (1, 'x')")
    con.commit()
    for query, values, kind in (
        ("SELEC 1", (), dbapi.ProgrammingError),
        ("SELECT * FROM nowhere", (), dbapi.ProgrammingError),
        ("SELECT nope FROM t", (), dbapi.ProgrammingError),
        ("SELECT nope(id) FROM t", (), dbapi.ProgrammingError),
        ("CREATE TABLE t (a INT)", (), dbapi.ProgrammingError),
        ("SELECT ?", (1, 2), dbapi.ProgrammingError),
        ("SELECT ?", (object(),), dbapi.ProgrammingError),
        ("INSERT INTO t VALUES (?, 'y')", (1,), dbapi.IntegrityError),
        ("INSERT INTO t VALUES (2, ?)", (None,), dbapi.IntegrityError),
        ("INSERT INTO t VALUES (?, 'y')", ("x",), dbapi.DataError),
        ("SELECT CAST(v AS INT) FROM t", (), dbapi.DataError),
        ("SELECT id / 0 FROM t", (), dbapi.DataError),
        ("ROLLBACK; ROLLBACK", (), dbapi.OperationalError),
    ):
        with pytest.raises(dbapi.Error) as caught:
            con.execute(query, values)
        assert type(caught.value) is kind, (query, caught.value)
        assert isinstance(caught.value, flashmesh.Error)
        # The database's words, and nothing around them.
        assert "Error" not in str(caught.value).partition(":")[0] or kind is dbapi.DataError
        con.rollback()
    assert dbapi.Error is flashmesh.Error
    assert issubclass(dbapi.IntegrityError, dbapi.DatabaseError) and not issubclass(dbapi.InterfaceError, dbapi.DatabaseError)
    with pytest.raises(dbapi.ProgrammingError, match="no rows"):
        con.execute("INSERT INTO t VALUES (7, 'y')").fetchone()
    with pytest.raises(dbapi.ProgrammingError, match="no rows"):
        con.cursor().fetchone()


def test_what_is_closed_says_so(path):
    con = dbapi.connect(path)
    cursor, other = con.cursor(), con.cursor()
    cursor.close()
    for use in (cursor.fetchone, lambda: cursor.execute("SELECT 1")):
        with pytest.raises(dbapi.InterfaceError, match="cursor is closed"):
            use()
    other.execute("SELECT 1")
    con.close()
    for use in (con.close, con.commit, con.rollback, con.cursor, other.fetchone, lambda: other.execute("SELECT 1")):
        with pytest.raises(dbapi.InterfaceError, match="connection is closed"):
            use()


def test_two_changes_of_one_row_conflict(serve):
    url = serve().url
    with dbapi.connect(url) as one, dbapi.connect(url) as two:
        one.execute("CREATE TABLE t (id BIGINT PRIMARY KEY, v BIGINT)")
        one.execute("INSERT INTO t VALUES (1, 0)")
        one.commit()
        for con in (one, two):
            con.execute("UPDATE t SET v = v + 1 WHERE id = 1")
        one.commit()
        with pytest.raises(dbapi.OperationalError, match="meanwhile"):
            two.commit()
        # It has ended, and another one can begin.
        two.execute("UPDATE t SET v = v + 1 WHERE id = 1")
        two.commit()
        assert two.execute("SELECT v FROM t").fetchall() == [(2,)]
