"""The rows of a query, without what DataFrames need datafusion for.

Importing datafusion takes longer than a first answer. What `Connection.sql` gives becomes a
`flashmesh.DataFrame` as soon as somebody asks it for more than rows, or what class it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from . import plot, progress

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow as pa

    from .backend import Batches, Query
    from .connection import Connection
    from .frame import DataFrame


class Rows:
    """A query of a connection."""

    _made_df: Any

    def __init__(self, connection: Connection, query: Query | None, alias: str) -> None:
        self._connection = connection
        self._made_query = query
        self._made_df = None
        self._alias = alias

    @property
    def _query(self) -> Query:
        """What runs it."""
        if self._made_query is None:
            self._made_query = self._connection._query_of(cast("DataFrame", self))
        return self._made_query

    def _collected(self) -> Batches:
        if not progress.wanted(self._connection.settings.progress):
            return self._query.collect()
        with progress.Bar() as bar:
            return self._query.collect(bar)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows as tuples."""
        return self._collected().fetch()

    def to_arrow_table(self) -> pa.Table:
        import pyarrow as pa

        return pa.table(self._collected())

    def to_pandas(self) -> pandas.DataFrame:
        from . import plain

        return plain.to_pandas(self.to_arrow_table())

    def to_polars(self) -> polars.DataFrame:
        import polars

        return polars.DataFrame(self._collected())

    #: As results of `execute` have them.
    arrow = to_arrow_table
    pl = to_polars

    @property
    def df(self) -> Any:
        """`df()` is a pandas.DataFrame of the rows, as it is of results of `execute`. Not called, it is what
        DataFusion's DataFrames have under this name: its own object."""
        return _Df(self)

    def to_pylist(self) -> list[dict[str, Any]]:
        return cast(list[dict[str, Any]], self.to_arrow_table().to_pylist())

    def to_pydict(self) -> dict[str, list[Any]]:
        return cast(dict[str, list[Any]], self.to_arrow_table().to_pydict())

    def count(self) -> int:
        return self._query.count()

    def plot(self, *args: Any, **kwargs: Any) -> Any:
        """Draw the rows: pandas.DataFrame.plot, with the first column along the x axis."""
        return plot.drawn(self.to_pandas, *args, **kwargs)

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._query.stream().__arrow_c_stream__(requested_schema)

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return list(self.schema().names)

    def schema(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema(self._query)


class _Df:
    """What `df` of a DataFrame is."""

    def __init__(self, frame: Rows) -> None:
        self._frame = frame

    def __call__(self) -> pandas.DataFrame:
        return self._frame.to_pandas()

    def __getattr__(self, name: str) -> Any:
        return getattr(cast("DataFrame", self._frame)._inner, name)


def frame(connection: Connection, query: Query, alias: str) -> DataFrame:
    """A query as a DataFrame."""
    if "datafusion" in sys.modules:
        from .frame import DataFrame

        return DataFrame(connection, query=query, alias=alias)
    return cast("DataFrame", _Unasked(connection, query, alias))


_CLASS = vars(object)["__class__"]


class _Unasked(Rows):
    """A DataFrame that was asked for no more than rows yet."""

    def _frames(self) -> type:
        from .frame import DataFrame

        return DataFrame

    def _become(self) -> type:
        frames = self._frames()
        _CLASS.__set__(self, frames)
        return frames

    def __getattr__(self, name: str) -> Any:
        self._become()
        return getattr(self, name)

    if not TYPE_CHECKING:
        # For isinstance.
        __class__ = property(_frames)


def _forwarded(name: str) -> Callable[..., Any]:
    def forwarded(self: _Unasked, *args: Any) -> Any:
        return getattr(self._become(), name)(self, *args)

    return forwarded


# Python looks for these in the class.
for _name in ("__repr__", "__getitem__", "__iter__", "__aiter__"):
    setattr(_Unasked, _name, _forwarded(_name))
