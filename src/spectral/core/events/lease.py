"""What a worker holds: a lease on a row, and the delivery that was claimed with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from spectral.core.events.envelope import EventEnvelope
from spectral.core.events.payload import decode_payload

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID


class Lease(NamedTuple):
    """The right to settle a row, for as long as its token stands."""

    row_id: UUID
    token: UUID


class Delivery(NamedTuple):
    """One claimed row, as the claim answered it. The payload stays text until a handler wants it.

    A tuple, for a busy worker makes thousands a second. `attempts` counts this one. `suspect` says that the last worker
    of this row was lost. `handled` names the handlers that held its key when it was claimed. `waited` is for how many
    seconds it had been due, `replays` how often it was replayed.
    """

    lease: Lease
    event_id: UUID
    event_type: str
    event_version: int
    occurred_at: datetime
    source: str
    target: str
    workspace_id: UUID | None
    payload: str
    idempotency_key: str
    trace_context: str | None
    content_class: str
    channel: str
    generation: int
    attempts: int
    due_at: datetime
    suspect: bool
    handled: frozenset[str]
    waited: float = 0.0
    replays: int = 0

    @property
    def is_first(self) -> bool:
        """Whether it is tried for the first time since it was published."""
        return self.attempts == 1 and self.replays == 0

    def envelope(self) -> EventEnvelope:
        """The event as its consumers see it. The table's constraints have checked all of it but the payload.

        Raises:
            UndecodablePayloadError: the payload cannot be read.
        """
        return EventEnvelope.model_construct(
            event_id=self.event_id,
            event_type=self.event_type,
            event_version=self.event_version,
            occurred_at=self.occurred_at,
            source=self.source,
            target=self.target,
            workspace_id=self.workspace_id,
            payload=decode_payload(self.payload),
            idempotency_key=self.idempotency_key,
            trace_context=self.trace_context,
        )
