"""Python's database API (PEP 249) on flashmesh.

>>> from flashmesh import dbapi
>>> with dbapi.connect("sales") as con, con.cursor() as cursor:
...     cursor.execute("SELECT id FROM orders WHERE price > ?", [100])
...     cursor.fetchall()
"""

from __future__ import annotations

import datetime
import functools
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

import flashmesh

from . import script
from ._flashmesh import Error

if TYPE_CHECKING:
    from .result import Description, Result

apilevel = "2.0"
#: Threads may share connections; a transaction is the connection's.
threadsafety = 2
paramstyle = "qmark"


class Warning(Exception):
    """Of PEP 249; flashmesh raises none."""


class InterfaceError(Error):
    """Something that is closed, or a fetch where there are no rows."""


class DatabaseError(Error):
    """What the database says no to."""


class DataError(DatabaseError):
    """A value that can't be what it is asked to be."""


class OperationalError(DatabaseError):
    """The database or its server can't do it now: a conflict, no memory, no connection."""


class IntegrityError(DatabaseError):
    """Rows that a key or NOT NULL forbids."""


class InternalError(DatabaseError):
    """The database has failed."""


class ProgrammingError(DatabaseError):
    """A statement that is wrong: its syntax, a name, the number of parameters."""


class NotSupportedError(DatabaseError):
    """What flashmesh does not do."""


#: What an error says, in the order in which they are tried; others are `DatabaseError`.
_KINDS: list[tuple[type[DatabaseError] | type[InterfaceError], str]] = [
    (InterfaceError, r"the connection is closed"),
    (IntegrityError, r"which the (primary|unique) key|is NOT NULL|have the key \("),
    (NotSupportedError, r"^not supported:|not supported|not implemented"),
    (OperationalError, r"can't be reached|in use by|read-only|out of memory|lost the session|disk is full"),
    (OperationalError, r"another (statement|transaction) has|run .* again|transaction has begun|there is no transaction"),
    (DataError, r"Cast error|can't hold a value|Divide by zero|overflow|Overflow|out of range|Parser error"),
    (ProgrammingError, r"^syntax error|not found|does not exist|already exists|no column named|[Ii]nvalid function"),
    (ProgrammingError, r"parameter|there is no (statement|table|view|schema)|[Aa]mbiguous"),
]


def _kind(message: str) -> type[Error]:
    return next((kind for kind, pattern in _KINDS if re.search(pattern, message)), DatabaseError)


T = TypeVar("T", bound=Callable[..., Any])


def _with_errors(method: T) -> T:
    """Raises errors by their kinds."""

    @functools.wraps(method)
    def raising(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except Error as error:
            if type(error) is not Error:
                raise
            raise _kind(str(error))(str(error)) from None
        except (TypeError, ValueError, OverflowError) as error:
            raise ProgrammingError(str(error)) from error

    return cast(T, raising)


class TypeObject:
    """Types of columns that are one to PEP 249: equal to the Arrow types that are of its kind."""

    def __init__(self, name: str, *prefixes: str) -> None:
        self._name = name
        self._prefixes = prefixes

    def __eq__(self, other: object) -> bool:
        if isinstance(other, TypeObject):
            return self is other
        return str(other).startswith(self._prefixes)

    def __hash__(self) -> int:
        return hash(self._name)

    def __repr__(self) -> str:
        return f"flashmesh.dbapi.{self._name}"


STRING = TypeObject("STRING", "string", "large_string", "dictionary")
BINARY = TypeObject("BINARY", "binary", "large_binary", "fixed_size_binary")
NUMBER = TypeObject("NUMBER", "int", "uint", "float", "double", "half", "decimal", "bool")
DATETIME = TypeObject("DATETIME", "date", "time", "duration", "month")
#: No column is one: rows are told apart by their keys.
ROWID = TypeObject("ROWID", "rowid")

Date = datetime.date
Time = datetime.time
Timestamp = datetime.datetime
Binary = bytes


def DateFromTicks(ticks: float) -> datetime.date:
    """The local day of a time in seconds since 1970."""
    return Date(*time.localtime(ticks)[:3])


def TimeFromTicks(ticks: float) -> datetime.time:
    """The local time of day of a time in seconds since 1970."""
    return Time(*time.localtime(ticks)[3:6])


def TimestampFromTicks(ticks: float) -> datetime.datetime:
    """The local moment of a time in seconds since 1970."""
    return Timestamp(*time.localtime(ticks)[:6])


def connect(path: Any = None, *, autocommit: bool = False, **options: Any) -> Connection:
    """A connection to a database or server; `path` and `options` are those of
    `flashmesh.connect`. Unless `autocommit`, a statement begins a transaction, which `commit` and
    `rollback` end."""
    opening = _with_errors(flashmesh.connect)
    return Connection(opening(path, **options), autocommit)


class Connection:
    """A connection, with one transaction at a time."""

    Warning = Warning
    Error = Error
    InterfaceError = InterfaceError
    DatabaseError = DatabaseError
    DataError = DataError
    OperationalError = OperationalError
    IntegrityError = IntegrityError
    InternalError = InternalError
    ProgrammingError = ProgrammingError
    NotSupportedError = NotSupportedError

    def __init__(self, connection: flashmesh.Connection, autocommit: bool) -> None:
        #: flashmesh's own, for what PEP 249 has no words for.
        self.connection = connection
        self._autocommit = autocommit
        self._is_in_transaction = False
        self._beginning = threading.Lock()
        self._is_closed = False

    @property
    def autocommit(self) -> bool:
        """Whether each statement is a commit of its own. Setting it commits what is open."""
        return self._autocommit

    @autocommit.setter
    def autocommit(self, value: bool) -> None:
        if value:
            self.commit()
        self._autocommit = value

    def cursor(self) -> Cursor:
        """A cursor."""
        self._open()
        return Cursor(self)

    def execute(self, operation: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> Cursor:
        """Run a statement on a new cursor."""
        return self.cursor().execute(operation, parameters)

    @_with_errors
    def commit(self) -> None:
        """Commit what was changed since the last time."""
        self._end("COMMIT")

    @_with_errors
    def rollback(self) -> None:
        """Undo it."""
        self._end("ROLLBACK")

    @_with_errors
    def close(self) -> None:
        """End the connection; what was not committed is undone."""
        self._open()
        self._is_closed = True
        self.connection.close()

    def _end(self, how: str) -> None:
        connection = self._open()
        if self._is_in_transaction:
            # It has ended, even if it could not be committed.
            self._is_in_transaction = False
            connection.execute(how)

    def _open(self) -> flashmesh.Connection:
        if self._is_closed:
            raise InterfaceError("the connection is closed")
        return self.connection

    def _begun(self, operation: str) -> flashmesh.Connection:
        """The connection in a transaction, if a statement is to have one."""
        connection = self._open()
        statements = script.statements(operation)
        is_own = any(script.transaction(statement) is not None for statement in statements)
        if is_own or self._autocommit:
            return connection
        # Threads that share it must not begin twice.
        with self._beginning:
            if not self._is_in_transaction:
                connection.execute("BEGIN")
                self._is_in_transaction = True
        return connection

    def _note(self, operation: str) -> None:
        """A statement may have begun or ended a transaction itself."""
        for statement in script.statements(operation):
            if (begins := script.transaction(statement)) is not None:
                self._is_in_transaction = begins

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Commits, after an exception undoes, and closes."""
        if self._is_closed:
            return
        try:
            if kind is None:
                self.commit()
        finally:
            self.close()


class Cursor:
    """Runs statements and gives their rows."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        #: Rows of one `fetchmany`.
        self.arraysize = 1
        self._result: Result | None = None
        self._count = -1
        self._is_closed = False

    @property
    def description(self) -> list[Description] | None:
        """Name and Arrow type of each column, as PEP 249 has them; None where there are no rows."""
        return self._result.description if self._result else None

    @property
    def rowcount(self) -> int:
        """The number of rows, or of those that were changed; -1 where it is not known."""
        return self._result.rowcount if self._result else self._count

    @_with_errors
    def execute(self, operation: str, parameters: Sequence[Any] | Mapping[str, Any] | None = None) -> Cursor:
        """Run a statement, with values for `?` (or `$name`, in a dict)."""
        connection = self._ready()._begun(operation)
        # No values are none for a statement without parameters.
        self._result = connection.execute(operation, parameters if parameters else None)
        self.connection._note(operation)
        return self

    @_with_errors
    def executemany(self, operation: str, seq_of_parameters: Any) -> Cursor:
        """Run a statement that gives no rows, once for each row of values."""
        connection = self._ready()._begun(operation)
        self._count = connection.executemany(operation, seq_of_parameters)
        return self

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row; None after the last."""
        return self._rows().fetchone()

    def fetchmany(self, size: int | None = None) -> list[tuple[Any, ...]]:
        """The next rows, `arraysize` or so many."""
        return self._rows().fetchmany(self.arraysize if size is None else size)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows that are left."""
        return self._rows().fetchall()

    def fetch_arrow_table(self) -> Any:
        """The rows that are left as a pyarrow.Table."""
        return self._rows().arrow()

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._rows())

    def setinputsizes(self, sizes: Sequence[Any]) -> None:
        """Of PEP 249; does nothing."""

    def setoutputsize(self, size: int, column: int | None = None) -> None:
        """Of PEP 249; does nothing."""

    def close(self) -> None:
        """No more use of it."""
        self._result = None
        self._is_closed = True

    def _ready(self) -> Connection:
        if self._is_closed:
            raise InterfaceError("the cursor is closed")
        self._result, self._count = None, -1
        return self.connection

    def _rows(self) -> Result:
        self.connection._open()
        if self._is_closed:
            raise InterfaceError("the cursor is closed")
        if self._result is None or self._result.description is None:
            raise ProgrammingError("there are no rows to fetch: run a query first")
        return self._result

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
