"""Arrow data as pandas has it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    import pandas


def to_pandas(table: pa.Table) -> pandas.DataFrame:
    """A table as pandas has it. pyarrow takes views of texts and bytes there, but for those within lists, and times of
    days to the microsecond, which is all that Python's have."""
    fields = [field.with_type(_as_pandas(field.type)) if _is_other(field.type) else field for field in table.schema]
    schema = pa.schema(fields, table.schema.metadata)
    return (table if schema == table.schema else table.cast(schema, safe=False)).to_pandas()


def _is_other(data_type: pa.DataType) -> bool:
    return bool(pa.types.is_nested(data_type) or data_type == pa.time64("ns"))


def _as_pandas(data_type: pa.DataType) -> pa.DataType:
    types = pa.types

    def plain(field: pa.Field) -> pa.Field:
        return field.with_type(_as_pandas(field.type))

    if types.is_string_view(data_type):
        return pa.string()
    if types.is_binary_view(data_type):
        return pa.binary()
    if data_type == pa.time64("ns"):
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
