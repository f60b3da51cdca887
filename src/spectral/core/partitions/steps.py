"""From the plain layout to the partitioned one, with publishers and workers at work, and back.

    prepare   build the empty partitioned table beside; nobody sees it
    index     the keys that the table in use needs as a partition, without blocking writers
    bound     the table in use promises to hold nothing from the boundary on, and every row is checked
    switch    in one short transaction the table in use becomes the first partition of the other

How far it is stands in the catalog and nowhere else, so `enable` may be killed anywhere and called again. The promise
of the third step would refuse events once the boundary has come: it is days away, the exchange follows at once, and
whoever gives up takes it back. If that cannot be done, for the connection is gone, the next sweep does it.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from spectral.core.database import RefusedError
from spectral.core.events.failure import SpectralError
from spectral.core.partitions import judging
from spectral.core.partitions.dedup import convert_dedup, is_copying, undo_dedup
from spectral.core.partitions.grants import copy_grants
from spectral.core.partitions.patience import alone, outside_transactions, patiently, require_owner, without_limit
from spectral.core.partitions.reading import partition_status, read_state
from spectral.core.partitions.telling import Teller, lockable
from spectral.core.partitions.values import MONTHS_AHEAD, EnableOptions, Step

if TYPE_CHECKING:
    from datetime import datetime

    from spectral.core.database import Database
    from spectral.core.partitions.judging import State
    from spectral.core.partitions.values import OnProgress, PartitionStatus

_ENOUGH: Final = timedelta(days=3)
"""A boundary that is nearer than this is chosen anew: the promise must never be what refuses an event."""

_UNBIND_FOR: Final = timedelta(seconds=15)
_BOUNDARY: Final = "select core.partition_month(clock_timestamp() + interval '7 days', 1)"
_INDEXES: Final = {
    "outbox_before_pkey": (
        b"create unique index concurrently outbox_before_pkey on core.outbox (id, created_at)",
        b"drop index concurrently if exists core.outbox_before_pkey",
    ),
    "outbox_before_id_key": (
        b"create unique index concurrently outbox_before_id_key on core.outbox (id)",
        b"drop index concurrently if exists core.outbox_before_id_key",
    ),
}
_IS_VALID: Final = "select indisvalid from pg_index where indexrelid = to_regclass('core.' || %s)"
_LATER_ROWS: Final = "select exists (select from core.outbox where created_at >= %s)"


async def enable(
    database: Database,
    *,
    by: str,
    reason: str | None = None,
    options: EnableOptions | None = None,
    on_progress: OnProgress | None = None,
    dry_run: bool = False,
) -> PartitionStatus:
    """Take every step that is not behind us. Called again after anything that came between, it goes on from there.

    Args:
        database: of a login that is a member of `spectral_owner`, on a connection of its own (no transaction pooler).
        by: who, for the audit.
        reason: why, for the audit.
        options: how to go about it.
        on_progress: told before every step and every try for a lock; what it raises ends the conversion.
        dry_run: judge, and change nothing.

    Raises:
        RefusedError: the login may not, somebody else is at it, something holds the table by its identity, or its lock
            was not to be had; what was done until then stays, and the promise of the third step is taken back.
        OperationError: the database could not be asked.
    """
    options, teller = options or EnableOptions(), Teller(on_progress)
    await require_owner(database)
    state = await read_state(database)
    if not state.partitioned:
        judging.require_no_obstacles([name for (name,) in await database.tuples("select core.partitions_obstacles()")])
    if not dry_run:
        async with alone(database):
            await _convert(database, teller, options, (by, reason))
            if options.dedup:
                await convert_dedup(database, teller, options, (by, reason))
    return await partition_status(database)


async def disable(
    database: Database,
    *,
    by: str,
    reason: str | None = None,
    options: EnableOptions | None = None,
    on_progress: OnProgress | None = None,
    dry_run: bool = False,
) -> PartitionStatus:
    """Take back what was done, from wherever the conversion is. A dedup log that lies by hash already stays so.

    Where the outbox can no longer be one table, a copy of the dedup log that is under way is still taken back.

    Raises:
        RefusedError: a partition other than the table from before has rows, or the lock was not to be had.
        OperationError: the database could not be asked.
    """
    options, teller = options or EnableOptions(), Teller(on_progress)
    state, copying = await read_state(database), await is_copying(database)
    if not copying:
        judging.require_reversible(state)
    if not dry_run:
        async with alone(database):
            if copying:
                await undo_dedup(database, options, (by, reason))
            if state.reversible or not state.partitioned:
                with lockable("core.outbox"):
                    await patiently(
                        database,
                        "select core.partitions_undo(%s, %s)",
                        [by, reason],
                        options.give_up_after,
                        teller.attempts("undo", 1, "core.outbox as it was"),
                    )
    return await partition_status(database)


async def _convert(database: Database, teller: Teller, options: EnableOptions, who: tuple[str, str | None]) -> None:
    state = await read_state(database)
    if state.partitioned:
        return
    try:
        boundary = await _prepare(database, teller, state, options, who)
        await _index(database, teller)
        await _bind(database, teller, options, boundary)
        with lockable("core.outbox"):
            await patiently(
                database,
                "select core.partitions_switch(%s, %s)",
                who,
                options.give_up_after,
                teller.attempts(Step.SWITCH, 4, "the table in use becomes the first partition"),
            )
    except BaseException:  # a cancellation too: events must not be refused because nobody came back
        with suppress(SpectralError):
            await patiently(database, "select core.partitions_unbind()", [], _UNBIND_FOR)
        raise


async def _prepare(
    database: Database, teller: Teller, state: State, options: EnableOptions, who: tuple[str, str | None]
) -> datetime:
    if state.prepared and state.boundary is not None and state.boundary - state.now >= _ENOUGH:
        return state.boundary
    if state.bound_until is not None:  # somebody was killed, and what was promised then is near, or past
        with lockable("core.outbox"):
            await patiently(database, "select core.partitions_unbind()", [], options.give_up_after)
    teller.tell(Step.PREPARE, 1, "an empty partitioned table beside core.outbox")
    boundary: datetime = await database.value(_BOUNDARY)
    async with database.transaction():
        await without_limit(database, "select core.partitions_prepare(%s, %s, %s, %s)", [boundary, MONTHS_AHEAD, *who])
        await copy_grants(database, "core.outbox", "core.outbox_partitioned")
    return boundary


async def _index(database: Database, teller: Teller) -> None:
    for name, (create, drop) in _INDEXES.items():
        valid = await database.value(_IS_VALID, [name])
        if valid:
            continue
        teller.tell(Step.INDEX, 2, f"building {name}; writers go on")
        if valid is not None:  # one that was interrupted
            await outside_transactions(database, drop)
        await outside_transactions(database, create)


async def _bind(database: Database, teller: Teller, options: EnableOptions, boundary: datetime) -> None:
    if await without_limit(database, _LATER_ROWS, [boundary]):
        raise RefusedError(
            f"there are events that say they were created after {boundary:%Y-%m-%d}, which is still to come",
            "psql \"$SPECTRAL_DATABASE_URL\" -c 'select id from core.outbox where created_at > now()'",
        )
    with lockable("core.outbox"):
        await patiently(
            database,
            "select core.partitions_bind()",
            [],
            options.give_up_after,
            teller.attempts(Step.BOUND, 3, f"nothing in core.outbox is from {boundary:%Y-%m-%d} or later"),
        )
    await patiently(database, "select core.partitions_validate()", [], options.give_up_after)
