"""What a relay takes to be sent, on a connection of its own.

A stamp's commit does not wait for the disk: one lost in a crash of the server is sent again.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from psycopg import sql

from spectral.core.events.broker import BrokerLane, Reference
from spectral.core.events.infrastructure.postgres.claim_rows import FAN_OUT_SUBSCRIBED, fanned_out
from spectral.core.events.infrastructure.postgres.claims import CROWDED
from spectral.core.events.infrastructure.postgres.script import quoted, rows_of, uuid_array
from spectral.core.events.infrastructure.postgres.session import Session
from spectral.core.events.ports import AWAKE_FOR, NOTHING_ALONG
from spectral.core.events.relay.ports import RelayMode, RelayOutlook, Scope, Taken

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from datetime import datetime

    from spectral.core.events.infrastructure.postgres.script import Rows
    from spectral.core.events.ports import Along

_MODE: Final = b"select mode, prefix from core.relay_mode()"
_LANES: Final = sql.SQL(
    "select generation, channel, context, due, extract(epoch from next_due)::float8"
    " from core.outbox_relay_lanes({}, {}, {}, {}::text)"
)
_PAGE: Final = 200
"""Lanes that are looked at in one go; those behind them have their turn the next time."""

_BEFORE_THE_FIRST: Final = (-1, "", None)
_CHANNELS: Final = (
    b"select 'outbox_default' union select 'outbox_gen_' || generation from core.deployments where status <> 'retired'"
    b" union select heard.channel from core.workers cross join lateral unnest(channels) as heard (channel)"
    b" where heard.channel ~ '^outbox_gen_[0-9]{1,19}(_[a-z][a-z0-9_]{0,31})?$'"
)
_CONTEXTS: Final = (
    b"select distinct subscription.context from core.subscriptions as subscription join core.deployments as deployment"
    b" using (generation) where deployment.status <> 'retired'"
)
# Those of long ago were forgotten long ago.
_RETIRED: Final = (
    b"select generation from core.deployments where status = 'retired' and retired_at > now() - interval '7 days'"
    b" order by retired_at desc limit 100"
)
_TAKE: Final = sql.SQL(
    "select id, event_id, event_type, replays, attempts, trace_context, due_at, relayed_at"
    " from core.outbox_relay({}, {}, {}, {}, {}, {}::timestamptz, {}::interval)"
)
_AWAKE: Final = sql.SQL("select core.bell_awake({}, {}::text[], {}::text[], {}::text[], {}::interval)")
_HOLD: Final = sql.SQL("select core.bell_hold({}, {}::text[], {}::text[], {}::text[], {}::interval)")
_ASLEEP: Final = sql.SQL("select core.bell_asleep({}, {}::text[], {}::text[])")
_QUIET: Final = sql.SQL("select core.bell_quiet({}, {}::text[], {}::text[])")
_RING: Final = sql.SQL("select core.bell_ring({})")


class PostgresRelayStore:
    """Implements `RelayStore`."""

    def __init__(self, dsn: str, name: str, answer: timedelta) -> None:
        self._name = name
        self._channels: frozenset[str] = frozenset()
        self._behind: tuple[int, str, str | None] = _BEFORE_THE_FIRST
        self._session = Session(
            dsn, f"spectral relay {name}", answer, settings={"synchronous_commit": "off", "lock_timeout": "2s"}
        )

    async def scope(self) -> Scope:
        """See `RelayStore`."""
        channels, contexts, retired = await self._run([_CHANNELS, _CONTEXTS, _RETIRED])
        self._channels = frozenset(channel for (channel,) in channels)
        return Scope(
            self._channels, frozenset(name for (name,) in contexts), frozenset(number for (number,) in retired)
        )

    async def look(self, broker: str, along: Along = NOTHING_ALONG, rings: Collection[str] = ()) -> RelayOutlook:
        """See `RelayStore`."""
        page = quoted(_LANES.format(_PAGE, *self._behind))
        (mode, *_), lanes, *_ = await self._run([_MODE, page, *self._along(along), *_rings(rings)])
        found = RelayMode(*mode)
        broadcasts = [
            (generation, channel) for generation, channel, context, due, _ in lanes if due and context is None
        ]
        split: Rows = []
        if broadcasts and found.mode == broker:
            generations, channels = (sorted(set(column)) for column in zip(*broadcasts, strict=True))
            split, lanes = await self._run([quoted(FAN_OUT_SUBSCRIBED.format(generations, channels)), page])
        has_more = len(lanes) >= _PAGE
        generation, channel, context, *_ = lanes[-1] if has_more else _BEFORE_THE_FIRST
        self._behind = (generation, channel, context)
        due = [BrokerLane(*lane) for *lane, is_due, _ in lanes if is_due and lane[2] is not None]
        seconds = min((each for *_, each in lanes if each is not None), default=None)
        next_due = None if seconds is None else timedelta(seconds=seconds)
        return RelayOutlook(found, due, next_due, fanned_out(split), has_more)

    async def take(
        self, broker: str, lane: BrokerLane, limit: int, start: datetime | None, lost: timedelta
    ) -> Taken | None:
        """See `RelayStore`."""
        composed = _TAKE.format(broker, lane.generation, lane.channel, lane.context, limit, start, lost)
        (rows,) = await self._run([quoted(composed)])
        if not rows:
            return None
        (*_, resent, _, reached, stamp), *taken = rows
        sent = _microseconds(stamp)
        references = [
            Reference(row_id, event_id, kind, lane, replays, attempts, trace, sent)
            for row_id, event_id, kind, replays, attempts, trace, _, _ in taken
        ]
        lag = (stamp - taken[0][6]).total_seconds() if taken else 0.0
        return Taken(references, stamp, reached, resent, lag)

    async def unsend(self, references: Collection[Reference], stamp: datetime) -> None:
        """See `RelayStore`."""
        ids = uuid_array(each.row_id for each in references)
        at = b"'%s'::timestamptz" % stamp.isoformat().encode()
        await self._run([b"select core.outbox_unrelay(%s, %s)" % (ids, at)])

    async def hold(self, served: Sequence[tuple[str, str | None]]) -> bool:
        """See `Bell`."""
        contexts, types = (list(column) for column in zip(*served, strict=True))
        hold = quoted(_HOLD.format(self._name, sorted(self._channels), contexts, types, AWAKE_FOR))
        (((holds,),),) = await self._run([hold])
        return bool(holds)

    async def withdraw(self, contexts: Sequence[str], *, rings: bool = False) -> None:
        """See `Bell`."""
        asleep = quoted(_ASLEEP.format(self._name, sorted(self._channels), list(contexts)))
        await self._run([asleep, *(_rings(self._channels) if rings else ())])

    async def is_crowded(self) -> bool:
        """See `Bell`."""
        (((is_crowded,),),) = await self._run([CROWDED])
        return bool(is_crowded)

    async def is_quiet(self, contexts: Sequence[str]) -> bool:
        """See `Bell`."""
        quiet = quoted(_QUIET.format(self._name, sorted(self._channels), list(contexts)))
        (((is_quiet,),),) = await self._run([quiet])
        return bool(is_quiet)

    async def close(self) -> None:
        """See `RelayStore`."""
        await self._session.drop()

    def _along(self, along: Along) -> list[bytes]:
        script = _rings(self._channels) if along.rings else []
        if along.awake:
            contexts, types = (list(column) for column in zip(*along.awake, strict=True))
            renewal = _AWAKE.format(self._name, sorted(self._channels), contexts, types, AWAKE_FOR)
            script.append(quoted(renewal))
        return script

    async def _run(self, script: Sequence[bytes]) -> list[Rows]:
        return [rows_of(result) for result in await self._session.ask_script(*script)]


def _rings(channels: Collection[str]) -> list[bytes]:
    return [quoted(_RING.format(channel)) for channel in sorted(channels)]


def _microseconds(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000)
