"""Reception: the claims of a worker that receives references.

The claim loop asks as it always does. While references come in, it gets the rows that they name and that are still to
be had; while they do not, because the broker is lost or workers are to take from the database, it gets rows as ever. In
both cases it is the database that says who gets what: the broker only saves the search.

What has been due for long is claimed whether its message comes or not, so a relay that is gone costs time and no more.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from spectral.core.events.broker_settings import NO_BROKER
from spectral.core.events.ports import NOTHING_ALONG, Along, ClaimAnswer, Outlook
from spectral.core.events.probe import ReferencesVoid, RelaySwitched
from spectral.core.events.relay.ports import ReferenceAsk

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spectral.core.events.broker import Received
    from spectral.core.events.broker_settings import BrokerSettings
    from spectral.core.events.consumer import Subscription
    from spectral.core.events.lease import Delivery
    from spectral.core.events.ports import ClaimAsk
    from spectral.core.events.probe import Probe
    from spectral.core.events.relay.ports import ReferencedClaims
    from spectral.core.events.relay.receive import ReceiveLoop

_MODE_EVERY: Final = 5.0
_MODE_AT_MOST_EVERY: Final = 0.25
_MODE_AT_MOST_EVERY_RECEIVING: Final = 1.0
"""Publishers notify workers that receive too, and each of them would ask four times a second what has not changed."""

_LATE_EVERY: Final = 5.0
_SEARCH_EVERY: Final = 0.25
_SEARCH_SHARE: Final = 20
_FALLEN_BACK: Final = timedelta(seconds=1)
"""The relay may be awake, so that publishers notify nobody."""


class BrokerReception:
    """Implements `Claims`, on those of the database, and `Reception`."""

    def __init__(self, claims: ReferencedClaims, receive: ReceiveLoop, settings: BrokerSettings, probe: Probe) -> None:
        self._claims = claims
        self._receive = receive
        self._settings = settings
        self._probe = probe
        self._runs = False
        self._heard = True
        self._mode = NO_BROKER
        self._mode_read_at = -_MODE_EVERY
        self._late_at = self._search_at = 0.0
        self._late_every = min(_LATE_EVERY, settings.late.total_seconds() / 4)
        self._leased: tuple[str, ...] = ()  # contexts that publishers may be silent for, because of this worker
        self._has_withdrawn = False

    # Reception

    async def run(self, on_received: Callable[[], None]) -> None:
        """See `Reception`."""
        self._receive.on_received = on_received
        self._runs = True
        try:
            await self._receive.run()
        finally:
            self._runs = False

    def heard(self) -> None:
        """See `Reception`."""
        self._heard = True

    @property
    def takes_from(self) -> str:
        """See `Reception`."""
        return self._settings.kind if self._receive.is_open else NO_BROKER

    @property
    def has_fallen_back(self) -> bool:
        """See `Reception`."""
        return self._receive.is_wanted and not self._receive.is_open

    def down_for(self) -> float:
        """See `Reception`."""
        return self._receive.down_for()

    # Claims

    async def subscribe(self, subscriptions: Sequence[Subscription], *, replace: bool) -> list[Subscription]:
        """See `Claims`."""
        return await self._claims.subscribe(subscriptions, replace=replace)

    async def live_far_below(self) -> int | None:
        """See `Claims`."""
        return await self._claims.live_far_below()

    async def claim(self, asks: Sequence[ClaimAsk], along: Along = NOTHING_ALONG) -> list[ClaimAnswer]:
        """See `Claims`."""
        if not self._receive.is_open:
            self._note_lease(along)
            return await self._claims.claim(asks, along)
        await self._let_the_bell_go()
        return await self._from_references(asks)

    async def look_ahead_and_claim(
        self, asks: Sequence[ClaimAsk], along: Along = NOTHING_ALONG
    ) -> tuple[Outlook, list[ClaimAnswer]]:
        """See `Claims`. What the database would tell of rows to fall due is the relay's business meanwhile."""
        await self._read_mode()
        if not self._receive.is_open:
            self._note_lease(along)
            outlook, answers = await self._claims.look_ahead_and_claim(asks, along)
            looks = [] if outlook.due_in is None else [outlook.due_in]
            if self._receive.is_wanted:
                looks.append(_FALLEN_BACK)
            if self._runs and self._heard:
                looks.append(self._mode_due_in())
            return Outlook(outlook.fanned_out, min(looks, default=None)), answers
        await self._let_the_bell_go()
        clock = asyncio.get_running_loop().time
        if clock() >= self._late_at:
            return await self._late(asks)
        answers = await self._from_references(asks)
        searches = self._receive.buffer or self._receive.is_crowded_out
        next_at = min(self._late_at, self._search_at) if searches else self._late_at
        return Outlook((), min(timedelta(seconds=max(0.0, next_at - clock())), self._mode_due_in())), answers

    async def enter_quarantine(self, context: str) -> bool:
        """See `Claims`."""
        return await self._claims.enter_quarantine(context)

    async def leave_quarantine(self, context: str) -> None:
        """See `Claims`."""
        await self._claims.leave_quarantine(context)

    async def claim_aside(self, ask: ClaimAsk, aside: Delivery) -> ClaimAnswer:
        """See `Claims`. By its id, which needs no reference; one that is on its way will be found void."""
        return await self._claims.claim_aside(ask, aside)

    async def hold(self, served: Sequence[tuple[str, str | None]]) -> bool:
        """See `Bell`. Never while it receives: nobody may be silent for a worker that does not look."""
        if self._receive.is_open:
            return False
        self._note_lease(Along(tuple(served)))  # before it is said, as whoever asks for it does
        return await self._claims.hold(served)

    async def withdraw(self, contexts: Sequence[str], *, rings: bool = False) -> None:
        """See `Bell`."""
        if self._leased or not self._receive.is_open:
            await self._claims.withdraw(contexts, rings=rings)

    async def is_crowded(self) -> bool:
        """See `Bell`. While it receives it could not let publishers be silent."""
        return not self._receive.is_open and await self._claims.is_crowded()

    async def is_quiet(self, contexts: Sequence[str]) -> bool:
        """See `Bell`."""
        if not self._leased and self._receive.is_open:
            return True
        is_quiet = await self._claims.is_quiet(contexts)
        if is_quiet:
            self._leased = ()
        return is_quiet

    async def close(self) -> None:
        """See `Claims`."""
        await self._claims.close()

    # the bell

    def _note_lease(self, along: Along) -> None:
        if along.awake:
            self._leased = tuple(dict.fromkeys(context for context, _ in along.awake))
            self._has_withdrawn = False

    async def _let_the_bell_go(self) -> None:
        """Publishers must not be silent for a worker that does not look; whoever does is woken when they all know."""
        if not self._leased:
            return
        if not self._has_withdrawn:
            await self._claims.withdraw(self._leased, rings=True)
            self._has_withdrawn = True
        if await self._claims.is_quiet(self._leased):
            self._leased = ()

    # where rows are taken from

    async def _read_mode(self) -> None:
        """Now and then, and soon after something was heard: a switch wakes every worker."""
        if not self._runs or self._mode_due_in():
            return
        self._heard = False
        self._mode_read_at = asyncio.get_running_loop().time()
        try:
            found = await self._claims.relay_mode()
        except BaseException:
            self._heard = True  # what was said is still to be read
            raise
        mode = self._settings.kind if found.mode == self._settings.kind else NO_BROKER
        if mode != self._mode:
            self._mode = mode
            self._probe.tell(RelaySwitched(mode))
        self._receive.want(found.prefix if mode != NO_BROKER else None)

    def _mode_due_in(self) -> timedelta:
        soon = _MODE_AT_MOST_EVERY_RECEIVING if self._receive.is_open else _MODE_AT_MOST_EVERY
        at = self._mode_read_at + (soon if self._heard else _MODE_EVERY)
        return timedelta(seconds=max(0.0, at - asyncio.get_running_loop().time()))

    async def _from_references(self, asks: Sequence[ClaimAsk]) -> list[ClaimAnswer]:
        """Claim what the references at hand name; no clock and no position, for none was looked at."""
        buffer = self._receive.buffer
        self._receive.ask(sum(ask.limit for ask in asks))
        taken = [buffer.take(ask.context, ask.event_types, ask.limit) for ask in asks]
        answers = [ClaimAnswer([]) for _ in asks]
        if not any(taken):
            return await self._search(asks) if len(buffer) or self._receive.is_crowded_out else answers
        wanted = [
            ReferenceAsk(ask.context, [each.reference for each in received], ask.handler_names, ask.handler_types)
            for ask, received in zip(asks, taken, strict=True)
            if received
        ]
        try:
            claimed = iter(await self._claims.claim_these(wanted))
        except BaseException:
            # Whether it was committed is not known; if so, they will be found void.
            buffer.restore([each for received in taken for each in received], asyncio.get_running_loop().time())
            raise
        for number, (ask, received) in enumerate(zip(asks, taken, strict=True)):
            if received:
                answer = next(claimed)
                answers[number] = ClaimAnswer(answer.deliveries)
                left = [each for each in received if each.reference.row_id in answer.left]
                self._part_with(ask, received, left, len(answer.deliveries))
        return answers

    def _part_with(self, ask: ClaimAsk, received: list[Received], left: list[Received], claimed: int) -> None:
        """Acknowledge what was claimed or is void, and keep what was left."""
        if left:
            self._receive.buffer.restore(left, asyncio.get_running_loop().time())
        kept = {id(each) for each in left}
        self._receive.acknowledge([each for each in received if id(each) not in kept])
        void = len(received) - len(left) - claimed
        if void:
            self._probe.tell(ReferencesVoid(ask.context, void))
        if claimed < ask.limit and self._receive.buffer.has(ask.context, ask.event_types):
            self._receive.on_received()  # a claim that comes back empty is no proof that nothing is there

    async def _search(self, asks: Sequence[ClaimAsk]) -> list[ClaimAnswer]:
        """What is at hand finds no room, or is for others, and keeps out the rest: that has to be searched."""
        clock = asyncio.get_running_loop().time
        began = clock()
        if began < self._search_at:
            return [ClaimAnswer([]) for _ in asks]
        fanned_out, found = await self._claims.claim_late(asks, timedelta(0))
        for note in fanned_out:
            self._probe.tell(note)
        ended = clock()
        self._search_at = ended + max(_SEARCH_EVERY, _SEARCH_SHARE * (ended - began))
        return [ClaimAnswer(answer.deliveries) for answer in found]

    async def _late(self, asks: Sequence[ClaimAsk]) -> tuple[Outlook, list[ClaimAnswer]]:
        fanned_out, found = await self._claims.claim_late(asks, self._settings.late)
        is_full = any(len(answer.deliveries) >= ask.limit for ask, answer in zip(asks, found, strict=True))
        self._late_at = asyncio.get_running_loop().time() + (0.0 if is_full else self._late_every)
        # The references at hand were not looked at this time: they are at once.
        return Outlook(fanned_out, timedelta(0)), [ClaimAnswer(answer.deliveries) for answer in found]
