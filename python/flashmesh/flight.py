"""A client of a server: statements and their rows over Arrow Flight SQL, by ADBC's driver."""

from __future__ import annotations

import _thread
import functools
import itertools
import os
import re
import signal
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa

from . import cancel
from ._flashmesh import Error, tuples

if TYPE_CHECKING:
    from adbc_driver_manager.dbapi import Connection, Cursor

    from .backend import Mode

#: The greatest message that is read, in bytes; a server's own limit is lower.
MAX_MESSAGE_SIZE = 1 << 30

#: The header in which a server is told what a statement is called in `system.queries`.
TAG = "flashmesh-tag"
#: The header of statements of a transaction: a server that has lost it refuses them.
TRANSACTION = "flashmesh-transaction"
#: Of an ingest by primary key: what it does.
BY_KEY = "flashmesh-by-key"

#: Seconds for a cancelled call to return.
GRACE = 5.0
#: Seconds between two looks at a statement that takes long, and for whether it was cancelled.
LOOK, CANCEL_LOOK = 0.5, 0.05

T = TypeVar("T")
#: SQL, or the bytes of a Substrait plan.
Statement = str | bytes
#: What is done while a query runs, with its tag among the server's queries.
Watch = Callable[[str], None]


class Client:
    """A session of a server.

    Whatever waits for the server waits in a thread of its own, so that Ctrl-C is seen at once; it
    cancels the statement on the server. Where a server has gone, the next statement connects
    anew, with the settings and views that were made here.
    """

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        tls_ca: str | os.PathLike[str] | None = None,
        tls_client_cert: str | os.PathLike[str] | None = None,
        tls_client_key: str | os.PathLike[str] | None = None,
    ) -> None:
        try:
            from adbc_driver_flightsql import DatabaseOptions
        except ImportError:
            raise Error(
                f"'{url.rpartition('@')[2]}' is a server, and the driver for servers is not "
                "installed: pip install 'flashmesh[server]'"
            ) from None
        parts = urlsplit(url)
        if parts.username is not None or parts.password is not None:
            raise Error("a url with a user in it is not taken: give user=… and password=… instead")
        if not parts.netloc or parts.path not in ("", "/") or parts.query:
            raise Error(f"'{url}' is not the url of a server; it is e.g. 'grpc://localhost:50051'")
        if (user is None) != (password is None):
            raise Error("user and password go together; give both, or a token, or neither")
        if user is not None and token is not None:
            raise Error("give either user and password or a token")
        if (tls_client_cert is None) != (tls_client_key is None):
            raise Error("tls_client_cert and tls_client_key go together")
        self.url = url
        options = {DatabaseOptions.WITH_MAX_MSG_SIZE.value: str(MAX_MESSAGE_SIZE)}
        if user is not None and password is not None:
            options |= {"username": user, "password": password}
        if token is not None:
            options[DatabaseOptions.AUTHORIZATION_HEADER.value] = f"Bearer {token}"
        for option, path in (
            (DatabaseOptions.TLS_ROOT_CERTS, tls_ca),
            (DatabaseOptions.MTLS_CERT_CHAIN, tls_client_cert),
            (DatabaseOptions.MTLS_PRIVATE_KEY, tls_client_key),
        ):
            if path is None:
                continue
            if not url.startswith("grpc+tls://"):
                raise Error(f"certificates need a url that begins with 'grpc+tls://', not '{url}'")
            try:
                with open(path, encoding="ascii") as file:
                    options[option.value] = file.read()
            except (OSError, UnicodeDecodeError) as error:
                raise Error(f"'{os.fspath(path)}' can't be read as PEM: {error}") from None
        self._options = options
        self._state = threading.Condition()
        self._connection: Connection | None = None
        self._running: set[Cursor] = set()
        self._is_stale = False
        self.is_closed = False
        #: Whether a transaction was begun here.
        self.is_in_transaction = False
        #: What makes a session what this one is: statements by what they make.
        self.session: dict[str, str] = {}
        self.run("SELECT 1")

    # Statements.

    def run(self, statement: Statement, watch: Watch | None = None) -> Rows:
        """Run a statement to its end and keep its rows; `watch` is called again and again
        meanwhile."""
        rows = self.stream(statement, watch)
        batches = list(rows)
        return Rows(rows.schema, iter(batches), num_rows=sum(map(len, batches)), names=rows.names)

    def stream(self, statement: Statement, watch: Watch | None = None) -> Rows:
        """Run a statement while its rows are read. One that changes something has been run when
        this returns."""
        cursor = self._cursor()
        try:
            tag = uuid.uuid4().hex
            reader = self._wait(cursor, lambda: _execute(cursor, statement, tag))
        except BaseException:
            self._end(cursor)
            raise
        look = functools.partial(watch, tag) if watch else None
        return Rows(reader.schema, self._batches(cursor, reader, look), tag)

    def columns(self, statement: Statement) -> pa.Schema | None:
        """The columns of a query; None for a statement that changes something."""
        cursor = self._cursor()
        try:
            return self._wait(cursor, lambda: _columns(cursor, statement))
        finally:
            self._end(cursor)

    def ingest(
        self, schema: str | None, table: str, rows: pa.RecordBatchReader, mode: Mode, by_key: str = ""
    ) -> int:
        """Store rows in a table, all or nothing; their number. `by_key`: they are put by primary
        key, or, where it is "delete", are the keys of those that go."""
        cursor = self._cursor()
        try:
            _set_header(cursor, BY_KEY, by_key)
            return self._wait(
                cursor, lambda: cursor.adbc_ingest(table, rows, mode, db_schema_name=schema)
            )
        finally:
            self._end(cursor)

    def _batches(
        self, cursor: Cursor, reader: Any, look: Callable[[], None] | None
    ) -> Iterator[pa.RecordBatch]:
        try:
            while (batch := self._wait(cursor, lambda: next(reader, None), look)) is not None:
                yield batch
        finally:
            reader.close()
            self._end(cursor)

    # The connection.

    def close(self) -> None:
        """End the connection: what runs is cancelled."""
        with self._state:
            self.is_closed = True
            self._disconnect()

    def _cursor(self) -> Cursor:
        with self._state:
            if self.is_closed:
                raise Error("the connection is closed")
            if self._is_stale:
                self._disconnect()
            if self._connection is None:
                self._connection = self._connect()
            cursor = self._connection.cursor()
            # Cursors share what was set by the ones before.
            _set_header(cursor, TRANSACTION, "1" if self.is_in_transaction else "")
            return cursor

    def _connect(self) -> Connection:
        from adbc_driver_flightsql import dbapi

        with _errors(self.url):
            connection = dbapi.connect(self.url, db_kwargs=self._options, autocommit=True)
        try:
            with _errors(self.url):
                for statement in self.session.values():
                    with connection.cursor() as cursor:
                        _execute(cursor, statement).close()
        except BaseException:
            connection.close()
            raise
        self._is_stale = False
        return connection

    def _disconnect(self) -> None:
        """Called with the lock."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        for cursor in self._running:
            cursor.adbc_cancel()
        # The driver must not lose a statement under a thread that is in it.
        self._state.wait_for(lambda: not self._running)
        connection.close()

    def _end(self, cursor: Cursor) -> None:
        with self._state:
            if self._connection is not None and cursor not in self._running:
                cursor.close()

    def _wait(
        self, cursor: Cursor, work: Callable[[], T], look: Callable[[], None] | None = None
    ) -> T:
        """Do what waits for the server; `look` again and again meanwhile."""
        with self._state:
            if self.is_closed or self._connection is None:
                raise Error("the connection is closed")
            self._running.add(cursor)
        pause = CANCEL_LOOK if cancel.is_possible() else LOOK if look else None
        outcome: list[T] = []
        failure: list[BaseException] = []
        done = threading.Event()

        def do() -> None:
            try:
                with _errors(self.url) as errors:
                    outcome.append(work())
            except BaseException as error:
                failure.append(error)
            finally:
                with self._state:
                    self._running.discard(cursor)
                    self._is_stale |= errors.connection_is_lost
                    self._state.notify_all()
                done.set()

        try:
            _thread.start_new_thread(do, ())
            waited = 0.0
            while not done.wait(pause):
                cancel.check()
                waited += pause or LOOK
                if look and waited >= LOOK:
                    look()
                    waited = 0.0
        except BaseException:
            cursor.adbc_cancel()
            # The driver returns at once. If Ctrl-C came first, there is no thread to wait for.
            done.wait(GRACE)
            raise
        if failure:
            raise failure[0]
        return outcome[0]


class Rows:
    """Rows of a statement, read once. Columns have distinct names."""

    def __init__(
        self,
        schema: pa.Schema,
        batches: Iterator[pa.RecordBatch],
        tag: str = "",
        num_rows: int | None = None,
        names: Sequence[str] | None = None,
    ) -> None:
        self.schema = distinct(schema)
        self._batches = batches
        #: The number of rows that are left; None where they have not all come yet.
        self.num_rows = num_rows
        #: Names of the columns as they were asked for.
        self.names = schema.names if names is None else names
        #: What the statement is called among the server's queries.
        self.tag = tag

    def __iter__(self) -> Rows:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = next(self._batches)
        if self.num_rows is not None:
            self.num_rows -= len(batch)
        return pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)

    def fetch(self, limit: int | None = None) -> list[tuple[Any, ...]]:
        """The next rows as tuples: at most `limit`, or all that are left."""
        rows: list[tuple[Any, ...]] = []
        while (limit is None or len(rows) < limit) and (batch := next(self, None)) is not None:
            wanted = len(batch) if limit is None else min(len(batch), limit - len(rows))
            if wanted < len(batch):
                rest = batch.slice(wanted)
                self._batches = itertools.chain([rest], self._batches)
                if self.num_rows is not None:
                    self.num_rows += len(rest)
            rows.extend(tuples(batch.slice(0, wanted)))
        return rows

    def __arrow_c_schema__(self) -> object:
        return self.schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self.schema, self._for_other_libraries())
        return reader.__arrow_c_stream__(requested_schema)

    def _for_other_libraries(self) -> Iterator[pa.RecordBatch]:
        """An Arrow stream can carry text only. Ctrl-C is raised again a moment later: raised here,
        it would become text as well."""
        try:
            yield from self
        except KeyboardInterrupt:
            threading.Timer(0.05, _interrupt).start()
            raise Error("the query was interrupted") from None


def _interrupt() -> None:
    """Ctrl-C once more; a signal wakes a main thread that sleeps."""
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGINT)


def distinct(schema: pa.Schema) -> pa.Schema:
    """A schema whose names are distinct: of two columns `id` the second is `id:1`."""
    names: set[str] = set()
    fields = []
    for field in schema:
        name, number = field.name, 0
        while name in names:
            number += 1
            name = f"{field.name}:{number}"
        names.add(name)
        fields.append(field.with_name(name))
    return pa.schema(fields)


def _set_header(cursor: Cursor, name: str, value: str) -> None:
    from adbc_driver_flightsql import StatementOptions

    cursor.adbc_statement.set_options(**{StatementOptions.RPC_CALL_HEADER_PREFIX.value + name: value})


def _execute(cursor: Cursor, statement: Statement, tag: str = "") -> Any:
    # Cursors would prepare it, and a prepared statement is two more requests.
    driver = cursor.adbc_statement
    _set_header(cursor, TAG, tag)
    if isinstance(statement, str):
        driver.set_sql_query(statement)
    else:
        driver.set_substrait_plan(statement)
    rows, _ = driver.execute_query()
    return pa.RecordBatchReader.from_stream(rows)


def _columns(cursor: Cursor, statement: Statement) -> pa.Schema | None:
    from adbc_driver_manager import NotSupportedError

    try:
        return distinct(cursor.adbc_execute_schema(statement))
    except NotSupportedError as error:
        # A prepared statement without columns is one that changes something; what the server
        # itself does not support it says in other words.
        if "did not provide schema" in str(error):
            return None
        raise


#: What the driver puts around a server's text: `STATUS: [FlightSQL] text (Status; call)`.
_AROUND = re.compile(
    r"^(?:[A-Z_]+: (?:\[[^\]]*\] )?|\[FlightSQL\] )(?P<text>.*?)"
    r"(?: \((?P<status>[A-Z][A-Za-z]+)(?:; [^()]*(?:\([^()]*\)[^()]*)*)?\))?(?:\. Vendor code: \d+)?$",
    re.DOTALL,
)


class _errors:
    """Turns the driver's exceptions into ours, with the server's text only."""

    def __init__(self, url: str) -> None:
        self._url = url
        #: Whether the error was one after which only another connection can help.
        self.connection_is_lost = False

    def __enter__(self) -> _errors:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if not isinstance(error, Exception) or isinstance(error, (Error, StopIteration)):
            return
        match = _AROUND.match(str(error))
        text, status = (match["text"], match["status"]) if match else (str(error), None)
        self.connection_is_lost = status in ("Unavailable", "Unauthenticated")
        if status == "Unavailable":
            raise Error(f"{self._url} can't be reached: {text}") from None
        raise Error(text) from None
