"""What a change would do, or did: one answer for both steps."""

from __future__ import annotations

from enum import StrEnum
from uuid import UUID  # noqa: TC003  pydantic reads the annotations

from pydantic import Field

from spectral_ops.mcp.plans import Action
from spectral_ops.mcp.results import Result, Value, several


class Step(StrEnum):
    """How far a change is."""

    PLANNED = "planned"
    APPLIED = "applied"


class Refusal(Value):
    """An event that the change does not touch, and why: what it is instead of failed, or that it failed anew."""

    event_id: UUID
    refusal: str


class Change(Result):
    """A change that was planned and not made, or one that was made. It never touches more than was planned."""

    step: Step = Field(description="planned: nothing was changed yet. applied: it was done.")
    action: Action
    to_generation: int | None = Field(description="Where events are replayed to.")
    count: int = Field(description="Events that will be changed, or were.")
    event_ids: list[UUID] = Field(description="Exactly these.")
    refused: list[Refusal] = Field(description="Asked for or planned, and left as they are.")
    more: bool = Field(default=False, description="More events match than the limit; plan again afterwards.")
    token: str | None = Field(default=None, description="Carries the plan out; good once.")
    expires_in_seconds: float | None = Field(default=None, description="How long the token is good.")

    def summary(self) -> str:
        """As above."""
        into = "" if self.to_generation is None else f" into generation {self.to_generation}"
        events = several(self.count, "event")
        refused = f" {self.refused_count} refused, see why." if self.refused else ""
        if self.step is Step.APPLIED:
            done = "replayed" if self.action is Action.REPLAY else "discarded"
            return f"{events} {done}{into}.{refused}"
        more = " More match than the limit." if self.more else ""
        return (
            f"Nothing was changed yet. The plan is to {self.action} {events}{into}.{refused}{more} "
            f"To do it: {self.action}_dlq_event with this token and a reason."
        )

    @property
    def refused_count(self) -> str:
        """How many were refused, in words."""
        return several(len(self.refused), "event")
