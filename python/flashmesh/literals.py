"""Values of Python's as constants of SQL: those of the types that most are of."""

from __future__ import annotations

import math
import re
from typing import Any

#: Whether a backslash in quotes is one depends on the dialect; names of columns, which constants get
#: into, can't have a zero.
ASIDE = re.compile(r"([\\\0])")


def quoted(text: str) -> str:
    """A text in quotes, where an expression can't stand."""
    return "'" + text.replace("'", "''") + "'"


def literal(value: Any) -> str:
    """A constant of SQL that means what the value means. It can stand wherever a constant can: a
    negative number is in parentheses."""
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).upper()
        case int():
            return _integer(int(value))
        case float() if math.isfinite(value):
            return _signed(float.__repr__(value))
        case float():
            return f"CAST('{float.__repr__(value)}' AS DOUBLE)"
        case str() if ASIDE.search(value):
            parts = (f"chr({ord(part)})" if ASIDE.match(part) else quoted(part) for part in ASIDE.split(value))
            return f"concat({', '.join(parts)})"
        case str():
            return quoted(value)
        case bytes() | bytearray() | memoryview():
            return f"X'{bytes(value).hex()}'"
        case _:
            from .constants import constant

            return constant(value)


def cast_text(text: str, data_type: str) -> str:
    """A text read as a type that is named as in `arrow_cast`."""
    return f"arrow_cast({quoted(text)}, {quoted(data_type)})"


def _signed(number: str) -> str:
    """`1 -?` must not become a comment, nor `-1::t` be read as `-(1::t)`."""
    return f"({number})" if number.startswith("-") else number


def _integer(value: int) -> str:
    if -(2**63) <= value < 2**64:
        return _signed(int.__repr__(value))
    import decimal

    return literal(decimal.Decimal(value))
