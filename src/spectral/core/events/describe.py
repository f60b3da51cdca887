"""An error as it is kept in `last_error`: `ErrorClass: handler: message`, one line, at most 4 kB, nothing of the row.

Exceptions quote what they were given: pydantic the input, Postgres the row (DETAIL), drivers the connection string.
What is kept here is read by operators and tools, so those parts are left out, and whatever looks like a credential.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, cast

from pydantic import ValidationError

from spectral.core.events.retry import sqlstate_of

if TYPE_CHECKING:
    from collections.abc import Iterable

MAX_ERROR_BYTES: Final = 4_000
_MAX_SHOWN_ERRORS: Final = 5
_MAX_SHOWN_DEPTH: Final = 3
_BAD_DATA: Final = "22"

_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+")
_SECRETS: Final = (
    (re.compile(r"(\w+://[^\s:/@]*):[^\s@]+@"), r"\1:***@"),  # postgresql://user:secret@host
    (
        re.compile(r"(?i)\b(password|passwd|pwd|secret|token|api[_-]?key)(\s*[=:]\s*)('[^']*'|\"[^\"]*\"|\S+)"),
        r"\1\2***",
    ),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), r"\1 ***"),
)


def describe(error: BaseException, handler_name: str | None = None) -> str:
    """The error in one line, fit to be kept and shown; never raises."""
    where = f"{handler_name}: " if handler_name else ""
    return _cut(f"{_name(error)}: {where}{_message(error)}")


def describe_many(failures: Iterable[tuple[str, BaseException]]) -> str:
    """The first of several handlers' errors, and who else failed with what."""
    (name, first), *others = failures
    more = ", ".join(f"{other} {_name(error)}" for other, error in others)
    return describe(first, name) if not more else _cut(f"{describe(first, name)[:3000]} (also: {more})")


def _name(error: BaseException) -> str:
    return _clean(type(error).__name__)


def _message(error: BaseException, depth: int = 0) -> str:
    try:
        if isinstance(error, ValidationError):
            return _clean(_validation(error))
        if isinstance(error, BaseExceptionGroup):
            return _clean(_group(cast("BaseExceptionGroup[BaseException]", error), depth))
        if sqlstate_of(error) is not None:
            return _clean(_database(error))
        return _clean(str(error))
    except BaseException as broken:  # noqa: BLE001  an error whose __str__ raises must not keep its row from settling
        return f"(its message cannot be read: {_name(broken)})"


def _validation(error: ValidationError) -> str:
    """Where it does not fit and why, without what was given."""
    found = error.errors(include_input=False, include_context=False, include_url=False)
    shown = "; ".join(
        f"{'.'.join(str(step) for step in each['loc']) or 'payload'}: {each['type']}"
        for each in found[:_MAX_SHOWN_ERRORS]
    )
    more = f"; and {len(found) - _MAX_SHOWN_ERRORS} more" if len(found) > _MAX_SHOWN_ERRORS else ""
    return f"{error.error_count()} of {error.title}: {shown}{more}"


def _group(error: BaseExceptionGroup[BaseException], depth: int) -> str:
    if depth >= _MAX_SHOWN_DEPTH:
        return f"{error.message} [...]"
    members = "; ".join(f"{_name(each)}: {_message(each, depth + 1)}" for each in error.exceptions[:_MAX_SHOWN_ERRORS])
    return f"{error.message} [{members}]"


def _database(error: BaseException) -> str:
    """The server's first line: DETAIL and CONTEXT quote rows. Complaints about bad data quote the datum in theirs."""
    state = sqlstate_of(error) or ""
    first, *_ = str(error).splitlines() or [""]
    if state.startswith(_BAD_DATA):
        first = first.partition(': "')[0]
    return f"{first} ({state})"


def _clean(text: str) -> str:
    text = _UNPRINTABLE.sub(" ", text[: 4 * MAX_ERROR_BYTES]).strip()
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    return text


def _cut(text: str) -> str:
    data = text.encode()
    return text if len(data) <= MAX_ERROR_BYTES else data[: MAX_ERROR_BYTES - 3].decode(errors="ignore") + "..."
