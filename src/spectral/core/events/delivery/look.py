"""When to look from the beginning, and whether that has shown that there is nothing.

A claim that starts at its line's position does not see what fell due or was committed behind it. So every line is
looked at from its beginning now and then, and as long as a look is owed, for a wake or for a row that was found since
the last one, nobody sleeps for longer than until the next. Looks get a share of the time and no more, and so do walks
over rows of types that are not asked for: the longer they take, the more seldom a look is made.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from spectral.core.events.delivery.position import Position
    from spectral.core.events.ports import ClaimAnswer, ClaimAsk
    from spectral.core.events.routes import Line

EVERY: Final = 0.5  # seconds, at most so often
_SHARE: Final = 20  # of the time goes into looks, at most one part in so many
_EVERY_IDLE: Final = 0.02  # the same while there is nothing else to do: what was committed late should not wait
_SHARE_IDLE: Final = 5


class Looks:
    """Of one worker, at all its lines. What is noted in a position is the number of the call that it answers."""

    def __init__(self, lines: tuple[Line, ...]) -> None:
        self._lines = lines
        self._last: dict[int, Position] = {}  # asked of each line: it has one for every choice of types
        self._called = 1
        self._under_way = False
        self._to_do: set[int] = set()  # lines that the look under way has not come to the end of
        self._spent = 0.0
        self._cost = 0.0
        self._ended_at = -EVERY

    def call(self) -> None:
        """There may be something new: what was seen until now proves nothing."""
        self._called += 1

    def begin(self, now: float, *, idle: bool) -> bool:
        """Look at every line, if it is time; answers whether a look begins."""
        if self._under_way or now < self.next_at(idle=idle):
            return False
        self._under_way = True
        self._to_do = {id(line) for line in self._lines}
        self.call()
        return True

    def next_at(self, *, idle: bool) -> float:
        """When the next look may begin."""
        every, share = (_EVERY_IDLE, _SHARE_IDLE) if idle else (EVERY, _SHARE)
        return self._ended_at + max(every, share * self._cost)

    def hasten(self) -> None:
        """Let the next one begin at once."""
        self._ended_at, self._cost = -EVERY, 0.0

    def abandon(self) -> None:
        """Let the next one look at every line, those too that the one under way has come to the end of."""
        self._under_way = False

    @property
    def is_on(self) -> bool:
        """Whether a look is under way, or a walk."""
        return self._under_way or self._walks()

    def includes(self, line: Line) -> bool:
        """Whether the line is still to be looked at from its beginning."""
        return id(line) in self._to_do

    def ask(self, line: Line, position: Position, ask: ClaimAsk) -> None:
        """A claim is about to be made."""
        self._last[id(line)] = position
        if ask.start is None:
            position.begun = self._called

    def answer(self, line: Line, position: Position, answer: ClaimAnswer, *, ahead: bool) -> None:
        """What came of it; `ahead`: with an outlook on what falls due."""
        if answer.deliveries:
            position.quiet = position.empty = 0
        else:
            if ahead and not position.walks_on and not position.leapt:
                position.quiet = self._called
            if position.saw_all:
                position.empty = position.begun
        if answer.deliveries or position.saw_all:
            self._to_do.discard(id(line))

    def spend(self, waiting: Collection[Line], seconds: float, now: float) -> None:
        """A round of a look or a walk took so long; whoever is not waiting has no room, and is asked when there is."""
        ids = {id(line) for line in waiting}
        self._to_do &= ids
        self._last = {line: position for line, position in self._last.items() if line in ids}
        self._spent += seconds
        if self._to_do or self._walks():
            return
        if self._under_way:
            self._under_way, self._ended_at, self._cost = False, now, self._spent
        else:
            self._cost = max(self._cost, self._spent)
        self._spent = 0.0

    def is_quiet(self, waiting: Collection[Line]) -> bool:
        """Whether nothing was found from the positions of these, since the last call."""
        return not self._walks() and all(
            id(line) in self._last and self._last[id(line)].quiet == self._called for line in waiting
        )

    def is_empty(self, waiting: Collection[Line]) -> bool:
        """Whether all that these may have was looked at since the last call, and nothing found."""
        return all(id(line) in self._last and self._last[id(line)].empty == self._called for line in waiting)

    def _walks(self) -> bool:
        return any(position.walks_on for position in self._last.values())


class Timer:
    """When the next row falls due, of each context: not all of them are asked every time."""

    def __init__(self, contexts: Collection[str]) -> None:
        self._contexts = len(contexts)
        self._due: dict[str, float] = {}
        self._expected_at = math.inf

    def at(self) -> float:
        """When the first of them does."""
        return min(self._expected_at, *self._due.values(), math.inf)

    def expect(self, at: float) -> bool:
        """A row will fall due then; answers whether before any other that is known."""
        is_first = at < self.at()
        self._expected_at = min(self._expected_at, at)
        return is_first

    def expected(self) -> float:
        """Take what is expected: as of now it is in the database, and an outlook will tell."""
        at, self._expected_at = self._expected_at, math.inf
        return at

    def keep(self, contexts: Collection[str]) -> None:
        """What falls due in any other has to wait for the room."""
        self._due = {context: due for context, due in self._due.items() if context in contexts}
        if not contexts:
            self._expected_at = math.inf

    def set(self, contexts: Iterable[str], due_at: float, expected: float) -> None:
        """An outlook on these; what was expected may be in another."""
        self._due.update(dict.fromkeys(contexts, due_at))
        if len(self._due) < self._contexts:
            self._expected_at = min(self._expected_at, expected)
