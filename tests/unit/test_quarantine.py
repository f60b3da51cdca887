"""Who waits for a row that must run alone, and for how long: without a database, and in no time.

The loop's clock is the stage's: to sleep is to set it forward, and takes nothing.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import cast

import pytest

from spectral.core.events import WorkerSettings
from spectral.core.events.delivery.desk import Desk, LoggerFor
from spectral.core.events.delivery.quarantine import Quarantine
from spectral.core.events.failure import SubstrateLostError
from spectral.core.events.lease import Delivery
from spectral.core.events.outcome import Released
from spectral.core.events.ports import Claims
from spectral.core.events.probe import NoteTaker
from spectral.core.events.routes import Line, Routes
from tests.unit.claim_stage import clock, play
from tests.unit.test_routes import COMPLETED, delivery

LINE = Line("platform", (COMPLETED,), ("platform.project",), transactional=False)
BESIDE = timedelta(seconds=5)
WITH_IT = timedelta(seconds=37.5)
UNTIL_RUN = timedelta(0)


class Door:
    """To the quarantine of a context."""

    def __init__(self) -> None:
        self.is_free = True
        self.is_lost = False
        self.is_shut = False
        self.asked: list[str] = []

    async def enter_quarantine(self, context: str) -> bool:
        self.asked.append(context)
        if self.is_lost:
            raise SubstrateLostError("gone")
        if self.is_shut:
            raise asyncio.CancelledError
        return self.is_free


class Ward:
    """A quarantine of a worker that holds a row which takes its time."""

    def __init__(self) -> None:
        self.door = Door()
        self.desk = Desk(WorkerSettings(generation=1), Routes([LINE], {}), NoteTaker(), cast("LoggerFor", None), float)
        self.quarantine = Quarantine(cast("Claims", self.door), self.desk)
        self.long = delivery()
        self.desk.hold([self.long], LINE)

    async def meet(self, *dangerous: Delivery) -> tuple[list[timedelta], list[Delivery]]:
        """For how long each that is given back is nobody's, and those that have to run all the same."""
        self.desk.hold(dangerous, LINE)
        overdue = await self.quarantine.put_off([(LINE, each) for each in dangerous])
        given: list[timedelta] = []
        while self.desk.to_settle:
            for conclusion in await self.desk.to_settle.take():
                assert isinstance(conclusion.outcome, Released)
                given.append(conclusion.outcome.delay)
                self.desk.forget(conclusion.delivery)
        return given, [each for _, each in overdue]


def pill() -> Delivery:
    return delivery(attempts=3, suspect=True)


def test_it_is_offered_to_others_for_a_moment() -> None:
    async def scene() -> None:
        ward = Ward()
        assert await ward.meet(pill()) == ([UNTIL_RUN], [])
        assert (ward.quarantine.offered, ward.quarantine.aside, ward.door.asked) == (LINE, None, [])
        assert not ward.quarantine.may_begin()
        await asyncio.sleep(0.5)
        assert ward.quarantine.may_begin()

    play(scene)


def test_it_is_waited_with_until_nothing_is_held_or_for_half_a_minute() -> None:
    async def scene() -> None:
        ward, row = Ward(), pill()
        await ward.meet(row)
        await asyncio.sleep(0.5)
        assert await ward.meet(row) == ([WITH_IT], [])
        assert (ward.quarantine.offered, ward.quarantine.aside, ward.door.asked) == (None, (LINE, row), ["platform"])
        await asyncio.sleep(29)
        assert not ward.quarantine.may_begin()
        ward.desk.forget(ward.long)
        assert ward.quarantine.may_begin()
        ward.desk.hold([ward.long], LINE)
        await asyncio.sleep(1)
        assert ward.quarantine.may_begin()
        assert ward.quarantine.begin() == (LINE, row)
        assert ward.quarantine.begin() is None
        assert not ward.quarantine.is_waiting

    play(scene)


def test_while_another_one_waits_it_is_put_off_and_nothing_stands_still() -> None:
    async def scene() -> None:
        ward, row, other = Ward(), pill(), pill()
        ward.door.is_free = False
        await ward.meet(row)
        ward.quarantine.offered = None  # as whoever claims does
        await asyncio.sleep(0.5)
        assert await ward.meet(row) == ([BESIDE], [])
        assert not ward.quarantine.is_waiting
        assert await ward.meet(other) == ([BESIDE], []), "it is known that another one waits: it need not be offered"
        assert not ward.quarantine.is_waiting

    play(scene)


def test_of_several_it_waits_with_one() -> None:
    async def scene() -> None:
        ward, row, other = Ward(), pill(), pill()
        assert await ward.meet(row, other) == ([UNTIL_RUN, UNTIL_RUN], [])
        await asyncio.sleep(0.5)
        assert await ward.meet(row, other) == ([WITH_IT, BESIDE], [])
        assert ward.quarantine.aside == (LINE, row)

    play(scene)


def test_a_new_one_does_not_cut_short_the_wait_with_another() -> None:
    async def scene() -> None:
        ward, row, new = Ward(), pill(), pill()
        await ward.meet(row)
        await asyncio.sleep(0.5)
        assert await ward.meet(row, new) == ([WITH_IT, BESIDE], [])
        assert (ward.quarantine.offered, ward.quarantine.aside) == (None, (LINE, row))
        await asyncio.sleep(29)
        assert not ward.quarantine.may_begin()

    play(scene)


def test_what_nobody_meets_does_not_wait_for_its_turn() -> None:
    """As while the brake is pulled, perhaps because of this one."""

    async def scene() -> None:
        ward, row = Ward(), pill()
        await ward.meet(row)
        await asyncio.sleep(600)
        assert await ward.meet(row) == ([WITH_IT], [])

    play(scene)


def test_who_is_stopped_at_the_door_gives_back_everything() -> None:
    async def scene() -> None:
        ward, overdue, row, behind = Ward(), pill(), pill(), pill()
        ward.door.is_free = False
        for _ in range(25):
            await ward.meet(overdue)
            await asyncio.sleep(5)
        await ward.meet(row)
        ward.desk.hold([overdue, row, behind], LINE)
        ward.door.is_shut = True
        with pytest.raises(asyncio.CancelledError):
            await ward.quarantine.put_off([(LINE, each) for each in (overdue, row, behind)])
        given = await ward.desk.to_settle.take()
        assert [each.delivery for each in given] == [overdue, row, behind]
        assert {each.outcome for each in given} == {Released()}

    play(scene)


def test_without_a_database_nobody_waits() -> None:
    async def scene() -> None:
        ward, row = Ward(), pill()
        await ward.meet(row)
        await asyncio.sleep(0.5)
        ward.door.is_lost = True
        assert await ward.meet(row) == ([BESIDE], [])

    play(scene)


def test_it_does_not_wait_for_its_turn_for_ever() -> None:
    async def scene() -> None:
        ward, row = Ward(), pill()
        ward.door.is_free = False
        await ward.meet(row)
        while clock() < 120:
            assert (await ward.meet(row))[1] == []
            await asyncio.sleep(5)
        assert await ward.meet(row) == ([], [row])
        # Once it has run and is lost again, all begins anew.
        assert (await ward.meet(row._replace(attempts=4)))[1] == []

    play(scene)


def test_what_was_met_long_ago_is_forgotten() -> None:
    async def scene() -> None:
        ward = Ward()
        for _ in range(1_500):
            await ward.meet(pill())
        assert len(ward.quarantine._met) == 1_000

    play(scene)
