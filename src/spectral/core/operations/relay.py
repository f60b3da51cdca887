"""The relay as operators see it: from where workers take events, who sends, what waits to be sent; and the switch."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from spectral.core.database import NotFoundError
from spectral.core.events.broker_settings import NO_BROKER, BrokerKind
from spectral.core.operations.insights_values import COUNT_CAP, NOTHING, Amount
from spectral.core.operations.verdict_words import psql

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from spectral.core.database import Database

LANES_CAP: Final = 200

_STATE: Final = b"""
select state.mode, state.prefix, state.switched_at, state.switched_by, state.reason, state.relays
from core.relay_state() as state
"""
# A schema that waits for its migrations does not have it.
_CREW: Final = b"select crew.broker, crew.relays from core.relay_crew() as crew order by crew.broker"
_HAS_CREW: Final = b"select to_regprocedure('core.relay_crew()') is not null"
# What a retired generation has left is nobody's to send.
_LANES: Final = b"""
select lane.generation, lane.channel, lane.context, lane.unsent, lane.oldest_unsent, lane.sent, lane.oldest_sent
from core.insight_relay(clock_timestamp(), %(cap)s, %(lanes)s) as lane
where not exists (
    select
    from core.deployments as deployment
    where deployment.generation = lane.generation and deployment.status = 'retired'
)
"""


class Mode(StrEnum):
    """From where workers take events."""

    POSTGRES = NO_BROKER
    NATS = BrokerKind.NATS
    REDIS = BrokerKind.REDIS


@dataclass(frozen=True, slots=True)
class RelayLane:
    """What is due on one channel of one generation for one context.

    unsent: no relay has sent it in this life of it; sent: it was sent, and nobody has claimed it yet.
    """

    generation: int
    channel: str
    context: str
    unsent: Amount
    oldest_unsent: timedelta | None
    sent: Amount
    oldest_sent: timedelta | None


@dataclass(frozen=True, slots=True)
class RelayCrew:
    """How many relays are alive that send to a broker."""

    broker: str
    relays: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayState:
    """The mode and who set it, with what names on a broker begin, how many relays are alive, and what waits.

    relays: whichever broker they send to. crews: by broker; none if the schema is too old to know.
    lanes: those with something due, the one that has waited longest first; counted up to the cap.
    """

    mode: str
    prefix: str
    switched_at: datetime
    switched_by: str
    reason: str | None
    relays: int
    crews: tuple[RelayCrew, ...] = ()
    lanes: tuple[RelayLane, ...] = ()

    def relays_for(self, broker: str) -> int:
        """How many send to it."""
        return relays_for(broker, self.crews, self.relays)

    @property
    def unsent(self) -> Amount:
        """Of all lanes."""
        return sum((lane.unsent for lane in self.lanes), NOTHING)


def relays_for(broker: str, crews: Sequence[RelayCrew], relays: int) -> int:
    """How many send to this broker; all that are alive, if that is Postgres or it is not known.

    Those of an older release do not say to which they send: they are taken for those of the broker that is asked for.
    """
    unsaid = max(0, relays - sum(crew.relays for crew in crews))
    return next((crew.relays + unsaid for crew in crews if crew.broker == broker), relays)


async def read_crews(database: Database) -> tuple[RelayCrew, ...]:
    """How many relays there are for each broker; none if that cannot be known."""
    if not await database.value(_HAS_CREW):
        return ()
    return tuple(RelayCrew(broker, relays) for broker, relays in await database.tuples(_CREW))


async def show_relay(database: Database) -> RelayState:
    """How it is switched, and what it does; one bounded look.

    Raises:
        NotFoundError: the row that says so is gone; workers claim from Postgres then.
    """
    async with database.transaction():
        found = await database.tuples(_STATE)
        if not found:
            fix = psql("select core.relay_switch('postgres', current_user, 'the row was gone')")
            raise NotFoundError("core.relay is empty: workers claim from Postgres", fix)
        ((mode, prefix, switched_at, switched_by, reason, relays),) = found
        crews = await read_crews(database)
        lanes = await read_lanes(database)
    return RelayState(
        mode=mode,
        prefix=prefix,
        switched_at=switched_at,
        switched_by=switched_by,
        reason=reason,
        relays=relays,
        crews=crews,
        lanes=lanes,
    )


async def read_lanes(database: Database) -> tuple[RelayLane, ...]:
    """Lanes with something due, the one whose oldest unsent event has waited longest first."""
    found = await database.tuples(_LANES, {"cap": COUNT_CAP + 1, "lanes": LANES_CAP})
    lanes = [
        RelayLane(generation, channel, context, Amount.of(unsent), oldest_unsent, Amount.of(sent), oldest_sent)
        for generation, channel, context, unsent, oldest_unsent, sent, oldest_sent in found
        if unsent or sent
    ]
    return tuple(sorted(lanes, key=lambda lane: lane.oldest_unsent or timedelta(0), reverse=True))


async def switch_relay(database: Database, mode: Mode, *, by: str, reason: str) -> bool:
    """Have workers take events from there, all of them, from now on. Answers whether that is a change.

    Raises:
        RefusedError: there is no reason, or this login may not.
    """
    return bool(await database.value(b"select core.relay_switch(%s, %s, %s)", [str(mode), by, reason]))
