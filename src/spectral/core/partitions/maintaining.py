"""Months ahead, the default partition, and what is over: what has to be done now and then, by whoever comes first.

Every call is a transaction of its own and looks for itself whether there is still something to do, so two at once are
harmless. Nothing is dropped that is not over, whoever asks: the database looks at every row.
"""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from spectral.core.database import DatabaseTooSlowError, NotFoundError, RefusedError
from spectral.core.events.failure import SpectralError
from spectral.core.partitions.patience import patiently
from spectral.core.partitions.reading import partition_status
from spectral.core.partitions.values import MONTHS_AHEAD, Keep, Layout, Maintained

if TYPE_CHECKING:
    from datetime import datetime

    from spectral.core.database import Database
    from spectral.core.partitions.values import Partition, PartitionStatus

_PATIENCE: Final = timedelta(seconds=10)
_MISSING: Final = (
    "select month, 'outbox_' || core.partition_month_name(month) from core.partitions_missing(%s) as month"
)
_UNBIND: Final = "select core.partitions_mend_unbind()"
_DROP: Final = "select core.partition_drop(%s, %s, %s, %s)"


class _OvertakenError(Exception):
    """Somebody else mends at the same time, or a row of another time came in between.

    Then nothing is created either: beside months after its rows the default partition could become none of them.
    """


async def maintain(database: Database, keep: Keep | None = None, *, by: str, dry_run: bool = False) -> Maintained:
    """Create the months ahead, make a partition of what lies in the default one, drop what is over.

    Args:
        database: of a login that is a member of `spectral_operator` or `spectral_retention`.
        keep: how long events are kept.
        by: who, for the audit.
        dry_run: judge, and change nothing.

    Raises:
        RefusedError: the outbox is not partitioned, or the login may not.
        OperationError: the database could not be asked; what was done until then is done.
    """
    keep = keep or Keep()
    status = await partition_status(database, keep)
    if status.layout is Layout.PLAIN:
        raise RefusedError("core.outbox is not partitioned", "spectral partitions enable")
    if dry_run:
        return await _preview(database, status, keep)
    try:
        mended = await _mend(database, by, rows=status.default_rows)
        created = await _create(database, by, lenient=bool(status.default_rows))
    except (DatabaseTooSlowError, _OvertakenError):
        return Maintained(default_rows=status.default_rows, busy=True)
    dropped, rows, kept, postponed = await _drop(database, status, keep, by)
    after = await partition_status(database, keep)
    return Maintained(
        created=created,
        dropped=dropped,
        dropped_rows=rows,
        kept=kept,
        postponed=postponed,
        mended=mended,
        default_rows=after.default_rows,
    )


async def _preview(database: Database, status: PartitionStatus, keep: Keep) -> Maintained:
    missing = await database.tuples(_MISSING, [MONTHS_AHEAD])
    return Maintained(
        created=tuple(name for _, name in missing),
        dropped=tuple(each.name for each in status.droppable),
        dropped_rows=sum(each.rows for each in status.droppable),
        kept=tuple(each for each in status.partitions if _is_due(each, keep, status.now) and not each.droppable),
        default_rows=status.default_rows,
        dry_run=True,
    )


async def _mend(database: Database, by: str, *, rows: int) -> str | None:
    """Make the default partition that of the time after the last month, if its rows are of that time."""
    if not rows or await patiently(database, "select core.partitions_mend_bind()", [], _PATIENCE) is None:
        # what somebody who was killed has promised would refuse events one day
        await patiently(database, _UNBIND, [], _PATIENCE)
        return None
    try:
        await patiently(database, "select core.partitions_mend_validate()", [], _PATIENCE)
        name: str = await patiently(database, "select core.partitions_mend(%s)", [by], _PATIENCE)
    except BaseException as error:  # a cancellation too
        with suppress(SpectralError):
            await patiently(database, _UNBIND, [], _PATIENCE)
        if isinstance(error, RefusedError):
            raise _OvertakenError from None
        raise
    return name


async def _create(database: Database, by: str, *, lenient: bool) -> tuple[str, ...]:
    created: list[str] = []
    for month, _ in await database.tuples(_MISSING, [MONTHS_AHEAD]):
        try:
            name = await patiently(database, "select core.partition_create(%s, %s)", [month, by], _PATIENCE)
        except RefusedError:
            # The default partition has rows of that month, among others that keep it from being mended; it alerts.
            if not lenient:
                raise
            continue
        if name is not None:
            created.append(name)
    return tuple(created)


async def _drop(
    database: Database, status: PartitionStatus, keep: Keep, by: str
) -> tuple[tuple[str, ...], int, tuple[Partition, ...], tuple[str, ...]]:
    dropped: list[str] = []
    kept = [each for each in status.partitions if _is_due(each, keep, status.now) and not each.droppable]
    postponed: list[str] = []
    total = 0
    for each in status.droppable:
        try:
            rows = await patiently(database, _DROP, [each.name, keep.active, keep.grace, by], _PATIENCE)
        except DatabaseTooSlowError:
            postponed.append(each.name)
            continue
        except NotFoundError:  # somebody else has dropped it
            continue
        if rows is None:
            kept.append(each)
        else:
            dropped.append(each.name)
            total += rows
    return tuple(dropped), total, tuple(kept), tuple(postponed)


def _is_due(partition: Partition, keep: Keep, now: datetime) -> bool:
    return partition.upper is not None and keep.grace is not None and now >= partition.upper + keep.active + keep.grace
