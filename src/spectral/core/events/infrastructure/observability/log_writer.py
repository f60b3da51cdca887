"""Where a log line goes: to the project's structlog if it has configured that, else to the standard library's logging.

structlog that nobody configured prints to stdout, which is the program's own; so it is not used then. Logging that
nobody configured stays silent, as a library's should.
"""

from __future__ import annotations

import json
import logging
import re
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

LIBRARY: Final = "spectral"
"""The logger above all of the library's, and the key of a record's fields."""

_NAMES: Final = {
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warning",
    logging.ERROR: "error",
    logging.CRITICAL: "critical",
}
_FROM_HANDLER: Final = 4
"""So many calls lie between a handler's line of code, which a record names, and logging."""
_PLAIN: Final = re.compile(r"[\w.:/@+,-]+", re.ASCII)
_ENCODER: Final = json.JSONEncoder(default=repr)


_second: tuple[int, str] = (0, "")


def timestamp(at: float) -> str:
    """A time in ISO 8601; its date and second are made once, for all the lines that share them."""
    global _second  # noqa: PLW0603  a memory of one
    seconds = int(at)
    known, text = _second
    if seconds != known:
        text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        _second = (seconds, text)
    return f"{text}.{int((at - seconds) * 1_000_000):06d}Z"


class LogWriter:
    """Writes the lines of one logger; `own` is a structlog logger to use whatever is configured."""

    __slots__ = ("_own", "_proxy", "_standard")

    def __init__(self, name: str, own: Any = None) -> None:  # noqa: ANN401  structlog's wrapper is the project's choice
        self._own = own
        self._proxy: Any = structlog.get_logger(name)
        self._standard = standard_logger(name)

    def at(self, level: int) -> Callable[..., object] | None:
        """What writes a line of this level, given its message and its fields; none if nobody wants such lines.

        Ask before the fields are made: most of what is told is not wanted.
        """
        if self._own is not None:
            bound = self._own
        elif structlog.is_configured():
            bound = self._proxy.bind()
        else:
            standard = self._standard
            return partial(log_standard, standard, level) if standard.isEnabledFor(level) else None
        asked = getattr(bound, "is_enabled_for", None)
        if asked is not None and not asked(level):
            return None
        write: Callable[..., object] = getattr(bound, _NAMES[level])
        return write

    def write(self, level: int, event: str, fields: dict[str, Any]) -> None:
        """Write a line; what cannot be written is raised."""
        write = self.at(level)
        if write is not None:
            write(event, **fields)


class EventLogger:
    """Implements `Logger`, for a handler: every line has these fields, made when the first line is written.

    A line that cannot be written is lost: it is no reason to fail an event. Whatever else the project's own structlog
    logger can do can be done with this one too.
    """

    __slots__ = ("_fields", "_known", "_name")

    def __init__(self, name: str, fields: Callable[[], dict[str, Any]]) -> None:
        self._name = name
        self._fields = fields
        self._known: dict[str, Any] | None = None

    def debug(self, event: str, *args: object, **fields: object) -> None:
        """See `Logger`."""
        self._say(logging.DEBUG, event, args, fields)

    def info(self, event: str, *args: object, **fields: object) -> None:
        """See `Logger`."""
        self._say(logging.INFO, event, args, fields)

    def warning(self, event: str, *args: object, **fields: object) -> None:
        """See `Logger`."""
        self._say(logging.WARNING, event, args, fields)

    def error(self, event: str, *args: object, **fields: object) -> None:
        """See `Logger`."""
        self._say(logging.ERROR, event, args, fields)

    def exception(self, event: str, *args: object, **fields: object) -> None:
        """An error, with the traceback of the exception that is being handled."""
        self._say(logging.ERROR, event, args, {"exc_info": True, **fields})

    def critical(self, event: str, *args: object, **fields: object) -> None:
        """The worst."""
        self._say(logging.CRITICAL, event, args, fields)

    def bind(self, **fields: object) -> EventLogger:
        """The same with more fields on every line."""
        known = {**self._all(), **fields}
        return EventLogger(self._name, lambda: known)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  the project's own
        if name.startswith("_") or not structlog.is_configured():
            raise AttributeError(name)
        return getattr(structlog.get_logger(self._name).bind(**self._all()), name)

    def _say(self, level: int, event: str, args: tuple[object, ...], fields: Mapping[str, object]) -> None:
        with suppress(Exception):
            if structlog.is_configured():
                getattr(structlog.get_logger(self._name), _NAMES[level])(event, *args, **{**self._all(), **fields})
                return
            logger = standard_logger(self._name)
            if logger.isEnabledFor(level):
                log_standard(logger, level, event % args if args else event, **{**self._all(), **fields})

    def _all(self) -> dict[str, Any]:
        if self._known is None:
            self._known = self._fields()
        return self._known


def standard_logger(name: str) -> logging.Logger:
    """The standard library's logger of this name; silent unless somebody listens."""
    library = logging.getLogger(LIBRARY)
    if not library.handlers:
        # Without any handler at all, logging would print warnings to stderr by itself.
        library.addHandler(logging.NullHandler())
    return logging.getLogger(name)


def log_standard(logger: logging.Logger, level: int, event: str, /, **fields: Any) -> None:  # noqa: ANN401  anything
    """The message, then its fields as `key=value`; whoever formats records as JSON finds them as `record.spectral`."""
    exc_info = fields.pop("exc_info", None)
    # The message is a constant, for tools that group by it; only the fields are filled in.
    template = _escaped(event).replace("%", "%%") + " %s"
    logger.log(level, template, in_words(fields), exc_info=exc_info, extra={LIBRARY: fields}, stacklevel=_FROM_HANDLER)


def in_words(fields: Mapping[str, object]) -> str:
    """`key=value`, in one line of printable ASCII; what is not known is left out."""
    return " ".join(f"{_escaped(name)}={_value(value)}" for name, value in fields.items() if value is not None)


def _value(value: object) -> str:
    text = value if isinstance(value, str) else None
    if text is not None and _PLAIN.fullmatch(text):
        return text
    try:
        return _ENCODER.encode(value)
    except (TypeError, ValueError, RecursionError):
        return _escaped(repr(value))


def _escaped(text: str) -> str:
    return text if text.isascii() and text.isprintable() else _ENCODER.encode(text)[1:-1]
