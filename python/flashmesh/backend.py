"""What a connection needs of whoever runs its statements.

The embedded database (`embedded.Embedded`) is one, a Flight SQL server (`remote.Remote`) another. A
connection knows nothing else about where its tables are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast

from ._flashmesh import Error

if TYPE_CHECKING:
    import datafusion
    import pyarrow as pa
    from datafusion import ScalarUDF, SessionContext


class ArrowStream(Protocol):
    """Anything with Arrow data in it: tables and readers of pyarrow, pandas, Polars, …"""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


#: Arrow data, or a dict for each row.
Records: TypeAlias = ArrowStream | Sequence[Mapping[str, Any]]


def arrow(rows: Records) -> ArrowStream:
    """Rows as Arrow data."""
    if hasattr(rows, "__arrow_c_stream__"):
        return cast("ArrowStream", rows)
    import pyarrow as pa

    dicts = list(rows)
    for number, row in enumerate(dicts):
        if not isinstance(row, Mapping):
            raise Error(f"rows are dicts, by the names of their columns, or Arrow data; not {type(row).__name__}s")
        if other := row.keys() ^ dicts[0].keys():
            named = ", ".join(f"'{name}'" for name in sorted(map(str, other)))
            raise Error(f"row {number} of {len(dicts)} has other columns than row 0: {named}; give all rows the same ones")
    names = list(dicts[0]) if dicts else []
    return cast("ArrowStream", pa.table({name: array([row[name] for row in dicts]) for name in names}))


def array(values: Iterable[Any]) -> pa.Array:
    """Values as Arrow data, with all their digits and of types that tables have."""
    import pyarrow as pa

    values = list(values)
    # Its module takes a while to import.
    if any(type(value).__name__ == "UUID" for value in values):
        return pa.array([value if value is None else str(value) for value in values])
    # Of pandas' moments pyarrow keeps microseconds.
    if not any(getattr(value, "nanosecond", 0) for value in values):
        return pa.array(values)
    import pandas as pd

    moments = [None if value is None else pd.Timestamp(value) for value in values]
    zone = "UTC" if any(moment is not None and moment.tz for moment in moments) else None
    numbers = pa.array([None if moment is None else moment.as_unit("ns").value for moment in moments], pa.int64())
    return numbers.cast(pa.timestamp("ns", zone))


#: Called with segments done, segments in all, and bytes from flash.
Report: TypeAlias = Callable[[int, int, int], None]
Mode: TypeAlias = Literal["create", "append", "replace"]


class Batches(Protocol):
    """Rows, read once."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    def __arrow_c_schema__(self) -> object: ...
    def __iter__(self) -> Iterator[pa.RecordBatch]: ...
    def __next__(self) -> pa.RecordBatch: ...
    @property
    def names(self) -> Sequence[str]:
        """Names of the columns; of what `Backend.run` gave as they were asked for, which need not
        be distinct."""

    @property
    def num_rows(self) -> int | None:
        """The number of rows that are left; None where it is not known yet."""

    def fetch(self, limit: int | None = None) -> list[tuple[Any, ...]]:
        """The next rows as tuples: at most `limit`, or all that are left."""


class Query(Protocol):
    """A query that runs when its rows are asked for, anew each time."""

    def __arrow_c_schema__(self) -> object: ...
    def collect(self, progress: Report | None = None) -> Batches:
        """Run it and keep its rows."""

    def stream(self) -> Batches:
        """Run it while its rows are read."""

    def count(self) -> int:
        """The number of its rows."""

    def limit(self, rows: int) -> Query:
        """Its first rows."""

    def explain(
        self,
        verbose: bool = False,
        analyze: bool = False,
        format: str | None = None,
        show_statistics: bool | None = None,
        analyze_level: str | None = None,
        analyze_categories: list[str] | None = None,
    ) -> Batches:
        """How it is run, or how it ran: rows of `plan_type` and `plan`."""


class Backend(Protocol):
    """Runs statements and keeps tables."""

    @property
    def is_closed(self) -> bool: ...
    def sql(self, query: str, arguments: Sequence[str] = ()) -> Query:
        """Run SQL: a query is made ready; all else has happened when this returns. Views that are
        `arguments` are taken away once the query needs them no more."""

    def execute(self, query: str) -> None:
        """Run SQL to its end and drop its result."""

    def run(self, query: str, progress: Report | None = None) -> Batches:
        """Run SQL to its end and keep its rows."""

    def files(self, paths: Sequence[str]) -> Query | None:
        """Rows of files, told by their names' ends; None where DataFusion is to read them."""

    def table(self, name: str) -> Query:
        """All rows of a table or view."""

    def session(self) -> SessionContext:
        """A session of DataFusion's whose DataFrames are run here."""

    def provider(self, query: Query) -> Any:
        """A query as a table that any session of DataFusion's can read."""

    def relation(self, query: Query, alias: str, session: SessionContext) -> datafusion.DataFrame:
        """A query as a DataFrame of that session, under an alias."""

    def operands(
        self, method: str, frame: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[datafusion.DataFrame, tuple[Any, ...], dict[str, Any]]:
        """What `frame.method(*args, **kwargs)` is called with in the end: DataFrames that can't
        be part of one plan as they are, as ones that can."""

    def plan(self, frame: datafusion.DataFrame, session: SessionContext) -> Query:
        """A DataFrame of that session as a query."""

    def from_arrow(self, source: ArrowStream) -> Query:
        """Arrow data in memory."""

    def register(self, name: str, query: Query) -> None:
        """Give a query a name in SQL, until the connection is closed."""

    def unregister(self, name: str) -> bool:
        """Take the name away; whether there was one."""

    def get(self, table: str, keys: pa.Array) -> Query:
        """Rows of a table by primary key."""

    def get_one(self, table: str, key: Any) -> dict[str, Any] | None:
        """The row of a table with this primary key."""

    def key(self, table: str) -> str:
        """The column of a table's primary key."""

    def put(self, table: str, rows: Records) -> int:
        """Put rows by primary key; their number."""

    def delete(self, table: str, keys: pa.Array) -> int:
        """Delete rows by primary key; their number."""

    def load_files(self, table: str, paths: Sequence[str | PathLike[str]], mode: Mode) -> int:
        """Load a table from files; the number of its rows."""

    def load_arrow(self, table: str, source: ArrowStream, mode: Mode) -> int:
        """Load a table from Arrow data; the number of its rows."""

    def function(self, name: str) -> ScalarUDF:
        """The function of a user's kernel."""

    def setting(self, name: str) -> str | None:
        """The value of a setting."""

    def set_setting(self, name: str, value: str) -> None:
        """Set it."""

    def settings(self) -> list[tuple[str, str]]:
        """Names and descriptions of all."""

    def close(self) -> None:
        """End the connection, whoever holds queries of it."""
