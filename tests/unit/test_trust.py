"""Who may do without a savepoint: who has done well for a while, and until he does not."""

from __future__ import annotations

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
