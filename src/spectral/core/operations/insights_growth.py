"""How far along the growth plan a database is, as a part of one look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spectral.core.operations.insights_values import Amount, Partitioning, Relaying, Unsent
from spectral.core.operations.relay import Mode, read_crews, read_lanes, relays_for
from spectral.core.partitions import Layout, partition_status

if TYPE_CHECKING:
    from spectral.core.database import Database

# A schema that waits for its migrations has none of them; a login that may not call them sees none.
_HAS: Final = b"""
select coalesce(has_function_privilege(to_regprocedure(%s)::oid, 'execute'), false)
"""
_RELAY: Final = b"select state.mode, state.relays from core.relay_state() as state"


async def read_relaying(database: Database) -> Relaying | None:
    """From where workers take events, and what was not sent; none if that cannot be known."""
    if not await database.value(_HAS, ["core.relay_state()"]):
        return None
    found: list[tuple[str, int]] = await database.tuples(_RELAY)
    if not found:
        return None
    ((mode, alive),) = found
    crews = await read_crews(database)
    relays = relays_for(mode, crews, alive)
    ready = max((crew for crew in crews if crew.relays), key=lambda crew: crew.relays, default=None)
    lanes = [] if mode == Mode.POSTGRES else [lane for lane in await read_lanes(database) if lane.unsent]
    unsent = tuple(Unsent(lane.context, lane.generation, lane.unsent, lane.oldest_unsent) for lane in lanes)
    return Relaying(mode, relays, unsent, None if ready is None else ready.broker)


async def read_partitioning(database: Database) -> Partitioning | None:
    """How the outbox is laid out; none if that cannot be known."""
    if not await database.value(_HAS, ["core.outbox_partitions()"]):
        return None
    status = await partition_status(database)
    left = None if status.bound_until is None else status.bound_until - status.now
    return Partitioning(
        enabled=status.layout is Layout.PARTITIONED,
        unfinished=status.under_way,
        refuses_in=left,
        ahead=status.months_ahead,
        default_rows=Amount.of(status.default_rows),
        droppable=len(status.droppable),
        dedup=status.dedup is Layout.PARTITIONED,
    )
