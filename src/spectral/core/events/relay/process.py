"""A relay as its users see it: listens, sends until it is stopped, and says how it is."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from spectral.core.events.delivery.backoff import Backoff
from spectral.core.events.describe import describe
from spectral.core.events.failure import ConfigurationError, SubstrateLostError
from spectral.core.events.probe import Crashed, EarLost, EarOpened
from spectral.core.events.relay.health import RelayHealth, RelayState
from spectral.core.events.relay.sending import SendLoop

if TYPE_CHECKING:
    from spectral.core.events.broker_settings import RelaySettings
    from spectral.core.events.probe import Probe
    from spectral.core.events.relay.ports import RelayEar, Scope
    from spectral.core.events.relay.sending import Way

_HEARTBEAT: Final = timedelta(seconds=5)


class Relay:
    """One relay. Run it once, inside a running event loop; several at once share the work."""

    def __init__(self, way: Way, ear: RelayEar, settings: RelaySettings, probe: Probe) -> None:
        self._broker = way.broker
        self._ear = ear
        self._settings = settings
        self._probe = probe
        self._send = SendLoop(way, settings, probe, self._on_scope)
        self._channels: frozenset[str] = frozenset()
        self._knows_channels = asyncio.Event()
        self._knows_others = asyncio.Event()
        self._is_listening = False
        self._ended: RelayState | None = None
        self._has_run = False

    async def run(self) -> None:
        """Send until `stop` is called.

        Raises:
            ConfigurationError: the relay does not fit this database.
        """
        if self._has_run:
            raise ConfigurationError("a relay runs once; make another one")
        self._has_run = True
        hear = asyncio.ensure_future(self._hear())
        send = asyncio.ensure_future(self._send.run())
        try:
            await asyncio.wait({hear, send}, return_when=asyncio.FIRST_COMPLETED)
            if hear.done():
                hear.result()
            await send
        except BaseException as error:
            self._ended = RelayState.DEAD
            if not isinstance(error, asyncio.CancelledError | ConfigurationError):
                self._probe.tell(Crashed(describe(error)))
            raise
        finally:
            for part in (hear, send):
                part.cancel()
            await asyncio.gather(hear, send, return_exceptions=True)
        self._ended = RelayState.STOPPED

    def stop(self) -> None:
        """Take no more, send what was taken, then end."""
        self._send.stop()

    def health(self) -> RelayHealth:
        """How it is; may be called from any thread."""
        send, counts = self._send, self._send.counts
        return RelayHealth(
            state=self._ended or self._state(),
            relay=self._settings.name,
            broker=self._broker,
            mode=send.mode,
            connected=send.is_connected,
            broker_down_seconds=send.down_for(),
            listening=self._is_listening,
            sent=counts.sent,
            resent=counts.resent,
            refused=counts.refused,
            lag_seconds=counts.lag,
        )

    def _state(self) -> RelayState:
        if self._send.is_impaired:
            return RelayState.DEGRADED
        if not self._send.has_looked:
            return RelayState.STARTING
        return RelayState.SENDING if self._send.mode == self._broker else RelayState.STANDING

    def _on_scope(self, scope: Scope) -> None:
        if scope.channels - self._channels:
            self._channels |= scope.channels
            self._knows_others.set()
        self._knows_channels.set()

    async def _hear(self) -> None:
        """Listen until cancelled; while it cannot, the poll finds what comes."""
        backoff = Backoff(self._settings.reconnect, self._settings.reconnect_cap)
        try:
            while True:
                try:
                    await self._listen(backoff)
                except SubstrateLostError as lost:
                    self._is_listening = False
                    pause = backoff.next()
                    self._probe.tell(EarLost(describe(lost), pause))
                    await asyncio.sleep(pause.total_seconds())
        finally:
            self._is_listening = False
            await self._ear.close()

    async def _listen(self, backoff: Backoff) -> None:
        await self._knows_channels.wait()
        heard = self._channels
        await self._ear.open(heard)
        self._is_listening = True
        self._probe.tell(EarOpened(tuple(sorted(heard))))
        self._send.wake()
        while True:
            self._knows_others.clear()
            if new := self._channels - heard:
                await self._ear.listen(new)
                heard |= new
                self._send.wake()
            if await self._hears_or_learns():
                self._send.wake()
            backoff.reset()

    async def _hears_or_learns(self) -> bool:
        """Whether something was heard; it also ends when there are others to listen to."""
        hearing = asyncio.ensure_future(self._ear.hear(_HEARTBEAT))
        learning = asyncio.ensure_future(self._knows_others.wait())
        try:
            await asyncio.wait({hearing, learning}, return_when=asyncio.FIRST_COMPLETED)
            return hearing.result() if hearing.done() else False
        finally:
            for part in (hearing, learning):
                part.cancel()
            await asyncio.gather(hearing, learning, return_exceptions=True)
