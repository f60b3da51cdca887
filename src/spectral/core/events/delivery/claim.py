"""Claim: take as many rows as there is room for, hand them on, and sleep until there may be more.

Woken by a notification, by the safety poll, by the earliest row that falls due, or by room where there was none. A
claim that comes back full is followed by another at once. A row that has cost more than one worker its life is run
while the process holds nothing else, so that it takes nobody along.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from spectral.core.events.delivery.backoff import Backoff
from spectral.core.events.describe import describe
from spectral.core.events.failpoints import reached
from spectral.core.events.failure import SubstrateLostError
from spectral.core.events.ports import ClaimAsk
from spectral.core.events.probe import Quarantined, SubstrateLost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from spectral.core.events.delivery.desk import Desk
    from spectral.core.events.lease import Delivery
    from spectral.core.events.ports import Claims
    from spectral.core.events.routes import Line

Until: TypeAlias = Literal["stopped", "drained", "once"]
"""When a worker ends by itself: never, when nothing is due and nothing held, or after one claim."""

_FIRST_PAUSE: Final = timedelta(milliseconds=250)
_LOOK_AHEAD_EVERY: Final = 0.5  # seconds, while claims come back full
_LOSSES_BEFORE_QUARANTINE: Final = 2


@dataclass(frozen=True, slots=True)
class Ways:
    """Where claimed rows go, and what the claim loop has to know of the ear beside it."""

    to_lanes: Callable[[Iterable[Delivery]], None]
    to_plain: Callable[[Iterable[Delivery]], None]
    is_alive: Callable[[], bool]
    is_deaf: Callable[[], bool]


class ClaimLoop:
    """Feeds the lanes and the plain runner; `started` is set with the first claim."""

    def __init__(self, claims: Claims, desk: Desk, ways: Ways, started: asyncio.Event) -> None:
        self._claims = claims
        self._desk = desk
        self._ways = ways
        self._started = started
        self._wake = asyncio.Event()
        self._stopped = asyncio.Event()
        self._stopping = False
        self._until: Until = "stopped"
        self._calming: Line | None = None  # where a dangerous row waits for this process to hold nothing
        self._quarantine = False
        self._refused: set[bool] = set()  # the kinds of rows there was no room for
        self._more = False
        self._has_claimed = False  # since it woke, without having looked ahead
        self._proves_empty = False
        self._full: tuple[Line, ...] = ()
        self._order = deque(desk.routes.lines)  # who was asked longest ago comes first
        self._has_asked = False
        self._to_ask = 0
        self._due_at = math.inf
        self._expected_at = math.inf
        self._look_ahead_at = 0.0
        self._backoff = Backoff(_FIRST_PAUSE, desk.settings.times.poll_deaf)
        settings = desk.settings
        # Twice what can run: the next rows are there when a handler ends.
        self._room = {True: 2 * settings.lanes * settings.batch, False: 2 * settings.concurrency}
        desk.on_change = self._on_change
        desk.on_due_again = self.expect

    def wake(self) -> None:
        """There may be something to claim."""
        self._wake.set()

    def expect(self, delay: timedelta) -> None:
        """A row falls due after this; do not sleep longer."""
        self._expected_at = min(self._expected_at, asyncio.get_running_loop().time() + delay.total_seconds())
        if self._expected_at < self._due_at:
            self._wake.set()

    def stop(self) -> None:
        """Claim no more; a claim that is under way is brought to its end."""
        self._stopping = True
        self._stopped.set()
        self._wake.set()

    async def run(self, until: Until = "stopped") -> None:
        """Claim until stopped, or until there is nothing left to do."""
        self._until = until
        try:
            while not self._stopping:
                self._wake.clear()
                try:
                    self._more = await self._round()
                except SubstrateLostError as lost:
                    pause = self._backoff.next()
                    self._desk.probe.tell(SubstrateLost("claim", describe(lost), pause))
                    # Whatever wakes it meanwhile has to wait too: the database cannot be claimed from.
                    await _wait(self._stopped, pause.total_seconds())
                    continue
                self._backoff.reset()
                if self._is_done():
                    return
                if not self._more:
                    await _wait(self._wake, self._pause())
        finally:
            await self._claims.close()

    def _is_done(self) -> bool:
        if self._until == "drained":
            # What was held when the round began may have left something due behind it.
            return self._proves_empty and not self._more and not self._desk.held()
        return self._until == "once" and self._has_asked

    async def _round(self) -> bool:
        """One claim; answers whether another should follow at once.

        The first one after waking only claims, so that nothing delays what woke it. Nobody goes to sleep but after one
        that has also looked ahead.
        """
        looks_ahead = self._has_claimed or asyncio.get_running_loop().time() >= self._look_ahead_at
        asks = self._asks(looks_ahead=looks_ahead)
        held_nothing = not self._desk.held()
        self._has_claimed = self._proves_empty = False
        self._expected_at = math.inf  # whatever is expected by now is in the database, and the timer will tell
        if not asks:
            self._due_at = math.inf  # whatever falls due has to wait for the room
            return False
        self._has_asked = True
        was_calming = self._calming is not None
        reached("claim.before")
        answers = await self._claim([ask for _, ask in asks], looks_ahead=looks_ahead)
        reached("claim.after")
        self._started.set()
        await self._hand_on(asks, answers)
        self._full = _full(asks, answers)
        # Only a look ahead that finds nothing at all is a reason to sleep: a claim may leave a suspect behind.
        found = any(answers) or asyncio.get_running_loop().time() >= self._look_ahead_at
        self._has_claimed = not self._full and not looks_ahead
        asked_everywhere = self._has_asked_everywhere(len(asks), found=found)
        self._proves_empty = looks_ahead and held_nothing and not self._refused and asked_everywhere
        return found or self._has_claimed or was_calming or not asked_everywhere

    def _has_asked_everywhere(self, asked: int, *, found: bool) -> bool:
        """Whether every line there was room for was asked since the last row was found: they may have to take turns."""
        lines = [line for line in self._desk.routes.lines if line.transactional not in self._refused]
        self._to_ask = len(lines) if found else min(self._to_ask, len(lines)) - asked
        return self._to_ask <= 0

    async def _claim(self, asks: list[ClaimAsk], *, looks_ahead: bool) -> list[list[Delivery]]:
        if not looks_ahead:
            return await self._claims.claim(asks)
        outlook, answers = await self._claims.look_ahead_and_claim(asks)
        now = asyncio.get_running_loop().time()
        # A call splits so many broadcasts and no more: where there were some, there may be others.
        self._look_ahead_at = now if outlook.fanned_out else now + _LOOK_AHEAD_EVERY
        self._due_at = math.inf if outlook.due_in is None else now + outlook.due_in.total_seconds()
        for note in outlook.fanned_out:
            self._desk.probe.tell(note)
        return answers

    def _asks(self, *, looks_ahead: bool) -> list[tuple[Line, ClaimAsk]]:
        """What there is room for; nothing at all while nobody would see that this worker lives."""
        self._refused.clear()
        if not self._ways.is_alive():
            return []
        if self._calming is not None:
            return [] if self._desk.held() else [_ask(self._calming, 1)]
        # While some lines come back full, the others are asked less often: to find nothing costs as well.
        narrowed = self._asks_of(self._full) if self._full and not looks_ahead else []
        return narrowed or self._asks_of(self._desk.routes.lines)

    def _asks_of(self, lines: tuple[Line, ...]) -> list[tuple[Line, ClaimAsk]]:
        """The room of each kind, dealt out among its lines; where it does not suffice, they take turns."""
        asks: list[tuple[Line, ClaimAsk]] = []
        for transactional in (True, False):
            of_kind = [line for line in self._order if line in lines and line.transactional is transactional]
            if of_kind and not self._has_room(transactional=transactional):
                self._refused.add(transactional)
                continue
            room = self._room[transactional] - self._desk.held(transactional=transactional)
            for number, line in enumerate(of_kind[:room]):
                limit = max(1, room // (len(of_kind) - number))
                asks.append(_ask(line, limit))
                room -= limit
                self._order.remove(line)
                self._order.append(line)
        return asks

    def _has_room(self, *, transactional: bool) -> bool:
        """For a handful: claims are not made for every single row that ends."""
        room = self._room[transactional]
        return room - self._desk.held(transactional=transactional) >= max(1, room // 4)

    def _on_change(self) -> None:
        """A row is no longer held: wake if somebody waits for the room, the quiet or the end."""
        waits_for_quiet = self._quarantine or self._calming is not None or self._until == "drained"
        has_room = any(self._has_room(transactional=each) for each in self._refused)
        if has_room or (waits_for_quiet and not self._desk.held()):
            self._wake.set()

    async def _hand_on(self, asks: list[tuple[Line, ClaimAsk]], answers: list[list[Delivery]]) -> None:
        self._calming = None
        dangerous: list[tuple[Line, Delivery]] = []
        for (line, _), deliveries in zip(asks, answers, strict=True):
            harmless: list[Delivery] = []
            for delivery in deliveries:
                self._desk.hold(delivery, transactional=line.transactional)
                if self._is_dangerous(delivery):
                    dangerous.append((line, delivery))
                else:
                    harmless.append(delivery)
            self._hand_to(line, harmless)
        if dangerous:
            line, first = dangerous[0]
            if self._desk.held() == 1:
                await self._run_alone(line, first)
            else:
                # Given back before anything else that is held can take it along; claimed again when nothing is.
                self._desk.release([delivery for _, delivery in dangerous])
                self._calming = line

    def _hand_to(self, line: Line, deliveries: list[Delivery]) -> None:
        (self._ways.to_lanes if line.transactional else self._ways.to_plain)(deliveries)

    def _is_dangerous(self, delivery: Delivery) -> bool:
        """A suspect that was lost more than once, or that has no second chance: this time it must be alone."""
        losses = delivery.attempts - 1
        return delivery.suspect and (
            losses >= _LOSSES_BEFORE_QUARANTINE or delivery.attempts >= self._desk.routes.max_attempts(delivery)
        )

    async def _run_alone(self, line: Line, delivery: Delivery) -> None:
        """Run it, and claim nothing until it has ended."""
        self._quarantine = True
        self._desk.probe.tell(Quarantined(delivery))
        self._hand_to(line, [delivery])
        while self._desk.held() and not self._stopping:
            self._wake.clear()
            await _wait(self._wake, 1)
        self._quarantine = False

    def _pause(self) -> float:
        """How long to sleep, unless woken."""
        times = self._desk.settings.times
        poll = (times.poll_deaf if self._ways.is_deaf() else times.poll).total_seconds()
        due_at = min(self._due_at, self._expected_at)
        return max(0.0, min(poll, due_at - asyncio.get_running_loop().time() + 0.001))


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """For the event, but no longer than this."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass


def _ask(line: Line, limit: int) -> tuple[Line, ClaimAsk]:
    return line, ClaimAsk(line.context, line.event_types, line.handler_names, limit)


def _full(asks: list[tuple[Line, ClaimAsk]], answers: list[list[Delivery]]) -> tuple[Line, ...]:
    """Where there may be more; a suspect comes alone, however many wait behind it."""
    return tuple(
        line
        for (line, ask), deliveries in zip(asks, answers, strict=True)
        if len(deliveries) >= ask.limit or any(delivery.suspect for delivery in deliveries)
    )
