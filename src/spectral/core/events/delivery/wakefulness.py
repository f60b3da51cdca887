"""Whether publishers have to notify this worker: not while it is awake, which it is while rows come in all the time.

asleep → awake: it has a lease, renewed along with its claims, and polls. So it is while it has no room for what comes:
then it need not be told that there is more, and tells the others. → drowsy: few rows come; the lease is withdrawn, but
publishers who trusted it may not have committed, so it polls on. → asleep: they all have, the others are woken, and it
looks once more from the beginning before it waits for its ear.

A worker to which an event comes now and then never leaves its sleep, and says and asks nothing here. Where publishers
wait for each other because they notify, fewer rows are enough to wake it.
"""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from spectral.core.events.failure import SubstrateLostError
from spectral.core.events.ports import NOTHING_ALONG, Along

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spectral.core.events.ports import Bell
    from spectral.core.events.routes import Line

_BUSY: Final = 200.0  # rows a second, from which on to be notified of each costs more than to poll
_IDLE: Final = 100.0
_CROWDED: Final = 60.0
"""So many are enough if publishers are seen waiting for each other: where a commit takes 10 ms, those who notify never
come to more than 100, however many they are."""

_EMPTY: Final = 40.0
_MEASURED_OVER: Final = 0.25  # seconds
_SUCCESSION: Final = 3
"""So many claims have to find something: one heap of events is no stream of them."""

_WITHOUT_ROWS: Final = 0.1  # seconds
_POLL: Final = 0.01
_FIRST_LOOK: Final = 0.025
_LONGEST_LOOK: Final = 0.2
_SAID_EVERY: Final = 0.25
_ASKED_EVERY: Final = 0.05
"""Until rows come in: as long as nobody has said that they do, publishers notify, and commit one at a time."""

_LEAVE_WITHIN: Final = 1.0


class _State(Enum):
    ASLEEP = auto()
    AWAKE = auto()
    DROWSY = auto()


class Wakefulness:
    """Of one worker. `must_look`: nothing is to be waited for before a look from the beginning."""

    def __init__(self, bell: Bell, lines: Sequence[Line], clock: Callable[[], float]) -> None:
        self._bell = bell
        self._clock = clock
        served = ((line.context, each) for line in lines for each in line.event_types or (None,))
        self._served: tuple[tuple[str, str | None], ...] = tuple(dict.fromkeys(served))
        self._contexts = tuple(dict.fromkeys(context for context, _ in self._served))
        self._state = _State.ASLEEP
        self._rate = 0.0  # rows a second, of late
        self._idle = _IDLE  # rows a second, below which it falls asleep
        self._found_at = -math.inf
        self._succession = 0
        self._renewed_at = -math.inf
        self._rang_at = -math.inf
        self._overflows = self._has_room = False
        self._held_at = self._asked_at = -math.inf
        self._holds_on = False
        self._look = _FIRST_LOOK
        self.must_look = False

    @property
    def is_awake(self) -> bool:
        """Whether publishers may trust that it polls."""
        return self._state is _State.AWAKE

    @property
    def is_in_a_stream(self) -> bool:
        """Whether it is awake and rows keep coming, so that more will be there in a moment."""
        now = self._clock()
        return self.is_awake and now - self._found_at <= _WITHOUT_ROWS and self._rate_at(now) >= self._idle

    def along(self) -> Along:
        """What the next claim has to say."""
        if self._state is not _State.AWAKE:
            return NOTHING_ALONG
        now = self._clock()
        renews, rings = now - self._renewed_at >= _SAID_EVERY, self._overflows and now - self._rang_at >= _SAID_EVERY
        if renews:
            self._renewed_at = now
        if rings:
            self._rang_at = now
        return Along(self._served if renews else (), rings) if renews or rings else NOTHING_ALONG

    def found(self, rows: int, *, overflows: bool, has_room: bool = True) -> None:
        """What a claim brought; it overflows where there may be more than this worker has room for.

        has_room: for anything at all; without, no claim was made.
        """
        self._overflows, self._has_room = overflows, has_room
        now = self._clock()
        if not rows:
            return
        self._rate = self._rate_at(now) + rows / _MEASURED_OVER
        self._succession = self._succession + 1 if now - self._found_at <= _WITHOUT_ROWS else 1
        self._found_at = now
        if self._state is not _State.AWAKE and self._rate >= _BUSY and self._succession >= _SUCCESSION:
            self._awake(_IDLE)

    async def rest(self, pause: float) -> float:
        """For how long to wait at most, before the next look, when a claim has found nothing.

        Raises:
            SubstrateLostError: publishers could not be told; as long as they are not, it does not sleep.
        """
        if self._state is _State.ASLEEP:
            if self.must_look:
                return 0.0 if self._has_room else pause  # who has none cannot look, and is woken when there is some
            if await self._is_crowded():
                self._awake(_EMPTY)
                return 0.0  # it is said along with the next claim
            self._state = _State.AWAKE  # before it is said: whether it was is not known if the answer is lost
            if not await self._holds():
                self._state = _State.ASLEEP
                return pause
        if self._state is _State.AWAKE:
            if self.is_in_a_stream:
                return min(pause, _POLL)
            if await self._holds():
                return min(pause, _POLL if self._has_room else _SAID_EVERY)
            await self._bell.withdraw(self._contexts)
            self._state, self._look = _State.DROWSY, _FIRST_LOOK
        return 0.0 if await self._fall_asleep() else min(pause, self._next_look())

    def _awake(self, idle: float) -> None:
        self._state, self._idle = _State.AWAKE, idle
        self._renewed_at = -math.inf

    async def _is_crowded(self) -> bool:
        """Whether publishers hinder each other at fewer rows than would wake it; asked some times a second."""
        now = self._clock()
        is_stream = self._succession >= _SUCCESSION and self._rate_at(now) >= _CROWDED
        if not is_stream or now - self._asked_at < _SAID_EVERY:
            return False
        self._asked_at = now
        return await self._bell.is_crowded()

    async def _holds(self) -> bool:
        """Whether it has a lease because it is full, and rows come in all the same; asked several times a second."""
        now = self._clock()
        if not self._overflows:
            return False
        if now - self._held_at >= (_SAID_EVERY if self._holds_on else _ASKED_EVERY):
            self._held_at = now
            self._holds_on = await self._bell.hold(self._served)
            self._renewed_at = now
        return self._holds_on

    async def leave(self) -> None:
        """It will not look for a while, or never again: whoever else there is has to."""
        if self._state is _State.ASLEEP:
            return
        with suppress(SubstrateLostError, TimeoutError):  # then the lease runs out, and somebody takes over
            async with asyncio.timeout(_LEAVE_WITHIN):
                await self._bell.withdraw(self._contexts, rings=True)
                self._state, self._look = _State.DROWSY, _FIRST_LOOK
                await self._fall_asleep()

    async def _fall_asleep(self) -> bool:
        """Once everybody who trusted the lease has committed; what they did is seen by the look that follows."""
        if not await self._bell.is_quiet(self._contexts):
            return False
        self._state = _State.ASLEEP
        self.must_look = True
        return True

    def _next_look(self) -> float:
        """Longer and longer: a transaction that stays open may do so for minutes."""
        look, self._look = self._look, min(_LONGEST_LOOK, 2 * self._look)
        return look

    def _rate_at(self, now: float) -> float:
        return self._rate * math.exp((self._found_at - now) / _MEASURED_OVER) if self._rate else 0.0
