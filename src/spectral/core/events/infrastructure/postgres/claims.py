"""Claim, fan out and subscribe on a connection of their own.

A claim's commit does not wait for the disk: a claim lost in a crash of the server is just pending again. Of a lost
subscription no broadcast would know from then on: its commit waits, and it is made again on every new connection, for
the server behind that may be one that never heard of it.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from spectral.core.events.consumer import Subscription
from spectral.core.events.failure import ConfigurationError, SubstrateLostError
from spectral.core.events.infrastructure.postgres.claim_rows import COLUMNS, FAN_OUT, claim_answer, fanned_out
from spectral.core.events.infrastructure.postgres.schema import require_functions
from spectral.core.events.infrastructure.postgres.script import Rows, quoted, rows_of
from spectral.core.events.infrastructure.postgres.session import Session
from spectral.core.events.ports import AWAKE_FOR, NOTHING_ALONG, ClaimAnswer, Outlook

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spectral.core.events.lease import Delivery
    from spectral.core.events.ports import Along, ClaimAsk
    from spectral.core.events.settings import WorkerSettings

_CLAIM: Final = sql.SQL(COLUMNS + "core.outbox_claim_from({}, {}, {}::bigint[], {}::text[], {}::text[], ")
_FOR_HANDLERS: Final = sql.SQL(", {}::text[], {}::text[])")
_NEXT_DUE: Final = sql.SQL(
    "select extract(epoch from core.outbox_next_due({}::text[], {}::bigint[], {}::text[]))::float8"
)
_AWAKE: Final = sql.SQL("select core.bell_awake({}, {}::text[], {}::text[], {}::text[], {}::interval)")
_HOLD: Final = sql.SQL("select core.bell_hold({}, {}::text[], {}::text[], {}::text[], {}::interval)")
_ASLEEP: Final = sql.SQL("select core.bell_asleep({}, {}::text[], {}::text[])")
_QUIET: Final = sql.SQL("select core.bell_quiet({}, {}::text[], {}::text[])")
CROWDED: Final = (
    # what NOTIFY locks: the databases, and none of them
    b"select exists (select from pg_catalog.pg_locks where locktype = 'object' and objid = 0 and not granted"
    b" and classid = 'pg_catalog.pg_database'::pg_catalog.regclass)"
)
_RING: Final = sql.SQL("select core.bell_ring({})")
_ENTER: Final = sql.SQL("select pg_try_advisory_lock(core.worker_quarantine_key({}))")
_LEAVE: Final = sql.SQL("select pg_advisory_unlock(core.worker_quarantine_key({}))")
_ASIDE: Final = sql.SQL(
    COLUMNS + "core.outbox_claim_aside({}, {}, {}::bigint[], {}::text[], {}::uuid, {}, {}, {}::text[], {}::text[])"
)
_SUBSCRIBE: Final = (
    b"select context, event_type, handler_name from core.outbox_subscribe("
    b"%s, %s::text[], %s::text[], %s::text[], %s::integer[], %s)"
)
_LIVE_FAR_BELOW: Final = (
    b"select live.generation from core.live_generation as live where live.generation < %(generation)s::bigint - 1"
    b" and not exists (select from core.deployments as known where known.generation = %(generation)s)"
)
_MAX_QUOTED: Final = 128
"""Lines have a few sets of types each; but a line that is short of room may ask for any of its types' subsets."""


class PostgresClaims:
    """Implements `Claims`."""

    def __init__(self, dsn: str, settings: WorkerSettings) -> None:
        self._settings = settings
        self._generations = list(settings.generations())
        self._channels = list(settings.claimed_channels())
        self._heard = list(settings.channels())
        self._rings = [quoted(_RING.format(channel)) for channel in self._heard]
        self._awake: dict[tuple[tuple[str, str | None], ...], bytes] = {}
        self._quoted = lru_cache(_MAX_QUOTED)(self._quote)
        self._looks: dict[tuple[str, ...], list[bytes]] = {}
        self._session = Session(
            dsn,
            f"spectral claim {settings.name}",
            settings.times.answer,
            settings={"synchronous_commit": "off", "lock_timeout": "2s"},
        )
        self._subscriptions: Sequence[Subscription] | None = None
        self._subscribed_on: psycopg.AsyncConnection[Any] | None = None

    async def subscribe(self, subscriptions: Sequence[Subscription], *, replace: bool) -> list[Subscription]:
        """See `Claims`."""
        await self._session.ask(require_functions)
        lacking = await self._subscribe(subscriptions, replace=replace)
        self._subscriptions = subscriptions
        return lacking

    async def _subscribe(self, subscriptions: Sequence[Subscription], *, replace: bool) -> list[Subscription]:
        async def ask(connection: psycopg.AsyncConnection[Any]) -> list[Subscription]:
            columns = [list(column) for column in zip(*subscriptions, strict=True)] or [[], [], [], []]
            parameters = [self._settings.generation, *columns, replace]
            try:
                async with connection.transaction():
                    await connection.execute(b"set local synchronous_commit to default")
                    cursor = await connection.execute(_SUBSCRIBE, parameters)
            except psycopg.errors.ObjectNotInPrerequisiteState:
                raise ConfigurationError(
                    f"generation {self._settings.generation} is retired: start the worker with one that is not "
                    "(SPECTRAL_GENERATION)"
                ) from None
            self._subscribed_on = connection
            return [Subscription(context, kind, name, 0) for context, kind, name in await cursor.fetchall()]

        return await self._session.ask(ask)

    async def live_far_below(self) -> int | None:
        """See `Claims`."""

        async def ask(connection: psycopg.AsyncConnection[Any]) -> int | None:
            cursor = await connection.execute(_LIVE_FAR_BELOW, {"generation": self._settings.generation})
            found = await cursor.fetchone()
            return None if found is None else int(found[0])

        return await self._session.ask(ask)

    async def claim(self, asks: Sequence[ClaimAsk], along: Along = NOTHING_ALONG) -> list[ClaimAnswer]:
        """See `Claims`."""
        return _answers(asks, await self._run([*map(self._claim, asks), *self._along(along)]))

    async def look_ahead_and_claim(
        self, asks: Sequence[ClaimAsk], along: Along = NOTHING_ALONG
    ) -> tuple[Outlook, list[ClaimAnswer]]:
        """See `Claims`."""
        contexts = tuple(dict.fromkeys(each.context for each in asks))
        script = [*self._look_ahead(contexts), *map(self._claim, asks), *self._along(along)]
        split, ((seconds,),), *claimed = await self._run(script)
        due_in = None if seconds is None else timedelta(seconds=seconds)
        return Outlook(fanned_out(split), due_in), _answers(asks, claimed)

    async def enter_quarantine(self, context: str) -> bool:
        """See `Claims`."""
        (((entered,),),) = await self._run([quoted(_ENTER.format(context))])
        return bool(entered)

    async def leave_quarantine(self, context: str) -> None:
        """See `Claims`."""
        try:
            await self._run([quoted(_LEAVE.format(context))])
        except SubstrateLostError:
            # A session that lives on, as after a cancelled statement, would keep everybody else out for as long.
            await self._session.drop()
            raise

    async def claim_aside(self, ask: ClaimAsk, aside: Delivery) -> ClaimAnswer:
        """See `Claims`."""
        life = (aside.lease.row_id, aside.replays, aside.attempts - 1)
        handlers = (list(ask.handler_names), list(ask.handler_types))
        scope = (self._settings.name, ask.context, self._generations, self._channels)
        (rows,) = await self._run([quoted(_ASIDE.format(*scope, *life, *handlers))])
        return ClaimAnswer(claim_answer(ask.context, rows).deliveries)

    async def hold(self, served: Sequence[tuple[str, str | None]]) -> bool:
        """See `Bell`."""
        contexts, types = (list(column) for column in zip(*served, strict=True))
        hold = quoted(_HOLD.format(self._settings.name, self._heard, contexts, types, AWAKE_FOR))
        (((holds,),),) = await self._run([hold])
        return bool(holds)

    async def withdraw(self, contexts: Sequence[str], *, rings: bool = False) -> None:
        """See `Bell`."""
        asleep = quoted(_ASLEEP.format(self._settings.name, self._heard, list(contexts)))
        await self._run([asleep, *(self._rings if rings else ())])

    async def is_crowded(self) -> bool:
        """See `Bell`."""
        (((is_crowded,),),) = await self._run([CROWDED])
        return bool(is_crowded)

    async def is_quiet(self, contexts: Sequence[str]) -> bool:
        """See `Bell`."""
        quiet = quoted(_QUIET.format(self._settings.name, self._heard, list(contexts)))
        (((is_quiet,),),) = await self._run([quiet])
        return bool(is_quiet)

    def _along(self, along: Along) -> list[bytes]:
        """Last, so that a claim's rows are not held while a lease is written."""
        script: list[bytes] = list(self._rings) if along.rings else []
        if along.awake:
            renewal = self._awake.get(along.awake)
            if renewal is None:
                contexts, types = (list(column) for column in zip(*along.awake, strict=True))
                composed = _AWAKE.format(self._settings.name, self._heard, contexts, types, AWAKE_FOR)
                renewal = self._awake[along.awake] = quoted(composed)
            script.append(renewal)
        return script

    def _claim(self, ask: ClaimAsk) -> bytes:
        """Quoted once for every line; what changes from claim to claim are numbers and a time."""
        scope, names = self._quoted(ask.context, ask.event_types, ask.handler_names, ask.handler_types)
        start = b"null" if ask.start is None else b"'%s'::timestamptz" % ask.start.isoformat().encode()
        window = b"null" if ask.window is None else b"%d" % ask.window
        return b"%s%d, %s, %s%s" % (scope, ask.limit, start, window, names)

    def _quote(
        self,
        context: str,
        event_types: tuple[str, ...] | None,
        handler_names: tuple[str, ...],
        handler_types: tuple[str, ...],
    ) -> tuple[bytes, bytes]:
        types = None if event_types is None else list(event_types)
        scope = _CLAIM.format(self._settings.name, context, self._generations, self._channels, types)
        handlers = _FOR_HANDLERS.format(list(handler_names), list(handler_types))
        return quoted(scope), quoted(handlers)

    def _look_ahead(self, contexts: tuple[str, ...]) -> list[bytes]:
        script = self._looks.get(contexts)
        if script is None:
            scope = (self._generations, self._channels)
            composed = (FAN_OUT.format(*scope), _NEXT_DUE.format(list(contexts), *scope))
            script = self._looks[contexts] = [quoted(each) for each in composed]
        return script

    async def _run(self, script: Sequence[bytes]) -> list[Rows]:
        if self._session.is_doubtful:
            await self._session.drop()
        if self._subscriptions is not None and await self._session.connection() is not self._subscribed_on:
            with suppress(ConfigurationError):  # its generation was retired meanwhile: it finishes what it has
                await self._subscribe(self._subscriptions, replace=False)
        return [rows_of(result) for result in await self._session.ask_script(*script)]

    async def close(self) -> None:
        """See `Claims`."""
        await self._session.drop()


def _answers(asks: Sequence[ClaimAsk], answers: Sequence[Rows]) -> list[ClaimAnswer]:
    # What was said along the way has answers too, behind the claims'.
    return [claim_answer(ask.context, rows) for ask, rows in zip(asks, answers[: len(asks)], strict=True)]
