"""What the database knows of its layout. Every answer is bounded, however large the tables are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spectral.core.database import DatabaseTooSlowError, DatabaseUnavailableError, OperationError
from spectral.core.events.failure import ConfigurationError
from spectral.core.partitions import judging
from spectral.core.partitions.judging import State
from spectral.core.partitions.values import Keep, Layout, Partition, PartitionKind, PartitionStatus

if TYPE_CHECKING:
    from datetime import datetime

    from spectral.core.database import Database

_STATE: Final = """
    select now, partitioned, dedup_partitioned, prepared, indexed, bound, boundary, bound_until, reversible
    from core.partitions_state()
"""
_PARTITIONS: Final = """
    select name, kind, lower_bound as lower, upper_bound as upper, estimated_rows as rows, bytes, unfinished, failed
    from core.outbox_partitions()
"""

_MOST_RACES: Final = 3


@dataclass(frozen=True, slots=True)
class _Found:
    """A row of `_PARTITIONS`."""

    name: str
    kind: str
    lower: datetime | None
    upper: datetime | None
    rows: int
    bytes: int
    unfinished: int
    failed: int


async def read_state(database: Database) -> State:
    """How far the conversion is."""
    (state,) = await database.rows(_STATE, into=State)
    return state


async def partition_status(database: Database, keep: Keep | None = None) -> PartitionStatus:
    """The layout, how far a conversion is, and every partition with whether and why it may be dropped.

    Raises:
        OperationError: the database could not be asked.
    """
    for _ in range(_MOST_RACES):
        try:
            return await _look(database, keep or Keep())
        except (DatabaseUnavailableError, DatabaseTooSlowError):
            raise
        except (OperationError, ConfigurationError):
            # A partition that somebody drops between its listing and its counting has no name any more: look again.
            continue
    return await _look(database, keep or Keep())


async def _look(database: Database, keep: Keep) -> PartitionStatus:
    state = await read_state(database)
    partitions = await _partitions(database, keep, state.now)
    default = next((each for each in partitions if each.kind is PartitionKind.DEFAULT), None)
    return PartitionStatus(
        now=state.now,
        layout=Layout.PARTITIONED if state.partitioned else Layout.PLAIN,
        dedup=Layout.PARTITIONED if state.dedup_partitioned else Layout.PLAIN,
        done=judging.steps_done(state),
        next_step=judging.next_step(state),
        boundary=state.boundary,
        partitions=partitions,
        default_rows=0 if default is None else default.rows,
        months_ahead=judging.months_ahead([each.upper for each in partitions], state.now),
        reversible=state.reversible,
        bound_until=state.bound_until,
    )


async def _partitions(database: Database, keep: Keep, now: datetime) -> tuple[Partition, ...]:
    found = await database.rows(_PARTITIONS, into=_Found)
    return tuple(_partition(each, keep, now) for each in found)


def _partition(found: _Found, keep: Keep, now: datetime) -> Partition:
    kind = PartitionKind(found.kind)
    may_go, because = judging.droppable(kind, found.upper, (found.unfinished, found.failed), keep, now)
    return Partition(
        name=found.name,
        kind=kind,
        lower=found.lower,
        upper=found.upper,
        rows=found.rows,
        bytes=found.bytes,
        unfinished=found.unfinished,
        failed=found.failed,
        droppable=may_go,
        because=because,
    )
