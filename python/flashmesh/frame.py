"""DataFrames: DataFusion's, run by flashmesh."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

import datafusion
import pyarrow as pa
from datafusion import RecordBatchStream
from datafusion.dataframe_formatter import get_formatter

from . import progress
from ._flashmesh import Error

if TYPE_CHECKING:
    import pandas
    import polars
    from datafusion.dataframe import ExplainAnalyzeLevel, ExplainFormat, ExplainMetricCategory

    from .backend import Batches, Query
    from .connection import Connection

Upstream = datafusion.DataFrame


class DataFrame(datafusion.DataFrame):
    """A DataFrame of a connection.

    It is DataFusion's `datafusion.DataFrame` with all of its methods, documented at
    https://datafusion.apache.org/python. Building on it computes nothing; asking for rows plans
    the whole and runs it, as much of it as possible beside the pages. It runs anew each time, on
    the tables as they were when the DataFrame was made.
    """

    def __init__(
        self, connection: Connection, *, query: Query | None = None, df: Any = None, alias: str = ""
    ) -> None:
        self._connection = connection
        self._made_query = query
        self._made_df = df
        self._alias = alias

    @property
    def df(self) -> Any:
        """DataFusion's own object; made when first needed, as many queries never grow."""
        if self._made_df is None:
            session = self._connection.context
            frame = session.read_table(cast(Any, self._query))
            self._made_df = frame.alias(self._alias).df
        return self._made_df

    @property
    def _query(self) -> Query:
        """What runs it."""
        if self._made_query is None:
            self._made_query = self._connection._query_of(self)
        return self._made_query

    def _collected(self) -> Batches:
        if not progress.wanted(self._connection.settings.progress):
            return self._query.collect()
        with progress.Bar() as bar:
            return self._query.collect(bar)

    def _detached(self) -> Upstream:
        """As a DataFrame of a session that DataFusion plans for, over a stream of our rows: for
        what it can do only itself, such as writing files."""
        return _plain_session().read_table(cast(Any, self._query))

    # Rows.

    def collect(self) -> list[pa.RecordBatch]:
        return list(self._collected())

    def collect_partitioned(self) -> list[list[pa.RecordBatch]]:
        return [self.collect()]

    def collect_column(self, column_name: str) -> pa.Array | pa.ChunkedArray:
        column = self.select(self.column(column_name)).to_arrow_table().column(0)
        return column.combine_chunks()

    def to_arrow_table(self) -> pa.Table:
        return pa.table(self._collected())

    def to_pandas(self) -> pandas.DataFrame:
        return self.to_arrow_table().to_pandas()

    def to_polars(self) -> polars.DataFrame:
        import polars

        return polars.DataFrame(self._collected())

    def to_pylist(self) -> list[dict[str, Any]]:
        return self.to_arrow_table().to_pylist()

    def to_pydict(self) -> dict[str, list[Any]]:
        return self.to_arrow_table().to_pydict()

    def fetchall(self) -> list[tuple[Any, ...]]:
        """All rows as tuples."""
        columns = (column.to_pylist() for column in self.to_arrow_table().columns)
        return list(zip(*columns, strict=True))

    def count(self) -> int:
        return self._query.count()

    def execute_stream(self) -> RecordBatchStream:
        return RecordBatchStream(cast(Any, _Stream(self._query.stream())))

    def execute_stream_partitioned(self) -> list[RecordBatchStream]:
        return [self.execute_stream()]

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._query.stream().__arrow_c_stream__(requested_schema)

    def cache(self) -> DataFrame:
        return self._connection.from_arrow(self)

    def into_view(self, temporary: bool = False) -> datafusion.catalog.Table:
        """As a table for any session of DataFusion's; flashmesh runs it there too."""
        return datafusion.catalog.Table(cast(Any, self._query))

    # What it is.

    @property
    def columns(self) -> list[str]:
        """Names of the columns."""
        return pa.schema(self._query).names

    def schema(self) -> pa.Schema:
        return pa.schema(self._query)

    def explain(
        self,
        verbose: bool = False,
        analyze: bool = False,
        format: ExplainFormat | None = None,
        show_statistics: bool | None = None,
        analyze_level: ExplainAnalyzeLevel | None = None,
        analyze_categories: Iterable[ExplainMetricCategory] | None = None,
    ) -> None:
        categories = None
        if analyze_categories is not None:
            categories = [category.value for category in analyze_categories]
        plans = self._query.explain(
            verbose,
            analyze,
            format.value if format else None,
            show_statistics,
            analyze_level.value if analyze_level else None,
            categories,
        )
        print(_plan_text(plans))

    def show(self, num: int = 20) -> None:
        print(self._shown(num, "format_str"))

    def __repr__(self) -> str:
        return self._shown(get_formatter().max_rows, "format_str")

    def _repr_html_(self) -> str:
        return self._shown(get_formatter().max_rows, "format_html")

    def _shown(self, rows: int, method: str) -> str:
        """The first rows, as the formatter of DataFusion's shows them."""
        table = pa.table(self._query.limit(rows + 1).collect())
        formatted = getattr(get_formatter(), method)(
            batches=table.slice(0, rows).to_batches(),
            schema=table.schema,
            has_more=table.num_rows > rows,
            table_uuid=str(uuid.uuid4()),
        )
        return str(formatted)

    # Files: DataFusion's writers on our rows.

    def write_csv(self, *args: Any, **kwargs: Any) -> None:
        with _errors():
            self._detached().write_csv(*args, **kwargs)

    def write_json(self, *args: Any, **kwargs: Any) -> None:
        with _errors():
            self._detached().write_json(*args, **kwargs)

    def write_parquet(self, *args: Any, **kwargs: Any) -> None:
        with _errors():
            self._detached().write_parquet(*args, **kwargs)

    def write_parquet_with_options(self, *args: Any, **kwargs: Any) -> None:
        with _errors():
            self._detached().write_parquet_with_options(*args, **kwargs)

    def write_table(self, table_name: str, write_options: Any = None) -> None:
        """Append the rows to a table; `Connection.load` creates and replaces tables too."""
        if write_options is not None:
            raise Error("write_table takes no options here; use Connection.load(table, frame, mode=…)")
        self._connection.load(table_name, self, mode="append")

    def describe(self) -> DataFrame:
        with _errors():
            return self._connection.from_arrow(self._detached().describe())


class Table(DataFrame):
    """A table of the database: a DataFrame of all its rows, and what only tables can do."""

    def __init__(self, connection: Connection, name: str, query: Query) -> None:
        super().__init__(connection, query=query, alias=name)
        self.name = name

    def get(self, keys: Sequence[Any] | pa.Array | object) -> DataFrame:
        """The rows whose primary key is one of `keys`, a sequence or an Arrow array, in any
        order. They are fetched now; many keys are one command to the store."""
        return self._connection.get(self.name, keys)

    def nearest(self, column: str, query: Any, k: int = 10, **options: Any) -> DataFrame:
        """See `Connection.nearest`."""
        return self._connection.nearest(self.name, column, query, k, **options)

    def matches(self, column: str, needle: str) -> DataFrame:
        """See `Connection.matches`."""
        return self._connection.matches(self.name, column, needle)


F = TypeVar("F", bound=Callable[..., Any])


def _carried(method: F) -> F:
    """A method of DataFusion's whose DataFrame stays one of ours, with errors that are ours."""

    @functools.wraps(method)
    def carried(self: DataFrame, *args: Any, **kwargs: Any) -> Any:
        with _errors():
            result = method(self, *args, **kwargs)
        if type(result) is Upstream:
            return DataFrame(self._connection, df=result.df)
        return result

    return cast(F, carried)


def _carry_all() -> None:
    """Takes over all methods that `DataFrame` leaves as they are."""
    for name, method in vars(Upstream).items():
        public = name == "__getitem__" or not name.startswith("_")
        if public and inspect.isfunction(method) and name not in vars(DataFrame):
            setattr(DataFrame, name, _carried(method))


_carry_all()


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Turns DataFusion's nameless exceptions into ours."""
    try:
        yield
    except Exception as error:
        if type(error) is not Exception:
            raise
        text = str(error)
        for wrapper in ("DataFusion error: ", "Error during planning: ", "Schema error: "):
            text = text.removeprefix(wrapper)
        raise Error(text) from error


@functools.cache
def _plain_session() -> datafusion.SessionContext:
    """A session without our planner. It stays: DataFusion's frames don't keep theirs alive."""
    return datafusion.SessionContext()


def _plan_text(plans: Batches) -> str:
    rows = pa.table(plans).to_pylist()
    return "\n\n".join(f"{row['plan_type']}\n{row['plan'].rstrip()}" for row in rows)


class _Stream:
    """Batches under DataFusion's `RecordBatchStream`."""

    def __init__(self, batches: Batches) -> None:
        self._batches = batches

    def __next__(self) -> _Batch:
        return _Batch(next(self._batches))

    async def __anext__(self) -> _Batch:
        batch = await asyncio.to_thread(next, self._batches, None)
        if batch is None:
            raise StopAsyncIteration
        return _Batch(batch)


class _Batch:
    """A batch under DataFusion's `RecordBatch`."""

    def __init__(self, batch: pa.RecordBatch) -> None:
        self._batch = batch

    def to_pyarrow(self) -> pa.RecordBatch:
        return self._batch

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]:
        return cast(tuple[object, object], self._batch.__arrow_c_array__(requested_schema))
