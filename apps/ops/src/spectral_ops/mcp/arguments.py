"""What a tool is asked, typed and described: these models are the tools' input schemas.

A name that a tool does not know is refused: a filter with a typing mistake must not mean more events than were meant.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Final, Self
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from spectral.core.operations.dead_letters import DeadLetterFilter
from spectral_ops.mcp.plans import MOST_EVENTS

_MOST_LISTED: Final = 200

Reason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=2000)]
Name = Annotated[str, StringConstraints(max_length=255)]
Limit = Annotated[int, Field(ge=1, le=_MOST_LISTED, description="How many to answer at most.")]


class Arguments(BaseModel):
    """The base of them all."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Nothing(Arguments):
    """For a tool that needs no arguments."""


class Selection(Arguments):
    """Which failed events; what is left out does not matter. An empty context or handler means those without one."""

    event_type: Name | None = Field(default=None, description="The event's type, such as orders.order.placed.")
    context: Name | None = Field(default=None, description="The context that it was delivered to.")
    handler_name: Name | None = Field(default=None, description="The handler that failed.")
    error_class: Name | None = Field(default=None, description="The class of the error, such as TimeoutError.")
    workspace_id: UUID | None = None
    generation: int | None = Field(default=None, ge=0, description="The generation that the event is in.")
    failed_after: datetime | None = Field(default=None, description="First failed then or later.")
    failed_before: datetime | None = Field(default=None, description="In the DLQ before that moment.")

    @property
    def wanted(self) -> DeadLetterFilter:
        """The filter of the service."""
        return DeadLetterFilter(**{name: getattr(self, name) for name in Selection.model_fields})

    @property
    def says_something(self) -> bool:
        """Whether anything of it was given."""
        return any(getattr(self, name) is not None for name in Selection.model_fields)


class ListDlqEvents(Selection):
    """One page of the DLQ."""

    limit: Limit = 50
    cursor: str | None = Field(default=None, max_length=200, description="next_cursor of the page before.")


class TriageDlq(Selection):
    """The DLQ in groups."""

    limit: Limit = 50


class GetDlqEventDetail(Arguments):
    """One event."""

    event_id: UUID
    payload_chars: int = Field(default=4_000, ge=0, le=65_536, description="Characters of the payload at most.")


class ListAudit(Arguments):
    """Entries of the audit, newest first."""

    action: Name | None = Field(default=None, description="Only of this kind: replay, discard, promote, ...")
    event_id: UUID | None = Field(default=None, description="Only what was done to this event.")
    limit: Limit = 50
    cursor: str | None = Field(default=None, max_length=200, description="next_cursor of the page before.")


class _Plan(Selection):
    event_ids: list[UUID] | None = Field(
        default=None, min_length=1, max_length=MOST_EVENTS, description="Exactly these events; then no filter is given."
    )
    limit: int = Field(
        default=200,
        ge=1,
        le=MOST_EVENTS,
        description="How many events a filter may mean at most, by first failure, newest first.",
    )

    @model_validator(mode="after")
    def _ids_or_a_filter(self) -> Self:
        if (self.event_ids is not None) == self.says_something:
            raise ValueError("say which events: either event_ids, or a filter such as event_type and error_class")
        return self


class PlanReplay(_Plan):
    """Which failed events to replay, and into which generation."""

    to_generation: int | None = Field(default=None, ge=0, description="The live generation unless told.")


class PlanDiscard(_Plan):
    """Which failed events to discard."""


class _Change(Arguments):
    reason: Reason = Field(description="Why, for the audit; a person reads it.")
    event_id: UUID | None = Field(
        default=None, description="Without a token: plan this one event. With one: do only this event of the plan."
    )
    token: str | None = Field(default=None, max_length=200, description="The token of the plan to carry out.")

    @model_validator(mode="after")
    def _event_or_token(self) -> Self:
        if self.event_id is None and self.token is None:
            raise ValueError("give an event_id to plan it, or the token of a plan to carry it out")
        return self


class ReplayDlqEvent(_Change):
    """Plan the replay of one event, or carry out a plan."""

    to_generation: int | None = Field(
        default=None, ge=0, description="Only without a token: the live generation unless told."
    )

    @model_validator(mode="after")
    def _generation_is_planned(self) -> Self:
        if self.token is not None and self.to_generation is not None:
            raise ValueError("the plan says which generation; leave out to_generation")
        return self


class DiscardDlqEvent(_Change):
    """Plan the discarding of one event, or carry out a plan."""
