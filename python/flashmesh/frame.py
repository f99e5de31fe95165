"""DataFrames: DataFusion's, run by flashmesh."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, cast

import datafusion
import pyarrow as pa
from datafusion import RecordBatchStream
from datafusion.dataframe_formatter import get_formatter

from . import cancel
from ._flashmesh import Error
from .rows import Rows

if TYPE_CHECKING:
    import pandas
    import polars
    from datafusion.dataframe import ExplainAnalyzeLevel, ExplainFormat, ExplainMetricCategory

    from .backend import ArrowStream, Batches, Query
    from .connection import Connection

Upstream = datafusion.DataFrame


@contextlib.contextmanager
def errors() -> Iterator[None]:
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


def upstream(value: Any) -> Any:
    """A DataFrame as one of DataFusion's own, whose methods hand on the object within; all else as it is."""
    return Upstream(value._inner) if isinstance(value, DataFrame) else value


def _ours(connection: Connection, result: Any) -> DataFrame:
    """What a method gave, with a DataFrame of DataFusion's own as one of the connection's."""
    if type(result) is Upstream:
        return DataFrame(connection, df=result.df)
    return cast("DataFrame", result)


P = ParamSpec("P")


def _carried(
    method: Callable[Concatenate[Upstream, P], Upstream],
) -> Callable[Concatenate[DataFrame, P], DataFrame]:
    """A method of DataFusion's whose DataFrame stays one of ours, with errors that are ours."""

    @functools.wraps(method)
    def carried(self: DataFrame, *args: P.args, **kwargs: P.kwargs) -> Upstream:
        with errors():
            backend = self._connection._backend
            frame, values, named = backend.operands(method.__name__, self, args, kwargs)
            named = {name: upstream(value) for name, value in named.items()}
            made = cast("Callable[..., Upstream]", method)
            result = made(upstream(frame), *map(upstream, values), **named)
        return _ours(self._connection, result)

    return cast("Callable[Concatenate[DataFrame, P], DataFrame]", carried)


class DataFrame(Rows, datafusion.DataFrame):
    """A DataFrame of a connection.

    It is DataFusion's `datafusion.DataFrame` with all of its methods, documented at
    https://datafusion.apache.org/python. Building on it computes nothing; asking for rows plans
    the whole and runs it, as much of it as possible beside the pages. It runs anew each time, on
    the tables as they are then.
    """

    def __init__(
        self, connection: Connection, *, query: Query | None = None, df: Any = None, alias: str = ""
    ) -> None:
        Rows.__init__(self, connection, query, alias)
        self._made_df = df

    @property
    def _inner(self) -> Any:
        """DataFusion's own object; made when first needed, as many queries never grow."""
        if self._made_df is None:
            backend = self._connection._backend
            frame = backend.relation(self._query, self._alias, self._connection.context)
            self._made_df = frame.df
        return self._made_df

    def _detached(self) -> Upstream:
        """As a DataFrame of a session that DataFusion plans for, over a stream of our rows: for
        what it can do only itself, such as writing files."""
        return _plain_session().read_table(self._provider())

    def _provider(self) -> Any:
        """As what DataFusion's sessions can read."""
        return self._connection._backend.provider(self._query)

    # DataFusion's methods that give a DataFrame. Named one by one for the sake of their types.

    alias = _carried(Upstream.alias)
    select = _carried(Upstream.select)
    select_exprs = _carried(Upstream.select_exprs)
    drop = _carried(Upstream.drop)
    window = _carried(Upstream.window)
    filter = _carried(Upstream.filter)
    with_column = _carried(Upstream.with_column)
    with_column_renamed = _carried(Upstream.with_column_renamed)
    aggregate = _carried(Upstream.aggregate)
    sort = _carried(Upstream.sort)
    sort_by = _carried(Upstream.sort_by)
    cast = _carried(Upstream.cast)
    limit = _carried(Upstream.limit)
    head = _carried(Upstream.head)
    tail = _carried(Upstream.tail)
    distinct = _carried(Upstream.distinct)
    distinct_on = _carried(Upstream.distinct_on)
    join_on = _carried(Upstream.join_on)
    repartition = _carried(Upstream.repartition)
    repartition_by_hash = _carried(Upstream.repartition_by_hash)
    union = _carried(Upstream.union)
    union_distinct = _carried(Upstream.union_distinct)
    intersect = _carried(Upstream.intersect)
    except_all = _carried(Upstream.except_all)
    union_by_name = _carried(Upstream.union_by_name)
    unnest_columns = _carried(Upstream.unnest_columns)
    fill_null = _carried(Upstream.fill_null)
    fill_nan = _carried(Upstream.fill_nan)
    __getitem__ = _carried(Upstream.__getitem__)
    if TYPE_CHECKING:

        # Overloads, and a parameter `self` that can be named: more than `_carried` can say.
        def join(self, right: Upstream, *args: Any, **kwargs: Any) -> DataFrame: ...
        def with_columns(self, *exprs: Any, **named_exprs: Any) -> DataFrame: ...

    # Rows.

    def transform(self, func: Callable[..., Any], *args: Any) -> DataFrame:
        # The function gets this very DataFrame, with what it has more than DataFusion's.
        return _ours(self._connection, func(self, *args))

    def collect(self) -> list[pa.RecordBatch]:
        return list(self._collected())

    def collect_partitioned(self) -> list[list[pa.RecordBatch]]:
        return [self.collect()]

    def collect_column(self, column_name: str) -> pa.Array | pa.ChunkedArray:
        column = self.select(self.column(column_name)).to_arrow_table().column(0)
        return column.combine_chunks()

    async def collect_async(self) -> list[pa.RecordBatch]:
        """`collect` for asyncio: it runs in a thread, and cancelling the task cancels it."""
        return await cancel.in_thread(self.collect)

    def execute_stream(self) -> RecordBatchStream:
        return RecordBatchStream(cast(Any, _Stream(self._query.stream())))

    def execute_stream_partitioned(self) -> list[RecordBatchStream]:
        return [self.execute_stream()]

    def cache(self) -> DataFrame:
        return self._connection.from_arrow(self)

    def into_view(self, temporary: bool = False) -> datafusion.catalog.Table:
        """As a table for any session of DataFusion's; flashmesh runs it there too."""
        return datafusion.catalog.Table(self._provider())

    # What it is.

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
        print(plan_text(plans))

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
        with errors():
            self._detached().write_csv(*args, **kwargs)

    def write_json(self, *args: Any, **kwargs: Any) -> None:
        with errors():
            self._detached().write_json(*args, **kwargs)

    def write_parquet(self, *args: Any, **kwargs: Any) -> None:
        with errors():
            self._detached().write_parquet(*args, **kwargs)

    def write_parquet_with_options(self, *args: Any, **kwargs: Any) -> None:
        with errors():
            self._detached().write_parquet_with_options(*args, **kwargs)

    def write_table(self, table_name: str, write_options: Any = None) -> None:
        """Append the rows to a table; `Connection.load` creates and replaces tables too."""
        if write_options is not None:
            raise Error("write_table takes no options here; use Connection.load(table, frame, mode=…)")
        self._connection.load(table_name, self, mode="append")

    def describe(self) -> DataFrame:
        with errors():
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

    def get_one(self, key: Any) -> dict[str, Any] | None:
        """See `Connection.get_one`."""
        return self._connection.get_one(self.name, key)

    def insert(self, rows: ArrowStream | Sequence[Mapping[str, Any]]) -> int:
        """See `Connection.insert`."""
        return self._connection.insert(self.name, rows)

    def upsert(self, rows: ArrowStream | Sequence[Mapping[str, Any]]) -> int:
        """See `Connection.upsert`."""
        return self._connection.upsert(self.name, rows)

    def scan(self, lower: Any = None, upper: Any = None) -> DataFrame:
        """See `Connection.scan`."""
        return self._connection.scan(self.name, lower, upper)

    def put(self, rows: ArrowStream | Sequence[Mapping[str, Any]]) -> int:
        """See `Connection.put`."""
        return self._connection.put(self.name, rows)

    def delete(self, keys: Sequence[Any] | pa.Array | object) -> int:
        """See `Connection.delete`."""
        return self._connection.delete(self.name, keys)

    def nearest(self, column: str, query: Any, k: int = 10, **options: Any) -> DataFrame:
        """See `Connection.nearest`."""
        return self._connection.nearest(self.name, column, query, k, **options)

    def matches(self, column: str, needle: str) -> DataFrame:
        """See `Connection.matches`."""
        return self._connection.matches(self.name, column, needle)


def _carry_the_rest() -> None:
    """Takes over what `DataFrame` leaves as it is, newer versions' methods too."""
    own = vars(Rows) | vars(DataFrame)
    for name, method in vars(Upstream).items():
        if not name.startswith("_") and inspect.isfunction(method) and name not in own:
            setattr(DataFrame, name, _carried(method))


_carry_the_rest()


@functools.cache
def _plain_session() -> datafusion.SessionContext:
    """A session without our planner. It stays: DataFusion's frames don't keep theirs alive."""
    return datafusion.SessionContext()


def plan_text(plans: Batches) -> str:
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
