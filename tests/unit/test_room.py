"""How much a worker takes on: what it gets done in a moment, and a share for everybody."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import cast

import pytest

from spectral.core.events import WorkerSettings
from spectral.core.events.delivery import room as module
from spectral.core.events.delivery.desk import Desk, LoggerFor
from spectral.core.events.delivery.room import Room
from spectral.core.events.lease import Delivery
from spectral.core.events.probe import NoteTaker
from spectral.core.events.routes import Line, Routes
from tests.unit.test_routes import delivery

A, B, C, D = (f"worlds.scan.{name}" for name in ("alpha", "beta", "gamma", "delta"))


def line(*types: str, context: str = "platform", transactional: bool = False, room: int | None = None) -> Line:
    return Line(context, types or None, (f"{context}.handler",), transactional, room)


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=made.monotonic))
    return made


class Stage:
    """A desk with these lines, and its room: ten plain handlers at once, two lanes of five."""

    def __init__(self, *lines: Line, concurrency: int = 10, batch: int = 5) -> None:
        settings = WorkerSettings(generation=1, lanes=2, batch=batch, concurrency=concurrency)
        self.desk = Desk(settings, Routes(lines, {}), NoteTaker(), cast("LoggerFor", None), lambda: 0.5)
        self.room = Room(self.desk)
        self.lines = lines

    def hold(self, of: Line, count: int, event_type: str = A) -> list[Delivery]:
        held = [delivery(event_type) for _ in range(count)]
        self.desk.hold(held, of)
        return held

    def finish(self, deliveries: Iterable[Delivery]) -> None:
        for each in deliveries:
            self.desk.forget(each)

    def deal(self, *lines: Line) -> dict[int, int]:
        """By the number of the line."""
        dealt = self.room.deal(lines or self.lines)
        return {self.lines.index(each): limit for each, limit in dealt}

    def types(self, of: Line) -> tuple[str, ...] | None:
        return self.room.types_with_room(of)


# dealing


def test_a_plain_line_gets_twice_what_can_run() -> None:
    assert Stage(line(A)).deal() == {0: 20}


def test_a_line_of_lanes_gets_twice_what_lanes_take_on() -> None:
    assert Stage(line(A, transactional=True)).deal() == {0: 20}


def test_groups_larger_than_fifty_have_to_be_earned_by_pace(clock: Clock) -> None:
    stage = Stage(line(A, transactional=True), batch=300)
    assert stage.deal() == {0: 2 * 2 * 50}
    for _ in range(12):
        work(stage, clock, rows=625, seconds=0.125)
    assert 1_240 <= stage.deal()[0] <= 1_250  # what gets done in a quarter of a second


def test_the_two_ways_to_run_have_a_room_each() -> None:
    stage = Stage(line(A, transactional=True), line(B), concurrency=3)
    assert stage.deal() == {0: 20, 1: 6}
    stage.hold(stage.lines[0], 20)
    assert stage.deal() == {1: 6}


def test_lines_of_a_kind_share_its_room() -> None:
    stage = Stage(line(A), line(B, context="billing"), line(C, context="search"))
    dealt = stage.deal()
    assert sum(dealt.values()) == 20
    assert sorted(dealt.values()) == [6, 7, 7]


def test_what_is_held_takes_room() -> None:
    stage = Stage(line(A))
    stage.hold(stage.lines[0], 12)
    assert stage.deal() == {0: 8}


def test_no_claim_is_made_for_every_single_row_that_ends() -> None:
    stage = Stage(line(A))
    stage.hold(stage.lines[0], 16)
    assert stage.deal() == {}
    assert stage.room.refused == {id(stage.lines[0])}


def test_a_line_whose_handlers_have_a_limit_gets_that_many_and_takes_no_room_of_the_others() -> None:
    stage = Stage(line(A, room=2), line(B))
    assert stage.deal() == {0: 2, 1: 20}
    stage.hold(stage.lines[1], 20)
    assert stage.deal() == {0: 2}
    stage.hold(stage.lines[0], 2)
    assert stage.deal() == {}
    assert stage.room.refused == {id(each) for each in stage.lines}


def test_a_limit_of_one_is_asked_for_again_when_its_row_has_ended() -> None:
    stage = Stage(line(A, room=1))
    held = stage.hold(stage.lines[0], 1)
    assert stage.deal() == {}
    assert not stage.room.has_room()
    stage.finish(held)
    assert stage.room.has_room()
    assert stage.deal() == {0: 1}


def test_one_that_fills_the_room_does_not_take_the_share_of_another() -> None:
    stage = Stage(line(A), line(B, context="billing"))
    stage.hold(stage.lines[0], 20)
    assert stage.deal() == {1: 5}  # half of what would be its share if both were busy
    assert stage.room.refused == {id(stage.lines[0])}


def test_one_that_holds_its_share_of_a_full_room_has_to_wait_too() -> None:
    stage = Stage(line(A), line(B, context="billing"))
    stage.hold(stage.lines[0], 16)
    stage.hold(stage.lines[1], 4)
    assert stage.deal() == {}
    assert stage.room.refused == {id(each) for each in stage.lines}


def test_where_there_are_more_lines_than_places_they_take_turns() -> None:
    contexts = [line(A, context=f"context_{number}") for number in range(5)]
    stage = Stage(*contexts, concurrency=1)  # a room of two
    seen: list[int] = []
    for _ in range(5):
        dealt = stage.deal()
        assert list(dealt.values()) == [1, 1]
        seen += dealt
    assert {number: seen.count(number) for number in range(5)} == dict.fromkeys(range(5), 2)


def test_only_the_lines_that_are_asked_for_are_dealt_to() -> None:
    stage = Stage(line(A), line(B, context="billing"))
    assert stage.deal(stage.lines[1]) == {1: 20}


def test_every_deal_forgets_who_was_refused_before() -> None:
    stage = Stage(line(A))
    held = stage.hold(stage.lines[0], 20)
    stage.deal()
    assert stage.room.refused
    stage.finish(held)
    stage.deal()
    assert not stage.room.refused


# room where there was none


def test_there_is_room_again_when_a_handful_has_ended() -> None:
    stage = Stage(line(A))
    held = stage.hold(stage.lines[0], 20)
    stage.deal()
    stage.finish(held[:4])
    assert not stage.room.has_room()
    stage.finish(held[4:5])
    assert stage.room.has_room()


def test_nobody_waits_for_room_who_was_not_refused() -> None:
    stage = Stage(line(A))
    stage.hold(stage.lines[0], 1)
    stage.deal()
    assert not stage.room.has_room()


# types of one line


def test_a_line_of_every_type_asks_for_every_type() -> None:
    stage = Stage(line())
    stage.hold(stage.lines[0], 20)
    assert stage.types(stage.lines[0]) is None


def test_while_nothing_is_held_all_types_are_asked_for() -> None:
    stage = Stage(line(A, B))
    assert stage.types(stage.lines[0]) == (A, B)
    assert not stage.room.refused


def test_a_type_that_holds_half_of_the_room_is_left_out() -> None:
    stage = Stage(line(A, B, C))
    stage.hold(stage.lines[0], 9, A)
    assert stage.types(stage.lines[0]) == (A, B, C)
    stage.hold(stage.lines[0], 1, A)
    assert stage.types(stage.lines[0]) == (B, C)
    assert stage.room.refused == {id(stage.lines[0])}


def test_the_more_types_are_held_the_smaller_is_the_share_of_each() -> None:
    stage = Stage(line(A, B, C))
    stage.hold(stage.lines[0], 7, A)
    stage.hold(stage.lines[0], 1, B)
    assert stage.types(stage.lines[0]) == (B, C)  # a third of twenty, rounded down, is six


def test_all_types_are_asked_for_if_each_of_them_holds_its_share() -> None:
    stage = Stage(line(A, B))
    stage.hold(stage.lines[0], 8, A)
    stage.hold(stage.lines[0], 8, B)
    assert stage.types(stage.lines[0]) == (A, B)
    assert not stage.room.refused


def test_a_type_that_was_left_out_is_waited_for_until_half_of_its_share_has_ended() -> None:
    stage = Stage(line(A, B))
    held = stage.hold(stage.lines[0], 12, A)
    stage.deal()
    assert stage.types(stage.lines[0]) == (B,)  # a share is ten
    stage.finish(held[:6])
    assert not stage.room.has_room()
    stage.finish(held[6:7])
    assert stage.room.has_room()
    assert stage.types(stage.lines[0]) == (A, B)


def test_a_type_that_was_left_out_and_ended_altogether_wakes_too() -> None:
    stage = Stage(line(A, B))
    held = stage.hold(stage.lines[0], 12, A)
    stage.types(stage.lines[0])
    stage.finish(held)
    assert stage.room.has_room()


def test_a_share_is_never_nothing() -> None:
    stage = Stage(line(A, B, C, D), concurrency=1)  # a room of two
    stage.hold(stage.lines[0], 1, A)
    stage.hold(stage.lines[0], 1, B)
    assert stage.types(stage.lines[0]) == (C, D)


def test_types_of_a_line_with_a_room_of_its_own_share_that() -> None:
    stage = Stage(line(A, B, room=4))
    stage.hold(stage.lines[0], 2, A)
    assert stage.types(stage.lines[0]) == (B,)


def test_a_deal_forgets_the_types_that_were_left_out() -> None:
    stage = Stage(line(A, B))
    held = stage.hold(stage.lines[0], 12, A)
    stage.types(stage.lines[0])
    stage.deal()
    stage.finish(held)
    assert not stage.room.has_room()  # nobody was refused since


# by how much gets done


def work(stage: Stage, clock: Clock, *, rows: int, seconds: float) -> None:
    """So many rows are done in this time."""
    stage.finish(stage.hold(stage.lines[0], rows))
    clock.now += seconds
    stage.deal()


def test_a_quick_worker_takes_on_what_it_gets_done_in_a_moment(clock: Clock) -> None:
    stage = Stage(line(A))
    rooms = []
    for _ in range(12):
        work(stage, clock, rows=625, seconds=0.125)
        rooms.append(stage.deal()[0])
    assert rooms[0] == 260  # half way from twenty: a burst is not believed in at once
    assert rooms == sorted(rooms)
    assert 495 <= rooms[-1] <= 500


def test_nobody_takes_on_more_than_the_reaper_could_stand(clock: Clock) -> None:
    stage = Stage(line(A))
    for _ in range(20):
        work(stage, clock, rows=3_000, seconds=0.125)
    assert 1_990 <= stage.deal()[0] <= 2_000


def test_a_slow_worker_goes_back_to_what_can_run_and_as_many_again(clock: Clock) -> None:
    stage = Stage(line(A))
    for _ in range(12):
        work(stage, clock, rows=625, seconds=0.125)
    rooms = []
    for _ in range(12):
        work(stage, clock, rows=1, seconds=0.125)
        rooms.append(stage.deal()[0])
    assert 240 <= rooms[0] <= 260  # half way: a pause is no reason to forget how quick it was
    assert rooms == sorted(rooms, reverse=True)
    assert rooms[-1] == 20


def test_too_short_a_time_measures_nothing(clock: Clock) -> None:
    stage = Stage(line(A))
    work(stage, clock, rows=625, seconds=0.03125)
    assert stage.deal() == {0: 20}
    clock.now += 0.09375  # what was done meanwhile counts when there was time enough
    assert stage.deal() == {0: 260}


def test_lanes_and_plain_handlers_are_measured_apart(clock: Clock) -> None:
    stage = Stage(line(A, transactional=True), line(B))
    work(stage, clock, rows=625, seconds=0.125)
    assert stage.deal() == {0: 635, 1: 20}


def test_a_limit_of_its_own_does_not_grow_with_the_pace(clock: Clock) -> None:
    stage = Stage(line(A, room=2))
    for _ in range(5):
        work(stage, clock, rows=625, seconds=0.125)
    assert stage.deal() == {0: 2}
