"""Where the next claim starts: never over what is done already, and never past what is not."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from spectral.core.events.delivery import position as module
from spectral.core.events.delivery.position import Position, Positions
from spectral.core.events.lease import Delivery
from spectral.core.events.ports import ClaimAnswer, ClaimAsk
from spectral.core.events.routes import Line
from tests.unit.test_routes import delivery

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LINE = Line("platform", ("worlds.scan.completed",), ("platform.project",), transactional=True)
BESIDE = Line("platform", ("worlds.scan.started",), ("platform.mail",), transactional=False)
ELSEWHERE = Line("billing", ("worlds.scan.started",), ("billing.mail",), transactional=False)
WINDOW = 1_000


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def found(*seconds: float) -> list[Delivery]:
    return [delivery(due_at=at(each)) for each in seconds]


def alone(random: Callable[[], float] = lambda: 0.5) -> Position:
    """Of a line that has its context for itself."""
    return Position(LINE, (LINE, ELSEWHERE), random)


def beside_another(random: Callable[[], float] = lambda: 0.5) -> Position:
    return Position(LINE, (LINE, BESIDE, ELSEWHERE), random)


class Walk:
    """Claims one after the other: what was asked, and what is answered."""

    def __init__(self, position: Position, limit: int = 2) -> None:
        self.position = position
        self.limit = limit
        self.ask = self.next()

    def next(self, *, from_the_beginning: bool = False, narrowed: bool = False) -> ClaimAsk:
        start, window = self.position.next(from_the_beginning=from_the_beginning, narrowed=narrowed)
        self.ask = ClaimAsk("platform", None, (), self.limit, start, window)
        return self.ask

    def answer(self, *due: float, now: float | None = None, reached: float | None = None) -> None:
        when = None if now is None else at(now)
        self.position.reached(self.ask, ClaimAnswer(found(*due), when, None if reached is None else at(reached)))


# where it starts


def test_the_first_claim_starts_at_the_beginning() -> None:
    walk = Walk(alone())
    assert (walk.ask.start, walk.ask.window) == (None, None)


def test_after_a_claim_that_saw_everything_the_next_starts_at_its_time_with_some_slack() -> None:
    """Publishers do not commit in the order of their clocks."""
    walk = Walk(alone())
    walk.answer(1, now=5)
    assert walk.next().start == at(5) - module._SLACK


def test_after_a_full_claim_the_next_starts_where_it_ended() -> None:
    walk = Walk(alone(), limit=2)
    walk.ask = walk.next(from_the_beginning=False)
    walk.answer(1, 1.1, now=1.5, reached=1.1)
    assert walk.next().start == at(1.1) - module._SLACK


def test_a_look_from_the_beginning_starts_there() -> None:
    walk = Walk(alone())
    walk.answer(now=5)
    assert walk.next(from_the_beginning=True).start is None


# how much it looks at


def test_a_line_that_has_its_context_for_itself_looks_at_everything() -> None:
    walk = Walk(alone())
    assert walk.next().window is None


def test_one_that_does_not_walks_over_others_rows_in_pieces() -> None:
    walk = Walk(beside_another())
    assert walk.ask.window == WINDOW


def test_so_does_one_that_asks_for_some_of_its_types_only() -> None:
    walk = Walk(alone())
    assert walk.next(narrowed=True).window == WINDOW
    assert walk.next(narrowed=False).window is None


# walking on


def test_a_claim_that_saw_only_others_rows_is_followed_by_one_from_where_it_looked_to() -> None:
    walk = Walk(beside_another())
    walk.answer(now=100, reached=3)
    assert walk.position.walks_on
    assert walk.next().start == at(3)  # exactly: nothing between the two is left out


def test_a_walk_that_began_at_the_beginning_goes_on_and_does_not_begin_again() -> None:
    walk = Walk(beside_another())
    for reached in (1, 2, 3):
        walk.answer(now=100, reached=reached)
        assert walk.next(from_the_beginning=True).start == at(reached)
    walk.answer(now=100)
    assert not walk.position.walks_on
    assert walk.next(from_the_beginning=True).start is None


def test_a_look_from_the_beginning_does_not_go_on_with_a_walk_that_began_elsewhere() -> None:
    walk = Walk(beside_another())
    walk.answer(now=5)
    walk.next()
    walk.answer(now=100, reached=7)
    assert walk.position.walks_on
    assert walk.next(from_the_beginning=True).start is None
    walk.answer(now=100, reached=1)
    assert walk.next(from_the_beginning=True).start == at(1)
    assert not walk.position.saw_all
    walk.answer(now=101)
    assert walk.position.saw_all


def test_a_walk_from_elsewhere_that_ends_has_not_seen_all() -> None:
    walk = Walk(beside_another())
    walk.answer(now=5)
    walk.next()
    walk.answer(now=6)
    assert not walk.position.saw_all


def test_each_choice_of_types_has_a_position_and_a_new_one_starts_at_that_of_all_types() -> None:
    line = Line("platform", ("worlds.scan.completed", "worlds.scan.started"), ("platform.project",), transactional=True)
    positions = Positions((line,), lambda: 0.5)
    walk = Walk(positions.of(line, line.event_types))
    walk.answer(now=5)
    some = Walk(positions.of(line, ("worlds.scan.started",)))
    assert some.ask.start == at(5) - module._SLACK
    some.answer(now=100)
    assert walk.next().start == at(5) - module._SLACK
    assert positions.of(line, ("worlds.scan.started",)) is some.position


def test_only_so_many_choices_of_types_are_remembered() -> None:
    types = tuple(f"worlds.scan.of_{number}" for number in range(100))
    line = Line("platform", types, ("platform.project",), transactional=True)
    positions = Positions((line,), lambda: 0.5)
    of_all = positions.of(line, types)
    first = positions.of(line, types[:1])
    for each in types:
        positions.of(line, (each,))
    assert positions.of(line, types) is of_all
    assert positions.of(line, types[:1]) is not first


def test_a_walk_ends_with_the_first_row_that_is_found() -> None:
    walk = Walk(beside_another())
    walk.answer(now=100, reached=3)
    walk.next()
    walk.answer(4, now=100, reached=5)
    assert not walk.position.walks_on
    assert walk.next().start == at(5) - module._SLACK


def test_a_walk_ends_where_there_is_no_more() -> None:
    walk = Walk(beside_another())
    walk.answer(now=100, reached=3)
    walk.next()
    walk.answer(now=101)
    assert not walk.position.walks_on
    assert walk.next().start == at(101) - module._SLACK


def test_where_more_rows_than_it_looks_at_share_one_instant_it_looks_at_more_until_it_is_past_them() -> None:
    walk = Walk(beside_another())
    walk.answer(now=100, reached=3)
    windows = []
    for _ in range(3):
        windows.append(walk.next().window)
        assert walk.ask.start == at(3)
        walk.answer(now=100, reached=3)
    assert windows == [WINDOW, 4 * WINDOW, 16 * WINDOW]
    assert walk.next().window == 64 * WINDOW
    walk.answer(now=100, reached=4)
    assert walk.next().window == WINDOW


def test_what_it_widened_for_the_next_narrow_look_is_widened_too() -> None:
    walk = Walk(alone())
    walk.next(narrowed=True)
    walk.answer(now=100, reached=3)
    walk.next(narrowed=True)
    walk.answer(now=100, reached=3)
    assert walk.next(narrowed=True).window == 4 * WINDOW


# the backlog


def backlogged(position: Position, *, oldest: float = 0, now: float = 100) -> Walk:
    """A full claim from the beginning, whose first row has waited for long."""
    walk = Walk(position, limit=2)
    walk.next(from_the_beginning=True)
    walk.answer(oldest, oldest + 1, now=now, reached=oldest + 1)
    return walk


@pytest.mark.parametrize(("luck", "start"), [(0.0, 0), (0.25, 25), (0.5, 50), (0.999, 99.9)])
def test_while_there_is_a_backlog_a_claim_starts_somewhere_in_it(luck: float, start: float) -> None:
    walk = backlogged(alone(lambda: luck))
    starts = [walk.next().start for _ in range(2)]
    assert at(start) in starts


def test_every_other_claim_goes_on_where_the_last_one_ended() -> None:
    walk = backlogged(alone())
    starts = []
    for number in range(6):
        starts.append(walk.next().start)
        walk.answer(10 * number, 10 * number + 1, now=100, reached=10 * number + 1)
    leaps = [start == at(50) for start in starts]
    assert leaps.count(True) == 3
    assert all(one != other for one, other in pairwise(leaps))


def test_a_leap_does_not_move_the_position() -> None:
    walk = backlogged(alone())
    leapt = False
    for _ in range(2):
        if walk.next().start == at(50):
            walk.answer(50, 51, now=100, reached=51)
            leapt = True
            break
    assert leapt
    assert walk.next().start == at(1) - module._SLACK


def test_what_has_waited_for_less_than_a_second_is_no_backlog() -> None:
    walk = backlogged(alone(), oldest=99.5, now=100)
    assert {walk.next().start for _ in range(4)} == {at(100.5) - module._SLACK}


def test_a_claim_from_the_beginning_that_is_not_full_ends_the_backlog() -> None:
    walk = backlogged(alone())
    walk.next(from_the_beginning=True)
    walk.answer(0, now=101)
    assert {walk.next().start for _ in range(4)} == {at(101) - module._SLACK}


def test_where_a_leap_has_seen_all_there_was_the_next_ones_start_before_it() -> None:
    """A burst of a second that has waited for a minute: between it and now there is nothing to leap to."""
    walk = backlogged(alone())
    leaps = []
    for number in range(20):
        start = walk.next().start
        if walk.position.leapt:
            leaps.append(start)
            walk.answer(now=100)
        else:
            walk.answer(0, 1, now=100, reached=number / 100)
    assert leaps == [at(50), at(25), at(12.5), at(6.25), at(3.125), at(1.5625), at(0.78125)]  # and then no more


@pytest.mark.parametrize("before", [(0, 1), (0,)], ids=["full", "not full"])
def test_a_leap_that_finds_nothing_says_nothing_of_what_lies_before_it(before: tuple[float, ...]) -> None:
    positions = Positions((LINE, ELSEWHERE), lambda: 0.5)
    walk = backlogged(positions.of(LINE, LINE.event_types))
    while walk.position.leapt or walk.ask.start is None:
        walk.next()
        walk.answer(*(() if walk.position.leapt else before), now=100, reached=1)
    assert walk.next().start == at(50)
    walk.answer(now=100)
    ask = ClaimAsk("platform", LINE.event_types, (), walk.limit, walk.ask.start, None)
    may_be_more = positions.full([(LINE, ask)], [ClaimAnswer([], at(100), None)])
    assert may_be_more == ((LINE,) if len(before) == walk.limit else ())


def test_a_look_from_the_beginning_lets_leaps_reach_up_to_now_again() -> None:
    walk = backlogged(alone())
    while walk.next().start != at(50):
        walk.answer(0, 1, now=100, reached=1)
    walk.answer(now=100)
    walk.next(from_the_beginning=True)
    walk.answer(0, 1, now=100, reached=1)
    assert at(50) in [walk.next().start for _ in range(2)]


def test_a_look_from_the_beginning_is_never_a_leap() -> None:
    walk = backlogged(alone())
    for _ in range(4):
        assert walk.next(from_the_beginning=True).start is None
        walk.answer(0, 1, now=100, reached=1)


def test_a_leap_among_others_rows_walks_on() -> None:
    walk = backlogged(beside_another())
    while walk.next().start != at(50):
        walk.answer(1, now=100, reached=2)
    walk.answer(now=100, reached=60)
    assert walk.position.walks_on


# the brake


def test_a_braked_claim_has_no_clock_and_the_next_starts_at_the_beginning() -> None:
    walk = backlogged(alone())
    walk.next(from_the_beginning=True)
    walk.answer()
    assert not walk.position.walks_on
    for _ in range(4):
        assert walk.next().start is None  # and no leap: there is no time to leap into
        walk.answer()
    walk.next()
    walk.answer(1, now=5)
    assert walk.next().start == at(5) - module._SLACK


def test_a_brake_that_is_pulled_in_the_middle_of_a_walk_ends_it() -> None:
    walk = Walk(beside_another())
    walk.answer(now=100, reached=3)
    walk.next()
    walk.answer()
    assert not walk.position.walks_on
    assert walk.next().start is None
    assert walk.ask.window == WINDOW
