"""Retention without a database: which policies go together, what may be set, and when a sweep is late."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spectral.core.events.failure import ConfigurationError
from spectral.core.retention import (
    POLICY_REGISTRY,
    RetentionPolicy,
    Subject,
    SweepOptions,
    SweepState,
    checked_registry,
    due_in,
    in_words,
    overdue,
    policies_from,
    policy_for,
    registry_of,
)
from spectral.core.retention.sweep import ranges

DAY = timedelta(days=1)
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
days = st.integers(min_value=1, max_value=5000)


def policy(subject: Subject, active: float, grace: float = 7, **changes: Any) -> RetentionPolicy:  # noqa: ANN401  fields
    return RetentionPolicy(subject=subject, active=active * DAY, grace=grace * DAY, **changes)


def state(*, completed: timedelta | None = None, oldest: timedelta | None = None) -> SweepState:
    """As it is when the last complete sweep, and the oldest delivery in sight, are this long ago."""
    return SweepState(
        now=NOW,
        sweeping=None,
        last=None,
        completed_at=None if completed is None else NOW - completed,
        oldest_delivered_at=None if oldest is None else NOW - oldest,
    )


# which policies go together


@given(outbox=days, grace=days, handled=days)
def test_a_registry_is_refused_exactly_if_a_record_might_not_outlive_its_event(
    outbox: int, grace: int, handled: int
) -> None:
    policies = policy(Subject.OUTBOX_ROW, outbox, grace), policy(Subject.EVENT_HANDLED, handled)
    if handled > outbox + grace:
        assert policy_for(registry_of(*policies), Subject.EVENT_HANDLED).active == handled * DAY
    else:
        with pytest.raises(
            ConfigurationError, match=rf"set event_handled\.active to {outbox + grace + 1} days or more"
        ):
            registry_of(*policies)


def test_equal_is_not_longer() -> None:
    with pytest.raises(ConfigurationError, match="would not outlive"):
        registry_of(policy(Subject.EVENT_HANDLED, 52))
    registry_of(policy(Subject.EVENT_HANDLED, 52.001))


def test_what_is_not_given_is_kept_as_usual() -> None:
    changed = registry_of(policy(Subject.OUTBOX_ROW, 10))
    assert policy_for(changed, Subject.OUTBOX_ROW).active == 10 * DAY
    assert policy_for(changed, Subject.EVENT_HANDLED) == policy_for(POLICY_REGISTRY, Subject.EVENT_HANDLED)


def test_records_of_events_that_stay_for_ever_stay_for_ever() -> None:
    forever = policy(Subject.OUTBOX_ROW, 45, hard_delete=False)
    with pytest.raises(ConfigurationError, match="set hard_delete=False for event_handled too"):
        registry_of(forever)
    registry_of(forever, policy(Subject.EVENT_HANDLED, 60, hard_delete=False))


def test_a_registry_that_lacks_a_policy_is_refused() -> None:
    outbox = policy(Subject.OUTBOX_ROW, 45)
    with pytest.raises(ConfigurationError, match="no policy for event_handled"):
        checked_registry({outbox.key: outbox})


def test_a_policy_under_another_key_is_refused() -> None:
    outbox = policy(Subject.OUTBOX_ROW, 45)
    with pytest.raises(ConfigurationError, match=r"stands under \(event_handled, '\*'\)"):
        checked_registry({**POLICY_REGISTRY, (Subject.EVENT_HANDLED, "*"): outbox})


def test_a_policy_that_no_sweep_would_follow_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="knows no content classes"):
        registry_of(policy(Subject.OUTBOX_ROW, 3, content_class="agent_task"))


def test_the_registry_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        POLICY_REGISTRY[Subject.OUTBOX_ROW, "*"] = policy(Subject.OUTBOX_ROW, 1)  # type: ignore[index]


@pytest.mark.parametrize("wrong", [-1 * DAY, 36_501 * DAY, 45, None])
@pytest.mark.parametrize("name", ["active", "grace"])
def test_times_that_make_no_sense_are_refused(name: str, wrong: object) -> None:
    times: dict[str, Any] = {"active": 45 * DAY, "grace": 7 * DAY, name: wrong}
    with pytest.raises(ConfigurationError, match=f"outbox_row: {name} must be a timedelta"):
        RetentionPolicy(subject=Subject.OUTBOX_ROW, **times)


def test_without_an_active_time_an_event_would_be_swept_as_it_is_delivered() -> None:
    with pytest.raises(ConfigurationError, match="active must be longer than nothing"):
        policy(Subject.OUTBOX_ROW, 0)


# what may be set from outside


def test_days_are_read_from_the_environment() -> None:
    policies = policies_from(
        {
            "SPECTRAL_RETENTION_OUTBOX_DAYS": " 90 ",
            "SPECTRAL_RETENTION_OUTBOX_GRACE_DAYS": "0",
            "SPECTRAL_RETENTION_HANDLED_DAYS": "100",
        }
    )
    outbox, handled = policy_for(policies, Subject.OUTBOX_ROW), policy_for(policies, Subject.EVENT_HANDLED)
    assert (outbox.active, outbox.grace, handled.active, handled.grace) == (90 * DAY, 0 * DAY, 100 * DAY, 7 * DAY)


@pytest.mark.parametrize("wrong", ["0", "-1", "1.5", "ten", "36501", "9" * 5000, "\u0663", "1e3"])
def test_what_is_no_number_of_days_is_refused(wrong: str) -> None:
    with pytest.raises(ConfigurationError, match=r"such as SPECTRAL_RETENTION_HANDLED_DAYS=60") as refusal:
        policies_from({"SPECTRAL_RETENTION_HANDLED_DAYS": wrong})
    assert len(str(refusal.value)) < 300


def test_a_refusal_of_the_whole_names_the_variables() -> None:
    with pytest.raises(ConfigurationError, match=r"68 days or more.*SPECTRAL_RETENTION_HANDLED_DAYS"):
        policies_from({"SPECTRAL_RETENTION_OUTBOX_DAYS": "60"})


@pytest.mark.parametrize(
    "wrong",
    [
        {"batch": 0},
        {"batch": True},
        {"blocks": 0},
        {"blocks": 1_000_001},
        {"lease": timedelta(0)},
        {"by": ""},
        {"by": "x" * 151},
        {"by": "a\0b"},
    ],
)
def test_options_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=f"{next(iter(wrong))} must be"):
        SweepOptions(**wrong)


# the walk


@given(blocks=st.integers(0, 5000), at_once=st.integers(1, 6000))
def test_ranges_cover_every_block_once_in_order(blocks: int, at_once: int) -> None:
    found = list(ranges(blocks, at_once))
    assert [block for begin, end in found for block in range(begin, end)] == list(range(blocks))
    assert all(0 < end - begin <= at_once for begin, end in found)


# when it is late


def test_a_sweep_within_two_days_is_in_time() -> None:
    assert not overdue(state(completed=2 * DAY)).overdue


def test_no_complete_sweep_for_more_than_two_days_is_overdue() -> None:
    late = overdue(state(completed=3 * DAY))
    assert (late.overdue, late.because) == (True, "the last complete sweep ended 3 days ago")


def test_a_system_too_young_to_be_swept_is_not_late() -> None:
    assert not overdue(state()).overdue
    assert not overdue(state(oldest=45 * DAY)).overdue
    assert not overdue(state(oldest=47 * DAY)).overdue


def test_a_system_that_was_never_swept_is_late_when_its_events_are() -> None:
    late = overdue(state(oldest=48 * DAY))
    assert (late.overdue, late.because) == (True, "no sweep has come to its end yet, and one was due 3 days ago")


def test_lateness_follows_the_policies_and_the_patience_given() -> None:
    short = registry_of(policy(Subject.OUTBOX_ROW, 10))
    assert overdue(state(oldest=13 * DAY), short).overdue
    assert not overdue(state(completed=3 * DAY), after=4 * DAY).overdue


def test_a_clock_that_was_set_back_makes_nothing_late() -> None:
    ahead = state(completed=-5 * DAY)
    assert not overdue(ahead).overdue
    assert due_in(ahead, DAY) == DAY


def test_the_next_sweep_is_due_a_period_after_the_last_whoever_did_it() -> None:
    assert due_in(state(), DAY) == timedelta(0)
    assert due_in(state(completed=DAY / 4), DAY) == DAY * 3 / 4
    assert due_in(state(completed=2 * DAY), DAY) == timedelta(0)


@pytest.mark.parametrize(
    ("span", "words"),
    [
        (timedelta(seconds=-5), "less than a minute"),
        (timedelta(seconds=59), "less than a minute"),
        (timedelta(seconds=61), "1 minute"),
        (timedelta(hours=5, minutes=59), "5 hours"),
        (timedelta(days=2, hours=23), "2 days"),
    ],
)
def test_spans_are_told_in_their_largest_unit(span: timedelta, words: str) -> None:
    assert in_words(span) == words
