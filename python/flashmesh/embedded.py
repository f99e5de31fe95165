"""The embedded database as a backend. Neither pyarrow nor datafusion is imported for SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import TYPE_CHECKING, Any, cast

from . import _flashmesh
from .backend import arrow
from .literals import quoted

if TYPE_CHECKING:
    import datafusion
    import pyarrow as pa
    from datafusion import ScalarUDF, SessionContext

    from .backend import ArrowStream, Mode, Query, Records


class Embedded:
    """An open database in this process."""

    def __init__(self, database: _flashmesh.Database) -> None:
        self._database = database
        self.execute = database.execute
        self.run = database.run
        self.table = database.table
        self.from_arrow = database.from_arrow
        self.unregister = database.unregister
        self.setting = database.setting
        self.set_setting = database.set_setting
        self.settings = database.settings
        self.close = database.close

    @property
    def is_closed(self) -> bool:
        return self._database.is_closed

    def sql(self, query: str, arguments: Sequence[str] = ()) -> _flashmesh.Query:
        try:
            return self._database.sql(query)
        finally:
            # Planned queries hold what they need.
            for name in arguments:
                self._database.unregister(name)

    def files(self, paths: Sequence[str]) -> _flashmesh.Query:
        parts = (f"SELECT * FROM {quoted(path)}" for path in paths)
        return self._database.sql(" UNION ALL BY NAME ".join(parts))

    def register(self, name: str, query: Query) -> None:
        self._database.register(name, cast(_flashmesh.Query, query))

    def provider(self, query: Query) -> Any:
        return query

    def relation(self, query: Query, alias: str, session: SessionContext) -> datafusion.DataFrame:
        return session.read_table(cast(Any, query)).alias(alias)

    def operands(
        self, method: str, frame: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[datafusion.DataFrame, tuple[Any, ...], dict[str, Any]]:
        return frame, args, dict(kwargs)

    def plan(self, frame: datafusion.DataFrame, session: SessionContext) -> _flashmesh.Query:
        try:
            plan = frame.logical_plan().to_bytes(session)
        except Exception:
            # Subqueries have no encoding; DataFusion's optimiser makes joins of them.
            plan = frame.optimized_logical_plan().to_bytes(session)
        return self._database.plan(plan, session)

    def get(self, table: str, keys: pa.Array) -> _flashmesh.Query:
        return self._database.get(table, keys)

    def get_one(self, table: str, key: Any) -> dict[str, Any] | None:
        return self._database.get_one(table, key)

    def key(self, table: str) -> str:
        return self._database.key(table)

    def put(self, table: str, rows: Records) -> int:
        if isinstance(rows, list):
            # Of a few rows pyarrow would take longer to make Arrow data than the store to keep them.
            count = self._database.put_dicts(table, rows)
            if count is not None:
                return count
        return self._database.put(table, arrow(rows))

    def delete(self, table: str, keys: pa.Array) -> int:
        return self._database.delete(table, keys)

    def load_files(self, table: str, paths: Sequence[str | PathLike[str]], mode: Mode) -> int:
        return self._database.load_files(table, paths, mode)

    def load_arrow(self, table: str, source: ArrowStream, mode: Mode) -> int:
        return self._database.load_arrow(table, source, mode)

    def function(self, name: str) -> ScalarUDF:
        from datafusion import ScalarUDF, SessionContext

        function = ScalarUDF.from_pycapsule(self._database.function(name))
        # Plans of Python's sessions find functions of ours by name.
        self._database.use_functions(SessionContext())
        return function

    def session(self) -> SessionContext:
        from . import sessions

        return sessions.of(self._database)

    def __repr__(self) -> str:
        kind = "temporary, " if self._database.is_temporary else ""
        return f"{kind}{self._database.path}"
