"""What is known of the layout of the outbox, and what the steps answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from datetime import datetime

COUNTED_AT_MOST: Final = 10_000
"""Rows of one kind in one partition that are counted."""

MONTHS_AHEAD: Final = 3
"""Months after the current one that have a partition before their first event comes."""


class Layout(StrEnum):
    """How a table lies on the disk."""

    PLAIN = "plain"
    PARTITIONED = "partitioned"


class Step(StrEnum):
    """The steps from the plain layout to the partitioned one, in their order."""

    PREPARE = "prepare"  # the empty partitioned table beside the one in use, and the months to come
    INDEX = "index"  # the keys that the table in use needs to become a partition
    BOUND = "bound"  # the promise, checked row by row, that everything in it is older than the boundary
    SWITCH = "switch"  # the exchange: the table in use becomes the first partition


class PartitionKind(StrEnum):
    """What a partition is for."""

    MONTH = "month"
    BEFORE = "before"  # the table as it was before partitions came: everything up to the boundary
    DEFAULT = "default"  # whatever no other one takes; it should be empty


@dataclass(frozen=True, slots=True)
class Keep:
    """How long an event is kept after it was delivered, and put away after that; None: for ever."""

    active: timedelta = timedelta(days=45)
    grace: timedelta | None = timedelta(days=7)


@dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """One partition: from `lower` up to, not including, `upper`. `rows` is the planner's estimate.

    `unfinished` rows are pending or in flight, `failed` ones wait in the DLQ; both are counted up to `COUNTED_AT_MOST`
    and one more. `droppable`: by all that can be seen at a glance; the drop itself looks at every row. `because` says
    why or why not, in words.
    """

    name: str
    kind: PartitionKind
    lower: datetime | None
    upper: datetime | None
    rows: int
    bytes: int
    unfinished: int
    failed: int
    droppable: bool
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """The layout at one moment.

    done: the steps behind us; next_step: the one that `enable` takes next, none when all are done.
    boundary: where the months begin; of a conversion under way, where they will.
    default_rows: rows in the default partition, counted up to `COUNTED_AT_MOST` and one more: any is an alarm.
    months_ahead: whole months after the current one that have a partition.
    reversible: `disable` can still take it back.
    bound_until: set while a conversion has promised that no event is created from then on and has not kept it:
        finish or disable before that moment, or publishing fails.
    dedup: how core.event_handled lies.
    """

    now: datetime
    layout: Layout
    dedup: Layout
    done: tuple[Step, ...] = ()
    next_step: Step | None = None
    boundary: datetime | None = None
    partitions: tuple[Partition, ...] = ()
    default_rows: int = 0
    months_ahead: int = 0
    reversible: bool = False
    bound_until: datetime | None = None

    @property
    def droppable(self) -> tuple[Partition, ...]:
        """What the next `maintain` drops."""
        return tuple(each for each in self.partitions if each.droppable)

    @property
    def under_way(self) -> bool:
        """Whether a conversion was begun and is not done."""
        return self.layout is Layout.PLAIN and (bool(self.done) or self.bound_until is not None)


@dataclass(frozen=True, slots=True)
class Progress:
    """A step that is being taken: the `position`th of `steps`. `attempt` counts the tries to get its lock."""

    step: str
    position: int
    steps: int
    message: str
    attempt: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class EnableOptions:
    """How a conversion goes about it.

    dedup: lay core.event_handled out by hash too, which copies it.
    give_up_after: how long the tries for one lock go on; each waits for a third of a second, and others behind it.
    copy_at_once: blocks of the dedup log that one transaction copies.
    """

    dedup: bool = False
    give_up_after: timedelta = timedelta(minutes=2)
    copy_at_once: int = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Maintained:
    """What a maintenance did; of a dry run, what it would do.

    kept: their time is over, and something in them is not. postponed: their time is over, and they could not be locked.
    dropped_rows: how many rows went with the dropped ones; of a dry run, the planner's estimate.
    mended: what the default partition became, with its rows; none if it had none, or they are of a time of their own.
    busy: somebody else is at it, nothing or not everything was done.
    """

    created: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    dropped_rows: int = 0
    kept: tuple[Partition, ...] = ()
    postponed: tuple[str, ...] = ()
    mended: str | None = None
    default_rows: int = 0
    dry_run: bool = False
    busy: bool = False


OnProgress: TypeAlias = Callable[[Progress], None]
