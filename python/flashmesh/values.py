"""Arrow data as SQL."""

from __future__ import annotations

import pyarrow as pa

from ._flashmesh import Error
from .literals import literal, quoted
from .script import quoted as named


def values(table: pa.Table) -> str:
    """A query of the rows of a table."""
    sources = [f"column{number}" if table.num_rows else "NULL" for number in range(1, table.num_columns + 1)]
    columns = [
        f"{cast(source, field.type)} AS {named(field.name)}"
        for source, field in zip(sources, table.schema, strict=True)
    ]
    if table.num_rows == 0:
        return f"SELECT {', '.join(columns)} LIMIT 0"
    texts = zip(*(_literals(column) for column in table.columns), strict=True)
    rows = ", ".join(f"({', '.join(row)})" for row in texts)
    return f"SELECT {', '.join(columns)} FROM (VALUES {rows})"


def scalar(value: pa.Scalar) -> str:
    """A value as a constant of its type."""
    if not value.is_valid:
        return "NULL"
    (text,) = _literals(pa.array([value.as_py()], value.type))
    return cast(text, value.type)


def _literals(column: pa.ChunkedArray) -> list[str]:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if _is_list(column.type):
        return ["NULL" if v is None else f"[{', '.join(map(literal, v))}]" for v in column.to_pylist()]
    has_literals = (
        pa.types.is_integer,
        pa.types.is_floating,
        pa.types.is_boolean,
        pa.types.is_null,
        *_BINARY,
    )
    if not any(has(column.type) for has in has_literals):
        column = column.cast(pa.string())
    return [literal(value) for value in column.to_pylist()]


_TEXT = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
_BINARY = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_binary_view,
    pa.types.is_fixed_size_binary,
)
_UNITS = {"s": "Second", "ms": "Millisecond", "us": "Microsecond", "ns": "Nanosecond"}
_FLOATS = {"halffloat": "Float16", "float": "Float32", "double": "Float64"}


def cast(expression: str, data_type: pa.DataType) -> str:
    """An expression as one of that type."""
    return f"arrow_cast({expression}, {quoted(_type(data_type))})"


def _is_list(data_type: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(data_type) or types.is_large_list(data_type) or types.is_fixed_size_list(data_type))


def _type(data_type: pa.DataType) -> str:
    """A type as `arrow_cast` has it."""
    types = pa.types
    if types.is_dictionary(data_type):
        return _type(data_type.value_type)
    if types.is_integer(data_type):
        return str(data_type).replace("uint", "UInt").replace("int", "Int")
    if types.is_floating(data_type):
        return _FLOATS[str(data_type)]
    if types.is_boolean(data_type):
        return "Boolean"
    if types.is_null(data_type):
        return "Null"
    if any(is_text(data_type) for is_text in _TEXT):
        return "Utf8"
    if types.is_fixed_size_binary(data_type):
        return f"FixedSizeBinary({data_type.byte_width})"
    if any(is_binary(data_type) for is_binary in _BINARY):
        return "Binary"
    if types.is_date32(data_type):
        return "Date32"
    if types.is_time64(data_type) or types.is_time32(data_type):
        return f"Time{data_type.bit_width}({_UNITS[data_type.unit]})"
    if types.is_timestamp(data_type):
        zone = f'Some("{data_type.tz}")' if data_type.tz else "None"
        return f"Timestamp({_UNITS[data_type.unit]}, {zone})"
    if types.is_decimal128(data_type):
        return f"Decimal128({data_type.precision}, {data_type.scale})"
    if types.is_fixed_size_list(data_type):
        return f"FixedSizeList({data_type.list_size} x {_type(data_type.value_type)})"
    if _is_list(data_type):
        return f"List({_type(data_type.value_type)})"
    raise Error(f"data of type {data_type} can't go along with a query: load it into a table (con.load)")
