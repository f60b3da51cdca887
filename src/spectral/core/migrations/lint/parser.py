"""The only module that knows pglast: text goes in, JSON trees and tokens come out, typed.

pglast ships no types and is an optional extra, so it is imported on first use and seen through a protocol.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar, cast

from spectral.core.events.failure import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
_Result = TypeVar("_Result")


class UnreadableSqlError(Exception):
    """The text is no SQL that Postgres would read; `offset` is the character it stumbles over."""

    def __init__(self, message: str, offset: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Token:
    """One lexical token; `name` is Postgres' own (GRANT, IDENT, SCONST, SQL_COMMENT, ASCII_59, ...)."""

    name: str
    start: int
    end: int  # one past the last character

    @property
    def is_comment(self) -> bool:
        """Whether the parser would skip it."""
        return self.name in {"SQL_COMMENT", "C_COMMENT"}


class _ScannedToken(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...


class _PglastParser(Protocol):
    @property
    def ParseError(self) -> type[Exception]: ...  # noqa: N802  pglast's spelling

    def parse_sql_json(self, query: str, /) -> str: ...
    def parse_plpgsql_json(self, query: str, /) -> str: ...
    def scan(self, query: str, /) -> Sequence[_ScannedToken]: ...


def _pglast() -> _PglastParser:
    try:
        return cast("_PglastParser", importlib.import_module("pglast.parser"))
    except ModuleNotFoundError as missing:
        raise ConfigurationError(
            "the migration lint parses SQL with pglast, which is not installed; "
            "run: pip install 'spectral-events[lint]'"
        ) from missing


def parse_sql(text: str) -> Json:
    """The parse tree of all statements.

    Raises:
        UnreadableSqlError: when the text does not parse.
    """
    return _as_json(_pglast().parse_sql_json, text)


def parse_plpgsql(text: str) -> Json:
    """The tree of a `create function ... language plpgsql` or `do` statement.

    Raises:
        UnreadableSqlError: when the body does not parse.
    """
    return _as_json(_pglast().parse_plpgsql_json, text)


def scan(text: str) -> list[Token]:
    """The tokens of a text, comments included.

    Raises:
        UnreadableSqlError: when a quote or comment is not closed.
    """
    scanned = _guarded(_pglast().scan, text)
    return [Token(token.name, token.start, token.end + 1) for token in scanned]


def _as_json(parse: Callable[[str], str], text: str) -> Json:
    try:
        return cast("Json", json.loads(_guarded(parse, text)))
    except RecursionError:
        raise UnreadableSqlError("an expression is nested too deeply to be read") from None


def _guarded(parse: Callable[[str], _Result], text: str) -> _Result:
    _refuse_what_c_cannot_read(text)
    parse_error = _pglast().ParseError
    try:
        return parse(text)
    except parse_error as error:
        message, offset = _explain(error)
        if text.isascii():
            raise UnreadableSqlError(message, offset) from None
    # pglast's offsets drift behind multi-byte characters; with one byte per character they are exact.
    try:
        parse("".join(character if character.isascii() else "x" for character in text))
    except parse_error as error:
        offset = _explain(error)[1]
    raise UnreadableSqlError(message, offset)


def _refuse_what_c_cannot_read(text: str) -> None:
    # A NUL would end the C string: everything behind it would pass unseen.
    if "\0" in text:
        raise UnreadableSqlError("the text contains a NUL character", text.index("\0"))
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UnreadableSqlError("the text contains a character that is not Unicode", error.start) from None


def _explain(error: Exception) -> tuple[str, int]:
    message, *location = cast("tuple[object, ...]", error.args) or ("not readable",)
    offset = location[0] if location else None
    return str(message), offset if isinstance(offset, int) else 0
