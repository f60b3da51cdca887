"""What others say by the standard library's log, and as warnings, where nobody hears them: in the worker's own lines.

Python would write it to stderr by itself, at once and as it is: no JSON, whatever a terminal obeys, what an exception
quotes, and a handler that waits for whoever reads. A program that configures logging keeps what it has, whenever it
does: `logging` asks its last resort only where it has found no handler.
"""

from __future__ import annotations

import logging
import re
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TextIO

import structlog

from spectral.core.events.conceal import UNKNOWN
from spectral.core.events.infrastructure.observability.log_writer import process_logger, timestamp
from spectral.core.events.infrastructure.observability.told import EXCEPTION, exception_told
from spectral.core.events.infrastructure.observability.traces import current_traceparent

if TYPE_CHECKING:
    from spectral.core.events.settings import Identity

_WARNINGS: Final = "py.warnings"
"""The logger that the standard library itself uses for them."""

_ASYNCIO: Final = "asyncio"
"""The logger of what nobody has chosen to say: with what a callback was given, and all that an exception says."""

_CONSTANT: Final = re.compile(r"(?:[^(<{\[\"'\n]|\(\))+")

_LEVELS: Final = ((logging.CRITICAL, "critical"), (logging.ERROR, "error"), (logging.WARNING, "warning"))


def hear_the_unheard(identity: Identity) -> None:
    """From now on write what nobody hears as lines of the log that structlog is configured for."""
    logging.lastResort = _LastResort(identity)
    if getattr(warnings.showwarning, "__module__", None) == warnings.__name__:  # nobody else's
        warnings.showwarning = _show_warning


class _LastResort(logging.StreamHandler[TextIO]):
    """Takes records from warnings on, as Python's own does; a program that wants more of them configures logging."""

    def __init__(self, identity: Identity) -> None:
        super().__init__()
        self.setLevel(logging.WARNING)
        self._log = process_logger("spectral.worker", identity)

    def emit(self, record: logging.LogRecord) -> None:
        """See `Handler`; it neither raises nor waits."""
        if not structlog.is_configured():  # any more; ours would come back here
            super().emit(record)
            return
        with suppress(Exception):
            level = next((name for least, name in _LEVELS if record.levelno >= least), "warning")
            getattr(self._log.bind(trace_id=_trace_id()), level)(_message(record), **_fields(record))


def _message(record: logging.LogRecord) -> str:
    try:
        message = record.getMessage()
    except Exception:  # noqa: BLE001  arguments that do not fit: half of it is better than none
        return str(record.msg)
    if record.name != _ASYNCIO:
        return message
    constant = _CONSTANT.match(message)
    return _ASYNCIO if constant is None else constant[0].rstrip()


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = {"timestamp": timestamp(record.created), "logger": record.name}
    if record.exc_info and record.name == _ASYNCIO:
        fields[EXCEPTION] = exception_told(record.exc_info, UNKNOWN)
    elif record.exc_info:
        fields["exc_info"] = record.exc_info
    if record.stack_info:
        fields["stack"] = record.stack_info
    return fields


def _trace_id() -> str | None:
    """Of the handler that says it."""
    traceparent = current_traceparent()
    return None if traceparent is None else traceparent.split("-")[1]


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    if file is None:
        logging.getLogger(_WARNINGS).warning("%s: %s (%s:%s)", category.__name__, message, filename, lineno)
    else:
        file.write(warnings.formatwarning(message, category, filename, lineno, line))
