"""Outcomes are a closed sum of values that cannot change."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields, is_dataclass
from datetime import timedelta
from typing import assert_never, get_args

import pytest

from spectral.core.events.outcome import (
    AlreadyHandled,
    DeadLetter,
    Handled,
    Outcome,
    Released,
    Retry,
)

OUTCOMES: list[Outcome] = [
    Handled(),
    AlreadyHandled(),
    Retry(error="TimeoutError: too long", delay=timedelta(seconds=1)),
    DeadLetter(error="ValueError: no"),
    Released(),
]


def test_a_delivery_ends_in_one_of_five_ways() -> None:
    assert set(get_args(Outcome)) == {Handled, AlreadyHandled, Retry, DeadLetter, Released}


def word_for(outcome: Outcome) -> str:
    """Checked by mypy: a sixth outcome makes the last line a type error."""
    match outcome:
        case Handled():
            return "handled"
        case AlreadyHandled():
            return "already handled"
        case Retry(error, delay):
            return f"retry in {delay.total_seconds():g}: {error}"
        case DeadLetter(error):
            return f"dead letter: {error}"
        case Released():
            return "released"
        case _:
            assert_never(outcome)


def test_outcomes_can_be_told_apart_by_a_match() -> None:
    assert [word_for(outcome) for outcome in OUTCOMES] == [
        "handled",
        "already handled",
        "retry in 1: TimeoutError: too long",
        "dead letter: ValueError: no",
        "released",
    ]


def test_cases_without_data_are_equal_only_to_their_own_kind() -> None:
    handled: Outcome = Handled()
    assert [outcome == handled for outcome in OUTCOMES] == [True, False, False, False, False]


@pytest.mark.parametrize("value", OUTCOMES, ids=lambda value: type(value).__name__)
def test_an_outcome_has_no_room_for_more_than_its_fields(value: Outcome) -> None:
    assert is_dataclass(value)
    assert not hasattr(value, "__dict__")


@pytest.mark.parametrize(
    "value", [value for value in OUTCOMES if fields(value)], ids=lambda value: type(value).__name__
)
def test_an_outcome_cannot_be_changed(value: Outcome) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(value, fields(value)[0].name, "something else")
