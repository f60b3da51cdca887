"""Log lines for people at a terminal: what matters first, nothing that every line would say, nothing to obey."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from structlog.dev import Column, ConsoleRenderer, KeyValueColumnFormatter, LogLevelColumnFormatter

from spectral.core.events.infrastructure.observability.log_writer import who_speaks
from spectral.core.events.infrastructure.observability.logs import STARTED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from structlog.typing import EventDict, Processor, WrappedLogger

    from spectral.core.events.settings import Identity

# What could move a terminal's cursor, forge a line of its own, or show it in another order than it is written in: C0,
# DEL, C1, Unicode's own ends of lines and its orders of direction.
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_PLAIN: Final = frozenset({bool, int, float})
_IN_LINES: Final = ("exception", "stack")
# As the log's own timestamps are: the date is today's, and all of them are in UTC, as the command line's are.
_TIMESTAMP: Final = re.compile(r"\d{4}-\d\d-\d\dT(\d\d:\d\d:\d\d\.\d{3})\d*Z")
_QUOTED: Final = re.compile(r"""[\s='"]""")

_MESSAGE_WIDTH: Final = 9  # that of most: handled, published, listening
_LAST: Final = (
    *("handler_name", "event_id", "row_id", "source", "target", "workspace_id"),
    *("worker", "service", "environment", "generation", "trace_id"),
)
"""Where and in whose name; what a line alone has to say stands before them."""

_NULL_IS_NOTHING: Final = frozenset(_LAST)
"""What is on every line, whether there is one or not; a null that somebody says himself is something said."""

_RESET: Final = "\x1b[0m"
_BRIGHT: Final = "\x1b[1m"
_DIM: Final = "\x1b[2m"
_CYAN: Final = "\x1b[36m"
_MAGENTA: Final = "\x1b[35m"


def readable(identity: Identity, *, colors: bool = True) -> list[Processor]:
    """The processors that make a stamped line one for a terminal."""
    return [Brief(identity), printable, ConsoleRenderer(columns=_columns(colors=colors), sort_keys=False)]


class Brief:
    """A processor: leaves out what says nothing, and puts what matters first.

    Who speaks is told by the first line of a process that is about no event, and by `started`; by others, only if it is
    somebody else.
    """

    def __init__(self, identity: Identity) -> None:
        self._who = who_speaks(identity)
        self._is_told = False

    def __call__(self, _logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        """See `Processor`."""
        is_first = not self._is_told and "event_type" not in event
        tells_who = is_first or _is_text(event.get("event"), STARTED)
        self._is_told = self._is_told or tells_who
        shown = {name: value for name, value in event.items() if value is not None or name not in _NULL_IS_NOTHING}
        if not tells_who:
            for name, known in self._who.items():
                if type(shown.get(name)) is type(known) and shown[name] == known:
                    del shown[name]
        for name in _LAST:
            if name in shown:
                shown[name] = shown.pop(name)
        at = shown.get("timestamp")
        if type(at) is str and (time := _TIMESTAMP.fullmatch(at)):
            shown["timestamp"] = time[1]
        return shown


def printable(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Escape control characters, as JSON would: a terminal obeys them."""
    shown = {_escaped(name): _shown(value) for name, value in event.items()}
    for name in _IN_LINES:
        told = event.get(name)
        if told is not None:
            # Its lines are lines; indented, none of them can pass for one of the log's own.
            text = told if isinstance(told, str) else look_of(told)
            shown[name] = "\n".join(f"    {_escaped(line)}" for line in text.split("\n"))
    return shown


def look_of(value: object) -> str:
    """How it looks, by its own account if it gives one."""
    try:
        return repr(value)
    except Exception:  # noqa: BLE001  a line with a gap is better than none
        return f"<{type(value).__name__}>"


def _columns(*, colors: bool) -> list[Column]:
    """In the order in which they are read; what has no column of its own comes after them, by its name."""
    reset, bright, dim, cyan, magenta = (_RESET, _BRIGHT, _DIM, _CYAN, _MAGENTA) if colors else ("",) * 5

    def alone(style: str, shown: Callable[[object], str] = str, **more: Any) -> KeyValueColumnFormatter:  # noqa: ANN401  its own options
        return KeyValueColumnFormatter(None, style, reset, value_repr=shown, **more)

    named = KeyValueColumnFormatter(cyan, magenta, reset, value_repr=_quoted)
    levels: Mapping[str, str] = ConsoleRenderer.get_default_level_styles(colors)
    return [
        Column("", named),
        Column("timestamp", alone(dim)),
        Column("level", LogLevelColumnFormatter(dict(levels), reset)),
        Column("event", alone(bright, width=_MESSAGE_WIDTH)),
        Column("logger", alone(cyan, prefix="[", postfix="]")),
        Column("event_type", alone(cyan, _quoted)),
        Column("status_result", alone(bright, _quoted)),
        Column("last_error", named),
        Column("error", named),
        Column("attempts", named),
    ]


class _Shown(str):
    """A value as it is to be shown; a text that somebody wrote gets quotation marks where it needs them."""

    __slots__ = ()


def _shown(value: object) -> object:
    """What the renderer cannot make anything else of: of other types it would ask themselves how they look."""
    if value is None or type(value) in _PLAIN:
        return value
    return _escaped(value) if isinstance(value, str) else _Shown(_escaped(look_of(value)))


def _quoted(value: object) -> str:
    if type(value) is str and _QUOTED.search(value):
        return repr(value)
    return str(value)


def _is_text(value: object, text: str) -> bool:
    return type(value) is str and value == text


def _escaped(text: str) -> str:
    # A plain text: a type derived from it may look otherwise.
    return _CONTROL.sub(lambda found: repr(found[0])[1:-1], str.__str__(text))
