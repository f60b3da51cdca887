"""Claim: take as many rows as there is room for, hand them on, and sleep until there may be more.

Woken by a notification, by the safety poll, by the earliest row that falls due, or by room where there was none; while
it is busy it polls instead. A claim that comes back full is followed by another at once, which starts where that one
ended; one that does not, while rows keep coming, by a pause of milliseconds, in which some gather. A row that has cost
more than one worker its life is run while the process holds nothing else (see `quarantine`).
"""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from spectral.core.events.delivery.backoff import Backoff
from spectral.core.events.delivery.look import EVERY, Looks, Timer
from spectral.core.events.delivery.position import Positions
from spectral.core.events.delivery.quarantine import Quarantine
from spectral.core.events.delivery.room import Room
from spectral.core.events.delivery.wakefulness import Wakefulness
from spectral.core.events.describe import describe
from spectral.core.events.failpoints import reached
from spectral.core.events.failure import SubstrateLostError
from spectral.core.events.ports import ClaimAsk
from spectral.core.events.probe import Claimed, Quarantined, SubstrateLost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from spectral.core.events.delivery.desk import Desk
    from spectral.core.events.lease import Delivery
    from spectral.core.events.ports import ClaimAnswer, Claims
    from spectral.core.events.routes import Line

Until: TypeAlias = Literal["stopped", "drained", "once"]
"""When a worker ends by itself: never, when nothing is due and nothing held, or after one claim."""

_FIRST_PAUSE: Final = timedelta(milliseconds=250)
_LOSSES_BEFORE_QUARANTINE: Final = 2
_GATHER: Final = 5
"""Where rows come one by one, a claim is followed by a pause of so many times what it took: whoever claims and settles
each by itself takes the processors from those who publish, and from its own handlers."""

_LEAST_GATHERED: Final = 0.002  # seconds


@dataclass(frozen=True, slots=True)
class Ways:
    """Where claimed rows go, and what the claim loop has to know of the ear beside it, and of a broker."""

    to_lanes: Callable[[Iterable[Delivery]], None]
    to_plain: Callable[[Iterable[Delivery]], None]
    is_alive: Callable[[], bool]
    is_deaf: Callable[[], bool]
    is_receiving: Callable[[], bool]


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
        self._quarantine = Quarantine(claims, desk)
        self._runs_alone = False
        self._more = False
        self._has_slept = False
        self._is_idle = False  # it has slept, and has not looked since
        self._is_prompt = False  # it was woken, and what woke it comes first
        self._has_claimed = False  # since it woke, and not everything was taken
        self._gather_for = 0.0  # seconds, if rows come in all the time and all that were there are taken
        self._full: tuple[Line, ...] = ()
        self._waiting: tuple[Line, ...] = ()  # lines there was room for, whether they were asked or not
        self._room = Room(desk)
        self._positions = Positions(desk.routes.lines, desk.random)
        self._looks = Looks(desk.routes.lines)
        self._has_asked = False
        self._timer = Timer(desk.routes.contexts)
        self._look_ahead_at = 0.0
        self._backoff = Backoff(_FIRST_PAUSE, desk.settings.times.poll_deaf)
        self._lost_at: float | None = None
        self._wakefulness = Wakefulness(claims, desk.routes.lines, asyncio.get_running_loop().time)
        desk.on_change = self._on_change
        desk.on_due_again = self.expect

    def wake(self) -> None:
        """There may be something to claim."""
        self._wake.set()

    def down_for(self) -> float:
        """For how many seconds nothing could be claimed; may be called from any thread."""
        lost_at = self._lost_at
        return 0.0 if lost_at is None else time.monotonic() - lost_at

    def expect(self, delay: timedelta) -> None:
        """A row falls due after this; do not sleep longer."""
        if self._timer.expect(asyncio.get_running_loop().time() + delay.total_seconds()):
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
                is_woken = self._wake.is_set()
                if is_woken or self._has_slept:
                    self._looks.call()
                    self._has_claimed = False
                # Not twice in a row: who is woken all the time still has to look, and does so right after it.
                self._is_idle = self._has_slept or self._is_prompt
                self._is_prompt = is_woken and self._has_slept and not self._is_prompt
                self._wake.clear()
                try:
                    self._more = await self._round()
                    pause = 0.0 if self._more or self._is_done() else await self._wakefulness.rest(self._pause())
                except SubstrateLostError as lost:
                    longer = self._backoff.next()
                    self._lost_at = self._lost_at or time.monotonic()
                    self._desk.probe.tell(SubstrateLost("claim", describe(lost), longer))
                    # Whatever wakes it meanwhile has to wait too: the database cannot be claimed from.
                    await _wait(self._stopped, longer.total_seconds())
                    continue
                self._backoff.reset()
                self._lost_at = None
                if self._is_done():
                    break
                self._has_slept = not self._more
                if not self._more:
                    # Who gathers will claim in a moment, whatever it may be woken for.
                    await _wait(self._stopped if self._gather_for else self._wake, pause)
            await self._wakefulness.leave()
        finally:
            await self._claims.close()

    def _is_done(self) -> bool:
        if self._until == "drained":
            # What has ended since the round began may have left something due behind it; then it has woken the loop.
            is_empty = bool(self._waiting) and not self._room.refused and self._looks.is_empty(self._waiting)
            return is_empty and not self._more and not self._desk.held() and not self._wake.is_set()
        return self._until == "once" and self._has_asked

    async def _round(self) -> bool:
        """One claim; answers whether another should follow at once.

        The first one after waking only claims, so that nothing delays what woke it. Nobody goes to sleep but after one
        of every line that has also looked ahead; to gather is no sleep.
        """
        self._gather_for = 0.0
        if (aside := self._due_aside()) is not None:
            return await self._run_aside(*aside)
        clock = asyncio.get_running_loop().time
        if self._wakefulness.must_look:
            self._looks.abandon()  # one that is under way may be past what was done in silence
        if (self._until == "drained" and not self._desk.held()) or self._wakefulness.must_look:
            self._looks.hasten()  # somebody waits for the end, or nobody would be told what was done in silence
            self._is_prompt = False
        if not self._is_prompt and self._looks.begin(clock(), idle=self._is_idle):
            self._wakefulness.must_look = False
        looks = self._looks.is_on
        ahead = looks or self._has_claimed or (clock() >= self._look_ahead_at and not self._is_prompt)
        was_calming = self._quarantine.is_waiting
        asks = self._asks(ahead=ahead)
        asked = {id(line) for line, _ in asks}
        lines = self._desk.routes.lines if asks else ()
        self._waiting = tuple(line for line in lines if id(line) in asked or id(line) not in self._room.refused)
        self._timer.keep({line.context for line in self._waiting})
        if not asks:
            self._wakefulness.found(0, overflows=bool(self._room.refused), has_room=False)
            return False
        self._has_asked = True
        reached("claim.before")
        began, measured = clock(), time.perf_counter()
        fanned_out, answers = await self._claim([ask for _, ask in asks], ahead=ahead)
        reached("claim.after")
        seconds = clock() - began
        self._tell(asks, answers, time.perf_counter() - measured)
        self._started.set()
        self._full = self._positions.full(asks, answers)
        rows = sum(len(answer.deliveries) for answer in answers)
        self._wakefulness.found(rows, overflows=bool(self._full or self._room.refused))
        await self._hand_on(asks, answers, ahead=ahead, seconds=seconds)
        if rows and self._is_prompt:
            await asyncio.sleep(0)  # what woke it is begun with before it looks for more
        self._has_claimed = not self._full
        if looks:
            self._looks.spend(self._waiting, seconds, clock())
        if fanned_out:
            self._looks.hasten()  # what was split may lie behind the positions
        is_not_through = fanned_out or was_calming or self._looks.is_on
        if not is_not_through and self._may_gather():
            self._gather_for = max(_LEAST_GATHERED, _GATHER * seconds)
            return False
        return is_not_through or not ahead or not self._looks.is_quiet(self._waiting)

    def _may_gather(self) -> bool:
        """Not where there may be more already, nor where somebody waits for room or for the end.

        Nor while a broker says what there is: it comes in heaps, and no more of it before the last ones are claimed.
        """
        may_be_more = self._full or self._room.refused or self._ways.is_receiving()
        return self._until == "stopped" and not may_be_more and self._wakefulness.is_in_a_stream

    def _tell(self, asks: list[tuple[Line, ClaimAsk]], answers: list[ClaimAnswer], seconds: float) -> None:
        for (line, _), answer in zip(asks, answers, strict=True):
            if answer.deliveries:
                self._desk.probe.tell(Claimed(line.context, len(answer.deliveries), seconds, self._ways.is_deaf()))

    async def _claim(self, asks: list[ClaimAsk], *, ahead: bool) -> tuple[bool, list[ClaimAnswer]]:
        """Claim; answers whether something was fanned out, and what was claimed."""
        if not ahead:
            return False, await self._claims.claim(asks, self._wakefulness.along())
        expected = self._timer.expected()
        outlook, answers = await self._claims.look_ahead_and_claim(asks, self._wakefulness.along())
        now = asyncio.get_running_loop().time()
        # A call splits so many broadcasts and no more: where there were some, there may be others.
        self._look_ahead_at = now if outlook.fanned_out else now + EVERY
        due_at = math.inf if outlook.due_in is None else now + outlook.due_in.total_seconds()
        self._timer.set((ask.context for ask in asks), due_at, expected if expected > now else math.inf)
        for note in outlook.fanned_out:
            self._desk.probe.tell(note)
        return bool(outlook.fanned_out), answers

    def _asks(self, *, ahead: bool) -> list[tuple[Line, ClaimAsk]]:
        """What there is room for; nothing at all while nobody would see that this worker lives."""
        self._room.refused = set()
        if not self._ways.is_alive() or self._quarantine.aside is not None:
            return []
        if self._quarantine.offered is not None:
            return [self._ask(self._quarantine.offered, 1, anew=True)] if self._quarantine.may_begin() else []
        # While some lines come back full, the others are asked less often: to find nothing costs as well.
        narrowed = self._room.deal(self._full) if self._full and not ahead else []
        dealt = narrowed or self._room.deal(self._desk.routes.lines)
        return [self._ask(line, limit) for line, limit in dealt]

    def _ask(self, line: Line, limit: int, *, anew: bool = False) -> tuple[Line, ClaimAsk]:
        types = self._room.types_with_room(line)
        position = self._positions.of(line, types)
        if anew:
            position.begin_anew()
        from_the_beginning = anew or self._looks.includes(line)
        start, window = position.next(from_the_beginning=from_the_beginning, narrowed=types != line.event_types)
        ask = ClaimAsk(line.context, types, line.handler_names, limit, start, window, line.handler_types)
        self._looks.ask(line, position, ask)
        return line, ask

    def _on_change(self) -> None:
        """A row is no longer held: wake if somebody waits for the room, the quiet or the end."""
        if self._wake.is_set():
            return
        waits_for_quiet = self._quarantine.is_waiting or self._until == "drained"
        is_quiet = waits_for_quiet and not self._desk.held()
        if is_quiet or self._runs_alone or (self._room.refused and self._room.has_room()):
            self._wake.set()

    async def _hand_on(
        self, asks: list[tuple[Line, ClaimAsk]], answers: list[ClaimAnswer], *, ahead: bool, seconds: float
    ) -> None:
        self._quarantine.offered = None
        dangerous: list[tuple[Line, Delivery]] = []
        is_stale = self._is_stale(seconds)
        for (line, ask), answer in zip(asks, answers, strict=True):
            position = self._positions.of(line, ask.event_types)
            position.reached(ask, answer)
            self._looks.answer(line, position, answer, ahead=ahead)
            self._desk.hold(answer.deliveries, line)
            if is_stale:
                self._desk.release(answer.deliveries)
            elif any(delivery.suspect for delivery in answer.deliveries):
                dangerous += [(line, delivery) for delivery in answer.deliveries if self._is_dangerous(delivery)]
                harmless = [delivery for delivery in answer.deliveries if not self._is_dangerous(delivery)]
                self._hand_to(line, harmless)
            else:
                self._hand_to(line, answer.deliveries)
        if dangerous:
            if self._desk.held() == 1:
                await self._run_alone(*dangerous[0])
                return
            # Given back before anything else that is held can take it along.
            for line, delivery in await self._quarantine.put_off(dangerous):
                self._hand_to(line, [delivery])

    def _is_stale(self, seconds: float) -> bool:
        """Whether a claim took so long that its rows may have been given back as unknown, and claimed again."""
        return seconds > 2 * self._desk.settings.times.answer.total_seconds()

    def _due_aside(self) -> tuple[Line, Delivery] | None:
        """The row that this worker has waited with, if it is to run now."""
        may_begin = self._ways.is_alive() and self._quarantine.may_begin()
        return self._quarantine.begin() if may_begin else None

    async def _run_aside(self, line: Line, aside: Delivery) -> bool:
        """Claim what was set aside, and run it. If the database is lost, it falls due by itself."""
        clock = asyncio.get_running_loop().time
        ask = ClaimAsk(line.context, line.event_types, line.handler_names, 1, handler_types=line.handler_types)
        reached("claim.before")
        began, measured = clock(), time.perf_counter()
        try:
            answer = await self._claims.claim_aside(ask, aside)
        except SubstrateLostError:
            with suppress(SubstrateLostError):
                await self._claims.leave_quarantine(line.context)
            raise
        reached("claim.after")
        self._tell([(line, ask)], [answer], time.perf_counter() - measured)
        self._desk.hold(answer.deliveries, line)
        if self._is_stale(clock() - began):
            self._desk.release(answer.deliveries)
        else:
            for delivery in answer.deliveries:
                await self._run_alone(line, delivery)
        await self._claims.leave_quarantine(line.context)
        return True

    def _hand_to(self, line: Line, deliveries: list[Delivery]) -> None:
        (self._ways.to_lanes if line.transactional else self._ways.to_plain)(deliveries)

    def _is_dangerous(self, delivery: Delivery) -> bool:
        """A suspect that was lost more than once, or that has no second chance: this time it must be alone."""
        losses = delivery.attempts - 1
        return delivery.suspect and (
            losses >= _LOSSES_BEFORE_QUARANTINE or delivery.attempts >= self._desk.routes.max_attempts(delivery)
        )

    async def _run_alone(self, line: Line, delivery: Delivery) -> None:
        """Run it, so that it takes nobody along, and claim nothing until it has ended, or has lived for a while."""
        self._runs_alone = True
        await self._wakefulness.leave()  # it does not look meanwhile
        self._desk.probe.tell(Quarantined(delivery))
        self._hand_to(line, [delivery])
        until = self._quarantine.deadline()
        while self._desk.holds(delivery) and not self._stopping and asyncio.get_running_loop().time() < until:
            self._wake.clear()
            await _wait(self._wake, 1)
        self._runs_alone = False

    def _pause(self) -> float:
        """How long to sleep, unless woken."""
        if self._gather_for:
            return self._gather_for
        times = self._desk.settings.times
        now = asyncio.get_running_loop().time()
        poll = (times.poll_deaf if self._ways.is_deaf() else times.poll).total_seconds()
        until = min(now + poll, self._timer.at() + 0.001)
        if self._quarantine.is_waiting and self._ways.is_alive():  # else nothing begins then, and nothing moves on
            until = min(until, self._quarantine.until)
        if not self._looks.is_empty(self._waiting):
            until = min(until, self._looks.next_at(idle=True))
        return max(0.0, until - now)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """For the event, but no longer than this."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
