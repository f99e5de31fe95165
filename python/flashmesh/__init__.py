"""SQL and DataFrames over tables that live on flash.

>>> import flashmesh
>>> from flashmesh import col
>>> con = flashmesh.connect()                    # a temporary database
>>> _ = con.sql("CREATE TABLE t AS SELECT value AS a FROM generate_series(1, 9) AS s(value)")
>>> con.sql("SELECT a + 1 AS b FROM t").filter(col("b") > 9).fetchall()
[(10,)]
"""

from importlib import import_module as _import
from typing import TYPE_CHECKING, Any

from ._flashmesh import Error, __version__

if TYPE_CHECKING:
    from datafusion import Expr, col, lit, literal, udaf, udf, udwf

    from . import functions
    from .connection import Connection, connect
    from .default import execute, executemany, sql
    from .frame import DataFrame, Table
    from .result import Result
    from .settings import Settings

__all__ = [
    "Connection",
    "DataFrame",
    "Error",
    "Expr",
    "Result",
    "Settings",
    "Table",
    "__version__",
    "col",
    "connect",
    "execute",
    "executemany",
    "functions",
    "lit",
    "literal",
    "sql",
    "udaf",
    "udf",
    "udwf",
]

# Imported when they are first used: the command `flashmesh`, which this module is in the way of,
# needs neither pyarrow nor datafusion, and those take longer than its first result.
_HOMES = {
    **dict.fromkeys(("Expr", "col", "lit", "literal", "udaf", "udf", "udwf"), "datafusion"),
    **dict.fromkeys(("Connection", "connect"), "flashmesh.connection"),
    **dict.fromkeys(("DataFrame", "Table"), "flashmesh.frame"),
    **dict.fromkeys(("execute", "executemany", "sql"), "flashmesh.default"),
    "Result": "flashmesh.result",
    "Settings": "flashmesh.settings",
}


def __getattr__(name: str) -> Any:
    if name == "functions":
        return _import("flashmesh.functions")
    if name not in _HOMES:
        raise AttributeError(f"module 'flashmesh' has no attribute '{name}'")
    value = globals()[name] = getattr(_import(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
