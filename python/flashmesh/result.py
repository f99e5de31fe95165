"""What a statement gave: rows to fetch, in the manner of cursors (PEP 249)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from . import plot, script
from ._flashmesh import Error

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow as pa

    from .backend import Batches

#: Name, type, and what else PEP 249 has, which is not known.
Description = tuple[str, "pa.DataType", None, None, None, None, bool]


class Result:
    """The rows of a statement that has run. They are fetched once: what `fetchone` gave is not in
    the rest."""

    def __init__(self, statement: str, batches: Batches) -> None:
        self._batches = batches
        self._names = names = list(batches.names)
        #: Rows that there were, or that were changed.
        self._count: int | None = None
        self._is_at_end = False
        may_count = names == ["count"] and script.counts_rows(script.statements(statement)[-1])
        #: Whether there are columns: a change without RETURNING has none.
        self._has_columns = bool(names) and not may_count
        if may_count:
            counted = batches.fetch()
            self._count = counted[0][0] if counted else 0
        elif names:
            self._count = batches.num_rows

    @property
    def description(self) -> list[Description] | None:
        """Name and Arrow type of each column, as PEP 249 has them; None for a statement that
        gives no rows."""
        if not self._has_columns:
            return None
        fields = zip(self._names, self._schema(), strict=True)
        return [(name, field.type, None, None, None, None, field.nullable) for name, field in fields]

    @property
    def columns(self) -> list[str]:
        """Names of the columns as they were asked for: not all need be distinct."""
        return list(self._names) if self._has_columns else []

    @property
    def rowcount(self) -> int:
        """The number of rows, or of those that were changed; -1 for a statement with neither."""
        return -1 if self._count is None else self._count

    def fetchone(self) -> tuple[Any, ...] | None:
        """The next row; None after the last."""
        rows = self._fetch(1)
        return rows[0] if rows else None

    def fetchmany(self, size: int = 1) -> list[tuple[Any, ...]]:
        """The next rows, so many at most."""
        return self._fetch(size)

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows that are left."""
        return self._fetch(None)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        while rows := self._fetch(1000):
            yield from rows

    def _fetch(self, limit: int | None) -> list[tuple[Any, ...]]:
        if limit is not None and limit < 0:
            raise Error(f"{limit} rows can't be fetched")
        if not self._has_columns or self._is_at_end:
            return []
        rows = self._batches.fetch(limit)
        self._is_at_end = limit is None or len(rows) < limit
        return rows

    # The rows that are left, as data of libraries.

    def arrow(self) -> pa.Table:
        """A pyarrow.Table of them. Texts are `string`, whatever they are inside."""
        import pyarrow as pa

        from . import plain

        if not self._has_columns:
            return pa.table({})
        schema = self._schema()
        batches = [] if self._is_at_end else list(self._batches)
        self._is_at_end = True
        return plain.without_views(pa.Table.from_batches(batches, schema).rename_columns(self._names))

    def df(self) -> pandas.DataFrame:
        """A pandas.DataFrame of them. Of columns of one name, the second is called `name_1`."""
        from . import plain

        return plain.to_pandas(self._distinct())

    def pl(self) -> polars.DataFrame:
        """A polars.DataFrame of them. Of columns of one name, the second is called `name_1`."""
        import polars

        return polars.DataFrame(self._distinct())

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.arrow().__arrow_c_stream__(requested_schema)

    def plot(self, *args: Any, **kwargs: Any) -> Any:
        """Draw them: pandas.DataFrame.plot, with the first column along the x axis."""
        return plot.drawn(self.df, *args, **kwargs)

    def _schema(self) -> pa.Schema:
        import pyarrow as pa

        return pa.schema(self._batches)

    def _distinct(self) -> pa.Table:
        names: list[str] = []
        for name in self._names if self._has_columns else ():
            distinct, number = name, 0
            while distinct in names:
                number += 1
                distinct = f"{name}_{number}"
            names.append(distinct)
        return self.arrow().rename_columns(names)

    def __repr__(self) -> str:
        if not self._has_columns:
            return "<flashmesh.Result without rows>" if self._count is None else f"<flashmesh.Result, {self._count} rows changed>"
        return f"<flashmesh.Result, {self._count} rows of {', '.join(self._names)}>"
