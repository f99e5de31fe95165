"""What clients have begun when a server is told to end: it waits for that, and has them go on elsewhere."""

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import adbc_driver_manager
import pytest
from serving import PATIENCE, add_user, eventually, execute, rows
from test_flight import descriptor, fetched, field, query
from test_parameters import prepare

#: What a client is told whose statement was not begun: it can ask again, of whom it likes. And what
#: ADBC's driver says when it closes a statement a second time, as closing it was refused before.
NOT_BEGUN = ("connection refused", "nothing of this was done", "already closed (Unknown; ClosePreparedStatement)")


def ends(server) -> None:
    server.terminate()
    eventually(lambda: "stopping" in server.log(), "the server notices the signal")


def test_a_result_that_was_asked_for_is_fetched(start):
    server = start()
    with server.flight() as client:
        info = client.get_flight_info(query("SELECT 42 AS answer"))
        ends(server)
        assert fetched(client, info).to_pylist() == [{"answer": 42}]
        server.stop()


def test_what_a_change_has_answered_is_fetched(start):
    server = start()
    with server.connect() as connection:
        execute(connection, "CREATE TABLE t (id INT)")
    with server.flight() as client:
        info = client.get_flight_info(query("INSERT INTO t VALUES (1), (2)"))
        ends(server)
        assert fetched(client, info).to_pylist() == [{"count": 2}]
        server.stop()


def test_a_transaction_comes_to_its_end(start):
    server = start()
    with server.connect() as connection:
        execute(connection, "CREATE TABLE t (id INT)")
        execute(connection, "BEGIN")
        execute(connection, "INSERT INTO t VALUES (1)")
        ends(server)
        execute(connection, "INSERT INTO t VALUES (2)")
        # Nobody else comes in meanwhile.
        with pytest.raises(adbc_driver_manager.Error, match="connection refused"), server.connect() as other:
            execute(other, "INSERT INTO t VALUES (3)")
        execute(connection, "COMMIT")
        server.stop()
        server.start()
        assert rows(connection, "SELECT id FROM t ORDER BY id") == [(1,), (2,)]
        server.stop()
        with contextlib.suppress(adbc_driver_manager.Error):
            connection.close()


def test_a_transaction_is_broken_off_after_the_drain_time(start):
    server = start("--drain-time", "1s")
    with server.connect() as connection:
        execute(connection, "CREATE TABLE t (id INT)")
        execute(connection, "BEGIN")
        execute(connection, "INSERT INTO t VALUES (1)")
        ends(server)
        server.stop()
        assert "is broken off" in server.log()
        server.start()
        with server.connect() as other:
            assert rows(other, "SELECT count(*) FROM t") == [(0,)]
        with contextlib.suppress(adbc_driver_manager.Error):
            connection.close()


def test_what_takes_long_is_not_taken_for_forgotten(start):
    """A change takes longer than clients may think about what they do next: its answer is fetched."""
    server = start()
    pairs = "SELECT count(*) AS n FROM generate_series(1, {}) AS a(x), generate_series(1, 100000) AS b(y) WHERE x * y < 0"
    with server.connect() as connection:
        execute(connection, "CREATE TABLE t (n BIGINT)")
        begun = time.monotonic()
        rows(connection, pairs.format(200))
        # About 8 s of the present machine; clients may think for 5.
        long = pairs.format(int(200 * 8 / (time.monotonic() - begun)))
    with server.flight() as client, ThreadPoolExecutor() as threads:
        info = threads.submit(client.get_flight_info, query(f"INSERT INTO t {long}"))
        server.running(long)
        ends(server)
        assert fetched(client, info.result(PATIENCE)).to_pylist() == [{"count": 1}]
        server.stop()


@pytest.mark.parametrize("user", [None, ("ada", "correct horses")])
def test_no_statement_is_broken_off(start, tmp_path, user):
    """Clients that ask all the time: each statement is answered, or its client is told that it was not begun."""
    options = []
    if user:
        add_user(tmp_path / "users.toml", *user, "--admin")
        options = ["--users", tmp_path / "users.toml"]
    server = start(*options)
    with server.connect(*(user or ())) as connection:
        execute(connection, "CREATE TABLE t (id INT, who INT)")
    done, failures = [0] * 6, []
    over = threading.Event()

    def go_on(who: int) -> None:
        while not over.is_set():
            with contextlib.suppress(adbc_driver_manager.Error), server.connect(*(user or ())) as connection:
                while not over.is_set():
                    try:
                        # Some with a statement that is prepared for itself.
                        parameters = (done[who] + 1, who) if who % 2 else None
                        values = "$1, $2" if parameters else f"{done[who] + 1}, {who}"
                        with connection.cursor() as cursor:
                            cursor.execute(f"INSERT INTO t VALUES ({values})", parameters)
                            # To close the cursor is a request of its own.
                            done[who] += 1
                        [(count,)] = rows(connection, f"SELECT count(*) FROM t WHERE who = {who}")
                        assert count == done[who]
                    except BaseException as error:
                        if not any(text in str(error) for text in NOT_BEGUN):
                            failures.append(repr(error))
                        raise

    threads = [threading.Thread(target=go_on, args=(who,)) for who in range(len(done))]
    for thread in threads:
        thread.start()
    try:
        for _ in range(4):
            before = list(done)
            eventually(lambda before=before: all(a > b + 5 for a, b in zip(done, before, strict=True)), "all go on")
            ends(server)
            server.stop()
            server.start()
    finally:
        over.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert not failures, failures
    with server.connect(*(user or ())) as connection:
        counts = rows(connection, "SELECT who, count(*), max(id) FROM t GROUP BY who ORDER BY who")
    assert counts == [(who, count, count) for who, count in enumerate(done)]


def test_a_prepared_statement_is_run(start):
    server = start()
    with server.flight() as client:
        handle = prepare(client, "SELECT 1 AS one")
        ends(server)
        info = client.get_flight_info(descriptor("CommandPreparedStatementQuery", field(1, handle)))
        assert fetched(client, info).to_pylist() == [{"one": 1}]
        server.stop()
