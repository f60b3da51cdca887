"""Where in a line the next claim starts.

A claim that starts where the one before it ended walks over nothing that is done already, however many dead versions of
it a snapshot keeps alive. What falls due behind that position, a retry or a late commit, is found from the beginning,
which is looked at often, and always before going to sleep for long. While there is a backlog, every other claim starts
somewhere in it: a heap of events of one kind or tenant does not keep all that came after it waiting. A backlog need not
reach up to now: where such a claim has seen all there was, the next ones start before it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from spectral.core.events.ports import ClaimAnswer, ClaimAsk
    from spectral.core.events.routes import Line

_SLACK: Final = timedelta(milliseconds=100)
"""Publishers do not commit in the order of their clocks."""

_BACKLOG: Final = timedelta(seconds=1)
_WINDOW: Final = 1_000
_CHOICES: Final = 64


class Position:
    """Of one line, for one choice of its types.

    `walks_on` says that the last claim saw only a part of what may be there, `saw_all` that it ended a look from the
    beginning that found nothing, `leapt` that it started somewhere in the backlog; `left_more` that the last one which
    did not came back full, so that there may be more where the next one starts, whatever leaps find. `begun`, `quiet`
    and `empty` are notes of whoever decides when to look.
    """

    def __init__(self, line: Line, lines: tuple[Line, ...], random: Callable[[], float]) -> None:
        alone = sum(each.context == line.context for each in lines) == 1
        # Others' types are walked over; if all types of the context are the line's own, there is nothing to walk over.
        self._window = None if alone else _WINDOW
        self._random = random
        self._at: datetime | None = None
        self._oldest: datetime | None = None
        self._end: datetime | None = None  # from there on a leap has left nothing; a look from the beginning forgets it
        self._now: datetime | None = None
        self._turn = 0
        self.leapt = False
        self.left_more = False
        self._widened = 1
        self._looks = False  # what walks on began at the beginning
        self.walks_on = False
        self.saw_all = False
        self.begun = self.quiet = self.empty = 0

    def follow(self, other: Position) -> None:
        """Start where another one is that asks for more types: it has left none of these behind."""
        self._at = other._at

    def begin_anew(self) -> None:
        """End the walk, if there is one."""
        self.walks_on = self._looks = False
        self._widened = 1

    def next(self, *, from_the_beginning: bool, narrowed: bool) -> tuple[datetime | None, int | None]:
        """Where the next claim starts, and how many rows it may look at; `narrowed`: it asks for some types only."""
        if from_the_beginning and not self._looks:
            self.begin_anew()  # a walk that began elsewhere has not seen what lies before
        window = _WINDOW if narrowed else self._window
        window = None if window is None else window * self._widened
        self.leapt = False
        if self.walks_on:
            return self._at, window
        if from_the_beginning:
            return None, window
        self._turn += 1
        end = self._end or self._now
        if self._turn % 2 and self._oldest is not None and end is not None and end - self._oldest > _BACKLOG:
            self.leapt = True
            return self._oldest + self._random() * (end - self._oldest), window
        return None if self._at is None else self._at - _SLACK, window

    def reached(self, ask: ClaimAsk, answer: ClaimAnswer) -> None:
        """What came of it."""
        full = len(answer.deliveries) >= ask.limit
        self.walks_on = answer.reached is not None and not answer.deliveries
        looks = ask.start is None or self._looks
        self.saw_all = looks and not self.walks_on and not answer.deliveries
        self._looks = looks and self.walks_on
        # More rows fell due in one instant than a claim may look at: look at more, or it would never get past them.
        self._widened = self._widened * 4 if self.walks_on and answer.reached == ask.start else 1
        if ask.start is None:
            self._oldest = answer.deliveries[0].due_at if full else None
            self._end = None
        elif self.leapt and answer.reached is None:
            self._end = ask.start
        self._now = answer.now
        if not self.leapt:
            self._at = answer.reached or answer.now
            self.left_more = full


class Positions:
    """Of all lines, each for every choice of its types: what one has walked over, another may have to find."""

    def __init__(self, lines: tuple[Line, ...], random: Callable[[], float]) -> None:
        self._random = random
        self._lines = lines
        self._of: dict[int, dict[tuple[str, ...] | None, Position]] = {
            id(line): {line.event_types: Position(line, lines, random)} for line in lines
        }

    def of(self, line: Line, types: tuple[str, ...] | None) -> Position:
        """The one for these types of the line."""
        known = self._of[id(line)]
        position = known.get(types)
        if position is None:
            position = known[types] = Position(line, self._lines, self._random)
            position.follow(known[line.event_types])
            if len(known) > _CHOICES:
                del known[next(choice for choice in known if choice != line.event_types)]
        return position

    def full(self, asks: list[tuple[Line, ClaimAsk]], answers: list[ClaimAnswer]) -> tuple[Line, ...]:
        """Where there may be more; a suspect comes alone, however many wait behind it."""
        return tuple(
            line
            for (line, ask), answer in zip(asks, answers, strict=True)
            if len(answer.deliveries) >= ask.limit
            or any(delivery.suspect for delivery in answer.deliveries)
            or self._passed_over(line, ask)
        )

    def _passed_over(self, line: Line, ask: ClaimAsk) -> bool:
        """Whether there may be more before where this claim started: one that leaps behind the last row finds none."""
        position = self.of(line, ask.event_types)
        return position.leapt and position.left_more
