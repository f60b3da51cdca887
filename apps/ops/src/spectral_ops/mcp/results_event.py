"""One event, whole, as a tool answers it: bounded, and what others wrote is marked as untrusted."""

from __future__ import annotations

from datetime import datetime  # noqa: TC003  pydantic reads the annotations
from typing import Annotated, Final
from uuid import UUID  # noqa: TC003  as above

from pydantic import BeforeValidator, Field

from spectral_ops.mcp.results import UNTRUSTED, AuditEntry, EventId, Result, Untrusted, Value

_TEXT_SHOWN: Final = 500


def _cut(text: object) -> object:
    return f"{text[:_TEXT_SHOWN]} [cut]" if isinstance(text, str) and len(text) > _TEXT_SHOWN else text


Cut = Annotated[Untrusted, BeforeValidator(_cut)]


class Error(Value):
    """The last error of the current cycle, taken apart; of a delivered event, one that was made good."""

    error_class: Untrusted
    handler_name: str | None
    message: Untrusted


class Cycle(Value):
    """A cycle that ended in the DLQ and was then replayed."""

    cycle: int
    attempts: int
    last_error: Cut | None
    first_failed_at: datetime | None
    failed_at: datetime | None
    replayed_at: datetime
    replayed_by: Cut | None


class Moment(Value):
    """What happened when, and by whom."""

    at: datetime
    what: str
    by: Cut | None
    detail: Cut | None


class Handler(Value):
    """A handler that the event is for, and whether it took effect; a replay does not repeat what took effect."""

    context: str
    handler_name: str
    subscribed: bool = Field(description="In this generation; else only another one has it.")
    handled_at: datetime | None
    handled_as: UUID | None = Field(description="The event by which the key took effect.")


class Related(Value):
    """The broadcast that the event is a share of, or one context's share of it."""

    event_id: EventId
    context: str | None
    status: str
    attempts: int


class DlqEventDetail(Result):
    """Everything about one event. Of cycles, moments, shares and audit entries the last few are shown."""

    event_id: EventId
    event_type: str
    event_version: int
    occurred_at: datetime
    source: str
    context: str | None
    content_class: str
    workspace_id: UUID | None
    idempotency_key: Untrusted
    trace_context: str | None
    channel: str
    generation: int
    generation_status: str | None
    status: str
    attempts: int
    created_at: datetime
    next_attempt_at: datetime
    claimed_by: Untrusted | None
    claimed_at: datetime | None
    delivered_at: datetime | None
    first_failed_at: datetime | None
    deleted_at: datetime | None
    error: Error | None
    error_execution: int | None = Field(description="Which execution ended in the error, if that is known.")
    replays: int
    cycles: list[Cycle]
    timeline: list[Moment]
    handlers: list[Handler] | None = Field(description="None: this login may not see them.")
    parent: Related | None
    children: list[Related]
    audit: list[AuditEntry] | None = Field(description="As handlers.")
    payload: str = Field(description=f"The payload as JSON text, cut if it is long. {UNTRUSTED}")
    payload_bytes: int
    payload_truncated: bool

    def summary(self) -> str:
        """As above."""
        cut = ", its payload cut" if self.payload_truncated else ""
        return f"event {self.event_id} is {self.status}{cut}. {UNTRUSTED}"
