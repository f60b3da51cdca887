"""Claims by reference, on the connection on which this worker claims without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from uuid import UUID

from psycopg import sql

from spectral.core.events.infrastructure.postgres.claim_rows import COLUMNS, FAN_OUT, claim_answer, fanned_out
from spectral.core.events.infrastructure.postgres.claims import PostgresClaims
from spectral.core.events.infrastructure.postgres.script import quoted, uuid_array
from spectral.core.events.relay.ports import ReferenceAnswer, RelayMode

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import timedelta

    from spectral.core.events.infrastructure.postgres.script import Rows
    from spectral.core.events.ports import ClaimAnswer, ClaimAsk
    from spectral.core.events.probe import FannedOut
    from spectral.core.events.relay.ports import ReferenceAsk

_THESE: Final = sql.SQL(COLUMNS + "core.outbox_claim_these({}, {}, {}::bigint[], {}::text[], ")
_FOR_HANDLERS: Final = sql.SQL(", {}::text[], {}::text[])")
_LATE: Final = sql.SQL(
    COLUMNS + "core.outbox_claim_late({}, {}, {}::bigint[], {}::text[], {}::text[], {}, {}::interval, {}::text[])"
)
_MODE: Final = b"select mode, prefix from core.relay_mode()"


class PostgresReferencedClaims(PostgresClaims):
    """Implements `ReferencedClaims`."""

    async def relay_mode(self) -> RelayMode:
        """See `ReferencedClaims`."""
        (((mode, prefix),),) = await self._run([_MODE])
        return RelayMode(mode, prefix)

    async def claim_these(self, asks: Sequence[ReferenceAsk]) -> list[ReferenceAnswer]:
        """See `ReferencedClaims`."""
        answers = await self._run([self._these(ask) for ask in asks])
        return [_reference_answer(ask.context, rows) for ask, rows in zip(asks, answers, strict=True)]

    async def claim_late(
        self, asks: Sequence[ClaimAsk], late: timedelta
    ) -> tuple[tuple[FannedOut, ...], list[ClaimAnswer]]:
        """See `ReferencedClaims`."""
        scope = (self._generations, self._channels)
        claims = [
            quoted(
                _LATE.format(
                    self._settings.name,
                    ask.context,
                    *scope,
                    None if ask.event_types is None else list(ask.event_types),
                    ask.limit,
                    late,
                    list(ask.handler_names),
                )
            )
            for ask in asks
        ]
        split, *claimed = await self._run([quoted(FAN_OUT.format(*scope)), *claims])
        return fanned_out(split), [claim_answer(ask.context, rows) for ask, rows in zip(asks, claimed, strict=True)]

    def _these(self, ask: ReferenceAsk) -> bytes:
        """Ids and numbers need no quoting."""
        scope = quoted(_THESE.format(self._settings.name, ask.context, self._generations, self._channels))
        names = quoted(_FOR_HANDLERS.format(list(ask.handler_names), list(ask.handler_types)))
        ids = uuid_array(each.row_id for each in ask.references)
        replays = _integers(each.replays for each in ask.references)
        attempts = _integers(each.attempts for each in ask.references)
        return b"%s%s, %s, %s%s" % (scope, ids, replays, attempts, names)


def _integers(numbers: Iterable[int]) -> bytes:
    return b"'{%s}'::integer[]" % ",".join(map(str, numbers)).encode()


def _reference_answer(context: str, rows: Rows) -> ReferenceAnswer:
    """The first row lists what was left; without it, nothing may be claimed at present."""
    if not rows:
        return ReferenceAnswer([], frozenset())
    left: list[str] = rows[0][-1]
    return ReferenceAnswer(claim_answer(context, rows).deliveries, frozenset(UUID(each) for each in left))
