"""Plots of results: pandas draws them, with whatever library it is told to."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ._flashmesh import Error

if TYPE_CHECKING:
    import pandas

#: Kinds of plots with a column along the x axis.
ALONG_X = {None, "line", "bar", "barh", "area"}


def drawn(frame: Callable[[], pandas.DataFrame], *args: Any, **kwargs: Any) -> Any:
    """`pandas.DataFrame.plot`, with the first of several columns along the x axis."""
    try:
        import pandas
    except ImportError:
        raise Error("a plot needs pandas and a library that draws: pip install pandas matplotlib") from None
    backend = kwargs.get("backend") or pandas.get_option("plotting.backend")
    data = frame()
    kind = args[2] if len(args) > 2 else kwargs.get("kind")
    if not args and "x" not in kwargs and kind in ALONG_X and len(data.columns) > 1:
        kwargs["x"] = data.columns[0]
    try:
        return data.plot(*args, **kwargs)
    except ImportError as error:
        raise Error(f"a plot needs the library '{backend}', which is not installed: pip install {backend}") from error
