"""The course of an event in words, and what a tail makes of two looks at it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from spectral.core.events.failure import FailureCycle
from spectral.core.operations.audit import AuditEntry
from spectral.core.operations.events_filter import EventStatus
from spectral.core.operations.tail_changes import MAX_KNOWN, MAX_WATCHED, Sight, TailMemory, what_changed
from spectral.core.operations.timeline import Course, timeline
from spectral_ops.cli.events import Status

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


# the course of an event


def course(**changes: Any) -> Course:  # noqa: ANN401  the fields of a course
    fields: dict[str, Any] = {
        "source": "worlds",
        "context": "platform",
        "status": "pending",
        "attempts": 0,
        "created_at": NOON,
        "next_attempt_at": NOON,
        "claimed_by": None,
        "claimed_at": None,
        "delivered_at": None,
        "first_failed_at": None,
        "last_error": None,
        "deleted_at": None,
    }
    return Course(**{**fields, **changes})


def cycle(number: int, failed: float, replayed: float) -> FailureCycle:
    return FailureCycle(
        cycle=number,
        attempts=6,
        last_error="ValueError: no",
        first_failed_at=after(failed - 1),
        failed_at=after(failed),
        replayed_at=after(replayed),
        replayed_by="ada",
    )


def entry(number: int, action: str, seconds: float, reason: str | None = None, **detail: object) -> AuditEntry:
    return AuditEntry(
        id=number,
        recorded_at=after(seconds),
        action=action,
        actor="ada",
        session_role="ada",
        reason=reason,
        affected=1,
        event_ids=(),
        detail=detail,
    )


def test_the_course_of_an_event_that_failed_twice_and_was_delivered() -> None:
    told = timeline(
        course(status="delivered", attempts=1, claimed_by="w", claimed_at=after(50), delivered_at=after(51)),
        [cycle(1, 10, 20), cycle(2, 30, 40)],
        [entry(2, "replay", 40.1, "again"), entry(1, "replay", 20.1, "fixed")],
    )
    assert [(each.what, each.by, each.detail) for each in told] == [
        ("published", "worlds", None),
        ("failed", None, "after 6 executions, failing since 2026-01-31 12:00:09.000: ValueError: no"),
        ("replayed (cycle 1)", "ada", "fixed"),
        ("failed", None, "after 6 executions, failing since 2026-01-31 12:00:29.000: ValueError: no"),
        ("replayed (cycle 2)", "ada", "again"),
        ("claimed", "w", "execution 1"),
        ("delivered", None, None),
    ]
    assert [each.at for each in told] == sorted(each.at for each in told)


def test_the_course_of_a_discarded_event_says_who_and_why_or_at_least_that_it_was() -> None:
    failed = course(
        status="discarded",
        attempts=1,
        claimed_at=after(1),
        first_failed_at=after(1),
        last_error="ValueError: no",
        deleted_at=after(5),
    )
    audit = [entry(3, "discard", 5, "stale"), entry(2, "undo_discard", 4), entry(1, "discard", 3, "oh")]
    assert [(each.what, each.detail) for each in timeline(failed, [], audit)] == [
        ("published", None),
        ("failed", "after 1 execution: ValueError: no"),
        ("discarded", "oh"),
        ("brought back", None),
        ("discarded", "stale"),
    ]
    assert [each.what for each in timeline(failed, [], [])][-1] == "discarded"


def test_the_course_of_what_waits_ends_with_when_it_is_due() -> None:
    waiting = course(
        attempts=2,
        claimed_at=after(20),
        first_failed_at=after(3),
        last_error="TimeoutError: slow",
        next_attempt_at=after(60),
    )
    handed = entry(1, "hand_over", 30, "its workers are gone", generation=2)
    assert [(each.what, each.detail) for each in timeline(waiting, [], [handed])] == [
        ("published", None),
        ("first failure", "of 2 executions that failed, the last with TimeoutError: slow"),
        ("claimed", "execution 2"),
        ("handed over", "to generation 2: its workers are gone"),
        ("due", None),
    ]


FAILED_ONCE = {"attempts": 2, "first_failed_at": after(1), "last_error": "WorkerLostError: worker v is gone"}


@pytest.mark.parametrize(
    ("came_to", "last"),
    [
        ({"status": "delivered", "delivered_at": after(3)}, ["claimed", "delivered"]),
        ({"status": "in_flight"}, ["claimed"]),
    ],
)
def test_what_was_made_good_later_is_a_part_of_the_course_too(came_to: dict[str, Any], last: list[str]) -> None:
    now = course(**FAILED_ONCE, claimed_by="w", claimed_at=after(2), **came_to)
    published, failure, claimed, *_ = told = timeline(now, [], [])
    assert (published.what, failure.what, failure.at, failure.by) == ("published", "first failure", after(1), None)
    assert failure.detail == "execution 1: WorkerLostError: worker v is gone"
    assert (claimed.by, claimed.detail) == ("w", "execution 2")
    assert [each.what for each in told[2:]] == last
    assert (now.failures, now.failed_execution) == (1, 1)


def test_of_several_failures_before_it_was_delivered_the_number_and_the_last_error_are_known() -> None:
    now = course(**FAILED_ONCE | {"attempts": 4}, status="delivered", claimed_at=after(9), delivered_at=after(9))
    assert [(each.what, each.at, each.detail) for each in timeline(now, [], [])][1:3] == [
        ("first failure", after(1), "of 3 executions that failed, the last with WorkerLostError: worker v is gone"),
        ("claimed", after(9), "execution 4"),
    ]
    assert now.failed_execution == 3


@pytest.mark.parametrize(
    ("claimed_by", "execution"), [("w", 2), pytest.param(None, None, id="failed because nobody handles it")]
)
def test_a_dead_letter_says_with_which_worker_it_failed(claimed_by: str | None, execution: int | None) -> None:
    dead = course(**FAILED_ONCE, status="failed", claimed_by=claimed_by, claimed_at=after(5))
    failed = timeline(dead, [], [])[-1]
    assert (failed.what, failed.at, failed.by, dead.failed_execution) == ("failed", after(5), claimed_by, execution)
    assert failed.detail == (
        "after 2 executions, failing since 2026-01-31 12:00:01.000: WorkerLostError: worker v is gone"
    )


def test_nothing_is_due_before_it_is_published() -> None:
    earlier = course(next_attempt_at=NOON - timedelta(microseconds=1))
    assert [(each.what, each.at) for each in timeline(earlier, [], [])] == [("published", NOON), ("due", NOON)]


def test_the_course_of_a_broadcast_ends_with_its_shares_and_the_sweep() -> None:
    split = course(context=None, status="delivered", delivered_at=after(1), deleted_at=after(2))
    assert [each.what for each in timeline(split, [], [])] == [
        "published",
        "split for its contexts",
        "put away by the sweep",
    ]


def test_the_command_line_knows_the_states_that_there_are() -> None:
    assert [each.value for each in Status] == [each.value for each in EventStatus]


# what a tail saw


def sight(**changes: Any) -> Sight:  # noqa: ANN401  the fields of a sight
    fields: dict[str, Any] = {
        "id": uuid4(),
        "event_type": "worlds.scan.completed",
        "context": "platform",
        "generation": 1,
        "status": "pending",
        "attempts": 0,
        "replays": 0,
        "error": None,
        "created_at": NOON,
    }
    return Sight(**{**fields, **changes})


@pytest.mark.parametrize(
    ("before", "now", "what"),
    [
        (None, {}, "published"),
        (None, {"status": "delivered", "attempts": 1}, "delivered"),
        (None, {"replays": 1}, "pending"),
        ({}, {}, None),
        ({}, {"status": "in_flight", "attempts": 1}, "claimed"),
        ({"status": "in_flight", "attempts": 1}, {"status": "in_flight", "attempts": 2}, "claimed"),
        ({"status": "in_flight", "attempts": 1}, {"attempts": 1, "error": "E: no"}, "to be retried"),
        ({"status": "in_flight", "attempts": 1}, {"attempts": 0}, "given back"),
        ({"status": "in_flight", "attempts": 1}, {"status": "failed", "attempts": 1}, "failed"),
        ({"status": "failed"}, {"replays": 1}, "replayed"),
        ({"status": "failed"}, {"status": "delivered", "replays": 1}, "delivered"),
        ({"status": "failed"}, {"status": "discarded"}, "discarded"),
        ({"status": "discarded"}, {"status": "failed"}, "brought back"),
        ({}, {"generation": 2}, "handed over"),
    ],
)
def test_a_change_is_told_in_a_word(before: dict[str, Any] | None, now: dict[str, Any], what: str | None) -> None:
    assert what_changed(None if before is None else sight(**before), sight(**now)) == what


def test_what_a_tail_remembers_is_bounded() -> None:
    memory = TailMemory()
    events = [sight() for _ in range(MAX_KNOWN + 10)]
    for event in events:
        assert memory.know(event.id)
        memory.watch(event)
    assert (len(memory.known), len(memory.watched)) == (MAX_KNOWN, MAX_WATCHED)
    assert events[-1].id in memory.watched
    assert not memory.know(events[-1].id)
