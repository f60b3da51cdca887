"""How the functions that claim and fan out are asked for their answers, and what is read from those."""

from __future__ import annotations

from operator import itemgetter
from sys import intern
from typing import TYPE_CHECKING, Any, Final

from psycopg import sql

from spectral.core.events.lease import Delivery, Lease
from spectral.core.events.ports import ClaimAnswer
from spectral.core.events.probe import EventRef, FannedOut

if TYPE_CHECKING:
    from uuid import UUID

    from spectral.core.events.infrastructure.postgres.script import Rows

COLUMNS: Final = (
    "select id, claim_token, event_id, event_type, event_version, occurred_at, source, workspace_id, payload,"
    " idempotency_key, trace_context, content_class, channel, generation, attempts, due_at, waited, suspect, replays,"
    " handled from "
)
"""Every function that claims answers these."""

_DUE_AT: Final = itemgetter(15)
_NONE: Final[frozenset[str]] = frozenset()
_SPLIT: Final = (
    "select label.event_id, label.event_type, label.source, label.workspace_id, label.trace_context, split.contexts"
    " from (select parent_id, array_agg(context order by context) filter (where context is not null) as contexts"
    " from core.outbox_fan_out({}, {}::text[]) group by parent_id) as split"
    " cross join lateral core.outbox_label(split.parent_id) as label order by split.parent_id"
)
FAN_OUT: Final = sql.SQL(_SPLIT.format("{}::bigint[]", "{}"))
FAN_OUT_SUBSCRIBED: Final = sql.SQL(
    _SPLIT.format(
        "(select array_agg(distinct generation) from core.subscriptions where generation = any ({}::bigint[]))", "{}"
    )
)
"""Of those generations only that somebody has subscribed to anything in."""


def claim_answer(context: str, rows: Rows) -> ClaimAnswer:
    """The first row is about the claim itself; without it nothing may be claimed at present."""
    if not rows:
        return ClaimAnswer([])
    (_, token, _, _, _, now, *_, reached, _, _, _, _), *claimed = rows
    claimed.sort(key=_DUE_AT)  # what is due at the same time stays in the order of the ids, in which it mostly comes
    return ClaimAnswer([_delivery(row, token, context) for row in claimed], now, reached)


def _delivery(row: tuple[Any, ...], token: UUID, context: str) -> Delivery:
    # As `Delivery(Lease(...), ...)`, without the calls in between, which cost more than the tuples they make.
    (row_id, _, parent, kind, version, occurred_at, source, workspace, payload, key, trace, content, channel,
     generation, attempts, due_at, waited, suspect, replays, handled) = row  # fmt: skip
    # Of these there are few, and they are compared and looked up again and again: as one object that is quickest.
    kind, source = intern(kind), intern(source)
    lease: Lease = tuple.__new__(Lease, (row_id, token))  # pyright: ignore[reportUnknownMemberType]
    return tuple.__new__(Delivery, (  # pyright: ignore[reportUnknownMemberType]
        lease, parent or row_id, kind, version, occurred_at, source, context, workspace, payload,
        key, trace, content, channel, generation, attempts, due_at, suspect, frozenset(handled) if handled else _NONE,
        waited, replays,
    ))  # fmt: skip


def fanned_out(rows: Rows) -> tuple[FannedOut, ...]:
    """Each broadcast that was split, with the contexts that it is for."""
    return tuple(
        FannedOut(EventRef(event_id, event_type, source, None, workspace_id, trace_context), tuple(contexts or ()))
        for event_id, event_type, source, workspace_id, trace_context, contexts in rows
    )
