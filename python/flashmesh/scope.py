"""Data in variables of who runs SQL, under the names that these have: `FROM frame`.

A name is looked for only when the statement has failed for want of a table of that name, so that
it is never that of a table or view.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any, NamedTuple

from . import script

#: What an error says about a table that is not there: in the default schema, as the name is alone.
_MISSING = re.compile(r"table '(?:flashmesh\.public\.)?(?P<name>.*)' not found", re.DOTALL)
#: Words that what comes before a table's name ends with.
_BEFORE_TABLES = {"FROM", "JOIN"}
#: Words that are not the second name of the table before them.
_CLAUSES = {
    *("WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "OFFSET", "FETCH", "QUALIFY", "WINDOW", "SET"),
    *("UNION", "INTERSECT", "EXCEPT", "MINUS", "RETURNING", "WHEN", "FOR", "SELECT", "VALUES"),
}
_JOINS = {
    *("JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "NATURAL", "SEMI", "ANTI", "ASOF"),
    *("ON", "USING", "TABLESAMPLE", "SAMPLE", "PIVOT", "UNPIVOT", "FROM", "LATERAL"),
}


def caller() -> FrameType | None:
    """The frame outside this package that has called it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "flashmesh":
        frame = frame.f_back
    return frame


def missing(error: Exception) -> str | None:
    """The name of the table for want of which a statement failed."""
    found = _MISSING.fullmatch(str(error))
    return found["name"] if found else None


def is_data(value: Any) -> bool:
    """Whether a value of a variable can stand for a table."""
    kind = type(value)
    if isinstance(value, type) or kind.__name__ in ("Series", "ChunkedArray", "Column", "Expr"):
        return False
    module = kind.__module__.partition(".")[0]
    lazy = (module, kind.__name__) == ("polars", "LazyFrame")
    dataset = module == "pyarrow" and hasattr(value, "to_table")
    return lazy or dataset or hasattr(value, "__arrow_c_stream__") or kind.__name__ == "RecordBatch"


def variable(statement: str, name: str, frame: FrameType) -> Any:
    """The data of the variable that a table's name in a statement means; None where there is
    none."""
    for place in _tables(statement):
        if place.name == name:
            for variables in (frame.f_locals, frame.f_globals):
                value = variables.get(place.spelling)
                if value is not None and is_data(value):
                    return value
    return None


def with_views(statement: str, views: Mapping[str, str]) -> str:
    """A statement that reads views in the place of the tables of those names."""
    pieces = [text for _, text in script.pieces(statement)]
    for place in _tables(statement):
        if place.name in views:
            alias = "" if place.has_alias else f" AS {pieces[place.at]}"
            pieces[place.at] = views[place.name] + alias
    return "".join(pieces)


class _Place(NamedTuple):
    """Where a statement reads a table that is named without a schema."""

    at: int
    #: As in the statement, without quotes.
    spelling: str
    #: As SQL reads it.
    name: str
    has_alias: bool


def _reads(statement: str) -> bool:
    """Whether names in FROM are tables that it reads."""
    words = script.words(statement)[:5]
    reading = {"SELECT", "WITH", "FROM", "EXPLAIN", "INSERT", "UPDATE", "DELETE", "MERGE", "COPY"}
    return bool(words) and (words[0] in reading or (words[0] == "CREATE" and "TABLE" in words))


def _tables(statement: str) -> Iterator[_Place]:
    if not _reads(statement):
        return
    pieces = [(at, *piece) for at, piece in enumerate(script.pieces(statement)) if piece.kind not in ("space", "comment")]
    #: Of each parenthesis that is open: whether a comma stands between tables there.
    lists = [False]
    is_next = False
    before = ""
    for number, (at, kind, text) in enumerate(pieces):
        word = text.upper() if kind == "word" else text
        _, next_kind, following = pieces[number + 1] if number + 1 < len(pieces) else (0, "", "")
        if kind == "word" and word in _BEFORE_TABLES and before not in ("DELETE", "DISTINCT"):
            is_next = lists[-1] = True
        elif word == "USING" and next_kind in ("word", "name"):
            is_next = True
        elif word == "(":
            lists.append(is_next)
        elif word == ")":
            is_next = False
            if len(lists) > 1:
                lists.pop()
        elif word == ",":
            is_next = lists[-1]
        elif kind == "word" and word in _CLAUSES:
            is_next = lists[-1] = False
        elif is_next and kind in ("word", "name") and word != "LATERAL":
            is_next = False
            if following not in (".", "("):
                plain = kind == "word"
                spelling = text if plain else text[1:-1].replace(text[0] * 2, text[0])
                has_alias = next_kind == "name" or (
                    next_kind == "word" and following.upper() not in _CLAUSES | _JOINS
                )
                yield _Place(at, spelling, spelling.lower() if plain else spelling, has_alias)
        elif kind != "word" or word not in _JOINS:
            is_next = is_next and kind == "word" and word == "LATERAL"
        before = word


