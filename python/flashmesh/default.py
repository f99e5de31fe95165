"""SQL without a connection: on a temporary database of the process."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING

from .connection import Connection, connect

if TYPE_CHECKING:
    from .frame import DataFrame
    from .parameters import Parameters
    from .result import Result

_lock = threading.Lock()
_connection: Connection | None = None


def connection() -> Connection:
    """The connection, opened when it is first used."""
    global _connection
    with _lock:
        if _connection is None:
            _connection = connect()
            atexit.register(_connection.close)
        return _connection


def sql(query: str, params: Parameters | None = None) -> DataFrame:
    """`Connection.sql` on a temporary database of this process."""
    return connection().sql(query, params)


def execute(query: str, params: Parameters | None = None) -> Result:
    """`Connection.execute` on a temporary database of this process."""
    return connection().execute(query, params)


def executemany(query: str, rows: Iterable[Parameters]) -> int:
    """`Connection.executemany` on a temporary database of this process."""
    return connection().executemany(query, rows)
