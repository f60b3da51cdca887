"""Pauses double up to the cap, and start anew after a success."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from spectral.core.events.delivery.backoff import Backoff


def seconds(*numbers: float) -> list[timedelta]:
    return [timedelta(seconds=number) for number in numbers]


def test_each_pause_is_twice_the_one_before_up_to_the_cap() -> None:
    first, cap = seconds(1, 30)
    backoff = Backoff(first, cap)
    assert [backoff.next() for _ in range(8)] == seconds(1, 2, 4, 8, 16, 30, 30, 30)


def test_after_a_success_it_starts_anew() -> None:
    first, cap = seconds(1, 30)
    backoff = Backoff(first, cap)
    backoff.next()
    backoff.next()
    backoff.reset()
    assert backoff.next() == first


def test_a_cap_below_the_first_pause_holds_from_the_start() -> None:
    first, cap = seconds(5, 2)
    assert Backoff(first, cap).next() == cap


@given(
    st.timedeltas(timedelta(microseconds=1), timedelta(days=3_650)),
    st.timedeltas(timedelta(microseconds=1), timedelta(days=3_650)),
    st.integers(1, 200),
)
def test_it_never_exceeds_the_cap_never_shrinks_and_never_overflows(
    first: timedelta, cap: timedelta, failures: int
) -> None:
    backoff = Backoff(first, cap)
    pauses = [backoff.next() for _ in range(failures)]
    assert pauses == sorted(pauses)
    assert max(pauses) <= cap
    assert pauses[0] == min(first, cap)
