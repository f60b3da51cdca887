"""The line of an event that was handled and settled, as the worker's own log has it, made without a detour.

A busy worker writes it thousands of times a second; by way of structlog, a dict and an encoder it costs as much as
handling the event. Only where the worker has configured its log itself: whoever configured structlog is asked for every
line. It is the same line (a test compares them): ids, checked names and numbers need no escaping. It is made where it
is told, many at a time; what writes the lines has an outlet of its own.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Final

from spectral.core.events.infrastructure.observability.log_writer import timestamp
from spectral.core.events.outcome import Handled
from spectral.core.events.probe import Finished

if TYPE_CHECKING:
    from collections.abc import Callable

    from spectral.core.events.probe import Note
    from spectral.core.events.settings import Identity

_TRACEPARENT_LENGTH: Final = 55


def is_plain(note: Finished) -> bool:
    """Whether there is no more to say than that all went well, with an event that was not split from a broadcast."""
    # By their numbers: to compare two UUIDs takes a call.
    delivery = note.delivery
    return type(note.outcome) is Handled and delivery.lease.row_id.int == delivery.event_id.int


class HandledLines:
    """Makes the lines of one worker, and hands them to whoever writes them; implements `Counting`.

    write: takes a line, at once, and never waits.
    """

    def __init__(self, identity: Identity, worker: str | None, write: Callable[[str], None]) -> None:
        self._write = write
        who = {"service": identity.service, "environment": identity.environment, "generation": identity.generation}
        self._who = json.dumps(who)[1:-1]
        self._worker = "" if worker is None else f'"worker": {json.dumps(worker)}, '

    def cares_for(self, kind: type[Note]) -> bool:
        """Whether such a note may be of an event that was handled."""
        return kind is Finished

    def tell(self, note: Note) -> None:
        """Write its line, if it is a plain one, of now."""
        self.tell_at(note, time.time())

    def tell_at(self, note: Note, at: float) -> None:
        """The same, of then."""
        if isinstance(note, Finished) and is_plain(note):
            self._write(self.of(note, at))

    def of(self, note: Finished, at: float) -> str:
        """The line of a plain one."""
        delivery = note.delivery
        trace = note.traceparent or delivery.trace_context
        trace_id = "null" if trace is None or len(trace) < _TRACEPARENT_LENGTH else f'"{trace[3:35]}"'
        workspace = "null" if delivery.workspace_id is None else f'"{delivery.workspace_id}"'
        return (
            f'{{"timestamp": "{timestamp(at)}", "level": "info", "event": "handled", {self._who}, '
            f'"trace_id": {trace_id}, "event_id": "{delivery.event_id}", "event_type": "{delivery.event_type}", '
            f'"source": "{delivery.source}", "target": "{delivery.target}", "workspace_id": {workspace}, '
            f'"attempts": {delivery.attempts}, {self._worker}"handler_name": "{",".join(note.handlers)}", '
            f'"duration_ms": {note.seconds * 1000:.1f}, "ack_ms": {note.ack_seconds * 1000:.1f}, '
            '"status_result": "delivered"}'
        )
