"""Values as constants of SQL: those of types that have to be imported."""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Mapping, Sequence, Set
from typing import Any

from .literals import ASIDE, cast_text, literal, quoted

#: Digits that a decimal may have.
DIGITS = 76


def constant(value: Any) -> str:
    """A constant of SQL that means what the value means."""
    match value:
        case decimal.Decimal():
            return _decimal(value)
        case datetime.datetime() if not hasattr(value, "nanosecond"):
            return _moment(value)
        case datetime.date() if not isinstance(value, datetime.datetime):
            return f"DATE '{value.isoformat()}'"
        case datetime.time():
            if value.tzinfo is not None:
                raise TypeError("a time of day with a time zone can't be a parameter")
            return cast_text(value.isoformat(), "Time64(Microsecond)")
        case datetime.timedelta():
            return _interval(value)
        case uuid.UUID():
            return quoted(str(value))
        case Mapping():
            fields = (f"{_field(str(name))}, {literal(field)}" for name, field in value.items())
            return f"named_struct({', '.join(fields)})"
        case Sequence() | Set():
            return f"[{', '.join(map(literal, value))}]"
        case _:
            return _of_library(value)


def _field(name: str) -> str:
    """The name of a struct's field, which has to be one constant."""
    if ASIDE.search(name):
        raise ValueError(f"a field can't be called {name!r}: names of fields have no backslash and no zero")
    return quoted(name)


def _decimal(value: decimal.Decimal) -> str:
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        raise ValueError(f"a decimal can't be {value} in SQL; a float can")
    scale = max(-exponent, 0)
    precision = max(len(digits) + max(exponent, 0), scale, 1)
    if precision > DIGITS:
        raise OverflowError(f"a number of {precision} digits is too long: decimals have {DIGITS}")
    width = 128 if precision <= 38 else 256
    return cast_text(format(value, "f"), f"Decimal{width}({precision}, {scale})")


def _moment(value: datetime.datetime) -> str:
    if value.tzinfo is None:
        return cast_text(value.isoformat(), "Timestamp(Microsecond, None)")
    utc = value.astimezone(datetime.UTC)
    return cast_text(utc.isoformat(), 'Timestamp(Microsecond, Some("UTC"))')


def _interval(value: datetime.timedelta) -> str:
    microseconds = value.seconds * 1_000_000 + value.microseconds
    # pandas has them.
    nanoseconds = microseconds * 1000 + getattr(value, "nanoseconds", 0)
    return f"INTERVAL '{value.days} days {nanoseconds} nanoseconds'"


def _time_of_numpy(value: Any) -> str:
    """A `datetime64` or a `timedelta64` of any unit, or an array of them."""
    import numpy as np

    if value.ndim:
        return f"[{', '.join(map(_time_of_numpy, value))}]"
    if np.isnat(value):
        return "NULL"
    unit, step = np.datetime_data(value.dtype)
    if value.dtype.kind == "M":
        if unit in ("Y", "M", "W", "D"):
            day = value.astype("datetime64[D]").tolist()
            if not isinstance(day, datetime.date):
                raise ValueError(f"{value!r} can't be a parameter: a date is of the years 1 to 9999")
            return literal(day)
        import pyarrow as pa

        from .values import scalar

        unit = "s" if unit in ("h", "m") else unit
        if unit not in ("s", "ms", "us", "ns"):
            raise TypeError(f"a datetime64[{unit}] can't be a parameter: timestamps have nanoseconds")
        moment = value.astype(f"datetime64[{unit}]").astype("int64")
        return scalar(pa.scalar(int(moment), pa.timestamp(unit)))
    if unit in ("Y", "M"):
        return f"INTERVAL '{int(value.astype('timedelta64[M]').astype('int64'))} months'"
    if unit == "ns":
        return f"INTERVAL '{int(value.astype('int64')) * step} nanoseconds'"
    duration = value.astype("timedelta64[us]").tolist()
    if not isinstance(duration, datetime.timedelta) or unit in ("ps", "fs", "as"):
        raise TypeError(f"{value!r} can't be a parameter: intervals have nanoseconds")
    return literal(duration)


def _of_library(value: Any) -> str:
    """A value of NumPy's, pandas' or pyarrow's."""
    module = type(value).__module__.partition(".")[0]
    if module == "numpy" and hasattr(value, "tolist"):
        return literal(value.tolist()) if value.dtype.kind not in "mM" else _time_of_numpy(value)
    if module in ("numpy", "pandas", "pyarrow"):
        import pyarrow as pa

        from .values import scalar

        if isinstance(value, (pa.Array, pa.ChunkedArray)):
            return f"[{', '.join(map(scalar, value))}]"
        if module == "pandas" and hasattr(value, "unit") and hasattr(value, "tzinfo"):
            # pyarrow's own way has no nanoseconds.
            moment = pa.timestamp(value.unit, "UTC" if value.tzinfo else None)
            return scalar(pa.scalar(int(value.asm8.view("i8")), moment))
        if module != "pyarrow":
            value = pa.array([value], from_pandas=True)[0]
        if isinstance(value, pa.Scalar):
            return scalar(value)
    if hasattr(value, "item"):
        return literal(value.item())
    raise TypeError(f"a value of type {type(value).__name__} can't be a parameter: SQL has no constant for it")
