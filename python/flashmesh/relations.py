"""Calls of table functions as SQL."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

#: From so many values on, data goes over as data rather than as text.
LITERALS = 4096


@dataclass
class Values:
    """One value, several, or a column of them."""

    data: Any


@dataclass
class Vectors:
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
    if hasattr(data, "__arrow_c_stream__") and not isinstance(data, pa.ChunkedArray):
        return view(data)
    if not isinstance(data, (str, bytes)) and isinstance(data, Iterable):
        column = data if isinstance(data, (pa.Array, pa.ChunkedArray)) else pa.array(data)
        if not 0 < len(column) <= LITERALS:
            return view(pa.table({"value": column}))
        return f"[{', '.join(map(literal, column.to_pylist()))}]"
    return literal(data)


def _vectors(data: Any, view: View) -> str:
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


def quoted(text: str) -> str:
    """A text in quotes, where an expression can't stand."""
    return "'" + text.replace("'", "''") + "'"


def literal(value: Any) -> str:
    """A constant of SQL."""
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).upper()
        case int():
            return str(value)
        case float() if math.isfinite(value):
            return repr(value)
        case float():
            return f"CAST('{value}' AS DOUBLE)"
        case bytes():
            return f"X'{value.hex()}'"
        case str() if "\\" in value:
            # Whether a backslash in quotes is one depends on the dialect.
            parts = (quoted(part) for part in value.split("\\"))
            return f"concat({', chr(92), '.join(parts)})"
        case str():
            return quoted(value)
        case _ if hasattr(value, "item"):
            return literal(value.item())
        case _:
            raise TypeError(f"a {type(value).__name__} can't be an argument here")
