"""When to try again: the bounds of the delay, for any policy."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, cast

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spectral.core.events.retry import DEFAULT_RETRY_POLICY, RetryPolicy

NOTHING = timedelta(0)
MICROSECOND = timedelta(microseconds=1)
DAY = timedelta(days=1)
CENTURY = timedelta(days=36_500)

randoms = st.floats(min_value=0, max_value=1)
retries = st.integers(min_value=1, max_value=10**6)
multipliers = st.floats(min_value=1, max_value=1e300)


@st.composite
def policies(draw: st.DrawFn, *, shortest: timedelta = NOTHING, longest: timedelta = CENTURY) -> RetryPolicy:
    base = draw(st.timedeltas(shortest, longest))
    return RetryPolicy(
        max_retries=draw(st.integers(0, 10**6)),
        base=base,
        multiplier=draw(multipliers),
        cap=draw(st.timedeltas(base, longest)),
    )


def test_the_default_is_five_retries_that_are_six_executions() -> None:
    assert (DEFAULT_RETRY_POLICY.max_retries, DEFAULT_RETRY_POLICY.max_attempts) == (5, 6)


def test_the_default_starts_at_one_second_doubles_and_is_capped_at_three_hundred() -> None:
    ceilings = [DEFAULT_RETRY_POLICY.ceiling(retry).total_seconds() for retry in range(1, 12)]
    assert ceilings == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


def test_the_default_adds_no_terminal_errors() -> None:
    assert DEFAULT_RETRY_POLICY.terminal_errors == ()


@given(policies(), retries, randoms)
@settings(deadline=None)
def test_a_delay_lies_between_nothing_and_its_ceiling(policy: RetryPolicy, retry: int, random: float) -> None:
    assert NOTHING <= policy.delay(retry, random) <= policy.ceiling(retry)


@given(policies(), retries)
@settings(deadline=None)
def test_a_ceiling_never_exceeds_the_cap(policy: RetryPolicy, retry: int) -> None:
    assert policy.ceiling(retry) <= policy.cap


@given(policies(), retries)
@settings(deadline=None)
def test_the_jitter_is_full_both_ends_can_be_drawn(policy: RetryPolicy, retry: int) -> None:
    assert (policy.delay(retry, 0.0), policy.delay(retry, 1.0)) == (NOTHING, policy.ceiling(retry))


@given(policies(), retries, randoms, randoms)
@settings(deadline=None)
def test_a_larger_random_number_never_gives_a_shorter_delay(
    policy: RetryPolicy, retry: int, one: float, other: float
) -> None:
    low, high = sorted((one, other))
    assert policy.delay(retry, low) <= policy.delay(retry, high)


@given(policies(), retries, retries)
@settings(deadline=None)
def test_a_later_retry_never_has_a_lower_ceiling(policy: RetryPolicy, one: int, other: int) -> None:
    earlier, later = sorted((one, other))
    assert policy.ceiling(earlier) <= policy.ceiling(later)


@given(policies())
@settings(deadline=None)
def test_the_first_ceiling_is_the_base(policy: RetryPolicy) -> None:
    assert abs(policy.ceiling(1) - policy.base) <= MICROSECOND


@given(base=st.timedeltas(MICROSECOND, DAY), cap=st.timedeltas(DAY, 2 * DAY), factor=st.integers(1, 9), retry=retries)
@settings(deadline=None)
def test_the_ceiling_grows_by_the_multiplier_until_the_cap(
    base: timedelta, cap: timedelta, factor: int, retry: int
) -> None:
    # In whole numbers, which are exact; 200 factors of two are far beyond any cap drawn here.
    microseconds = (base // MICROSECOND) * factor ** min(retry - 1, 200)
    expected = min(microseconds, cap // MICROSECOND) * MICROSECOND
    policy = RetryPolicy(base=base, multiplier=float(factor), cap=cap)
    assert abs(policy.ceiling(retry) - expected) <= MICROSECOND


@given(cap=st.timedeltas(timedelta(seconds=1), DAY))
@settings(deadline=None)
def test_an_overridden_cap_is_reached(cap: timedelta) -> None:
    # 2**17 seconds are more than a day.
    assert RetryPolicy(cap=cap).ceiling(18) == cap


def test_a_multiplier_of_one_keeps_every_ceiling_at_the_base() -> None:
    policy = RetryPolicy(base=timedelta(seconds=7), multiplier=1)
    assert {policy.ceiling(retry) for retry in (1, 2, 10, 10**6)} == {timedelta(seconds=7)}


@pytest.mark.parametrize("multiplier", [1.0, 1.0000001, 2.0, 1e9, 1e300])
def test_a_millionth_retry_does_not_overflow(multiplier: float) -> None:
    policy = RetryPolicy(multiplier=multiplier)
    assert policy.base <= policy.ceiling(10**6) <= policy.cap


def test_a_whole_number_as_multiplier_does_not_overflow() -> None:
    assert RetryPolicy(multiplier=2).ceiling(10**6) == timedelta(seconds=300)


@pytest.mark.parametrize(("multiplier", "retry"), [(2.0, 1024), (2.0, 1025), (2.0, 10**6), (1e300, 3)])
def test_a_base_of_nothing_retries_at_once_however_often(multiplier: float, retry: int) -> None:
    assert RetryPolicy(base=NOTHING, multiplier=multiplier).ceiling(retry) == NOTHING


@pytest.mark.parametrize("retry", [1, 2, 40, 47])
def test_the_longest_cap_there_is_means_no_cap(retry: int) -> None:
    assert RetryPolicy(cap=timedelta.max).ceiling(retry) == timedelta(seconds=2 ** (retry - 1))


@pytest.mark.parametrize("retry", [48, 50, 1024, 1025, 10**6])
def test_the_longest_cap_there_is_does_not_overflow(retry: int) -> None:
    assert RetryPolicy(cap=timedelta.max).ceiling(retry) > timedelta.max - timedelta(seconds=1)


@given(policy=policies(shortest=CENTURY, longest=timedelta.max), retry=retries)
@example(policy=RetryPolicy(base=timedelta.max, cap=timedelta.max), retry=1)
@settings(deadline=None)
def test_delays_of_centuries_stay_below_their_cap(policy: RetryPolicy, retry: int) -> None:
    assert policy.base - timedelta(seconds=1) <= policy.ceiling(retry) <= policy.cap


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_another_attempt_is_allowed_until_all_executions_are_used(max_retries: int, attempts: int) -> None:
    assert RetryPolicy(max_retries=max_retries).allows_another(attempts) == (attempts <= max_retries)


def test_the_default_policy_runs_a_failing_handler_six_times() -> None:
    attempts = 0
    while DEFAULT_RETRY_POLICY.allows_another(attempts):
        attempts += 1
    assert attempts == 6


def test_no_retries_means_one_execution() -> None:
    policy = RetryPolicy(max_retries=0)
    assert (policy.allows_another(0), policy.allows_another(1)) == (True, False)


@pytest.mark.parametrize("max_retries", [-1, -(10**9), 2**31 - 1, float("inf"), 2.0, True, "5", None])
def test_a_number_of_retries_that_nobody_can_count_is_refused(max_retries: object) -> None:
    with pytest.raises(ValueError, match="max_retries must be a whole number from 0 to 2147483646"):
        RetryPolicy(max_retries=cast("Any", max_retries))


@pytest.mark.parametrize("delays", [{"base": 1}, {"cap": 300.0}, {"base": None}])
def test_delays_that_are_numbers_are_refused(delays: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="base and cap must be timedeltas"):
        RetryPolicy(**delays)


@pytest.mark.parametrize(
    "errors", [("ValueError",), (ValueError()), (ValueError,)[0], [ValueError], (int,), "ValueError"]
)
def test_terminal_errors_that_are_no_types_of_errors_are_refused(errors: object) -> None:
    with pytest.raises(ValueError, match="terminal_errors must be a tuple of exception types"):
        RetryPolicy(terminal_errors=cast("Any", errors))


@pytest.mark.parametrize(
    ("base", "cap"),
    [(-MICROSECOND, DAY), (DAY, DAY - MICROSECOND), (-DAY, -DAY), (timedelta(seconds=1), NOTHING)],
)
def test_delays_out_of_order_are_refused(base: timedelta, cap: timedelta) -> None:
    with pytest.raises(ValueError, match="0 <= base <= cap"):
        RetryPolicy(base=base, cap=cap)


@pytest.mark.parametrize("multiplier", [0.999, 0.0, -2.0, float("inf"), float("-inf"), float("nan")])
def test_a_multiplier_that_shrinks_or_is_not_finite_is_refused(multiplier: float) -> None:
    with pytest.raises(ValueError, match="multiplier must be a finite number of at least 1"):
        RetryPolicy(multiplier=multiplier)


@pytest.mark.parametrize("retry", [0, -1])
def test_retries_count_from_one(retry: int) -> None:
    with pytest.raises(ValueError, match="retries count from 1"):
        DEFAULT_RETRY_POLICY.ceiling(retry)


@pytest.mark.parametrize("random", [-0.001, 1.001, float("nan"), float("inf")])
def test_a_random_number_outside_its_range_is_refused(random: float) -> None:
    with pytest.raises(ValueError, match="random must be between 0 and 1"):
        DEFAULT_RETRY_POLICY.delay(1, random)


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        DEFAULT_RETRY_POLICY.max_retries = 9  # type: ignore[misc]
