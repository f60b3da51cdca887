"""The lines of an event that was published, or handled and settled, as the worker's own log has them, without a detour.

A busy worker writes them thousands of times a second; by way of structlog, a dict and an encoder each costs as much as
handling the event. Only where the worker has configured its log itself: whoever configured structlog is asked for every
line. They are the same lines (a test compares them): ids, checked names and numbers need no escaping. They are made
where they are told, many at a time; what writes them has an outlet of its own.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final, TypeAlias, cast

from structlog.contextvars import STRUCTLOG_KEY_PREFIX

from spectral.core.events.infrastructure.observability.log_writer import timestamp
from spectral.core.events.outcome import Handled
from spectral.core.events.probe import Finished, Published

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextvars import Context

    from spectral.core.events.probe import HandlerRan, Note
    from spectral.core.events.settings import Identity

_TRACEPARENT_LENGTH: Final = 55
_MAX_KNOWN: Final = 1_000
_Alike: TypeAlias = tuple[str, str, str, tuple[str, ...]]
_Route: TypeAlias = tuple[str, str, "str | None", int]
_Parts: TypeAlias = tuple[str, str, str, str, str]
_NOTHING: Final[_Alike] = ("", "", "", ())
_NO_PARTS: Final[_Parts] = ("", "", "", "", "")
BEGINNING: Final = '{"timestamp": "'
"""Of every line of the worker's own log, before its time."""


def is_plain(note: Finished | Published) -> bool:
    """Whether there is no more to say than that all went well.

    Of an event that was handled; or that was published by itself, by whoever has nothing to add to the log's lines.
    """
    if isinstance(note, Finished):
        return type(note.outcome) is Handled
    return note.failure is None and len(note.act.envelopes) == 1 and not _adds_to_lines(note.within)


def _adds_to_lines(within: Context | None) -> bool:
    """Whether there are fields for every line here, by the means of structlog."""
    if within is None:
        return True  # nobody has looked
    for variable in within:
        if variable.name.startswith(STRUCTLOG_KEY_PREFIX) and within[variable] is not Ellipsis:  # one taken back
            return True
    return False


class PlainLines:
    """Makes the lines of one worker, and hands them to whoever writes them; implements `Counting`.

    write: takes lines as one text, and how many they are, and never waits.
    """

    def __init__(self, identity: Identity, worker: str | None, write: Callable[[str, int], None]) -> None:
        self._write = write
        who = {"service": identity.service, "environment": identity.environment}
        self._who = json.dumps(who)[1:-1]
        self._head = (
            f'", "level": "info", "event": "handled", {self._who}, "generation": {identity.generation}, "trace_id": '
        )
        self._known: dict[_Alike, tuple[str, _Parts]] = {}
        self._known_publishes: dict[_Route, tuple[str, str, str]] = {}
        self._worker = "" if worker is None else f'"worker": {json.dumps(worker)}, '

    def cares_for(self, kind: type[Note]) -> bool:
        """Whether such a note may be of an event that went well."""
        return kind is Finished or kind is Published

    def tell(self, note: Note) -> None:
        """Write its line, if it is a plain one, of now."""
        self.tell_at(note, time.time())

    def tell_at(self, note: Note, at: float) -> None:
        """The same, of then."""
        if isinstance(note, Finished):
            if type(note.outcome) is Handled:
                self._write(self.of_handled([note], at), 1)
        elif isinstance(note, Published) and is_plain(note):
            self._write(self.of_published([(note, at)]), 1)

    def tell_published(self, notes: Sequence[tuple[Published, float]]) -> None:
        """The same of several publishes, each of its time."""
        plain = [told for told in notes if is_plain(told[0])]
        if plain:
            self._write(self.of_published(plain), len(plain))

    def tell_many_at(self, notes: Sequence[Finished] | Sequence[HandlerRan], at: float) -> None:
        """The same of what was settled together, which has its time in common."""
        if notes and isinstance(notes[0], Finished):
            self._write(self.of_handled(cast("Sequence[Finished]", notes), at), len(notes))

    def of_handled(self, notes: Sequence[Finished], at: float) -> str:
        """The lines of plain ones, all at this time."""
        stamp, parts = timestamp(at), list[str]()
        last, form = _NOTHING, ""
        start, after_trace, after_event, between, end = _NO_PARTS
        for delivery, _, handlers, seconds, ack_seconds, traceparent in notes:
            # By name they take longer, and all at once too: half of them would only be fetched for it.
            row_id, event_id, workspace_id, attempts = delivery[0][0], delivery[1], delivery[7], delivery[14]
            alike = (delivery[2], delivery[5], delivery[6], handlers)
            if alike != last:  # mostly they are all alike
                form, (start, after_trace, after_event, between, end) = self._known.get(alike) or self._learn(alike)
                last = alike
                start = BEGINNING + stamp + start
            carried = traceparent or delivery[10]
            if (
                attempts == 1
                and workspace_id is None
                and (row_id is event_id or row_id == event_id)
                and carried is not None
                and len(carried) >= _TRACEPARENT_LENGTH
            ):
                # With a dash after every fourth digit: three of them are too many.
                digits = event_id.int.to_bytes(16, "big").hex("-", 2)
                # Put together once, for all: a text for each line is half a kilobyte that nobody needs.
                parts += (
                    start, carried[3:35], after_trace, digits[:4], digits[5:29], digits[30:34], digits[35:],
                    after_event, f"{seconds * 1000:.1f}", between, f"{ack_seconds * 1000:.1f}", end,
                )  # fmt: skip
                continue
            line = form % (
                stamp,
                _trace_id(carried),
                event_id,
                "null" if workspace_id is None else f'"{workspace_id}"',
                attempts,
                "" if row_id == event_id else f', "row_id": "{row_id}"',  # one of a broadcast
                seconds * 1000,
                ack_seconds * 1000,
            )
            parts.append(line)
        return _joined(parts)

    def _learn(self, alike: _Alike) -> tuple[str, _Parts]:
        """What the lines have in common of events that have this in common, with room for the rest.

        Most events carry a trace, are of no workspace and no broadcast, and are tried for the first time. Their lines
        are put together of parts, the first of which begins after the time: to fill in a form takes longer, for it is
        searched for where there is room. The form is for all others.
        """
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        event_type, source, target, handlers = alike
        names = ",".join(handlers)
        route = f'"event_type": "{event_type}", "source": "{source}", "target": "{target}", "workspace_id": '
        end = f'{self._worker}"handler_name": "{names}", "duration_ms": '
        ack, result = ', "ack_ms": ', ', "status_result": "delivered"}\n'
        usual = (
            f'{self._head}"', '", "event_id": "', f'", {route}null, "attempts": 1, {end}', ack, result
        )  # fmt: skip
        head, route, end = (each.replace("%", "%%") for each in (self._head, route, end))
        form = f'{BEGINNING}%s{head}%s, "event_id": "%s", {route}%s, "attempts": %d%s, {end}%.1f{ack}%.1f{result}'
        return self._known.setdefault(alike, (form, usual))

    def of_published(self, notes: Sequence[tuple[Published, float]]) -> str:
        """The same, of single events, each at its time."""
        parts: list[str] = []
        for (act, seconds, _, traceparent, _), at in notes:
            event = act.envelopes[0]
            key = (event.event_type, event.source, event.target, act.generation)
            known = self._known_publishes.get(key)
            if known is None:
                known = self._learn_publishes(key)
            head, route, end = known
            workspace = "null" if event.workspace_id is None else f'"{event.workspace_id}"'
            trace_id = _trace_id(event.trace_context or traceparent)
            parts += (
                BEGINNING, timestamp(at), head, trace_id, end, str(event.event_id), route, workspace,
                f', "duration_ms": {seconds * 1000:.1f}}}\n',
            )  # fmt: skip
        return _joined(parts)

    def _learn_publishes(self, key: _Route) -> tuple[str, str, str]:
        """What is before the trace, behind the event, and between the two."""
        if len(self._known_publishes) >= _MAX_KNOWN:
            self._known_publishes.clear()
        event_type, source, to, generation = key
        target = "null" if to is None else f'"{to}"'
        forms = (
            f'", "level": "info", "event": "published", {self._who}, "generation": {generation}, "trace_id": ',
            f'", "event_type": "{event_type}", "source": "{source}", "target": {target}, "workspace_id": ',
            f', {self._worker}"event_id": "',
        )
        return self._known_publishes.setdefault(key, forms)


def _joined(parts: list[str]) -> str:
    """Without the end of the last line; not taken from the whole, which would be copied."""
    if parts:
        parts[-1] = parts[-1][:-1]
    return "".join(parts)


def _trace_id(traceparent: str | None) -> str:
    return "null" if traceparent is None or len(traceparent) < _TRACEPARENT_LENGTH else f'"{traceparent[3:35]}"'
