"""Text with line numbers: a migration file, or a piece of SQL found inside one, cut into statements.

Every piece remembers the line it starts on in the file, so a finding deep in a DO block points at the right line.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING

from spectral.core.migrations.lint.parser import Token, UnreadableSqlError, parse_sql, scan
from spectral.core.migrations.lint.tree import root

if TYPE_CHECKING:
    from spectral.core.migrations.lint.tree import Node


class Place(StrEnum):
    """Where a statement stands, which decides when it runs."""

    FILE = "file"
    DO_BLOCK = "do block"  # runs with the migration, like the file itself
    ROUTINE = "routine"  # runs later, when somebody calls it


@dataclass(frozen=True)
class Source:
    """A text and where in the file it stands; offsets from the parse tree count bytes, those of tokens characters."""

    text: str
    first_line: int = 1
    place: Place = Place.FILE
    outermost_line: int | None = None

    @cached_property
    def tokens(self) -> list[Token]:
        """The tokens, comments included."""
        return scan(self.text)

    def line_at(self, offset: int) -> int:
        """The file's line of a character."""
        return self.first_line + self.text.count("\n", 0, offset)

    def offset_of_byte(self, byte: int) -> int:
        """The character at a byte offset of the parse tree."""
        return byte if self.text.isascii() else len(self.text.encode()[:byte].decode(errors="ignore"))

    def first_token_from(self, offset: int, name: str = "") -> Token | None:
        """The first token at or behind a character that is not a comment, or that has this name."""
        start = bisect_left(self.tokens, offset, key=lambda token: token.start)
        following = islice(self.tokens, start, None)
        return next((token for token in following if (token.name == name if name else not token.is_comment)), None)


@dataclass(frozen=True, slots=True)
class Statement:
    """One parsed statement."""

    node: Node
    source: Source
    line: int
    default_schema: str | None = None  # inside CREATE SCHEMA unqualified names belong to the new schema

    @property
    def outermost_line(self) -> int:
        """The line of the statement of the file that this one is part of."""
        return self.line if self.source.outermost_line is None else self.source.outermost_line


def read_statements(source: Source) -> list[Statement]:
    """All statements of a text.

    Raises:
        UnreadableSqlError: when any of them does not parse.
    """
    statements: list[Statement] = []
    for raw in root(parse_sql(source.text)).nodes("stmts"):
        node = raw.node("stmt")
        if node is None:
            continue
        start = source.first_token_from(source.offset_of_byte(raw.number("stmt_location")))
        statements.append(Statement(node, source, source.line_at(start.start if start else 0)))
    return statements


def read_statements_around_errors(source: Source) -> list[Statement]:
    """The statements that parse when taken one by one: one mistake must not hide the rest of a file."""
    try:
        separators = [token.start for token in source.tokens if token.name == "ASCII_59"]
    except UnreadableSqlError:
        return []
    statements: list[Statement] = []
    for start, end in zip([0, *(at + 1 for at in separators)], [*separators, len(source.text)], strict=True):
        piece = Source(source.text[start:end], source.line_at(start), source.place, source.outermost_line)
        try:
            statements.extend(read_statements(piece))
        except UnreadableSqlError:
            continue
    return statements
