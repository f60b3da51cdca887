"""Receive: keep the broker open while workers are to take from it, and have at hand what there is room for.

A worker asks for no more than it could claim in one go, and gives back what it cannot claim soon: what waits here waits
for one worker, what waits at the broker for any. What was claimed, or is void, is acknowledged after the commit.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from spectral.core.events.broker import BrokerLostError
from spectral.core.events.delivery.backoff import Backoff
from spectral.core.events.describe import describe
from spectral.core.events.failpoints import reached
from spectral.core.events.failure import ConfigurationError
from spectral.core.events.probe import UNREADABLE, BrokerBack, BrokerLost, ReferencesVoid
from spectral.core.events.relay.buffer import Buffer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from spectral.core.events.broker import BrokerLane, BrokerReceiver, Received, Reference
    from spectral.core.events.broker_settings import BrokerSettings
    from spectral.core.events.probe import Probe
    from spectral.core.events.settings import WorkerTimes

_MOST: Final = 1_000
_WAIT: Final = timedelta(seconds=1)
_HELD_FOR: Final = 5.0
_GOODBYE: Final = 2.0
_FOREIGN: Final = 2_000
"""Messages a second that are somebody else's, at most: what nobody wants would be handed around as fast as can be."""

_HEAP: Final = 20
_CROWDED: Final = 5.0
"""Messages that come together, none of them for this worker; and for how many seconds that is remembered."""

_STEADY: Final = 5.0
"""Seconds after which a broker that is lost was not lost again."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where to receive, and what is wanted from there."""

    receiver_for: Callable[[str], BrokerReceiver]
    settings: BrokerSettings
    lanes: Sequence[BrokerLane]
    handles: Callable[[Reference], bool]


class ReceiveLoop:
    """Fills the buffer. `on_received` is called when there is something, and when the broker comes or goes."""

    def __init__(self, source: Source, times: WorkerTimes, probe: Probe) -> None:
        self._source = source
        self._times = times
        self._probe = probe
        self.buffer = Buffer()
        self.on_received: Callable[[], None] = lambda: None
        self._prefix: str | None = None
        self._changed = asyncio.Event()
        self._is_open = False
        self._down_since: float | None = None
        self._want = 0
        self._asked = asyncio.Event()
        self._done: list[Received] = []
        self._back: list[Received] = []
        self._to_answer = asyncio.Event()
        self._unreadable = 0
        self._advised: set[str] = set()
        self._crowded_until = 0.0
        self._held_for = min(_HELD_FOR, source.settings.redeliver_after.total_seconds() / 4)

    # what others ask

    @property
    def is_wanted(self) -> bool:
        """Whether workers are to take from the broker."""
        return self._prefix is not None

    @property
    def is_open(self) -> bool:
        """Whether references come in, and are wanted."""
        return self._is_open and self._prefix is not None

    @property
    def is_crowded_out(self) -> bool:
        """Whether it was handed a heap of what is for others, and nothing else, a moment ago."""
        return asyncio.get_running_loop().time() < self._crowded_until

    def down_for(self) -> float:
        """For how many seconds they are wanted and do not come in; from any thread."""
        since = self._down_since
        return 0.0 if since is None or self._prefix is None else time.monotonic() - since

    def want(self, prefix: str | None) -> None:
        """Take from the broker, under names that begin with this; none: do not."""
        if prefix == self._prefix:
            return
        self._prefix = prefix
        self._down_since = None if prefix is None else time.monotonic()
        self._changed.set()

    def ask(self, references: int) -> None:
        """There is room for so many."""
        self._want = min(references, _MOST)
        self._asked.set()

    def acknowledge(self, received: Collection[Received]) -> None:
        """These were claimed, or are void."""
        self._done += received
        self._to_answer.set()

    # the order

    async def run(self) -> None:
        """Receive until cancelled."""
        backoff = Backoff(self._times.reconnect, min(self._times.reconnect_cap, self._times.poll_deaf))
        while True:
            self._changed.clear()
            if self._prefix is None:
                await self._changed.wait()
                continue
            try:
                await self._receive_from(self._source.receiver_for(self._prefix), backoff)
            except (BrokerLostError, ConfigurationError) as lost:
                pause = backoff.next()
                self._probe.tell(BrokerLost(self._source.settings.kind, describe(lost), pause))
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause.total_seconds()):
                        await self._changed.wait()

    async def _receive_from(self, receiver: BrokerReceiver, backoff: Backoff) -> None:
        """Until it is lost, or no longer wanted; then nothing of it is left here."""
        answers = True
        try:
            await receiver.open(self._source.lanes)
            self._opened(receiver)
            await self._take_from(receiver, backoff)
        except BrokerLostError:
            answers = False
            raise
        finally:
            self._closed()
            await self._part_with(receiver, answers=answers)

    def _opened(self, receiver: BrokerReceiver) -> None:
        down, self._down_since = self.down_for(), None
        self._is_open = True
        self._unreadable = receiver.unreadable
        advice = tuple(each for each in receiver.advice() if each not in self._advised)
        self._advised.update(advice)
        self._probe.tell(BrokerBack(self._source.settings.kind, down, advice))
        self.on_received()

    def _closed(self) -> None:
        self._is_open = False
        if self._prefix is not None:
            self._down_since = self._down_since or time.monotonic()
        self.on_received()  # from now on the database is claimed from

    async def _take_from(self, receiver: BrokerReceiver, backoff: Backoff) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        parts = [
            asyncio.ensure_future(part)
            for part in (self._receive(receiver), self._answer(receiver), self._changed.wait())
        ]
        try:
            done, _ = await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            if clock() - began >= _STEADY:
                backoff.reset()
        for part in done:
            part.result()

    async def _receive(self, receiver: BrokerReceiver) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            if old := self.buffer.drop_older(clock() - self._held_for):
                self._give_back(old)
                self._want = 0  # there is no room for them; when there is, somebody asks
            room = self._want - len(self.buffer)
            if room < 1:
                self._asked.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._held_for / 2):
                        await self._asked.wait()
                continue
            received = await receiver.receive(room, _WAIT)
            self._tell_of_rubbish(receiver)
            mine = [each for each in received if self._source.handles(each.reference)]
            if mine:
                self.buffer.add(mine, clock())
                self.on_received()
            if foreign := len(received) - len(mine):
                if foreign >= _HEAP and not mine:
                    self._is_crowded_out(clock())
                self._give_back([each for each in received if not self._source.handles(each.reference)])
                await asyncio.sleep(foreign / _FOREIGN)

    def _is_crowded_out(self, now: float) -> None:
        """What is for this worker may not even be sent, as long as so much waits that is not."""
        was_so, self._crowded_until = self.is_crowded_out, now + _CROWDED
        if not was_so:
            self.on_received()

    def _tell_of_rubbish(self, receiver: BrokerReceiver) -> None:
        unreadable, self._unreadable = receiver.unreadable - self._unreadable, receiver.unreadable
        if unreadable:
            self._probe.tell(ReferencesVoid(UNREADABLE, unreadable))

    async def _answer(self, receiver: BrokerReceiver) -> None:
        """Tell the broker what became of what it handed out."""
        while True:
            await self._to_answer.wait()
            await self._answer_now(receiver)

    async def _answer_now(self, receiver: BrokerReceiver) -> None:
        self._to_answer.clear()
        done, self._done = self._done, []
        back, self._back = self._back, []
        if done:
            reached("acknowledge.before")
            await receiver.acknowledge(done)
            reached("acknowledge.after")
        if back:
            await receiver.give_back(back)

    def _give_back(self, received: Collection[Received]) -> None:
        self._back += received
        self._to_answer.set()

    async def _part_with(self, receiver: BrokerReceiver, *, answers: bool) -> None:
        """Leave nothing behind that somebody would have to wait for, as far as the broker still answers."""
        self._give_back(self.buffer.clear())
        if answers:
            with suppress(BrokerLostError, ConfigurationError, TimeoutError):
                async with asyncio.timeout(_GOODBYE):
                    await self._answer_now(receiver)
        self._done, self._back = [], []
        with suppress(BrokerLostError, TimeoutError):
            async with asyncio.timeout(_GOODBYE):
                await receiver.close()
