"""The lines of an event that was published, or handled and settled, as the worker's own log has them, without a detour.

A busy worker writes them thousands of times a second; by way of structlog, a dict and an encoder each costs as much as
handling the event. Only where the worker has configured its log itself: whoever configured structlog is asked for every
line. They are the same lines (a test compares them): ids, checked names and numbers need no escaping. They are made
where they are told, many at a time; what writes them has an outlet of its own.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final

from structlog.contextvars import STRUCTLOG_KEY_PREFIX

from spectral.core.events.infrastructure.observability.log_writer import timestamp
from spectral.core.events.outcome import Handled
from spectral.core.events.probe import Finished, Published

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

    from spectral.core.events.probe import Note
    from spectral.core.events.settings import Identity

_TRACEPARENT_LENGTH: Final = 55


def is_plain(note: Finished | Published) -> bool:
    """Whether there is no more to say than that all went well.

    Of an event that was not split from a broadcast; or that was published by itself, by whoever has nothing to add to
    the lines of the log.
    """
    if isinstance(note, Finished):
        # By their numbers: to compare two UUIDs takes a call.
        delivery = note.delivery
        return type(note.outcome) is Handled and delivery.lease.row_id.int == delivery.event_id.int
    return note.failure is None and len(note.act.envelopes) == 1 and not _adds_to_lines(note.within)


def _adds_to_lines(within: Context | None) -> bool:
    """Whether there are fields for every line here, by the means of structlog."""
    if within is None:
        return True  # nobody has looked
    return any(
        variable.name.startswith(STRUCTLOG_KEY_PREFIX) and value is not Ellipsis  # which stands for one taken back
        for variable, value in within.items()
    )


class PlainLines:
    """Makes the lines of one worker, and hands them to whoever writes them; implements `Counting`.

    write: takes a line, at once, and never waits.
    """

    def __init__(self, identity: Identity, worker: str | None, write: Callable[[str], None]) -> None:
        self._write = write
        who = {"service": identity.service, "environment": identity.environment}
        self._who = json.dumps(who)[1:-1]
        self._generation = identity.generation
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
            if is_plain(note):
                self._write(self.of_handled(note, at))
        elif isinstance(note, Published) and is_plain(note):
            self._write(self.of_published(note, at))

    def of_handled(self, note: Finished, at: float) -> str:
        """The line of a plain one."""
        delivery = note.delivery
        trace_id = _trace_id(note.traceparent or delivery.trace_context)
        workspace = "null" if delivery.workspace_id is None else f'"{delivery.workspace_id}"'
        return (
            f'{{"timestamp": "{timestamp(at)}", "level": "info", "event": "handled", {self._who}, '
            f'"generation": {self._generation}, '
            f'"trace_id": {trace_id}, "event_id": "{delivery.event_id}", "event_type": "{delivery.event_type}", '
            f'"source": "{delivery.source}", "target": "{delivery.target}", "workspace_id": {workspace}, '
            f'"attempts": {delivery.attempts}, {self._worker}"handler_name": "{",".join(note.handlers)}", '
            f'"duration_ms": {note.seconds * 1000:.1f}, "ack_ms": {note.ack_seconds * 1000:.1f}, '
            '"status_result": "delivered"}'
        )

    def of_published(self, note: Published, at: float) -> str:
        """The same."""
        (event,) = note.act.envelopes
        trace_id = _trace_id(event.trace_context or note.traceparent)
        target = "null" if event.target is None else f'"{event.target}"'
        workspace = "null" if event.workspace_id is None else f'"{event.workspace_id}"'
        return (
            f'{{"timestamp": "{timestamp(at)}", "level": "info", "event": "published", {self._who}, '
            f'"generation": {note.act.generation}, "trace_id": {trace_id}, {self._worker}'
            f'"event_id": "{event.event_id}", "event_type": "{event.event_type}", "source": "{event.source}", '
            f'"target": {target}, "workspace_id": {workspace}, "duration_ms": {note.seconds * 1000:.1f}}}'
        )


def _trace_id(traceparent: str | None) -> str:
    return "null" if traceparent is None or len(traceparent) < _TRACEPARENT_LENGTH else f'"{traceparent[3:35]}"'
