"""The course of one event in words: published, failed and replayed as often as it was, claimed, and how it ended.

A pure function of the row, its history and its audit entries. Executions between the first failure and the last of a
cycle leave no time of their own, nor does the last failure of a row that is not in the DLQ; their number and the last
error stand beside the first failure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from spectral.core.events.failure import FailureCycle
    from spectral.core.operations.audit import AuditEntry


@dataclass(frozen=True, slots=True)
class Moment:
    """What happened when, by whom, and what there is to say about it."""

    at: datetime
    what: str
    by: str | None = None
    detail: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """What the row itself says of its course.

    Of a failed row, `claimed_at` is when it failed, and `claimed_by` with whom. Of a pending one, `claimed_at` is from
    its last execution, and `claimed_by` is forgotten.
    """

    source: str
    context: str | None
    status: str
    attempts: int
    created_at: datetime
    next_attempt_at: datetime
    claimed_by: str | None
    claimed_at: datetime | None
    delivered_at: datetime | None
    first_failed_at: datetime | None
    last_error: str | None
    deleted_at: datetime | None

    @property
    def failures(self) -> int:
        """Executions of this cycle that failed. What is given back is not counted, so all but one under way or well."""
        if self.last_error is None:
            return 0
        return self.attempts - (self.status in {"in_flight", "delivered"})

    @property
    def failed_execution(self) -> int | None:
        """Which execution ended in the last error; none if that is not known, or if it was none of them."""
        # Nobody had claimed what went to the DLQ because nobody handles it.
        unclaimed = self.status in _DEAD and self.claimed_by is None
        return None if unclaimed or self.failures < 1 else self.failures


_DEAD = frozenset({"failed", "discarded"})
_TOLD_BY_AUDIT = {"discard": "discarded", "undo_discard": "brought back", "hand_over": "handed over"}


def timeline(course: Course, cycles: Sequence[FailureCycle], audit: Sequence[AuditEntry]) -> tuple[Moment, ...]:
    """Everything that is known of its course, in order."""
    moments = [
        Moment(course.created_at, "published", course.source),
        *_earlier(cycles, audit),
        *_current(course),
        *_of_audit(course, audit),
    ]
    return tuple(sorted(moments, key=lambda moment: moment.at))


def _earlier(cycles: Sequence[FailureCycle], audit: Sequence[AuditEntry]) -> Iterator[Moment]:
    replays = sorted((entry for entry in audit if entry.action == "replay"), key=lambda entry: entry.id)
    for cycle in cycles:
        failed_at = cycle.failed_at or cycle.first_failed_at
        if failed_at is not None:
            yield _failure(failed_at, cycle.first_failed_at, cycle.attempts, cycle.last_error)
        # The entry is written right after the moment that the history keeps.
        entry = next((each for each in replays if each.recorded_at >= cycle.replayed_at), None)
        yield Moment(
            cycle.replayed_at, f"replayed (cycle {cycle.cycle})", cycle.replayed_by, entry.reason if entry else None
        )


def _current(course: Course) -> Iterator[Moment]:
    if course.status in _DEAD:
        failed_at = course.claimed_at or course.first_failed_at
        if failed_at is not None:
            told = _failure(failed_at, course.first_failed_at, course.attempts, course.last_error)
            yield replace(told, by=course.claimed_by)
        return
    if course.first_failed_at is not None:
        yield Moment(course.first_failed_at, "first failure", None, _failures(course))
    if course.claimed_at is not None:
        yield Moment(course.claimed_at, "claimed", course.claimed_by, f"execution {course.attempts}")
    if course.status == "pending":
        # Publishers in SQL take the two times one after the other, and a row is not due before it is there.
        yield Moment(max(course.next_attempt_at, course.created_at), "due")
    if course.delivered_at is not None:
        yield Moment(course.delivered_at, "delivered" if course.context is not None else "split for its contexts")


def _failures(course: Course) -> str | None:
    """What is known of the failures before the last execution, or up to it; the row keeps the last error only."""
    if course.failures > 1:
        return f"of {course.failures} executions that failed, the last with {course.last_error}"
    return course.last_error if course.failures < 1 else f"execution 1: {course.last_error}"


def _failure(at: datetime, first: datetime | None, attempts: int, error: str | None) -> Moment:
    since = f", failing since {_exactly(first)}" if first is not None and first < at else ""
    executions = "1 execution" if attempts == 1 else f"{attempts} executions"
    return Moment(at, "failed", None, f"after {executions}{since}: {error}")


def _exactly(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03}"


def _of_audit(course: Course, audit: Sequence[AuditEntry]) -> Iterator[Moment]:
    told = [entry for entry in audit if entry.action in _TOLD_BY_AUDIT]
    for entry in told:
        into = f"to generation {entry.detail.get('generation')}" if entry.action == "hand_over" else None
        detail = ": ".join(part for part in (into, entry.reason) if part) or None
        yield Moment(entry.recorded_at, _TOLD_BY_AUDIT[entry.action], entry.actor, detail)
    if course.deleted_at is None:
        return
    if course.status == "delivered":
        yield Moment(course.deleted_at, "put away by the sweep")
    elif not any(entry.action == "discard" for entry in told):
        yield Moment(course.deleted_at, "discarded")
