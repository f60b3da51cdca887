"""The line of an event that was handled and settled, as the worker's own log has it, made without a detour.

A busy worker writes it thousands of times a second; by way of structlog, a dict and an encoder it costs as much as
handling the event. Only where the worker has configured its log itself: whoever configured structlog is asked for every
line. It is the same line (a test compares them): ids, checked names and numbers need no escaping.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from spectral.core.events.infrastructure.observability.log_writer import timestamp
from spectral.core.events.outcome import Handled

if TYPE_CHECKING:
    from spectral.core.events.probe import Finished
    from spectral.core.events.settings import Identity

_TRACEPARENT_LENGTH = 55


class HandledLine:
    """Makes the lines of one worker."""

    def __init__(self, identity: Identity, worker: str | None) -> None:
        who = {"service": identity.service, "environment": identity.environment, "generation": identity.generation}
        self._who = json.dumps(who)[1:-1]
        self._worker = "" if worker is None else f'"worker": {json.dumps(worker)}, '

    def of(self, note: Finished, at: float) -> str | None:
        """The line; none if there is more to say than that all went well."""
        delivery = note.delivery
        event_id, row_id = delivery.event_id, delivery.lease.row_id
        if not isinstance(note.outcome, Handled) or row_id != event_id:
            return None
        trace = note.traceparent or delivery.trace_context
        trace_id = "null" if trace is None or len(trace) < _TRACEPARENT_LENGTH else f'"{trace[3:35]}"'
        workspace = "null" if delivery.workspace_id is None else f'"{delivery.workspace_id}"'
        return (
            f'{{"timestamp": "{timestamp(at)}", "level": "info", "event": "handled", {self._who}, '
            f'"trace_id": {trace_id}, "event_id": "{event_id}", "event_type": "{delivery.event_type}", '
            f'"source": "{delivery.source}", "target": "{delivery.target}", "workspace_id": {workspace}, '
            f'"attempts": {delivery.attempts}, {self._worker}"handler_name": "{",".join(note.handlers)}", '
            f'"duration_ms": {round(note.seconds * 1000, 1)}, "ack_ms": {round(note.ack_seconds * 1000, 1)}, '
            '"status_result": "delivered"}'
        )
