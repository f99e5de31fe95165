"""A server as a backend.

SQL runs on the server as it is. DataFrames are built in a session of DataFusion's in this process,
in which the server's tables have their columns but no rows; where rows are asked for, the plan goes
to the server as Substrait and is optimised and pushed there. (DataFusion's way from plans to SQL
was tried and left: it loses clauses of nested plans without a word, such as a filter above a limit.)

What Substrait can name is tables, so a query in SQL that a DataFrame is built on becomes a view of
the session, and small data in memory a view of VALUES. Functions in Python run in this process,
over the stream of what is below them.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, cast

import datafusion
import pyarrow as pa
import pyarrow.dataset as ds
from datafusion import Expr, ScalarUDF, SessionConfig, SessionContext, col, lit
from datafusion import functions as f
from datafusion.catalog import CatalogProvider, SchemaProvider
from datafusion.catalog import Table as CatalogTable
from datafusion.expr import SortExpr
from datafusion.substrait import Producer
from datafusion.unparser import Dialect, Unparser

from . import _flashmesh, script
from ._flashmesh import Error, tuples
from .backend import array, arrow
from .flight import Client, Rows, Watch
from .frame import errors, upstream
from .functions import DISTANCES
from .literals import literal, quoted
from .sessions import CATALOG, SCHEMA
from .values import cast as cast_to
from .values import values

if TYPE_CHECKING:
    from .backend import ArrowStream, Mode, Query, Records, Report

#: Values in memory that go along with a query as text; more must be loaded into a table.
VALUES = 100_000
#: Keys of one lookup.
KEYS = 10_000
#: What a function in Python begins with where DataFusion encodes it (scalar, aggregate, window).
PYTHON = (b"DFPYUDF", b"DFPYUDA", b"DFPYUDW")
#: Methods whose plans Substrait has no words for.
HERE_ONLY = {"unnest_columns"}

Upstream = datafusion.DataFrame


class Remote:
    """A session of a server."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._numbers = itertools.count(1)
        # It stays: DataFusion's frames don't keep theirs alive.
        self._local = SessionContext()
        #: Views behind DataFrames, until DataFusion takes them, and those that no DataFrame has.
        self._hidden: dict[str, _Dataset] = {}
        self._unused: deque[str] = deque()
        #: What was registered in `Connection.context`, by schema and name: it stays here.
        self._own: dict[tuple[str, str], CatalogTable] = {}
        self.close = client.close

    @property
    def is_closed(self) -> bool:
        return self._client.is_closed

    def __repr__(self) -> str:
        return self._client.url

    # SQL.

    def sql(self, query: str, arguments: Sequence[str] = ()) -> Query:
        *before, last = script.statements(query) or [query]
        for statement in before:
            self._run(statement)
        try:
            columns = self._client.columns(last)
            if columns is None or script.is_alone(last):
                return self.from_arrow(self._run(last))
        except BaseException:
            for name in arguments:
                self.unregister(name)
            raise
        text = Text(self, last, columns)
        for name in arguments:
            weakref.finalize(text, self._forget, script.reference(name))
        return text

    def execute(self, query: str) -> None:
        for statement in script.statements(query) or [query]:
            with self._noting(statement):
                for _ in self._client.stream(statement):
                    pass

    def run(self, query: str, progress: Report | None = None) -> Rows:
        *before, last = script.statements(query) or [query]
        for statement in before:
            self._run(statement)
        watch = functools.partial(self.report, progress=progress) if progress else None
        return self._run(last, watch)

    def files(self, paths: Sequence[str]) -> None:
        # They are here.
        return None

    def table(self, name: str) -> Query:
        # Substrait wants the whole name; DataFusion has others for data of this process.
        parts = script.parts(name)
        whole = [CATALOG, SCHEMA][: 3 - len(parts)] + parts
        reference = ".".join(map(script.quoted, whole))
        query = f"SELECT * FROM {reference}"
        columns = self._client.columns(query)
        assert columns is not None, "a query has columns"
        return Text(self, query, columns, name=reference)

    def get(self, table: str, keys: pa.Array) -> Query:
        return self.from_arrow(self._rows(table, keys))

    def get_one(self, table: str, key: Any) -> dict[str, Any] | None:
        found = self._rows(table, array([key]))
        rows = (row for batch in found.to_batches() for row in tuples(batch))
        row = next(rows, None)
        return None if row is None else dict(zip(found.column_names, row, strict=True))

    def _rows(self, table: str, keys: pa.Array) -> pa.Table:
        keyed = pa.table({"key": pa.array(keys).drop_null().unique()})
        reference = script.reference(table)
        found = [
            pa.table(self._client.run(f"SELECT * FROM lookup({literal(table)}, ({values(part)}))"))
            for part in (keyed.slice(at, KEYS) for at in range(0, len(keyed), KEYS))
        ]
        if not found:
            found = [pa.table(self._client.run(f"SELECT * FROM {reference} LIMIT 0"))]
        return pa.concat_tables(found)

    def key(self, table: str) -> str:
        parts = script.parts(table)[-2:]
        named = zip(("table", "schema"), reversed(parts), strict=False)
        tests = " AND ".join(f"{script.quoted(column)} = {literal(name)}" for column, name in named)
        found = pa.table(
            self._client.run(f"SELECT columns FROM system.indexes WHERE \"constraint\" = 'primary key' AND {tests}")
        )
        keys = found["columns"].to_pylist()
        if [len(key) for key in keys] != [1]:
            raise Error(f"table '{table}' has no primary key of one column to get rows by")
        return str(keys[0][0])

    def put(self, table: str, rows: Records) -> int:
        return self._ingest(table, arrow(rows), "append", by_key="put")

    def delete(self, table: str, keys: pa.Array) -> int:
        return self._ingest(table, pa.table({"key": pa.array(keys)}), "append", by_key="delete")

    # DataFrames.

    def session(self) -> SessionContext:
        config = (
            SessionConfig()
            .with_default_catalog_and_schema(CATALOG, SCHEMA)
            .with_create_default_catalog_and_schema(False)
            .with_information_schema(True)
        )
        session = SessionContext(config)
        session.register_catalog_provider(CATALOG, _Catalog(self))
        for distance in DISTANCES.values():
            session.register_udf(distance)
        return session

    def function(self, name: str) -> ScalarUDF:
        raise Error(
            f"functions of a server's kernels are for SQL only: con.sql('SELECT {name}(…) FROM …')"
        )

    def provider(self, query: Query) -> Any:
        if isinstance(query, Here):
            return CatalogTable(query.frame)
        return _Dataset(cast(Served, query))

    def relation(self, query: Query, alias: str, session: SessionContext) -> Upstream:
        if isinstance(query, Here):
            return query.frame.alias(alias)
        return self._relation(query, session).alias(alias)

    def operands(
        self, method: str, frame: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[Upstream, tuple[Any, ...], dict[str, Any]]:
        given = [*args, *kwargs.values()]
        frames = [frame, *(other for other in _flat(given) if isinstance(other, Upstream))]
        served = [_is_served(upstream(each).logical_plan()) for each in frames]
        python = method in HERE_ONLY or any(
            isinstance(each, Expr) and _has_python(each) for each in _flat(given)
        )
        if not any(served) or (all(served) and not python):
            return frame, args, dict(kwargs)
        # Moves only what is on the wrong side.
        move = self._here if python else self._there
        moved = {
            id(each): move(each)
            for each, is_served in zip(frames, served, strict=True)
            if is_served == python
        }

        def placed(value: Any) -> Any:
            return moved.get(id(value), value)

        named = {name: placed(value) for name, value in kwargs.items()}
        return placed(frame), tuple(map(placed, args)), named

    def plan(self, frame: Any, session: SessionContext) -> Query:
        plain = upstream(frame)
        if not _is_served(plain.logical_plan()):
            return Here(plain)
        try:
            return Plan(self, plain, session)
        except Exception as error:
            raise Error(
                f"this DataFrame can't be sent to the server: {error}. Ask for the rows of what "
                "is below and go on here: con.from_arrow(frame)"
            ) from None

    def from_arrow(self, source: ArrowStream) -> Query:
        table = pa.table(source)
        batches = table.to_batches() or [pa.RecordBatch.from_pylist([], schema=table.schema)]
        return Here(self._local.create_dataframe([batches], schema=table.schema))

    def register(self, name: str, query: Query) -> None:
        self._create_view(script.reference(name), self._as_text(query), replaced=True)

    def unregister(self, name: str) -> bool:
        reference = script.reference(name)
        if self._client.session.pop(f"view {reference}", None) is None:
            return False
        self._client.run(f"DROP VIEW {reference}")
        return True

    def _here(self, frame: Any) -> Upstream:
        """The rows of a DataFrame of the server as one of this process."""
        moved = self._local.read_table(self.provider(frame._query))
        return moved.alias(frame._alias) if getattr(frame, "_alias", "") else moved

    def _there(self, frame: Any) -> Upstream:
        """Data of this process as a DataFrame of the server."""
        alias = getattr(frame, "_alias", "") or f"data_{next(self._numbers)}"
        session = frame._connection.context
        return self._relation(Here(upstream(frame)), session).alias(alias)

    def _relation(self, query: Query, session: SessionContext) -> Upstream:
        """A query as a table of the session."""
        text = self._as_text(query).with_lists()
        if text.name:
            return session.table(text.name)
        while self._unused:
            self._client.run(f"DROP VIEW {self._unused.popleft()}")
        name = f"__query_{next(self._numbers)}"
        reference = f"{CATALOG}.{SCHEMA}.{name}"
        self._create_view(reference, text)
        columns = self._client.columns(f"SELECT * FROM {reference}")
        assert columns is not None, "a query has columns"
        dataset = _Dataset(Text(self, f"SELECT * FROM {reference}", columns, name=reference))
        weakref.finalize(dataset, self._forget, reference)
        self._hidden[name] = dataset
        try:
            return session.table(reference)
        finally:
            del self._hidden[name]

    def _forget(self, reference: str) -> None:
        """No DataFrame has the view any more. It is dropped later: this is called at any time."""
        if self._client.session.pop(f"view {reference}", None) is not None:
            self._unused.append(reference)

    def _create_view(self, reference: str, text: Text, *, replaced: bool = False) -> None:
        names = ", ".join(map(script.quoted, text.columns.names))
        replace = "OR REPLACE " * replaced
        statement = f"CREATE {replace}TEMPORARY VIEW {reference} ({names}) AS {text.text}"
        self._client.run(statement)
        self._client.session[f"view {reference}"] = statement

    def _as_text(self, query: Query) -> Text:
        """A query in SQL; where it has no such form, its rows as they are now."""
        if isinstance(query, Text):
            return query
        if isinstance(query, Plan) and (text := query.sql()):
            return Text(self, text, query.columns)
        rows = _few(query)
        return Text(self, values(rows), rows.schema)

    # Loading.

    def load_files(self, table: str, paths: Sequence[str | PathLike[str]], mode: Mode) -> int:
        # Read in this process: the files are here.
        reader = _flashmesh.open()
        try:
            parts = (f"SELECT * FROM {quoted(fspath(path))}" for path in paths)
            rows = reader.sql(" UNION ALL BY NAME ".join(parts)).stream()
            return self.load_arrow(table, rows, mode)
        finally:
            reader.close()

    def load_arrow(self, table: str, source: ArrowStream, mode: Mode) -> int:
        if mode not in ("create", "append", "replace"):
            raise ValueError(f"mode can't be '{mode}'; it is 'create', 'append' or 'replace'")
        return self._ingest(table, source, mode)

    def _ingest(self, table: str, source: ArrowStream, mode: Mode, by_key: str = "") -> int:
        *schema, name = script.parts(table)
        if schema[:-1] not in ([], [CATALOG]):
            raise Error(f"there is no catalog '{schema[0]}': a server has one, '{CATALOG}'")
        rows = pa.RecordBatchReader.from_stream(source)
        return self._client.ingest(schema[-1] if schema else None, name, rows, mode, by_key)

    # Settings.

    def setting(self, name: str) -> str | None:
        rows = self._settings(f"value FROM information_schema.df_settings WHERE name = {literal(name)}")
        if not rows:
            raise Error(f"there is no setting '{name}'")
        return cast("str | None", rows[0]["value"])

    def set_setting(self, name: str, value: str) -> None:
        self._run(f"SET {name} = {quoted(value)}")

    def _run(self, statement: str, watch: Watch | None = None) -> Rows:
        """Runs what may be a SET."""
        with self._noting(statement):
            return self._client.run(statement, watch)

    def report(self, tag: str, progress: Report) -> None:
        """Tell how far the query is. Its own end says what is wrong with the server, if
        anything is."""
        look = (
            "SELECT segments_done, segments, bytes_from_flash FROM system.queries "
            f"WHERE state = 'running' AND tag = '{tag}'"
        )
        with contextlib.suppress(Error):
            for row in pa.table(self._client.run(look)).to_pylist():
                progress(row["segments_done"], row["segments"], row["bytes_from_flash"])

    @contextlib.contextmanager
    def _noting(self, statement: str) -> Iterator[None]:
        """A session that the server has lost gets its settings again, and no transaction."""
        begins = script.transaction(statement)
        try:
            yield
        finally:
            # It has ended, whether or not it could be committed.
            if begins is False:
                self._client.is_in_transaction = False
        if begins:
            self._client.is_in_transaction = True
        match script.setting(statement):
            case (name, True):
                self._client.session[f"setting {name}"] = statement
            case (name, False):
                self._client.session.pop(f"setting {name}", None)

    def settings(self) -> list[tuple[str, str]]:
        rows = self._settings("name, description FROM information_schema.df_settings")
        return [(row["name"], row["description"]) for row in rows]

    def _settings(self, what: str) -> list[dict[str, Any]]:
        return cast("list[dict[str, Any]]", pa.table(self._client.run(f"SELECT {what}")).to_pylist())


class Served:
    """A query that the server runs."""

    def __init__(self, remote: Remote, columns: pa.Schema) -> None:
        self.remote = remote
        self.columns = columns

    @property
    def statement(self) -> str | bytes:
        """What the server is sent."""
        raise NotImplementedError

    def select(self, columns: Sequence[str]) -> Served:
        """Some of its columns."""
        raise NotImplementedError

    def limit(self, rows: int) -> Served:
        raise NotImplementedError

    def count(self) -> int:
        raise NotImplementedError

    def plan_rows(self, verbose: bool, analyze: bool, format: str | None) -> Rows:
        """How it is run, or how it ran: rows of `plan_type` and `plan`."""
        raise NotImplementedError

    def explain(
        self,
        verbose: bool = False,
        analyze: bool = False,
        format: str | None = None,
        show_statistics: bool | None = None,
        analyze_level: str | None = None,
        analyze_categories: list[str] | None = None,
    ) -> Rows:
        for name, value in (
            ("show_statistics", show_statistics),
            ("analyze_level", analyze_level),
            ("analyze_categories", analyze_categories),
        ):
            if value is not None:
                raise Error(
                    f"a server takes no {name} with a query; "
                    f"set con.settings['datafusion.explain.{name}'] instead"
                )
        return self.plan_rows(verbose, analyze, format)

    def __arrow_c_schema__(self) -> object:
        return self.columns.__arrow_c_schema__()

    def collect(self, progress: Report | None = None) -> Rows:
        if progress is None:
            return self.remote._client.run(self.statement)
        watch = functools.partial(self.remote.report, progress=progress)
        return self.remote._client.run(self.statement, watch)

    def stream(self) -> Rows:
        return self.remote._client.stream(self.statement)


class Text(Served):
    """SQL. With a name it is all of that table."""

    def __init__(
        self,
        remote: Remote,
        text: str,
        columns: pa.Schema,
        name: str = "",
        origin: Text | None = None,
    ) -> None:
        super().__init__(remote, columns)
        self.text = text
        self.name = name
        # Views in the text live as long as the query that they were made for.
        self._origin = origin

    @property
    def statement(self) -> str:
        return self.text

    def _of(self, what: str) -> str:
        names = ", ".join(map(script.quoted, self.columns.names))
        # Its last line may be a comment.
        return f"SELECT {what} FROM ({self.text}\n) AS query ({names})"

    def select(self, columns: Sequence[str]) -> Text:
        schema = pa.schema([self.columns.field(name) for name in columns])
        return Text(self.remote, self._of(", ".join(map(script.quoted, columns))), schema, origin=self)

    def with_lists(self) -> Text:
        """The same with lists for vectors of fixed size, which Substrait has no type for."""
        fields = [
            field.with_type(pa.list_(field.type.value_type))
            if pa.types.is_fixed_size_list(field.type)
            else field
            for field in self.columns
        ]
        if pa.schema(fields) == self.columns:
            return self
        columns = ", ".join(
            cast_to(script.quoted(new.name), new.type) if new != old else script.quoted(new.name)
            for new, old in zip(fields, self.columns, strict=True)
        )
        return Text(self.remote, self._of(columns), pa.schema(fields), origin=self)

    def limit(self, rows: int) -> Text:
        return Text(self.remote, f"{self._of('*')} LIMIT {rows}", self.columns, origin=self)

    def count(self) -> int:
        rows = pa.table(self.remote._client.run(self._of("count(*)")))
        return cast(int, rows[0][0].as_py())

    def plan_rows(self, verbose: bool, analyze: bool, format: str | None) -> Rows:
        words = ["EXPLAIN", "ANALYZE" * analyze, "VERBOSE" * verbose]
        if format is not None:
            words.append(f"FORMAT {format}")
        return self.remote._client.run(" ".join([*filter(None, words), self.text]))


def _check_words(frame: Upstream) -> None:
    """Refuses what Substrait has no words for, and DataFusion leaves out without one."""
    for line in frame.logical_plan().display_indent().splitlines():
        windows = line.lstrip().startswith("WindowAggr")
        if "IGNORE NULLS" in line or windows and ("FILTER (WHERE" in line or "(DISTINCT " in line):
            raise Error("FILTER and DISTINCT of a window function, and IGNORE NULLS, can't be said in Substrait; use SQL")


class Plan(Served):
    """A DataFrame over tables of the server."""

    def __init__(self, remote: Remote, frame: Upstream, session: SessionContext) -> None:
        self.frame = frame
        self.session = session
        _check_words(frame)
        try:
            plan = Producer.to_substrait_plan(frame.logical_plan(), session)
        except Exception:
            # Subqueries and DISTINCT ON have no words in Substrait; what DataFusion's optimiser
            # makes of them has.
            plan = Producer.to_substrait_plan(frame.optimized_logical_plan(), session)
        self._statement = plan.encode()
        columns = remote._client.columns(self._statement)
        assert columns is not None, "a DataFrame has columns"
        super().__init__(remote, columns)

    @property
    def statement(self) -> bytes:
        return self._statement

    def _with(self, frame: Upstream) -> Plan:
        return Plan(self.remote, frame, self.session)

    def select(self, columns: Sequence[str]) -> Plan:
        return self._with(self.frame.select(*(col(script.quoted(name)) for name in columns)))

    def limit(self, rows: int) -> Plan:
        return self._with(self.frame.limit(rows))

    def count(self) -> int:
        counted = self._with(self.frame.aggregate([], [f.count(lit(1))]))
        return cast(int, pa.table(counted.collect())[0][0].as_py())

    def sql(self) -> str | None:
        """The same in SQL, if it can be had: text that reads back as the same plan."""
        names = self.frame.schema().names
        if len(set(names)) < len(names):
            return None
        frame = self.frame.select(*(col(script.quoted(name)) for name in names))
        wanted = frame.optimized_logical_plan()
        for plan in (frame.logical_plan(), wanted):
            try:
                text = Unparser(Dialect.default()).plan_to_sql(plan)
                got = self.session.sql(text)
            except Exception:
                continue
            same = got.optimized_logical_plan().display_indent() == wanted.display_indent()
            if same and got.schema().names == names:
                return text
        return None

    def plan_rows(self, verbose: bool, analyze: bool, format: str | None) -> Rows:
        if text := self.sql():
            return Text(self.remote, text, self.columns).plan_rows(verbose, analyze, format)
        # EXPLAIN takes no Substrait, but the server remembers the plans of what it ran.
        rows = self.stream()
        next(rows, None)
        if analyze:
            for _ in rows:
                pass
        tag = rows.tag
        # Ends it.
        del rows
        return self.remote._client.run(
            f"SELECT 'physical_plan' AS plan_type, plan FROM system.queries WHERE tag = '{tag}'"
        )


class Here:
    """A DataFrame over data of this process only, which DataFusion runs here."""

    def __init__(self, frame: Upstream) -> None:
        self.frame = frame

    def __arrow_c_schema__(self) -> object:
        return self.frame.schema().__arrow_c_schema__()

    def collect(self, progress: Report | None = None) -> Rows:
        with errors():
            batches = self.frame.collect()
        num_rows = sum(map(len, batches))
        return Rows(self.frame.schema(), iter(batches), num_rows=num_rows)

    def stream(self) -> Rows:
        return Rows(self.frame.schema(), self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        with errors():
            for batch in self.frame.execute_stream():
                yield batch.to_pyarrow()

    def count(self) -> int:
        with errors():
            return self.frame.count()

    def limit(self, rows: int) -> Here:
        return Here(self.frame.limit(rows))

    def explain(
        self,
        verbose: bool = False,
        analyze: bool = False,
        format: str | None = None,
        show_statistics: bool | None = None,
        analyze_level: str | None = None,
        analyze_categories: list[str] | None = None,
    ) -> Rows:
        if analyze:
            raise Error("this DataFrame runs in this process; explain it without analyze")
        with errors():
            plans = {
                "plan_type": ["logical_plan", "physical_plan"],
                "plan": [
                    self.frame.optimized_logical_plan().display_indent(),
                    self.frame.execution_plan().display_indent(),
                ],
            }
        table = pa.table(plans)
        return Rows(table.schema, iter(table.to_batches()))


# The server's tables in DataFusion.


class _Dataset(ds.InMemoryDataset):  # type: ignore[misc]
    """A query of the server as what DataFusion can scan: columns go to the server."""

    def __init__(self, query: Served) -> None:
        super().__init__(query.columns.empty_table())
        self._query = query

    def get_fragments(self, filter: Any = None) -> Iterator[_Fragment]:
        yield _Fragment(self._query)


class _Fragment:
    """All of a dataset."""

    def __init__(self, query: Served) -> None:
        self._query = query

    def scanner(
        self, schema: pa.Schema, columns: list[str], filter: Any = None, **options: Any
    ) -> ds.Scanner:
        text = str(filter)
        # An expression does not tell its columns; those whose names occur in its text are enough.
        wanted = [
            name
            for name in schema.names
            if name in columns or (filter is not None and (name in text or not name.isidentifier()))
        ]
        # Without columns there still is a number of rows.
        query = self._query.select(wanted or schema.names[:1])
        reader = pa.RecordBatchReader.from_stream(query.stream())
        return ds.Scanner.from_batches(reader, columns=columns, filter=filter, **options)


class _Catalog(CatalogProvider):
    """The server's schemas."""

    def __init__(self, remote: Remote) -> None:
        self._remote = remote

    def schema_names(self) -> set[str]:
        query = "SELECT schema_name FROM information_schema.schemata"
        return set(pa.table(self._remote._client.run(query))["schema_name"].to_pylist())

    def schema(self, name: str) -> Any:
        # DataFusion has an information_schema of its own.
        return None if name == "information_schema" else _Schema(self._remote, name)


class _Schema(SchemaProvider):
    """The server's tables."""

    def __init__(self, remote: Remote, name: str) -> None:
        self._remote = remote
        self._name = name

    def table_names(self) -> set[str]:
        query = (
            "SELECT table_name FROM information_schema.tables "
            f"WHERE table_schema = {literal(self._name)}"
        )
        return set(pa.table(self._remote._client.run(query))["table_name"].to_pylist())

    def table(self, name: str) -> CatalogTable | None:
        if hidden := self._remote._hidden.get(name):
            return CatalogTable(hidden)
        if own := self._remote._own.get((self._name, name)):
            return own
        reference = ".".join(map(script.quoted, (CATALOG, self._name, name)))
        query = f"SELECT * FROM {reference}"
        try:
            columns = self._remote._client.columns(query)
        except Error as error:
            if "not found" in str(error):
                return None
            raise
        assert columns is not None, "a query has columns"
        return CatalogTable(_Dataset(Text(self._remote, query, columns, name=reference)))

    def table_exist(self, name: str) -> bool:
        own = name in self._remote._hidden or (self._name, name) in self._remote._own
        return own or name in self.table_names()

    def register_table(self, name: str, table: Any) -> None:
        if name in self.table_names():
            raise Error(f"the server has a table '{name}'; take another name")
        self._remote._own[self._name, name] = table

    def deregister_table(self, name: str, cascade: bool = False) -> None:
        self._remote._own.pop((self._name, name), None)


def _is_served(plan: Any) -> bool:
    """Whether all tables of a plan are the server's."""
    inputs = plan.inputs()
    if inputs:
        return all(map(_is_served, inputs))
    try:
        leaf = plan.to_variant()
    except Exception:
        return False
    names = getattr(leaf, "fqn", None)
    return names is None or names()[0] == CATALOG


def _flat(values: Iterable[Any]) -> Iterator[Any]:
    for value in values:
        if isinstance(value, (list, tuple)):
            yield from _flat(value)
        elif isinstance(value, SortExpr):
            yield value.expr()
        else:
            yield value


def _has_python(expr: Expr) -> bool:
    """Whether a function in Python is in it."""
    try:
        encoded = expr.to_bytes()
    except Exception:
        # A function that can't be pickled is one in Python; what has no encoding fails again.
        try:
            expr.to_bytes(_by_name())
        except Exception:
            return False
        return True
    return any(mark in encoded for mark in PYTHON)


@functools.cache
def _by_name() -> SessionContext:
    """A session that encodes functions in Python by their names."""
    return SessionContext().with_python_udf_inlining(enabled=False)


def _few(query: Query) -> pa.Table:
    """The rows of a query, where they are few enough to go along with another."""
    columns = len(pa.schema(query).names)
    if columns == 0:
        raise Error("data without columns can't go along with a query on a server")
    table = pa.table(query.limit(VALUES // columns + 1).collect())
    if table.num_rows * columns > VALUES:
        raise Error(
            f"data of more than {VALUES:,} values can't go along with a query on a server: load it "
            "into a table first (con.load)"
        )
    return table
