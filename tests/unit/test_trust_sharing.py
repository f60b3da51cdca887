"""Trust: with whom the rows of a handler may share a transaction, after conflicts and after a while."""

from __future__ import annotations

import pytest

from spectral.core.events.delivery.trust import Apart, Sharing, Trust


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def trust(clock: Clock) -> Trust:
    return Trust(clock)


def conflict(trust: Trust, *, although_apart: bool = False) -> Apart | None:
    return trust.met_a_conflict("worlds.index", although_apart=although_apart)


def sharing(trust: Trust) -> Sharing:
    return trust.sharing("worlds.index")


def test_everybody_shares_freely_until_there_is_a_conflict(trust: Trust, clock: Clock) -> None:
    assert sharing(trust) is Sharing.FREELY
    assert conflict(trust) == (Sharing.ONE_GROUP, 60.0, clock.now + 60.0)
    assert sharing(trust) is Sharing.ONE_GROUP
    assert trust.sharing("worlds.other") is Sharing.FREELY
    clock.now += 60.0
    assert sharing(trust) is Sharing.FREELY


def test_groups_that_were_begun_before_change_nothing(trust: Trust) -> None:
    conflict(trust)
    assert conflict(trust) is None
    assert sharing(trust) is Sharing.ONE_GROUP


def test_at_first_others_may_not_know_that_there_is_only_one_group(trust: Trust, clock: Clock) -> None:
    conflict(trust)
    clock.now += 9.0
    assert conflict(trust, although_apart=True) is None
    assert sharing(trust) is Sharing.ONE_GROUP


def test_a_conflict_of_the_only_group_ends_all_sharing(trust: Trust, clock: Clock) -> None:
    conflict(trust)
    clock.now += 20.0
    assert conflict(trust, although_apart=True) == (Sharing.NOT_AT_ALL, 60.0, clock.now + 40.0)
    assert conflict(trust, although_apart=True) is None
    assert sharing(trust) is Sharing.NOT_AT_ALL
    clock.now += 40.0
    assert sharing(trust) is Sharing.FREELY


def test_who_meets_one_soon_again_waits_longer_but_not_for_ever(trust: Trust, clock: Clock) -> None:
    waited = []
    for _ in range(6):
        apart = conflict(trust)
        assert apart is not None
        waited.append(apart.seconds)
        clock.now = apart.until + 1.0
    assert waited == [60.0, 120.0, 240.0, 480.0, 600.0, 600.0]


def test_who_shared_well_for_as_long_as_it_had_waited_begins_anew(trust: Trust, clock: Clock) -> None:
    conflict(trust)
    clock.now += 61.0
    conflict(trust)
    clock.now += 120.0 + 120.0
    apart = conflict(trust)
    assert apart is not None
    assert apart.seconds == 60.0
