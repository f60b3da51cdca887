"""Log lines of the worker process. Whoever configured structlog before keeps what they have; logging is left alone."""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

SERVICE: Final = "spectral-worker"

# What could move a terminal's cursor or forge a line of its own: C0, DEL and C1.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def configure_logs(generation: int) -> None:
    """One JSON object per line on stderr, or readable lines if that is a terminal; a no-op if somebody came first."""
    if structlog.is_configured():
        return

    def stamp(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        # In the order in which they are read.
        first = {name: event.pop(name) for name in ("timestamp", "level", "event")}
        return {**first, "service": SERVICE, "generation": generation, **event}

    common: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        stamp,
    ]
    # Plain tracebacks: the richer ones show the values of local variables, payloads among them.
    rendering: list[Processor] = (
        [printable, structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)]
        if sys.stderr.isatty()
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[*common, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def printable(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Escape control characters, as JSON would: a terminal obeys them."""
    return {name: _escaped(value) if isinstance(value, str) else value for name, value in event.items()}


def _escaped(text: str) -> str:
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
