"""The course of one event in words: published, failed and replayed as often as it was, claimed, and how it ended.

A pure function of the row, its history and its audit entries. Executions between the first failure and the last of a
cycle leave no time of their own; their number stands beside the failure.
"""

from __future__ import annotations

from dataclasses import dataclass
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
    """What the row itself says of its course. Of a failed row, `claimed_at` is when it failed."""

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
    match course.status:
        case "failed" | "discarded":
            failed_at = course.claimed_at or course.first_failed_at
            if failed_at is not None:
                yield _failure(failed_at, course.first_failed_at, course.attempts, course.last_error)
            return
        case "pending":
            if course.first_failed_at is not None:
                yield Moment(course.first_failed_at, "first failure", course.claimed_by, course.last_error)
            yield Moment(course.next_attempt_at, "due")
            return
        case _:
            pass
    if course.claimed_at is not None:
        yield Moment(course.claimed_at, "claimed", course.claimed_by, f"execution {course.attempts}")
    if course.delivered_at is not None:
        yield Moment(course.delivered_at, "delivered" if course.context is not None else "split for its contexts")


def _failure(at: datetime, first: datetime | None, attempts: int, error: str | None) -> Moment:
    since = f", failing since {first:%Y-%m-%d %H:%M:%S}" if first is not None and first < at else ""
    executions = "1 execution" if attempts == 1 else f"{attempts} executions"
    return Moment(at, "failed", None, f"after {executions}{since}: {error}")


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
