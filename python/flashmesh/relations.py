"""Calls of table functions as SQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from .literals import literal

#: From so many values on, data goes over as data rather than as text.
LITERALS = 4096


class Values(NamedTuple):
    """One value, several, or a column of them."""

    data: Any


class Vectors(NamedTuple):
    """One vector, or a column of them."""

    data: Any


#: Makes data that SQL can select: a subquery of one column.
View = Callable[[Any], str]


def call(function: str, arguments: Iterable[Any], options: Mapping[str, Any], view: View) -> str:
    """`SELECT * FROM function(arguments, name => option)`; options that are None are left out."""
    texts = [_argument(argument, view) for argument in arguments]
    given = ((name, value) for name, value in options.items() if value is not None)
    texts.extend(f"{name} => {literal(value)}" for name, value in given)
    return f"SELECT * FROM {function}({', '.join(texts)})"


def _argument(argument: Any, view: View) -> str:
    match argument:
        case Values(data):
            return _values(data, view)
        case Vectors(data):
            return _vectors(data, view)
        case _:
            return literal(argument)


def _values(data: Any, view: View) -> str:
    import pyarrow as pa

    if hasattr(data, "__arrow_c_stream__") and not isinstance(data, pa.ChunkedArray):
        return view(data)
    if not isinstance(data, (str, bytes)) and isinstance(data, Iterable):
        column = data if isinstance(data, (pa.Array, pa.ChunkedArray)) else pa.array(data)
        if not 0 < len(column) <= LITERALS:
            return view(pa.table({"value": column}))
        return f"[{', '.join(map(literal, column.to_pylist()))}]"
    return literal(data)


def _vectors(data: Any, view: View) -> str:
    import pyarrow as pa

    if hasattr(data, "__arrow_c_stream__") and not isinstance(data, pa.ChunkedArray):
        return view(data)
    if isinstance(data, (bytes, bytearray, memoryview)):
        return literal(bytes(data))
    rows = data.tolist() if hasattr(data, "tolist") else list(data)
    if rows and isinstance(rows[0], bytes):
        return view(pa.table({"vector": pa.array(rows, pa.binary(len(rows[0])))}))
    if rows and isinstance(rows[0], Iterable):
        return view(pa.table({"vector": pa.array(rows, pa.list_(pa.float32()))}))
    return f"[{', '.join(literal(float(number)) for number in rows)}]"
