"""Arrow data of plain types, which all libraries know."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    import pandas


def to_pandas(table: pa.Table) -> pandas.DataFrame:
    """A table as pandas has it. pyarrow takes views of texts and bytes there, but for those within lists, and times of
    days to the microsecond, which is all that Python's have."""
    fields = [
        field.with_type(_plain(field.type, times=True)) if _is_other(field.type) else field for field in table.schema
    ]
    return _cast(table, fields).to_pandas()


def without_views(table: pa.Table) -> pa.Table:
    """A table with texts and bytes as pyarrow's functions take them: of views it has hardly any."""
    return _cast(table, [field.with_type(_plain(field.type)) for field in table.schema])


def _cast(table: pa.Table, fields: list[pa.Field]) -> pa.Table:
    schema = pa.schema(fields, table.schema.metadata)
    return table if schema == table.schema else table.cast(schema, safe=False)


def _is_other(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_nested(data_type) or data_type == pa.time64("ns"))


def _plain(data_type: pa.DataType, *, times: bool = False) -> pa.DataType:
    """A type without views, and without times of nanoseconds if that is asked for."""
    types = pa.types

    def plain(field: pa.Field) -> pa.Field:
        return field.with_type(_plain(field.type, times=times))

    if types.is_string_view(data_type):
        return pa.string()
    if types.is_binary_view(data_type):
        return pa.binary()
    if times and data_type == pa.time64("ns"):
        return pa.time64("us")
    if types.is_list(data_type):
        return pa.list_(plain(data_type.value_field))
    if types.is_large_list(data_type):
        return pa.large_list(plain(data_type.value_field))
    if types.is_fixed_size_list(data_type):
        return pa.list_(plain(data_type.value_field), data_type.list_size)
    if types.is_map(data_type):
        return pa.map_(plain(data_type.key_field), plain(data_type.item_field), data_type.keys_sorted)
    if types.is_struct(data_type):
        return pa.struct([plain(field) for field in data_type])
    return data_type
