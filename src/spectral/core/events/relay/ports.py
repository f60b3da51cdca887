"""What relay and reception ask of the database. Every method may raise `SubstrateLostError`, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from spectral.core.events.ports import NOTHING_ALONG, Bell, Claims

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime, timedelta
    from uuid import UUID

    from spectral.core.events.broker import BrokerLane, Reference
    from spectral.core.events.lease import Delivery
    from spectral.core.events.ports import Along, ClaimAnswer, ClaimAsk
    from spectral.core.events.probe import FannedOut


class RelayMode(NamedTuple):
    """From where workers take their rows, and with what all names on a broker begin."""

    mode: str
    prefix: str


# what a worker asks


class ReferenceAsk(NamedTuple):
    """Rows that references of one context name; the handlers as in a `ClaimAsk`."""

    context: str
    references: Sequence[Reference]
    handler_names: tuple[str, ...]
    handler_types: tuple[str, ...] = ()


class ReferenceAnswer(NamedTuple):
    """What was claimed, and the rows that could have been and were left: suspects, and whatever stood beside one."""

    deliveries: list[Delivery]
    left: frozenset[UUID]


class ReferencedClaims(Claims, Protocol):
    """The connection that claims, for a worker that receives references."""

    async def relay_mode(self) -> RelayMode:
        """As it is now."""
        ...

    async def claim_these(self, asks: Sequence[ReferenceAsk]) -> list[ReferenceAnswer]:
        """Claim what these references still name truly, in one round trip; it is committed when this returns."""
        ...

    async def claim_late(
        self, asks: Sequence[ClaimAsk], late: timedelta
    ) -> tuple[tuple[FannedOut, ...], list[ClaimAnswer]]:
        """Split broadcasts, and claim what has been due for longer than this, whoever has sent it."""
        ...


# what a relay asks


class Scope(NamedTuple):
    """Channels to listen on, contexts that are subscribed to, and generations that are over."""

    channels: frozenset[str]
    contexts: frozenset[str]
    retired: frozenset[int]


class RelayOutlook(NamedTuple):
    """The mode, lanes on which something is due, sent or not, and how long until the next row is.

    has_more: there are lanes that this look did not come to; the next one goes on behind those that it did.
    """

    mode: RelayMode
    lanes: list[BrokerLane]
    due_in: timedelta | None
    fanned_out: tuple[FannedOut, ...] = ()
    has_more: bool = False


class Taken(NamedTuple):
    """Rows that were taken to be sent and stamped.

    reached: where the next call may start; none if it has looked at all that is due. resent: how many were sent before.
    lag: for how many seconds the first of them had been due.
    """

    references: list[Reference]
    stamp: datetime
    reached: datetime | None
    resent: int
    lag: float


class RelayStore(Bell, Protocol):
    """The connection of a relay."""

    async def scope(self) -> Scope:
        """As it is now; from now on the bell is for these channels. A lease on any other runs out."""
        ...

    async def look(self, broker: str, along: Along = NOTHING_ALONG, rings: Collection[str] = ()) -> RelayOutlook:
        """See what there is to do; while workers take from this broker, broadcasts are split first.

        rings: channels whose workers are woken.
        """
        ...

    async def take(
        self, broker: str, lane: BrokerLane, limit: int, start: datetime | None, lost: timedelta
    ) -> Taken | None:
        """Take rows that were not sent, or longer ago than `lost`; it is committed when this returns.

        None: nothing of this lane may be sent at present.
        """
        ...

    async def unsend(self, references: Collection[Reference], stamp: datetime) -> None:
        """These were not sent after all."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...


class RelayEar(Protocol):
    """The connection on which a relay listens, and by which it is counted."""

    async def open(self, channels: Collection[str]) -> None:
        """Connect, be counted, and LISTEN."""
        ...

    async def listen(self, channels: Collection[str]) -> None:
        """LISTEN on these too."""
        ...

    async def hear(self, for_at_most: timedelta) -> bool:
        """Wait for a notification; afterwards, or when the time is up, ask the session whether it lives."""
        ...

    async def close(self) -> None:
        """Close the connection."""
        ...
