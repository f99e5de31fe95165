"""Texts of SQL: the statements of a script, their words, and names."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, TypeVar

#: What a `;` or a word in does not count: texts, texts between dollars. Where the end is missing, it is
#: all that follows: no value may stand in there and end it.
_OPAQUE = (
    r"[eE]'(?:[^'\\]|\\.|'')*(?:'|\Z)|'(?:[^']|'')*(?:'|\Z)"
    r"|\$(?P<tag>\w*)\$.*?(?:\$(?P=tag)\$|\Z)"
)
#: Words may have dollars in them.
_WORD = r"[^\W\d][\w$@#]*"
_PIECE = re.compile(
    rf"""(?P<comment>--[^\n]*|/\*)|(?P<opaque>{_OPAQUE})|(?P<name>"(?:[^"]|"")*(?:"|\Z)|`[^`]*(?:`|\Z))"""
    rf"|(?P<parameter>\?\d*|\$\w+)|(?P<word>{_WORD})|(?P<space>\s+)|(?P<number>\d+)|(?P<other>.)",
    re.DOTALL,
)
_COMMENT_ENDS = re.compile(r"/\*|\*/")
_COMMENTS = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/)*", re.DOTALL)
#: Texts that are longer are not remembered.
KEPT = 4096
_PART = r'(?:"(?:[^"]|"")+"|[^\W\d][\w$]*)'
_NAME = re.compile(rf"{_PART}(?:\.{_PART}){{0,2}}")

#: What gives rows and can't be part of a query: its rows may be those of a change, made once.
_ALONE = re.compile(
    r"(?:EXPLAIN|SHOW|DESCRIBE|DESC|INSERT|UPDATE|DELETE|MERGE|EXECUTE)\b", re.IGNORECASE
)
_SETTING = re.compile(r"(?P<verb>SET|RESET)\s+(?:SESSION\s+)?(?P<name>\w+(?:\.\w+)+)\b", re.IGNORECASE)


class Piece(NamedTuple):
    """A part of a text: `comment`, `opaque` (a text in quotes), `name` (in quotes), `parameter`,
    `word`, `space`, `number`, or `other`, which is one character."""

    kind: str
    text: str


def pieces(script: str) -> Iterator[Piece]:
    """All parts of a text, in their order."""
    at = 0
    while found := _PIECE.match(script, at):
        kind, end = found.lastgroup or "opaque", found.end()
        if found["opaque"] is not None:
            kind = "opaque"
        elif found["comment"] == "/*":
            end = _end_of_comment(script, at)
        yield Piece(kind, script[at:end])
        at = end


def _end_of_comment(script: str, at: int) -> int:
    """Where the comment that begins there ends: there may be comments in it."""
    depth = 0
    for mark in _COMMENT_ENDS.finditer(script, at):
        depth += 1 if mark[0] == "/*" else -1
        if depth == 0:
            return mark.end()
    return len(script)


T = TypeVar("T")


def remembered(read: Callable[[str], T]) -> Callable[[str], T]:
    """Remembers what was read of the last texts that were not long."""
    kept = functools.lru_cache(maxsize=256)(read)

    @functools.wraps(read)
    def reading(text: str) -> T:
        return kept(text) if len(text) < KEPT else read(text)

    return reading


@remembered
def statements(script: str) -> Sequence[str]:
    """The statements of a script, without those that are comments only."""
    found: list[str] = []
    texts: list[str] = []
    is_empty = True
    for kind, text in (*pieces(script), Piece("other", ";")):
        if (kind, text) != ("other", ";"):
            texts.append(text)
            is_empty &= kind in ("comment", "space")
            continue
        if not is_empty:
            found.append("".join(texts))
        texts, is_empty = [], True
    return tuple(found)


@remembered
def words(statement: str) -> Sequence[str]:
    """Its words in capitals, without those in quotes."""
    return tuple(text.upper() for kind, text in pieces(statement) if kind == "word")


#: What statements that give rows of a query begin with.
_QUERIES = {"SELECT", "WITH", "FROM", "VALUES", "TABLE", "EXPLAIN", "SHOW", "DESCRIBE", "DESC", "SUMMARIZE"}
_CHANGES = {"INSERT", "UPDATE", "DELETE", "MERGE"}


def counts_rows(statement: str) -> bool:
    """Whether a result of one column `count` is the number of rows that it changed."""
    found = words(statement)
    if not found or "RETURNING" in found:
        return False
    return found[0] not in _QUERIES or (found[0] == "WITH" and not _CHANGES.isdisjoint(found))


def is_alone(statement: str) -> bool:
    """Whether it gives rows and can't be part of a query, such as EXPLAIN or a change."""
    return _ALONE.match(statement, _first_word(statement)) is not None


def _first_word(statement: str) -> int:
    """Where it begins behind its comments."""
    comments = _COMMENTS.match(statement)
    return comments.end() if comments else 0


def setting(statement: str) -> tuple[str, bool] | None:
    """The setting that SET or RESET is about, and whether it has a value then."""
    found = _SETTING.match(statement, _first_word(statement))
    return (found["name"].lower(), found["verb"].upper() == "SET") if found else None


_TRANSACTION = re.compile(
    r"(?P<begin>BEGIN|START)\b|(?P<end>COMMIT|END|ROLLBACK)\b(?!.*\bTO\b)", re.IGNORECASE | re.DOTALL
)


def transaction(statement: str) -> bool | None:
    """Whether a statement begins a transaction (True) or ends one (False)."""
    found = _TRANSACTION.match(statement, _first_word(statement))
    return found["begin"] is not None if found else None


def parts(name: str) -> list[str]:
    """The parts of a table's name, read as SQL reads it."""
    if _NAME.fullmatch(name) is None:
        return [name]
    found = re.findall(_PART, name)
    return [p[1:-1].replace('""', '"') if p[0] == '"' else p.lower() for p in found]


def reference(name: str) -> str:
    """A table's name for use in SQL."""
    return ".".join(map(quoted, parts(name)))


def quoted(name: str) -> str:
    """The name of one thing for use in SQL."""
    return '"' + name.replace('"', '""') + '"'
