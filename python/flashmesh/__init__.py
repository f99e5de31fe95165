"""SQL and DataFrames over tables that live on flash.

>>> import flashmesh
>>> from flashmesh import col
>>> con = flashmesh.connect()                    # a temporary database
>>> _ = con.sql("CREATE TABLE t AS SELECT value AS a FROM generate_series(1, 9) AS s(value)")
>>> con.sql("SELECT a + 1 AS b FROM t").filter(col("b") > 9).fetchall()
[(10,)]
"""

from datafusion import Expr, col, lit, literal, udaf, udf, udwf

from . import functions
from ._flashmesh import Error, __version__
from .connection import Connection, connect
from .frame import DataFrame, Table
from .settings import Settings

__all__ = [
    "Connection",
    "DataFrame",
    "Error",
    "Expr",
    "Settings",
    "Table",
    "__version__",
    "col",
    "connect",
    "functions",
    "lit",
    "literal",
    "udaf",
    "udf",
    "udwf",
]
