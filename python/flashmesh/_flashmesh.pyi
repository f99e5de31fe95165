from collections.abc import Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Protocol, final

import pandas
import polars
import pyarrow

__version__: str

class ArrowStream(Protocol):
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...

class Error(Exception):
    """What went wrong with a statement; the message names the thing and the way out."""

def connect(
    path: str | PathLike[str] | None = None,
    *,
    read_only: bool = False,
    cache_size: int | str | None = None,
    memory_limit: int | str | None = None,
    threads: int | None = None,
) -> Connection:
    """Open the database in folder `path`, which is made when missing; without a path, a
    temporary database. Sizes are in bytes or text such as '4GB'."""

@final
class Connection:
    """An open database."""

    def sql(self, query: str) -> Result:
        """Run SQL. A query runs when its result is fetched; any other statement has happened
        when this returns. Of several statements, the last gives the result."""

    def table(self, name: str) -> Table:
        """A table of the database."""

    def execute(self, query: str) -> None:
        """Run SQL to its end and drop its result."""

    def load(
        self,
        table: str,
        source: str | PathLike[str] | Sequence[str | PathLike[str]] | ArrowStream,
        *,
        mode: Literal["create", "append", "replace"] = "create",
    ) -> int:
        """Load a table from files or Arrow data and return the number of rows."""

    def close(self) -> None:
        """Close the database; a temporary one is removed."""

    def __enter__(self) -> Connection: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None: ...

@final
class Table:
    """A table of the database."""

    def get(self, keys: Sequence[Any] | object) -> Result:
        """The rows whose primary key is one of `keys`, a sequence or an Arrow array, in any
        order. Many keys are one command to the store."""

@final
class Result:
    """The result of a statement. A query runs anew each time its result is fetched."""

    @property
    def columns(self) -> list[str]: ...
    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...
    def __arrow_c_schema__(self) -> object: ...
    def to_arrow_table(self) -> pyarrow.Table: ...
    def to_pandas(self) -> pandas.DataFrame: ...
    def to_polars(self) -> polars.DataFrame: ...
    def to_pylist(self) -> list[dict[str, Any]]: ...
    def fetchall(self) -> list[tuple[Any, ...]]: ...
