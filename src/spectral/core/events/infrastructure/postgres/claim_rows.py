"""How the functions that claim and fan out are asked for their answers, and what is read from those."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from psycopg import sql

from spectral.core.events.lease import Delivery, Lease
from spectral.core.events.ports import ClaimAnswer
from spectral.core.events.probe import FannedOut

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
FAN_OUT: Final = sql.SQL("select parent_id, context from core.outbox_fan_out({}::bigint[], {}::text[])")


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
    lease: Lease = tuple.__new__(Lease, (row_id, token))  # pyright: ignore[reportUnknownMemberType]
    return tuple.__new__(Delivery, (  # pyright: ignore[reportUnknownMemberType]
        lease, parent or row_id, kind, version, occurred_at, source, context, workspace, payload,
        key, trace, content, channel, generation, attempts, due_at, suspect, frozenset(handled) if handled else _NONE,
        waited, replays,
    ))  # fmt: skip


def fanned_out(rows: Rows) -> tuple[FannedOut, ...]:
    """Each broadcast that was split, with the contexts that it is for."""
    contexts: dict[UUID, list[str]] = {}
    for parent_id, context in rows:
        contexts.setdefault(parent_id, [])
        if context is not None:
            contexts[parent_id].append(context)
    return tuple(FannedOut(parent_id, tuple(each)) for parent_id, each in contexts.items())
