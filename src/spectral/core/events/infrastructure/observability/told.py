"""What a log line tells of an exception, whoever renders it: where it came from and what may be kept of its words."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Final, cast

from spectral.core.events.describe import describe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from structlog.typing import EventDict

EXCEPTION: Final = "exception"
"""The field it is told in; structlog's own processors call it so."""

_SHOWN_FRAMES: Final = 50


def without_exception(fields: EventDict, payload: str | None = None) -> EventDict:
    """The same fields with what may be told of an exception instead of the exception."""
    if "exc_info" in fields:
        told = exception_told(fields.pop("exc_info"), payload)
        if told is not None:
            fields[EXCEPTION] = told
    return fields


def exception_told(exc_info: object, payload: str | None = None) -> str | None:
    """Where an exception came from, and what may be kept of it: no local variables, nothing that it quotes."""
    if isinstance(exc_info, BaseException):
        error: object = exc_info
    elif isinstance(exc_info, tuple):
        _, error, *_ = (*cast("tuple[object, ...]", exc_info), None, None)
    else:
        error = sys.exc_info()[1] if exc_info else None
    if not isinstance(error, BaseException):
        return None
    told = [_frames(each) + describe(each, payload=payload) for each in _chain(error)]
    return "\nwhich led to:\n".join(reversed(told))


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error, what it came from, and so on."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _frames(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__, limit=-_SHOWN_FRAMES)
    return "".join(f'File "{each.filename}", line {each.lineno}, in {each.name}\n' for each in frames)
