"""SQL over tables that live on flash.

>>> import flashmesh
>>> con = flashmesh.connect()                    # a temporary database
>>> _ = con.sql("CREATE TABLE t AS SELECT 1 AS a")
>>> con.sql("SELECT a + 1 AS b FROM t").fetchall()
[(2,)]
"""

from ._flashmesh import Connection, Error, Result, Table, __version__, connect

__all__ = ["Connection", "Error", "Result", "Table", "__version__", "connect"]
