"""Parameters of statements: `?`, `$1` or `$name`.

A parameter means what a constant with its value means, so a constant takes its place before the
statement goes to whoever runs it, and what is built on the statement (views, DataFrames) has it
too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from . import script
from ._flashmesh import Error
from .literals import literal

#: Values in their order, or by name.
Parameters: TypeAlias = Sequence[Any] | Mapping[str, Any]

#: Rows and characters of one statement that inserts many.
ROWS, CHARACTERS = 1000, 1 << 20


#: First words of statements whose parameters may be left without a value.
_WITHOUT_VALUES = {("PREPARE",), ("CREATE",), ("EXPLAIN",)}


class Template(NamedTuple):
    """A text with gaps: one more text than gaps, which have a name or a number from 0 on."""

    texts: Sequence[str]
    gaps: Sequence[int | str]

    def filled(self, parameters: Parameters) -> str:
        """The text with constants in the gaps."""
        pieces = [self.texts[0]]
        for gap, text in zip(self.gaps, self.texts[1:], strict=True):
            # A space: a word next to a parameter is a word of its own.
            pieces += (" ", literal(parameters[gap]), " ", text)  # type: ignore[index]
        return "".join(pieces)


@script.remembered
def template(query: str) -> Template:
    """A statement with gaps for its parameters."""
    texts: list[list[str]] = [[]]
    gaps: list[int | str] = []
    ways = set()
    for kind, text in script.pieces(query):
        if kind != "parameter":
            texts[-1].append(text)
            continue
        name = text[1:]
        is_numbered = name.isdecimal()
        if is_numbered and int(name) == 0:
            raise Error(f"parameters are numbered from $1 on; there is {text}")
        gaps.append(int(name) - 1 if is_numbered else name or len(gaps))
        ways.add((text[0], is_numbered))
        texts.append([])
    if len(ways) > 1:
        raise Error("parameters are written ? or $1, $2, … or $name; a statement can't mix them")
    return Template(["".join(pieces) for pieces in texts], gaps)


def bound(query: str, parameters: Parameters | None) -> str:
    """A statement with the values of its parameters."""
    if parameters is None:
        if ("?" in query or "$" in query) and script.words(query)[:1] not in _WITHOUT_VALUES:
            gaps = len(set(template(query).gaps))
            if gaps:
                raise Error(f"the statement has {_counted(gaps)} and no values: give them as a second argument")
        return query
    statement = template(query)
    check(statement, parameters)
    return statement.filled(parameters) if statement.gaps else query


def check(statement: Template, parameters: Parameters) -> None:
    """Refuses values that are not those of a statement's parameters."""
    names = [gap for gap in statement.gaps if isinstance(gap, str)]
    if isinstance(parameters, Mapping):
        if len(names) < len(statement.gaps):
            raise Error("parameters ? and $1 take a list or a tuple of values; a dict is for $name")
        if missing := [name for name in dict.fromkeys(names) if name not in parameters]:
            raise Error(f"parameter {', '.join(f'${name}' for name in missing)} has no value")
        return
    if isinstance(parameters, (str, bytes)) or not isinstance(parameters, Sequence):
        raise TypeError(f"parameters are a list, a tuple or a dict, not a {type(parameters).__name__}")
    if names:
        raise Error(f"parameter ${names[0]} has a name: give values as a dict")
    count = max((int(gap) + 1 for gap in statement.gaps), default=0)
    if len(parameters) != count:
        given = f"{len(parameters)} {'was' if len(parameters) == 1 else 'were'} given"
        raise Error(f"the statement has {_counted(count)}, {given}")


def _counted(count: int) -> str:
    return f"{count} parameter{'s' * (count != 1)}"


def many(query: str, rows: Iterable[Parameters]) -> Iterator[str]:
    """A statement for each row of values; where it inserts one row, statements that insert many."""
    statement = template(query)
    row_of = _inserted_row(query)
    if row_of is None or not statement.gaps:
        for row in rows:
            check(statement, row)
            yield statement.filled(row)
        return
    before, gaps = row_of
    texts: list[str] = []
    length = 0
    types: list[Any] = []
    for row in rows:
        check(statement, row)
        own = [_type(row[gap]) for gap in statement.gaps]  # type: ignore[index]
        merged = _merged(types, own) if texts else own
        if merged is None or len(texts) >= ROWS or length >= CHARACTERS:
            yield before + ", ".join(texts)
            texts, length = [], 0
        types = merged or own
        texts.append(gaps.filled(row))
        length += len(texts[-1])
    if texts:
        yield before + ", ".join(texts)


def _type(value: Any) -> Any:
    """What values in a column of VALUES have to have alike: there, numbers of several types become
    one, which may not have the digits of all."""
    match value:
        case None | str():
            return value if value is None else str
        case int():
            return type(value), -(2**63) <= value < 2**63
        case list() | tuple():
            return frozenset(map(_type, value))
        case dict():
            return tuple((name, _type(field)) for name, field in value.items())
        case _ if hasattr(value, "as_tuple"):
            # A decimal: of 18 digits before the point and 18 behind it, all fit into one type.
            _, digits, exponent = value.as_tuple()
            is_short = isinstance(exponent, int) and -18 <= exponent <= len(digits) + exponent <= 18
            return type(value), is_short or (len(digits), exponent)
        case _:
            return type(value), getattr(value, "dtype", None), getattr(value, "tzinfo", None) is None


def _merged(types: list[Any], others: list[Any]) -> list[Any] | None:
    """The types of rows that are alike but for NULLs."""
    pairs = list(zip(types, others, strict=True))
    if any(a != b for a, b in pairs if a is not None and b is not None):
        return None
    return [b if a is None else a for a, b in pairs]


@script.remembered
def _inserted_row(query: str) -> tuple[str, Template] | None:
    """Of an INSERT whose VALUES are one row, and end it: what stands before the row, and the
    row."""
    pieces = list(script.pieces(query))
    words = [place for place, piece in enumerate(pieces) if piece.kind == "word"]
    if not words or pieces[words[0]].text.upper() != "INSERT":
        return None
    begin = next((place + 1 for place in words if pieces[place].text.upper() == "VALUES"), None)
    if begin is None:
        return None
    # Each row has to see the one before it.
    depends = ({"OR", "OVERWRITE"}, {"SELECT", "FROM", "TABLE"})
    if any(pieces[place].text.upper() in depends[place >= begin] for place in words):
        return None
    depth = 0
    for place in range(begin, len(pieces)):
        kind, text = pieces[place]
        if depth == 0 and kind not in ("space", "comment") and text != "(":
            return None
        depth += (kind, text) == ("other", "(")
        depth -= (kind, text) == ("other", ")")
        if depth == 0 and text == ")":
            break
    else:
        return None
    rest = pieces[place + 1 :]
    if any(kind not in ("space", "comment") and text != ";" for kind, text in rest):
        return None
    if any(kind == "parameter" for kind, _ in pieces[:begin]):
        return None
    before = "".join(text for _, text in pieces[:begin]) + " "
    return before, template("".join(text for _, text in pieces[begin : place + 1]))
