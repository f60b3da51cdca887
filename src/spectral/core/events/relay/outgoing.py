"""The broker as a relay sees it: opened when it is needed, given up when it is lost, and cleared of what is over."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from spectral.core.events.broker import BrokerLostError
from spectral.core.events.describe import describe
from spectral.core.events.failure import ConfigurationError
from spectral.core.events.probe import BrokerBack, BrokerLost

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Generator, Sequence

    from spectral.core.events.broker import BrokerLane, BrokerSender, Reference
    from spectral.core.events.broker_settings import BrokerKind
    from spectral.core.events.probe import Probe

_GOODBYE: Final = 2.0
_FORGOTTEN_EVERY: Final = 600.0
"""Seconds: a worker that outlives its generation makes anew what was removed."""

_REFUSED_FOR: Final = timedelta(seconds=10)
_NOT_ASKED_FOR: Final = 60.0
_CHECKED_EVERY: Final = 2.0
"""Seconds: a relay with nothing to send has to notice too that its broker is gone."""


class Outgoing:
    """One sender at a time. A broker that cannot be used is as good as lost: somebody may set it right meanwhile.

    Every method that asks the broker something raises `BrokerLostError`, and nothing else.
    """

    def __init__(self, sender_for: Callable[[str], BrokerSender], broker: BrokerKind, probe: Probe) -> None:
        self._sender_for = sender_for
        self._broker = broker
        self._probe = probe
        self._sender: BrokerSender | None = None
        self._prefix = ""
        self._forgotten: set[int] = set()
        self._forgot_at = 0.0
        self._advised: set[str] = set()
        self._down_since: float | None = None
        self._answered_at = 0.0
        self._refused: dict[BrokerLane, float] = {}
        self._refused_since: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether messages can be sent, as far as is known."""
        return self._sender is not None

    def down_for(self) -> float:
        """For how many seconds it should be open and is not, or has refused a lane; from any thread."""
        return max(self._since(self._down_since), self._since(self._refused_since))

    @staticmethod
    def _since(moment: float | None) -> float:
        return 0.0 if moment is None else time.monotonic() - moment

    async def open(self, prefix: str) -> bool:
        """Have a sender, under names that begin with this; answers whether it was opened just now."""
        self._forget_refusals()
        if self._sender is not None and prefix == self._prefix:
            return False
        await self._close()
        self._down_since = self._down_since or time.monotonic()
        with _as_lost():
            sender = self._sender_for(prefix)
            await sender.open()
        down, self._down_since = self._since(self._down_since), None
        self._sender, self._prefix = sender, prefix
        self._answered_at = time.monotonic()
        self._forgotten.clear()
        advice = tuple(each for each in sender.advice() if each not in self._advised)
        self._advised.update(advice)
        self._probe.tell(BrokerBack(self._broker, down, advice))
        return True

    async def prepare(self, lane: BrokerLane) -> bool:
        """See `BrokerSender`. False: the broker will not have this lane, which is no reason to leave the others.

        It is told, and for a while it is not asked again.
        """
        if time.monotonic() < self._refused.get(lane, 0.0):
            return False
        try:
            await self._use().prepare(lane)
        except ConfigurationError as wrong:
            self._refused[lane] = time.monotonic() + _REFUSED_FOR.total_seconds()
            self._refused_since = self._refused_since or time.monotonic()
            self._probe.tell(BrokerLost(self._broker, describe(wrong), _REFUSED_FOR))
            return False
        if self._refused.pop(lane, None) is not None:
            self._end_refusals()
        return True

    def _forget_refusals(self) -> None:
        """Of lanes that nobody has asked for since: what was due there has gone another way."""
        asked_since = time.monotonic() - _NOT_ASKED_FOR
        gone = [lane for lane, until in self._refused.items() if until < asked_since]
        for lane in gone:
            del self._refused[lane]
        if gone:
            self._end_refusals()

    def _end_refusals(self) -> None:
        if not self._refused:
            self._probe.tell(BrokerBack(self._broker, self._since(self._refused_since), ()))
            self._refused_since = None

    async def waiting(self, lane: BrokerLane) -> int:
        """See `BrokerSender`."""
        with _as_lost():
            waiting = await self._use().waiting(lane)
        self._answered_at = time.monotonic()
        return waiting

    async def send(self, references: Sequence[Reference]) -> list[Reference]:
        """See `BrokerSender`."""
        with _as_lost():
            return await self._use().send(references)

    async def forget(self, retired: Collection[int]) -> None:
        """Of generations that are over, nothing needs to be kept."""
        if time.monotonic() >= self._forgot_at + _FORGOTTEN_EVERY:
            self._forgot_at = time.monotonic()
            self._forgotten.clear()
        for generation in sorted(set(retired) - self._forgotten):
            with _as_lost():
                await self._use().forget(generation)
            self._forgotten.add(generation)

    async def check(self) -> None:
        """See whether it still answers, unless it did a moment ago."""
        if time.monotonic() >= self._answered_at + _CHECKED_EVERY:
            with _as_lost():
                await self._use().check()
            self._answered_at = time.monotonic()

    async def lose(self, lost: BrokerLostError, pause: timedelta) -> None:
        """Give it up, for so long."""
        self._down_since = self._down_since or time.monotonic()
        self._probe.tell(BrokerLost(self._broker, describe(lost), pause))
        await self._close()

    async def close(self) -> None:
        """It is not needed any more."""
        self._down_since = None
        await self._close()

    def _use(self) -> BrokerSender:
        if self._sender is None:
            raise BrokerLostError("the broker is not open")
        return self._sender

    async def _close(self) -> None:
        sender, self._sender = self._sender, None
        self._refused.clear()
        self._refused_since = None
        if sender is not None:
            with suppress(BrokerLostError, TimeoutError):
                async with asyncio.timeout(_GOODBYE):
                    await sender.close()


@contextmanager
def _as_lost() -> Generator[None]:
    """What somebody has to set right there: until then the broker is lost, and the relay does not die of it."""
    try:
        yield
    except ConfigurationError as wrong:
        raise BrokerLostError(str(wrong)) from wrong
