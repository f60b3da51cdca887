"""Whether the sweep is late: pure functions of what was read."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from spectral.core.retention.policy import POLICY_REGISTRY, Subject, policy_for

if TYPE_CHECKING:
    from spectral.core.retention.policy import Registry
    from spectral.core.retention.state import SweepState

OVERDUE_AFTER: Final = timedelta(days=2)
"""A daily sweep may fail once before anybody has to look."""

_MINUTE: Final = timedelta(minutes=1)
_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class Lateness:
    """The judgement, and why in words."""

    overdue: bool
    because: str


def overdue(state: SweepState, policies: Registry = POLICY_REGISTRY, *, after: timedelta = OVERDUE_AFTER) -> Lateness:
    """Whether a sweep should have come to its end by now.

    After the last complete one, when `after` is over. Where there was none yet, when an event is older than its active
    time by that much: a young system has nothing to sweep.
    """
    if state.completed_at is not None:
        age = state.now - state.completed_at
        return Lateness(age > after, f"the last complete sweep ended {in_words(age)} ago")
    active = policy_for(policies, Subject.OUTBOX_ROW).active
    oldest = state.oldest_delivered_at
    if oldest is None or state.now - oldest <= active:
        return Lateness(overdue=False, because="no sweep has come to its end yet, and nothing was due")
    late = state.now - oldest - active
    return Lateness(late > after, f"no sweep has come to its end yet, and one was due {in_words(late)} ago")


def due_in(state: SweepState, every: timedelta) -> timedelta:
    """How long to wait for the next of sweeps that come once in `every`, whoever does them."""
    if state.completed_at is None:
        return timedelta(0)
    # A clock that was set back must not put the next sweep off for longer than that.
    return min(max(state.completed_at + every - state.now, timedelta(0)), every)


def in_words(span: timedelta) -> str:
    """A span as people say it, in its largest unit."""
    for unit, name in ((_DAY, "day"), (_HOUR, "hour"), (_MINUTE, "minute")):
        count = span // unit
        if count >= 1:
            return f"{count} {name}{'s' if count > 1 else ''}"
    return "less than a minute"
