"""What changed about an event between two looks at it: a pure function of the two."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

MAX_WATCHED: Final = 2_000
"""Events whose course is followed; of more, the first ones are let go."""

MAX_KNOWN: Final = 20_000
"""Ids that are remembered as seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """An event as it was at one look."""

    id: UUID
    event_type: str
    context: str | None
    generation: int
    status: str
    attempts: int
    replays: int
    error: str | None
    created_at: datetime

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to come of it."""
        return self.status in {"delivered", "discarded"}


@dataclass(frozen=True, slots=True)
class Change:
    """What was seen at that moment, in a word, and the event as it is now."""

    at: datetime
    what: str
    event: Sight


@dataclass(frozen=True, slots=True)
class Missed:
    """There were more events at that moment than one look takes in; some are not shown."""

    at: datetime


@dataclass(slots=True)
class TailMemory:
    """What a tail has seen; with it, another tail goes on where one lost its connection. Bounded."""

    begun: bool = False
    known: dict[UUID, None] = field(default_factory=dict)
    watched: dict[UUID, Sight] = field(default_factory=dict)

    def know(self, event_id: UUID) -> bool:
        """Whether this one is new; from now on it is not."""
        if event_id in self.known:
            return False
        self.known[event_id] = None
        _trim(self.known, MAX_KNOWN)
        return True

    def watch(self, event: Sight) -> None:
        """Follow its course until it is over."""
        if event.is_over:
            self.watched.pop(event.id, None)
        else:
            self.watched[event.id] = event
            _trim(self.watched, MAX_WATCHED)


def _trim(entries: dict[UUID, None] | dict[UUID, Sight], limit: int) -> None:
    while len(entries) > limit:
        del entries[next(iter(entries))]


def what_changed(before: Sight | None, now: Sight) -> str | None:
    """The change in a word; none if there is none."""
    if before is None:
        return "published" if now.status == "pending" and not now.replays else now.status
    if _course(before) == _course(now):
        return None
    known = [
        (now.status == "pending" and now.replays > before.replays, "replayed"),
        (now.status == before.status == "pending" and now.generation != before.generation, "handed over"),
        (now.status == "pending" and now.error is not None, "to be retried"),
        (now.status == "pending", "given back"),
        (now.status == "failed" and before.status == "discarded", "brought back"),
        (now.status == "in_flight", "claimed"),
    ]
    return next((what for holds, what in known if holds), now.status)


def _course(event: Sight) -> tuple[str, int, int, int]:
    return event.status, event.attempts, event.replays, event.generation
