"""Log lines of the worker process. Whoever configured structlog or logging before keeps what they have."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Final, TextIO
from weakref import WeakSet

import structlog

from spectral.core.events.failure import ConfigurationError
from spectral.core.events.infrastructure.observability.log_writer import SAID, timestamp, who_speaks
from spectral.core.events.infrastructure.observability.outlet import CAPACITY, Outlet
from spectral.core.events.infrastructure.observability.plain_lines import BEGINNING
from spectral.core.events.infrastructure.observability.told import without_exception
from spectral_workers.last_resort import hear_the_unheard
from spectral_workers.terminal_lines import look_of, readable
from spectral_workers.whole_lines import shared_descriptor, write_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from structlog.typing import EventDict, FilteringBoundLogger, WrappedLogger

    from spectral.core.events.settings import Identity

SERVICE: Final = "spectral-worker"
LEVEL_VARIABLE: Final = "SPECTRAL_LOG_LEVEL"
LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}

# Escapes whatever a terminal could obey, and all else that is not printable ASCII. Made once: json.dumps would make one
# for a line. A circle ends in a RecursionError as well; to look out for it takes time on every line.
_ENCODER: Final = json.JSONEncoder(default=repr, allow_nan=False, check_circular=False)
_TIME: Final = itemgetter(slice(len(BEGINNING) + len(timestamp(0.0))))
_writers: Final[WeakSet[LineWriter]] = WeakSet()


def configure_logs(identity: Identity, environ: Mapping[str, str]) -> Callable[[str, int], None] | None:
    """One JSON object per line on stderr, or readable lines if that is a terminal; a no-op if somebody came first.

    From the environment: `SPECTRAL_LOG_LEVEL`, one of debug, info, warning and error; info unless told. `NO_COLOR`, if
    there is anything in it: readable lines have none.

    Answers what takes JSON lines that are finished, if such lines are what is written and information is wanted, and no
    more.

    Raises:
        ConfigurationError: there is no such level.
    """
    level = level_from(environ)
    if structlog.is_configured():
        return None
    colors = not environ.get("NO_COLOR")
    rendering = readable(identity, colors=colors) if sys.stderr.isatty() else [render]
    lines = PatientWriter(sys.stderr)
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, Stamp(identity), *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: lines,
        cache_logger_on_first_use=True,
    )
    hear_the_unheard(identity)
    # Whoever wants every detail wants it in its order.
    return lines.write_lines if level == logging.INFO and not sys.stderr.isatty() else None


def json_logger(identity: Identity, stream: TextIO) -> FilteringBoundLogger:
    """A logger of its own that writes JSON lines to this stream; what the program has configured stays as it is."""
    logger: FilteringBoundLogger = structlog.wrap_logger(
        LineWriter(stream),
        processors=[Stamp(identity), render],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
    ).bind()
    return logger


def level_from(environ: Mapping[str, str]) -> int:
    """The level that the environment names.

    Raises:
        ConfigurationError: there is no such level.
    """
    named = environ.get(LEVEL_VARIABLE, "").strip().lower() or "info"
    if named not in LEVELS:
        raise ConfigurationError(f"{LEVEL_VARIABLE} is {named!r}; set it to one of {', '.join(LEVELS)}")
    return LEVELS[named]


class Stamp:
    """A processor: the canonical fields first, in the order in which they are read. What a line says itself, stands."""

    def __init__(self, identity: Identity) -> None:
        self._who = {**who_speaks(identity), "trace_id": None}

    def __call__(self, _logger: WrappedLogger, method: str, event: EventDict) -> EventDict:
        """See `Processor`."""
        # A key that is there already keeps its place and gets the new value.
        stamped = {"timestamp": timestamp(time.time()), "level": method, "event": None, **self._who, **event}
        return without_exception(stamped)


def render(_logger: WrappedLogger, _method: str, event: EventDict) -> str:
    """A processor, the last one: the line as JSON."""
    try:
        return _ENCODER.encode(event)
    except (TypeError, ValueError, RecursionError):  # a key that is no text, no number at all, a circle
        known = {
            name: value if isinstance(value, str | int | None) else look_of(value) for name, value in event.items()
        }
        return _ENCODER.encode(known)


class LineWriter:
    """Writes lines; a logger that structlog can wrap. One line at a time: they come from several threads."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.start_anew()
        _writers.add(self)

    def start_anew(self) -> None:
        """Without a line under way; also in the child of a fork, where whoever wrote it is missing."""
        self._one = threading.Lock()

    def msg(self, line: str) -> None:
        """Write it, now."""
        with self._one:
            shared = shared_descriptor(self._stream)
            if shared is not None:
                self._stream.flush()  # what somebody else has left there comes first
                write_whole(shared, f"{line}\n".encode(self._stream.encoding, self._stream.errors or "strict"))
                return
            self._stream.write(f"{line}\n")
            if not getattr(self._stream, "line_buffering", False):
                self._stream.flush()

    debug = info = warning = warn = error = critical = exception = fatal = log = failure = err = msg


class PatientWriter(LineWriter):
    """The same behind an outlet: whoever logs goes on, even if nobody reads, or nobody can be written to any more.

    What has gathered is written at once: few calls of the system for many lines. dropped, failed: how many lines were
    not written for want of room, or because they could not be.
    """

    is_patient = True

    def __init__(self, stream: TextIO) -> None:
        self._outlet = Outlet("lines")
        super().__init__(stream)

    def start_anew(self) -> None:
        """Without those of the parent, which writes them itself, and says what it has lost."""
        super().start_anew()
        self.dropped = 0
        self.failed = 0
        self._waiting: deque[tuple[str, int]] = deque()  # lines that came together, and how many
        self._waits = 0
        # For a moment: lines come from several threads, and from whoever interrupts one, as a signal's handler does.
        self._counting = threading.RLock()
        self._is_told = False

    def msg(self, line: str) -> None:
        """Have it written soon, or drop it if too much waits already."""
        self.write_lines(line, 1)

    def write_lines(self, text: str, lines: int) -> None:
        """The same with several, as one text: whoever writes them does so in another thread, and would free each."""
        with self._counting:
            room = CAPACITY - self._waits
            taken = min(lines, room)
            self.dropped += lines - taken
            self._waits += taken
        if not taken:
            return
        if taken < lines:
            text = "\n".join(text.split("\n", taken)[:taken])
        self._waiting.append((text, taken))
        if not self._is_told:
            self._is_told = True
            self._outlet.put(self._write)

    def _write(self) -> None:
        self._is_told = False
        parts: list[str] = []
        count = 0
        with suppress(IndexError):
            while True:
                part, lines = self._waiting.popleft()
                parts.append(part)
                count += lines
        if parts:
            with self._counting:
                self._waits -= count
            if all(part.startswith(BEGINNING) for part in parts):  # not those that a terminal shows
                # Several threads have made them, and some are made later than others: as the times say that they begin.
                parts.sort(key=_TIME)
            try:
                super().msg("\n".join(parts))
            except (OSError, ValueError):  # nobody is there any more
                self.failed += count

    debug = info = warning = warn = error = critical = exception = fatal = log = failure = err = msg


def missed_lines() -> tuple[int, int]:
    """How many lines of this process were dropped, and how many failed, whoever said them."""
    patient = [each for each in list(_writers) if isinstance(each, PatientWriter)]
    return SAID.dropped + sum(each.dropped for each in patient), SAID.failed + sum(each.failed for each in patient)


def _after_fork() -> None:
    for writer in list(_writers):
        writer.start_anew()


os.register_at_fork(after_in_child=_after_fork)
