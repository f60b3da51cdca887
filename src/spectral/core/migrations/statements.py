"""Where one statement of a migration file ends and the next begins.

The runner sends a file statement by statement, for two reasons. Postgres gives many errors no position ("relation
already exists"), so the line of a failure is only known by knowing which statement failed. And a `commit` inside a
file would end the transaction that makes the file all-or-nothing, so it has to be seen before anything is sent.

This is lexing as psql does it, not parsing: quotes, dollar quotes, nested comments, parentheses and `begin atomic`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""
      (?P<blank>   \s+ | --[^\n]* )
    | (?P<comment> /\* )
    | (?P<dollar>  \$ (?: [^\W\d]\w* )? \$ )
    | (?P<quoted>  [eE]'(?: [^'\\] | \\. | '' )*' | '(?: [^'] | '' )*' | "(?: [^"] | "" )*" )
    | (?P<word>    [^\W\d][\w$]* )
    | (?P<mark>    . )
    """,
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_ENDS_TRANSACTION = frozenset({"begin", "commit", "end", "abort", "rollback"})


@dataclass(frozen=True, slots=True)
class Statement:
    """One statement as it stands in the file, without its semicolon."""

    text: str
    line: int
    words: tuple[str, ...]
    terminated: bool

    @property
    def controls_transaction(self) -> bool:
        """Whether it would begin or end the transaction it runs in; savepoints are harmless."""
        first, second = (*self.words, "", "")[:2]
        if first == "rollback" and "to" in self.words[:3]:
            return False
        return first in _ENDS_TRANSACTION or (first, second) in {("start", "transaction"), ("prepare", "transaction")}


@dataclass(slots=True)
class _Open:
    """The statement being read: where it began, its first words, and what must close before it can end."""

    start: int = -1
    end: int = -1
    words: list[str] = field(default_factory=list)
    previous: str = ""
    parentheses: int = 0
    blocks: int = 0

    def take(self, token: str, kind: str, start: int, end: int) -> None:
        if self.start < 0:
            self.start = start
        self.end = end
        word = token.lower() if kind == "word" else ""
        if word and len(self.words) < 3:  # noqa: PLR2004  "rollback to savepoint" is the longest that matters
            self.words.append(word)
        if self.blocks:
            self.blocks += {"case": 1, "end": -1}.get(word, 0)
        elif word == "atomic" and self.previous == "begin" and self.words[0] == "create":
            self.blocks = 1
        self.parentheses += {"(": 1, ")": -1}.get(token, 0) if kind == "mark" else 0
        self.previous = word


def split(sql: str) -> tuple[Statement, ...]:
    """The statements of a file in order; comments between them belong to none."""
    found: list[Statement] = []
    current, position = _Open(), 0
    while match := _TOKEN.match(sql, position):
        kind, position = match.lastgroup or "", match.end()
        if kind == "comment":
            position = _after_comment(sql, position)
        elif kind == "dollar":
            position = _after(sql, match.group(), position)
            current.take("", kind, match.start(), position)
        elif match.group() == ";" and current.parentheses <= 0 and not current.blocks:
            found.extend(_close(sql, current, terminated=True))
            current = _Open()
        elif kind != "blank":
            current.take(match.group(), kind, match.start(), position)
    found.extend(_close(sql, current, terminated=False))
    return tuple(found)


def line_of(text: str, position: int) -> int:
    """The line, counted from one, on which the character at this position (counted from zero) stands."""
    return text.count("\n", 0, position) + 1


def _close(sql: str, current: _Open, *, terminated: bool) -> list[Statement]:
    if current.start < 0:
        return []
    text = sql[current.start : current.end]
    return [Statement(text, line_of(sql, current.start), tuple(current.words), terminated)]


def _after(sql: str, closing: str, position: int) -> int:
    found = sql.find(closing, position)
    return len(sql) if found < 0 else found + len(closing)


def _after_comment(sql: str, position: int) -> int:
    depth = 1
    while depth and (edge := _COMMENT_EDGE.search(sql, position)):
        depth += 1 if edge.group() == "/*" else -1
        position = edge.end()
    return len(sql) if depth else position
