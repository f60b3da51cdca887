"""Where a log line goes: to the project's structlog if it has configured that, else to the standard library's logging.

structlog that nobody configured prints to stdout, which is the program's own; so it is not used then. With logging that
nobody configured publishers stay silent, as a library should; a worker's warnings and errors reach stderr by logging's
own last resort, for nobody else would tell of what it has lost.

Whoever logs while events are delivered must not wait for whoever reads the log: handlers' lines and those of the worker
process are made where they are said (there are their time, their context and their exception), and written by an
outlet.
"""

from __future__ import annotations

import json
import logging
import re
import time
from contextlib import suppress
from contextvars import copy_context
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import structlog

from spectral.core.events.infrastructure.observability.outlet import Outlet
from spectral.core.events.infrastructure.observability.told import EXCEPTION, without_exception

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from structlog.typing import EventDict, Processor, WrappedLogger

    from spectral.core.events.settings import Identity

LIBRARY: Final = "spectral"
"""The logger above all of the library's, and the key of a record's fields."""

_PUBLISHER: Final = "spectral.publish"
"""The logger of publishers."""

_NAMES: Final = {
    logging.DEBUG: "debug",
    logging.INFO: "info",
    logging.WARNING: "warning",
    logging.ERROR: "error",
    logging.CRITICAL: "critical",
}
SAID: Final = Outlet("said")
"""Writes what handlers and the worker process say, in the order in which it was said."""

_WRITES: Final = frozenset({*_NAMES.values(), "msg", "log", "warn", "exception", "fatal", "failure", "err"})
_FROM_HANDLER: Final = 4
"""So many calls lie between a handler's line of code, which a record names, and logging."""
_PLAIN: Final = re.compile(r"[\w.:/@+,-]+", re.ASCII)


_second: tuple[int, str] = (-1, "")


def timestamp(at: float) -> str:
    """A time in ISO 8601; its date and second are made once, for all the lines that share them."""
    global _second  # noqa: PLW0603  a memory of one
    seconds = int(at)
    known, text = _second
    if seconds != known:
        text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        _second = (seconds, text)
    return f"{text}.{int((at - seconds) * 1_000_000):06d}Z"


def who_speaks(identity: Identity) -> dict[str, Any]:
    """The fields that say so, on every line."""
    return {"service": identity.service, "environment": identity.environment, "generation": identity.generation}


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
    """Implements `Logger`, for a handler or for the worker process itself.

    Every line has these fields, made when the first line is written.

    A line that cannot be written is lost: it is no reason to fail an event. Whatever else the project's own structlog
    logger can do can be done with this one too. Of an exception it keeps what may be kept, without what that quotes of
    the payload. It is patient unless told otherwise: see `_patient_logger`.
    """

    __slots__ = ("_fields", "_is_patient", "_known", "_name", "_payload")

    def __init__(
        self, name: str, fields: Callable[[], dict[str, Any]], payload: str | None = None, *, patient: bool = True
    ) -> None:
        self._name = name
        self._fields = fields
        self._payload = payload
        self._is_patient = patient
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

    def at_once(self) -> EventLogger:
        """The same for whoever is behind the outlet already."""
        return EventLogger(self._name, self._all, self._payload, patient=False)

    def bind(self, **fields: object) -> EventLogger:
        """The same with more fields on every line."""
        known = {**self._all(), **fields}
        return EventLogger(self._name, lambda: known, self._payload, patient=self._is_patient)

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  the project's own
        if name.startswith("_") or not structlog.is_configured():
            raise AttributeError(name)
        return getattr(self._logger().bind(**self._all()), name)

    def _say(self, level: int, event: str, args: tuple[object, ...], fields: Mapping[str, object]) -> None:
        with suppress(Exception):
            if structlog.is_configured():
                getattr(self._logger(), _NAMES[level])(event, *args, **{**self._all(), **fields})
                return
            logger = standard_logger(self._name)
            if logger.isEnabledFor(level):
                said = _text(event)
                said = said % args if args else said
                record = _record(logger, level, said, without_exception({**self._all(), **fields}, self._payload))
                write_soon(logger.handle, record) if self._is_patient else logger.handle(record)

    def _logger(self) -> Any:  # noqa: ANN401  structlog's wrapper is the project's choice
        return _patient_logger(self._name, self._without_exception, patient=self._is_patient)

    def _without_exception(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return without_exception(event, self._payload)

    def _all(self) -> dict[str, Any]:
        if self._known is None:
            self._known = self._fields()
        return self._known


def process_logger(name: str, identity: Identity) -> EventLogger:
    """The logger of the worker process itself, whose lines are in no trace."""
    return EventLogger(name, lambda: {**who_speaks(identity), "trace_id": None})


def _patient_logger(name: str, *first: Processor, patient: bool = True) -> Any:  # noqa: ANN401  as above
    """A logger of the project's structlog that keeps nobody waiting.

    Its lines go through `first` and the configured processors at once; an outlet does the writing, which takes as long
    as whoever reads them takes. Not if it is not to be patient, as in a test that looks for the line right after it.
    """
    config = structlog.get_config()
    writing = config["logger_factory"](name)
    if patient and getattr(writing, "is_patient", None) is not True:
        writing = _Patient(writing)
    return structlog.wrap_logger(writing, processors=[*first, *config["processors"]] if first else None)


class _Patient:
    """What structlog wraps, with an outlet before whatever writes."""

    __slots__ = ("_writing",)

    def __init__(self, writing: Any) -> None:  # noqa: ANN401  the project's own
        self._writing = writing

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  the project's own
        found = getattr(self._writing, name)
        return partial(write_soon, found) if name in _WRITES else found


def write_soon(write: Callable[..., object], /, *args: object, **fields: object) -> None:
    """Have it called by the outlet, in the context of whoever calls."""
    SAID.put(partial(copy_context().run, partial(write, *args, **fields)))


def say_later(log: EventLogger, level: str, event: str, /, **fields: object) -> None:
    """Log by the outlet alone, for those who cannot even wait for a project's processors."""
    said_at = timestamp(time.time())
    SAID.put(lambda: getattr(log.at_once(), level)(event, timestamp=said_at, **fields))


def standard_logger(name: str) -> logging.Logger:
    """The standard library's logger of this name; the publishers' is silent unless somebody listens."""
    logger = logging.getLogger(name)
    if name == _PUBLISHER and not logger.handlers:
        # Without any handler at all, logging would print warnings to stderr by itself: a refusal is raised already.
        logger.addHandler(logging.NullHandler())
    return logger


def log_standard(logger: logging.Logger, level: int, event: str, /, **fields: Any) -> None:  # noqa: ANN401  anything
    """The message, then its fields as `key=value`; whoever formats records as JSON finds them as `record.spectral`."""
    logger.handle(_record(logger, level, event, fields))


def _record(logger: logging.Logger, level: int, event: str, fields: Mapping[str, Any]) -> logging.LogRecord:
    try:
        path, line, function, _ = logger.findCaller(stacklevel=_FROM_HANDLER)
    except ValueError:  # there are not so many
        path, line, function = "(unknown file)", 0, "(unknown function)"
    # The message is a constant, for tools that group by it; only the fields are filled in.
    template = _escaped(event).replace("%", "%%") + " %s"
    told = fields.get(EXCEPTION)
    if not isinstance(told, str):  # but a field of the handler's own with something else in it
        told = None
    words = in_words({name: value for name, value in fields.items() if told is None or name != EXCEPTION})
    record = logger.makeRecord(
        logger.name, level, path, line, template, (words,), None, function, extra={LIBRARY: dict(fields)}
    )
    if told is not None:
        # Formatters write it in lines of its own, as they do with a traceback; indented, none passes for a record.
        record.exc_text = "\n".join(f"    {_escaped(line)}" for line in told.split("\n"))
    return record


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
        return _escaped(_look(value))


def _text(event: object) -> str:
    """What is said, even if it is no text, as whoever configures structlog may say too."""
    try:
        return event if isinstance(event, str) else str(event)
    except Exception:  # noqa: BLE001  a line with a gap is better than none
        return f"<{type(event).__name__}>"


def _look(value: object) -> str:
    try:
        return repr(value)
    except Exception:  # noqa: BLE001  as above
        return f"<{type(value).__name__}>"


_ENCODER: Final = json.JSONEncoder(default=_look)


def _escaped(text: str) -> str:
    return text if text.isascii() and text.isprintable() else _ENCODER.encode(text)[1:-1]
