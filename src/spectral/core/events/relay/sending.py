"""Send: take rows that are due, commit that they are taken, then tell the broker which they are.

In this order a crash loses messages and never sends what was not taken; what is lost is found, for its rows are still
pending while nothing of their lane waits at the broker. Several relays share the rows as workers do. While workers are
to take from elsewhere, it stands still.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spectral.core.events.broker import BrokerLostError
from spectral.core.events.delivery.backoff import Backoff
from spectral.core.events.delivery.wakefulness import Wakefulness
from spectral.core.events.describe import describe
from spectral.core.events.failpoints import reached
from spectral.core.events.failure import SubstrateLostError
from spectral.core.events.ports import NOTHING_ALONG
from spectral.core.events.probe import Relayed, RelaySwitched, SubstrateLost
from spectral.core.events.relay.health import Counts
from spectral.core.events.relay.outgoing import Outgoing
from spectral.core.events.relay.progress import Progress
from spectral.core.events.relay.ringing import Ringing
from spectral.core.events.routes import Line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spectral.core.events.broker import BrokerLane, BrokerSender, Reference
    from spectral.core.events.broker_settings import BrokerKind, RelaySettings
    from spectral.core.events.ports import Along
    from spectral.core.events.probe import Probe
    from spectral.core.events.relay.ports import RelayOutlook, RelayStore, Scope, Taken

_SCOPE_EVERY: Final = 10.0
_SCOPE_SOON: Final = 1.0
"""Seconds, if something comes in from where nothing was expected; longer and longer, while nobody knows of it."""

_AT_ONCE: Final = 250
"""References to a send: how busy it is has to be seen more often than a large batch takes."""

_FULL: Final = 0.05
"""Seconds until a broker that is full is asked again; longer and longer, while nothing is taken from it."""


@dataclass(frozen=True, slots=True)
class Way:
    """From where, to where."""

    store: RelayStore
    sender_for: Callable[[str], BrokerSender]
    broker: BrokerKind


class SendLoop:
    """Sends until it is stopped. `on_scope` is called with every scope that was read."""

    def __init__(self, way: Way, settings: RelaySettings, probe: Probe, on_scope: Callable[[Scope], None]) -> None:
        self._store = way.store
        self._broker = way.broker
        self._outgoing = Outgoing(way.sender_for, way.broker, probe)
        self._settings = settings
        self._probe = probe
        self._on_scope = on_scope
        self._wake = asyncio.Event()
        self._stopped = asyncio.Event()
        self._progress: dict[BrokerLane, Progress] = {}
        self._wakefulness: Wakefulness | None = None
        self._contexts: frozenset[str] = frozenset()
        self._channels: frozenset[str] = frozenset()
        self._ringing = Ringing()
        self._scope_at = -_SCOPE_EVERY
        self._scope_is_old = False
        self._scope_soon = _SCOPE_SOON
        self._retired: frozenset[int] = frozenset()
        self._is_full = self._holds_off = False
        self._full_pause = _FULL
        self._is_busy = False
        self._has_found = False  # in one of the looks that come to all lanes together
        self.counts = Counts()
        self.mode = ""
        self.has_looked = False
        self.is_impaired = False

    # what others ask

    @property
    def is_connected(self) -> bool:
        """Whether the broker is open."""
        return self._outgoing.is_open

    def down_for(self) -> float:
        """For how many seconds the broker should be open and is not; from any thread."""
        return self._outgoing.down_for()

    def wake(self) -> None:
        """There may be something to send."""
        self._wake.set()

    def stop(self) -> None:
        """Take no more; what was taken is sent."""
        self._stopped.set()
        self._wake.set()

    # the order

    async def run(self) -> None:
        """Send until stopped."""
        backoff = Backoff(self._settings.reconnect, self._settings.reconnect_cap)
        try:
            while not self._stopped.is_set():
                self._wake.clear()
                try:
                    pause = await self._pass()
                    self.is_impaired = False
                    backoff.reset()
                    if self._holds_off:
                        # Whatever wakes it while there is no room has to wait for some.
                        await _wait(self._stopped, min(pause, _FULL))
                        pause -= _FULL
                    await _wait(self._wake, pause)
                except SubstrateLostError as lost:
                    longer = backoff.next()
                    self.is_impaired = True
                    self._probe.tell(SubstrateLost("relay", describe(lost), longer))
                    await _wait(self._stopped, longer.total_seconds())
                except BrokerLostError as lost:
                    longer = backoff.next()
                    self.is_impaired = True
                    await self._outgoing.lose(lost, longer)
                    await self._leave()  # workers claim from the database meanwhile, and have to be told of what comes
                    await _wait(self._stopped, longer.total_seconds())
        finally:
            await self._leave()
            await self._outgoing.close()
            await self._store.close()

    async def _pass(self) -> float:
        """Look, and send what there is; answers how long to sleep at most."""
        clock = asyncio.get_running_loop().time
        self._holds_off = False
        await self._read_scope()
        rings = self._ringing.due(clock())
        outlook = await self._store.look(self._broker, self._along(), rings)
        self._ringing.rang(rings, clock())
        self.has_looked = True
        for note in outlook.fanned_out:
            self._probe.tell(note)
        self._scope_is_old = self._scope_is_old or any(
            lane.context not in self._contexts or lane.channel not in self._channels for lane in outlook.lanes
        )
        await self._follow(outlook)
        if self.mode != self._broker:
            return self._settings.poll.total_seconds()
        if await self._outgoing.open(outlook.mode.prefix):
            self._progress.clear()
        await self._outgoing.forget(self._retired)
        sent = await self._send_lanes(outlook.lanes)
        self._has_found = self._has_found or sent > 0 or bool(outlook.fanned_out)
        return 0.0 if outlook.has_more else await self._rest(outlook)

    async def _rest(self, outlook: RelayOutlook) -> float:
        """For how long to sleep at most, now that every lane was looked at."""
        has_found, self._has_found = self._has_found, False
        is_full, self._is_full = self._is_full, False
        if has_found:
            self._full_pause = _FULL
            return 0.0
        await self._outgoing.check()
        pause = self._settings.poll.total_seconds()
        if is_full:
            self._holds_off = True
            pause = min(pause, self._full_pause)
            self._full_pause = 2 * pause
        if outlook.due_in is not None:
            pause = min(pause, outlook.due_in.total_seconds() + 0.001)
        if self._wakefulness is not None:
            pause = await self._wakefulness.rest(pause)
        return min(pause, self._ringing.due_in(asyncio.get_running_loop().time()))

    async def _send_lanes(self, lanes: Sequence[BrokerLane]) -> int:
        """A batch of each; answers how many rows that were."""
        wakefulness = self._wakefulness
        if wakefulness is not None and wakefulness.must_look:
            wakefulness.must_look = False
            for progress in self._progress.values():
                progress.begin_anew()
        sent = 0
        for lane in lanes:
            if self._stopped.is_set():
                break
            sent += await self._send_lane(lane)
        self._is_busy = sent > 0
        return sent

    async def _send_lane(self, lane: BrokerLane) -> int:
        """Take and send a batch of one lane; answers how many the broker has got."""
        clock = asyncio.get_running_loop().time
        progress = self._progress.setdefault(lane, Progress(self._settings))
        if not await self._outgoing.prepare(lane):
            return 0
        if progress.must_count(clock()):
            progress.counted(await self._outgoing.waiting(lane), clock())
        began = clock()
        room = progress.room(began)
        if room < 1:
            self._is_full = True
            if self._wakefulness is not None and self._wakefulness.is_awake:
                self._ringing.owe(lane.channel)  # publishers are silent, and what comes is not sent
            return 0
        start, lost = progress.start(began, is_busy=self._is_busy), progress.lost()
        taken = await self._store.take(self._broker, lane, room, start, lost)
        if taken is None:
            return 0
        refused = await self._send(taken) if taken.references else 0
        rows = len(taken.references) - refused
        progress.took(taken, rows, clock() - began)
        if refused:
            progress.refused(clock())
        if taken.references:
            self._count(lane, taken, refused, clock() - began)
        return rows

    async def _send(self, taken: Taken) -> int:
        """Answers how many were refused; those, and what is left if the broker is lost, are as if never taken."""
        self._ringing.owe(taken.references[0].lane.channel)
        reached("relay.taken")
        refused: list[Reference] = []
        for start in range(0, len(taken.references), _AT_ONCE):
            chunk = taken.references[start : start + _AT_ONCE]
            try:
                refused += await self._outgoing.send(chunk)
            except BrokerLostError:
                with suppress(SubstrateLostError):  # then they are found to be lost
                    await self._store.unsend([*refused, *taken.references[start:]], taken.stamp)
                raise
            if self._wakefulness is not None:
                self._wakefulness.found(len(chunk), overflows=False)
        reached("relay.sent")
        if refused:
            await self._store.unsend(refused, taken.stamp)
        return len(refused)

    def _count(self, lane: BrokerLane, taken: Taken, refused: int, seconds: float) -> None:
        rows = len(taken.references) - refused
        self.counts.sent += rows
        self.counts.resent += taken.resent
        self.counts.refused += refused
        self.counts.lag = taken.lag
        self._probe.tell(Relayed(self._broker, *lane, rows, taken.resent, refused, seconds, taken.lag))

    # the database

    async def _follow(self, outlook: RelayOutlook) -> None:
        """Do as the mode says."""
        if outlook.mode.mode != self.mode:
            self.mode = outlook.mode.mode
            self._probe.tell(RelaySwitched(self.mode))
        if self.mode != self._broker:
            await self._leave()
            await self._outgoing.close()

    async def _read_scope(self) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._scope_at + (self._scope_soon if self._scope_is_old else _SCOPE_EVERY):
            return
        scope = await self._store.scope()
        is_news = scope.contexts != self._contexts or scope.channels != self._channels
        self._scope_soon = _SCOPE_SOON if is_news else min(_SCOPE_EVERY, 2 * self._scope_soon)
        self._scope_at, self._scope_is_old = now, False
        self._retired, self._channels = scope.retired, scope.channels
        self._progress = {lane: each for lane, each in self._progress.items() if lane.generation not in scope.retired}
        if scope.contexts != self._contexts:
            await self._leave()
            self._contexts = scope.contexts
            lines = [Line(context, None, (), transactional=False) for context in sorted(scope.contexts)]
            self._wakefulness = Wakefulness(self._store, lines, asyncio.get_running_loop().time) if lines else None
        self._on_scope(scope)

    # the bell

    def _along(self) -> Along:
        if self._wakefulness is None or not self._outgoing.is_open:
            return NOTHING_ALONG
        return self._wakefulness.along()

    async def _leave(self) -> None:
        """Publishers have to notify again: nobody looks for them here."""
        if self._wakefulness is not None:
            await self._wakefulness.leave()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """For the event, but no longer than this."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
