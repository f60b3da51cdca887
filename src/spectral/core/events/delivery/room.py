"""How many rows a worker takes on: about as much as it gets done in a moment, and a share for everybody.

A worker with quick handlers claims hundreds at once, one with slow handlers no more than can run and as many again. A
line whose handlers say how many may run at once gets exactly that many. Within a line that has several types, none may
take the room that another could need.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from spectral.core.events.delivery.desk import Desk
    from spectral.core.events.routes import Line

_MOMENT: Final = {True: 0.25, False: 0.1}
"""Seconds: longer for transactional handlers, so that every lane finds a whole group when it has committed one. With a
tenth for them too, the groups were half as large, and a quarter less went through."""

_MOST: Final = 2_000
"""Should the process die, so many rows wait for the reaper, and each is handed out alone the next time. Half of it kept
a quick worker from claiming while it settles: a sixth less went through."""

_MEASURED_OVER: Final = 0.05  # seconds


class _LeftOut(NamedTuple):
    """Types of a line that held their share of the room, and what that was."""

    types: tuple[str, ...]
    share: int


class Room:
    """Deals out what there is room for."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        settings = desk.settings
        # Twice what can run: the next rows are there when a handler ends. Larger groups are for quick handlers.
        self._least = {True: 2 * settings.lanes * settings.small_batch, False: 2 * settings.concurrency}
        self._room = dict(self._least)
        self._measured_at = dict.fromkeys((True, False), time.monotonic())
        self._finished = dict.fromkeys((True, False), 0)
        self._order = deque(desk.routes.lines)  # who was asked longest ago comes first
        self.refused: set[int] = set()  # lines there was no room for, or not for all of their types, by id
        self._left_out: dict[int, _LeftOut] = {}

    def deal(self, lines: tuple[Line, ...]) -> list[tuple[Line, int]]:
        """How many rows to ask for, of each of these lines; those without room are remembered as refused."""
        self.refused = set()
        self._left_out.clear()
        dealt: list[tuple[Line, int]] = []
        for transactional in (True, False):
            self._measure(transactional=transactional)
            shared = [
                line
                for line in self._order
                if line in lines and line.room is None and line.transactional is transactional
            ]
            dealt += self._deal(shared, self._room[transactional])
        for line in lines:
            if line.room is not None:
                dealt += self._deal([line], line.room)
        for line, _ in dealt:
            self._order.remove(line)
            self._order.append(line)
        return dealt

    def has_room(self) -> bool:
        """Whether one of those that were refused could be asked for now."""
        for line in self._order:
            if id(line) in self.refused and self._spare(line) >= max(1, self._of(line) // 8):
                return True
            left_out = self._left_out.get(id(line))
            if left_out is not None:
                held = self._desk.held_types(line)
                if any(held.get(each, 0) <= left_out.share // 2 for each in left_out.types):
                    return True
            elif id(line) in self.refused and self._free(line) >= self._handful(line):
                return True
        return False

    def types_with_room(self, line: Line) -> tuple[str, ...] | None:
        """The types of the line to ask for: not those that hold so much that another would find no room."""
        held = self._desk.held_types(line)
        self._left_out.pop(id(line), None)
        if line.event_types is None or not held:
            return line.event_types
        share = max(1, self._of(line) // (len(held) + 1))
        left_out = tuple(each for each in line.event_types if held.get(each, 0) >= share)
        if not left_out or len(left_out) == len(line.event_types):
            return line.event_types
        self._left_out[id(line)] = _LeftOut(left_out, share)
        self.refused.add(id(line))
        return tuple(each for each in line.event_types if each not in left_out)

    def _deal(self, lines: list[Line], room: int) -> list[tuple[Line, int]]:
        """Where the room does not suffice for all, they take turns; a share of its own nobody takes from a line."""
        free = room - sum(self._desk.held(line) for line in lines)
        dealt: list[tuple[Line, int]] = []
        if free >= max(1, room // 4):
            for number, line in enumerate(lines[:free]):
                limit = max(1, free // (len(lines) - number))
                dealt.append((line, limit))
                free -= limit
            return dealt
        share = room // (2 * len(lines)) if len(lines) > 1 else 0
        for line in lines:
            limit = share - self._desk.held(line)
            if limit >= max(1, share // 2):
                dealt.append((line, limit))
                continue
            self.refused.add(id(line))
            if (spare := self._spare(line)) > 0:
                dealt.append((line, spare))
        return dealt

    def _spare(self, line: Line) -> int:
        """What types that hold little may have beyond a room that another type has filled."""
        held, room = self._desk.held_types(line), self._of(line)
        if line.event_types is None or not held:
            return 0
        share = max(1, room // (len(held) + 1))
        little = [each for each in line.event_types if held.get(each, 0) < share]
        if not little or len(little) == len(line.event_types):
            return 0
        return max(1, room // 4) - sum(held.get(each, 0) for each in little)

    def _of(self, line: Line) -> int:
        return self._room[line.transactional] if line.room is None else line.room

    def _free(self, line: Line) -> int:
        if line.room is not None:
            return line.room - self._desk.held(line)
        alike = [each for each in self._order if each.room is None and each.transactional is line.transactional]
        return self._room[line.transactional] - sum(self._desk.held(each) for each in alike)

    def _handful(self, line: Line) -> int:
        """Claims are not made for every single row that ends."""
        return max(1, self._of(line) // 4)

    def _measure(self, *, transactional: bool) -> None:
        """How much got done of late decides how much is taken on."""
        now, finished = time.monotonic(), self._desk.finished[transactional]
        passed = now - self._measured_at[transactional]
        if passed < _MEASURED_OVER:
            return
        pace = (finished - self._finished[transactional]) / passed
        self._measured_at[transactional], self._finished[transactional] = now, finished
        aim = min(_MOST, max(self._least[transactional], int(pace * _MOMENT[transactional])))
        # Half way at most: a pause is no reason to forget how quick it was, nor a burst to believe in it.
        self._room[transactional] = max(self._least[transactional], (self._room[transactional] + aim) // 2)
