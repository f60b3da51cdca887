"""Hand over: waiting rows of one generation become another's, a batch at a time.

Each batch is a transaction of its own with its own entry in the audit, so a hand-over may be ended between two of them
and begun again. Rows in flight are left to their worker; those it gives back wait in their old generation.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from spectral.core.database import RefusedError
from spectral.core.deployments.judging import require_hand_over
from spectral.core.deployments.reading import capped, find_deployment, list_blockers, list_waiting
from spectral.core.deployments.values import HandedOver, HandOverPreview

if TYPE_CHECKING:
    from collections.abc import Callable

    from spectral.core.database import Database
    from spectral.core.deployments.values import Count, HandOver

_MOVED_BACK: Final = (
    "select exists (select from core.audit as entry where entry.id > %s and entry.action = 'hand_over'"
    " and entry.detail ->> 'before' = %s and entry.detail ->> 'generation' = %s)"
)
_LOOKS: Final = 20
_PAUSE: Final = 0.1
"""How often, and after what pause, it looks again for rows that were locked, or that trickle in."""


def _nobody(_moved: int) -> None:
    pass


def _never() -> bool:
    return False


async def preview_hand_over(database: Database, order: HandOver) -> HandOverPreview:
    """What it would move, by type, and who would take it.

    Raises:
        NotFoundError: there is no such generation.
        RefusedError: rows cannot go this way.
    """
    target = await find_deployment(database, order.target)
    require_hand_over(order, await find_deployment(database, order.source), target)
    waiting, more = await list_waiting(database, order)
    in_flight = await _in_flight(database, order)
    return HandOverPreview(order, tuple(waiting), more, in_flight, (*target.workers, *target.accepted_by))


async def hand_over(
    database: Database,
    order: HandOver,
    *,
    by: str,
    reason: str | None = None,
    on_progress: Callable[[int], None] = _nobody,
    aborted: Callable[[], bool] = _never,
) -> HandedOver:
    """Move what waits until nothing is left, or somebody says it is enough.

    Args:
        database: where.
        order: what goes where to.
        by: who, for the audit.
        reason: why, for the audit.
        on_progress: is told after each batch how many rows were moved so far.
        aborted: is asked before each batch; what was moved stays moved.

    Raises:
        NotFoundError: there is no such generation.
        RefusedError: rows cannot go this way, or somebody moves them back at the same time.
    """
    require_hand_over(
        order, await find_deployment(database, order.source), await find_deployment(database, order.target)
    )
    moved = looks = 0
    since = await database.value("select coalesce(max(id), 0) from core.audit")
    while True:
        await _refuse_a_circle(database, order, since, moved)
        stop = aborted()
        batch = 0 if stop else await _batch(database, order, by, reason)
        moved += batch
        if batch:
            on_progress(moved)
        if batch == order.batch:
            continue
        # Not full: the end, unless rows were passed over because somebody holds them, or a publisher is still at it.
        waiting, _ = await list_waiting(database, order)
        looks += 1
        if stop or not waiting or looks >= _LOOKS:
            pending = capped(sum(each.rows for each in waiting))
            return HandedOver(moved, pending, await _in_flight(database, order), aborted=stop)
        await asyncio.sleep(_PAUSE)


async def _refuse_a_circle(database: Database, order: HandOver, since: int, moved: int) -> None:
    """Two that move the same rows to and fro would never end."""
    if await database.value(_MOVED_BACK, [since, str(order.target), str(order.source)]):
        raise RefusedError(
            f"somebody else hands over from {order.target} to {order.source} at the same time; "
            f"{moved:,} rows were moved",
            "spectral audit",
        )


async def _batch(database: Database, order: HandOver, by: str, reason: str | None) -> int:
    asked = [order.source, order.target, order.context, order.batch, by, reason]
    return int(await database.value("select core.outbox_hand_over(%s, %s, %s, %s, %s, %s)", asked))


async def _in_flight(database: Database, order: HandOver) -> Count:
    blockers = await list_blockers(database, order.source)
    contexts = {each.context for each in blockers} if order.context is None else {order.context}
    return capped(sum(each.rows for each in blockers if each.status == "in_flight" and each.context in contexts))
