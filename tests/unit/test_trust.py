"""Who may do without a savepoint: who has done well for a while, and until he does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spectral.core.events.delivery.trust import ENOUGH, Trust

NAME = "billing.write_invoice"


def earned() -> Trust:
    trust = Trust()
    for _ in range(ENOUGH):
        trust.ran(NAME, plainly=True)
    return trust


def test_it_is_earned_by_doing_well_often_enough() -> None:
    trust = Trust()
    for _ in range(ENOUGH):
        assert not trust.has(NAME)
        trust.ran(NAME, plainly=True)
    assert trust.has(NAME)
    assert not trust.has("billing.other")


def test_a_failure_costs_all_of_it() -> None:
    trust = earned()
    trust.failed(NAME)
    for _ in range(ENOUGH):
        assert not trust.has(NAME)
        trust.ran(NAME, plainly=True)
    assert trust.has(NAME)


def test_who_ever_leaves_something_behind_never_has_it_again() -> None:
    trust = earned()
    trust.ran(NAME, plainly=False)
    trust.failed(NAME)
    for _ in range(2 * ENOUGH):
        trust.ran(NAME, plainly=True)
    assert not trust.has(NAME)


def brief() -> Trust:
    trust = Trust()
    for _ in range(ENOUGH):
        trust.ran(NAME, plainly=True, briefly=True)
    return trust


def test_who_was_brief_often_enough_may_run_beside_others() -> None:
    trust = Trust()
    for _ in range(ENOUGH):
        assert not trust.is_brief(NAME)
        trust.ran(NAME, plainly=True, briefly=True)
    assert trust.is_brief(NAME)
    assert not trust.is_brief("billing.other")


def test_who_was_not_brief_once_never_is_again_and_keeps_the_rest_of_his_trust() -> None:
    trust = brief()
    trust.ran(NAME, plainly=True, briefly=False)
    trust.took_long(NAME)
    trust.failed(NAME)
    for _ in range(2 * ENOUGH):
        trust.ran(NAME, plainly=True, briefly=True)
    assert not trust.is_brief(NAME)
    assert trust.has(NAME)


def test_who_strayed_never_runs_beside_others_again() -> None:
    trust = brief()
    trust.strayed(NAME)
    for _ in range(2 * ENOUGH):
        trust.ran(NAME, plainly=True, briefly=True)
    assert not trust.is_brief(NAME)
    assert trust.has(NAME)


@pytest.mark.parametrize("loses", [Trust.took_long, Trust.failed])
def test_who_takes_long_or_fails_has_to_show_anew_that_he_is_brief(loses: Callable[[Trust, str], None]) -> None:
    trust = brief()
    loses(trust, NAME)
    for _ in range(ENOUGH):
        assert not trust.is_brief(NAME)
        trust.ran(NAME, plainly=True, briefly=True)
    assert trust.is_brief(NAME)
