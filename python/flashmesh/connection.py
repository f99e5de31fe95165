"""Connections: open databases."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from os import PathLike, fspath
from os.path import splitext
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from . import _flashmesh, cancel, parameters, progress, rack, relations, rows, scope, script
from ._flashmesh import Error
from .backend import array, arrow
from .embedded import Embedded
from .result import Result
from .settings import Settings

if TYPE_CHECKING:
    import pyarrow as pa
    from datafusion import ScalarUDF, SessionContext

    from .backend import ArrowStream, Backend, Batches, Mode, Query, Records
    from .frame import DataFrame, Table
    from .parameters import Parameters

#: A file, folder, glob or URL, or several.
Paths: TypeAlias = str | PathLike[str] | Sequence[str | PathLike[str]]

T = TypeVar("T")

#: What urls of servers begin with.
SCHEMES = ("grpc://", "grpc+tls://")


def connect(
    path: str | PathLike[str] | None = None,
    *,
    read_only: bool = False,
    cache_size: int | str | None = None,
    memory_limit: int | str | None = None,
    threads: int | None = None,
    external_cache_size: int | str | None = None,
    user: str | None = None,
    password: str | None = None,
    token: str | None = None,
    tls_ca: str | PathLike[str] | None = None,
    tls_client_cert: str | PathLike[str] | None = None,
    tls_client_key: str | PathLike[str] | None = None,
) -> Connection:
    """Open the database in folder `path`, which is made when missing; without a path (or with
    ":memory:"), a temporary database. Connections of one process to the same folder share the
    database, which is closed with the last of them; each has a session of its own. Sizes are in
    bytes or text such as '4GB'.

    A path that begins with `grpc://` or `grpc+tls://` is a server's: there, `user` and `password`
    or `token` log in, and files in PEM say whom to trust (`tls_ca`; else those whom the system
    trusts) and, where the server asks for it, who we are. The rack file of a rack (`….toml`) is
    its first node that answers."""
    opening = {
        "cache_size": cache_size,
        "memory_limit": memory_limit,
        "threads": threads,
        "external_cache_size": external_cache_size,
    }
    given = [name for name, value in opening.items() if value is not None]
    is_rack = rack.is_rack_file(path)
    if path == ":memory:":
        path = None
    if is_rack or isinstance(path, str) and path.startswith(SCHEMES):
        if read_only:
            given.append("read_only")
        if given:
            raise Error(f"{' and '.join(given)}: the server decides that, not its clients; leave it out")
        from .flight import Client
        from .remote import Remote

        def open_client(url: str) -> Client:
            return Client(
                url,
                user=user,
                password=password,
                token=token,
                tls_ca=tls_ca,
                tls_client_cert=tls_client_cert,
                tls_client_key=tls_client_key,
            )

        server = cast("str", path)
        client = rack.first_that_answers(server, open_client) if is_rack else open_client(server)
        return Connection(Remote(client))
    logins = {
        "user": user,
        "password": password,
        "token": token,
        "tls_ca": tls_ca,
        "tls_client_cert": tls_client_cert,
        "tls_client_key": tls_client_key,
    }
    if given := [name for name, value in logins.items() if value is not None]:
        raise Error(
            f"{' and '.join(given)}: for servers only, whose path begins with "
            f"{' or '.join(SCHEMES)}"
        )
    database = _flashmesh.open(
        path,
        read_only=read_only,
        cache_size=cache_size,
        memory_limit=memory_limit,
        threads=threads,
        external_cache_size=external_cache_size,
    )
    return Connection(Embedded(database))


class Connection:
    """An open database. As a context manager it is closed at the end."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._settings = Settings(backend)
        self._session: SessionContext | None = None
        self._session_lock = threading.Lock()
        self._numbers = itertools.count(1)

    # SQL.

    def sql(self, query: str, params: Parameters | None = None) -> DataFrame:
        """Run SQL. A query gives a DataFrame that runs when its rows are asked for; any other
        statement has happened when this returns. Of several statements, the last one counts.

        `params` are the values of `?` and `$1` as a sequence, of `$name` as a dict. A name in
        FROM that no table has may be that of a variable with data: a DataFrame of pandas, Polars
        or flashmesh, or Arrow data."""
        return self._sql(parameters.bound(query, params), scope.caller())

    def execute(self, query: str, params: Parameters | None = None) -> Result:
        """Run SQL to its end and keep its rows, which are fetched as from a cursor:
        `con.execute("SELECT * FROM t WHERE a = ?", [1]).fetchone()`. Parameters and names are
        those of `sql`, which suits results that don't fit into memory."""
        return self._execute(parameters.bound(query, params), scope.caller())

    def executemany(self, query: str, rows: Iterable[Parameters]) -> int:
        """Run a statement once for each row of parameters, in one transaction. An INSERT of one
        row of VALUES becomes few statements; for data in memory, `insert` is faster still. Returns
        the number of rows that were changed."""
        count = 0
        with self._one_commit():
            for statement in parameters.many(query, rows):
                count += max(self._execute(statement, None).rowcount, 0)
        return count

    def sql_async(self, query: str, params: Parameters | None = None) -> Awaitable[DataFrame]:
        """`sql` for asyncio: it runs in a thread, and cancelling the task cancels it."""
        return cancel.in_thread(self._sql, parameters.bound(query, params), scope.caller())

    def execute_async(self, query: str, params: Parameters | None = None) -> Awaitable[Result]:
        """`execute` for asyncio: it runs in a thread, and cancelling the task cancels it."""
        return cancel.in_thread(self._execute, parameters.bound(query, params), scope.caller())

    def _sql(self, query: str, variables: FrameType | None) -> DataFrame:
        return self._frame(self._reading(query, variables, self._backend.sql))

    def _execute(self, query: str, variables: FrameType | None) -> Result:
        return Result(query, self._reading(query, variables, self._run))

    def _run(self, query: str, views: Sequence[str]) -> Batches:
        try:
            if not progress.wanted(self._settings.progress):
                return self._backend.run(query)
            with progress.Bar() as bar:
                return self._backend.run(query, bar)
        finally:
            for view in views:
                self._backend.unregister(view)

    def _reading(
        self, query: str, variables: FrameType | None, run: Callable[[str, Sequence[str]], T]
    ) -> T:
        """Run SQL that may read variables. `run` takes it and views, which it takes away."""
        found: dict[str, Any] = {}
        while True:
            views: list[str] = []
            named = {name: self._view(data, views) for name, data in found.items()}
            try:
                return run(scope.with_views(query, named) if named else query, views)
            except Error as error:
                name = scope.missing(error)
                if name is None or name in found or variables is None:
                    raise
                # Of a script, what stands before has happened.
                if not self._settings.replacement_scans or len(script.statements(query)) > 1:
                    raise
                data = scope.variable(query, name, variables)
                if data is None:
                    raise
            found[name] = self._frame_of(data)

    @contextmanager
    def _one_commit(self) -> Iterator[None]:
        """A transaction, unless there is one."""
        try:
            self._backend.execute("BEGIN")
        except Error as error:
            if "a transaction has begun already" not in str(error):
                raise
            yield
            return
        with self._committing():
            yield

    @contextmanager
    def _committing(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with suppress(Error):
                self._backend.execute("ROLLBACK")
            raise
        self._backend.execute("COMMIT")

    @contextmanager
    def transaction(self, *, serializable: bool = False, read_only: bool = False) -> Iterator[None]:
        """Statements that are one commit: `with con.transaction(): …`. They see the version of the
        database at which it began and what they have changed themselves. An exception undoes them
        all. The commit fails where another one has changed the same rows; with `serializable`, also
        where one has changed a table that was read."""
        isolation = " ISOLATION LEVEL SERIALIZABLE" if serializable else ""
        self._backend.execute(f"BEGIN{isolation}{' READ ONLY' if read_only else ''}")
        with self._committing():
            yield

    def explain(
        self, query: str | DataFrame, *, analyze: bool = False, verbose: bool = False
    ) -> str:
        """How a query is run: what is pushed below its scans, and why not the rest. With
        `analyze` it is run, and the text says what that took."""
        from .frame import plan_text

        frame = self.sql(query) if isinstance(query, str) else query
        return plan_text(frame._query.explain(verbose, analyze))

    @property
    def settings(self) -> Settings:
        """Settings of this connection: `con.settings.pushdown = 'never'`."""
        return self._settings

    # Kernels.

    def register_kernel(
        self, package: str | PathLike[str] | bytes, *, or_replace: bool = False
    ) -> str:
        """Make a function of a kernel's package (a `.fmk` file, or its bytes) and return its name.
        On a server the package is uploaded."""
        import base64
        from pathlib import Path

        data = package if isinstance(package, bytes) else Path(package).read_bytes()
        name = _flashmesh.kernel_name(data)
        replace = "OR REPLACE " if or_replace else ""
        encoded = base64.b64encode(data).decode()
        self.execute(
            f"CREATE {replace}FUNCTION {name}() LANGUAGE hls"
            f" AS 'data:application/wasm;base64,{encoded}'"
        )
        return name

    def function(self, name: str) -> ScalarUDF:
        """The function of a kernel, for expressions: `df.filter(con.function("f")(col("x")))`."""
        return self._backend.function(name)

    # Tables.

    def table(self, name: str) -> Table:
        """A table or view of the database."""
        from .frame import Table

        return Table(self, name, self._backend.table(name))

    def load(
        self,
        table: str,
        source: Paths | ArrowStream,
        *,
        mode: Mode = "create",
    ) -> int:
        """Load a table and return the number of its rows. `source` is a path or several
        (Parquet, CSV, JSON, Arrow; folders, globs and URLs too), or anything with Arrow data in
        it: a DataFrame of flashmesh, pyarrow, pandas or Polars, a record batch reader, …"""
        if hasattr(source, "__arrow_c_stream__"):
            return self._backend.load_arrow(table, cast("ArrowStream", source), mode)
        return self._backend.load_files(table, _paths(source), mode)

    def get(self, table: str, keys: Sequence[Any] | pa.Array | object) -> DataFrame:
        """The rows of a table whose primary key is one of `keys`, a sequence or an Arrow array (or
        a key), in any order. They are fetched now; many keys are one command to the store."""
        return self._frame(self._backend.get(table, _array_of(keys)))

    def get_one(self, table: str, key: Any) -> dict[str, Any] | None:
        """The row of a table whose primary key is `key`, by the names of its columns; None where there is
        none."""
        return self._backend.get_one(table, key)

    def scan(self, table: str, lower: Any = None, upper: Any = None) -> DataFrame:
        """The rows of a table whose primary key is at least `lower` and below `upper`, in the order of the
        keys; without one of them, from the first key on or to the last."""
        from datafusion import col, lit

        key = col(script.quoted(self._backend.key(table)))
        rows: DataFrame = self.table(table)
        if lower is not None:
            rows = rows.filter(key >= lit(lower))
        if upper is not None:
            rows = rows.filter(key < lit(upper))
        return rows.sort(key)

    def put(self, table: str, rows: Records) -> int:
        """Put rows into a table with a primary key of one column: a row with a key that is there
        takes the place of that row, others are added; all in one commit. `rows` is anything with
        Arrow data in it, or a sequence of dicts; columns go by their names. Returns their number."""
        return 0 if _are_none(rows) else self._backend.put(table, rows)

    def insert(self, table: str, rows: Records) -> int:
        """Add rows to a table, in one commit. `rows` is anything with Arrow data in it, or a
        sequence of dicts; columns go by their names. A key that is there already is an error.
        Returns their number."""
        if _are_none(rows):
            return 0
        return self._backend.load_arrow(table, arrow(rows), "append")

    def upsert(self, table: str, rows: Records) -> int:
        """The same as `put`, by the name that it has elsewhere."""
        return self.put(table, rows)

    def delete(self, table: str, keys: Sequence[Any] | pa.Array | object) -> int:
        """Delete the rows whose primary key is one of `keys`, a sequence or an Arrow array (or a
        key), in one commit. Returns how many there were."""
        return self._backend.delete(table, _array_of(keys))

    # Files.

    def read_parquet(self, path: Paths, **options: Any) -> DataFrame:
        """A DataFrame of Parquet files: a path or several; folders, globs and URLs too. They are
        read when rows are asked for, by this process, also where the database is a server's.
        Options are those of `datafusion.SessionContext.read_parquet`, for one path."""
        return self._read("parquet", path, options)

    def read_csv(self, path: Paths, **options: Any) -> DataFrame:
        """The same of CSV files. Options are those of `datafusion.SessionContext.read_csv`:
        `has_header`, `delimiter`, `schema`, …"""
        return self._read("csv", path, options)

    def read_json(self, path: Paths, **options: Any) -> DataFrame:
        """The same of files with one JSON object a line. Options are those of
        `datafusion.SessionContext.read_json`."""
        return self._read("json", path, options)

    def _read(self, kind: str, path: Paths, options: Mapping[str, Any]) -> DataFrame:
        paths = _paths(path)
        if not paths:
            raise Error("there is no file to read: the list of paths is empty")
        suffix = f".{kind}"
        if not options and all(each.lower().endswith(suffix) for each in paths):
            if (query := self._backend.files(paths)) is not None:
                return self._frame(query)
        from .frame import errors

        read = getattr(self.context, f"read_{kind}")
        with errors():
            first, *others = (
                read(each, **{"file_extension": splitext(each)[1] or suffix, **options}) for each in paths
            )
            for other in others:
                first = first.union_by_name(other)
        return self.frame(first)

    # Data in memory.

    def from_arrow(self, data: ArrowStream, name: str | None = None) -> DataFrame:
        """A DataFrame of Arrow data in memory, which can be joined with tables. With a `name`,
        SQL knows it by that, until the connection is closed."""
        frame = self._frame(self._backend.from_arrow(data), alias=name)
        if name is not None:
            self.register(name, frame)
        return frame

    def from_pandas(self, data: Any, name: str | None = None) -> DataFrame:
        """A DataFrame of a pandas.DataFrame; see `from_arrow`. Its index is left out unless it
        has a name."""
        import pyarrow as pa

        named = any(index is not None for index in data.index.names)
        return self.from_arrow(pa.Table.from_pandas(data, preserve_index=named), name)

    def from_polars(self, data: Any, name: str | None = None) -> DataFrame:
        """A DataFrame of a polars.DataFrame; see `from_arrow`."""
        return self.from_arrow(data, name)

    def register(self, name: str, frame: DataFrame | Any) -> None:
        """Let SQL know a DataFrame by this name, as a view, until the connection is closed: one
        of flashmesh, pandas or Polars, or Arrow data. What had that name so before is replaced."""
        self._backend.register(name, self._frame_of(frame)._query)

    def _frame_of(self, data: Any) -> DataFrame:
        """A DataFrame of this connection with data of any library."""
        from .frame import DataFrame

        if isinstance(data, DataFrame) and data._connection is self:
            return data
        if not scope.is_data(data):
            raise TypeError(f"a {type(data).__name__} is no DataFrame, and has no Arrow data (__arrow_c_stream__)")
        kind = type(data)
        match kind.__module__.partition(".")[0], kind.__name__:
            case "pandas", _:
                return self.from_pandas(data)
            case "polars", "LazyFrame":
                data = data.collect()
            case "pyarrow", "RecordBatch":
                data = type(data.schema.empty_table()).from_batches([data])
            case "pyarrow", _ if hasattr(data, "to_table"):
                data = data.to_table()
        return self.from_arrow(data)

    def unregister(self, name: str) -> None:
        """Take such a name away."""
        if not self._backend.unregister(name):
            raise Error(f"there is no view '{name}'")

    # Searches. Each gives a DataFrame; what it computes is in docs/python.md.

    def nearest(
        self,
        table: str,
        column: str,
        query: Any,
        k: int = 10,
        *,
        metric: str | None = None,
        exact: bool = False,
    ) -> DataFrame:
        """The `k` rows nearest to a vector, or to each of many: columns `query` (the number of
        the vector), `distance`, and the table's.

        `query` is bytes for a bit code, a sequence of numbers or a NumPy array for a vector; for
        many, a DataFrame or Arrow data of one column, or an array of two dimensions. An lsh index
        of the column is used if there is one, and may miss some rows unless `exact`."""
        options = {"metric": metric, "exact": True if exact else None}
        return self._relation("nearest", table, column, relations.Vectors(query), k, **options)

    def matches(self, table: str, column: str, needle: str) -> DataFrame:
        """Where a text occurs: for each occurrence the row's id, the byte at which it starts in
        the value, and the value."""
        return self._relation("matches", table, column, needle)

    def lookup(self, table: str, keys: Any) -> DataFrame:
        """The rows whose primary key is one of `keys`: a sequence, or a DataFrame or Arrow data
        of one column. `get` does the same at once and with less ado."""
        return self._relation("lookup", table, relations.Values(keys))

    def fetch(self, table: str, row_ids: Any) -> DataFrame:
        """The rows of these ids, with the ids."""
        return self._relation("fetch", table, relations.Values(row_ids))

    def expand(
        self, index: str, vertices: Any, hops: int, *, direction: str | None = None
    ) -> DataFrame:
        """For each vertex every other one within so many hops over an adjacency index: its least
        depth, and the id of an edge that leads to it."""
        values = relations.Values(vertices)
        return self._relation("expand", index, values, hops, direction=direction)

    def bfs(
        self,
        index: str,
        vertices: Any,
        max_depth: int | None = None,
        *,
        direction: str | None = None,
    ) -> DataFrame:
        """Every vertex that can be reached from some of `vertices`: its depth, and the vertex
        before it."""
        depth = () if max_depth is None else (max_depth,)
        values = relations.Values(vertices)
        return self._relation("bfs", index, values, *depth, direction=direction)

    def shortest_path(
        self,
        index: str,
        start: Any,
        end: Any,
        weight: str | None = None,
        *,
        direction: str | None = None,
    ) -> DataFrame:
        """The vertices of a shortest path, and the ids of the edges between them; no rows when
        there is none. `weight` names a column of the edges."""
        weights = () if weight is None else (weight,)
        return self._relation("shortest_path", index, start, end, *weights, direction=direction)

    def connected_components(self, index: str) -> DataFrame:
        """Each vertex with the least vertex of its component."""
        return self._relation("connected_components", index)

    def page_rank(
        self,
        index: str,
        *,
        damping: float | None = None,
        max_iterations: int | None = None,
        tolerance: float | None = None,
    ) -> DataFrame:
        """Each vertex with its rank; ranks sum to 1."""
        return self._relation(
            "page_rank",
            index,
            damping=damping,
            max_iterations=max_iterations,
            tolerance=tolerance,
        )

    def _column(self, data: Any, views: list[str]) -> str:
        """A query of data of one column."""
        frame = self._frame_of(data)
        if len(frame.columns) != 1:
            raise Error(f"one column is expected, not {len(frame.columns)}: select the one to use")
        return f"(SELECT {script.quoted(frame.columns[0])} FROM {self._view(frame, views)})"

    def _relation(self, function: str, *arguments: Any, **options: Any) -> DataFrame:
        """A call of a table function. Data in its arguments is a view while the call needs it."""
        views: list[str] = []
        try:
            query = relations.call(function, arguments, options, lambda data: self._column(data, views))
        except BaseException:
            for view in views:
                self._backend.unregister(view)
            raise
        return self._frame(self._backend.sql(query, views))

    def _view(self, data: Any, views: list[str]) -> str:
        """A view of data."""
        frame = self._frame_of(data)
        name = f"__argument_{next(self._numbers)}"
        self._backend.register(name, frame._query)
        views.append(name)
        return name

    # DataFusion.

    @property
    def context(self) -> SessionContext:
        """DataFusion's own session with the database's catalog and planner: for its readers of
        files, its registrations, and libraries that want a `datafusion.SessionContext`."""
        with self._session_lock:
            if self._backend.is_closed:
                raise Error("the connection is closed")
            if self._session is None:
                self._session = self._backend.session()
            return self._session

    def frame(self, df: Any) -> DataFrame:
        """One of flashmesh's for a DataFrame of `context`, such as `con.context.read_csv(…)`."""
        from .frame import DataFrame, upstream

        return DataFrame(self, df=upstream(df).df)

    def _frame(self, query: Query, alias: str | None = None) -> DataFrame:
        return rows.frame(self, query, alias or f"query_{next(self._numbers)}")

    def _query_of(self, frame: DataFrame) -> Query:
        from .frame import errors

        session = self.context
        with errors():
            return self._backend.plan(frame, session)

    # The end.

    def close(self) -> None:
        """Close the database, whoever holds DataFrames of it: they say so when they are asked
        for rows. Running streams end first. A temporary database is removed."""
        with self._session_lock:
            self._session = None
        self._backend.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        what = "closed" if self._backend.is_closed else repr(self._backend)
        return f"<flashmesh.Connection, {what}>"


def _paths(source: Paths) -> list[str]:
    """Paths of files."""
    try:
        return [fspath(path) for path in ([source] if isinstance(source, (str, PathLike)) else source)]
    except TypeError:
        raise TypeError(
            f"a {type(source).__name__} is neither a path, a list of paths, nor an object "
            "with Arrow data (__arrow_c_stream__)"
        ) from None


def _are_none(rows: Records) -> bool:
    return isinstance(rows, (list, tuple)) and not rows


def _array_of(keys: Any) -> Any:
    """Keys as an Arrow array."""
    if hasattr(keys, "__arrow_c_array__"):
        return keys

    # A text is a key, though Python takes it for a sequence of texts.
    is_one = isinstance(keys, (str, bytes)) or not isinstance(keys, Iterable)
    return array([keys] if is_one else keys)
