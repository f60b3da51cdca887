"""What a sweep tells while it works, and when it has ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from datetime import datetime

    from spectral.core.retention.policy import Subject


class Ended(StrEnum):
    """How a sweep ended."""

    COMPLETE = "complete"
    STOPPED = "stopped"  # it was told to; the next one begins from the start, and what is done is done
    BUSY = "busy"  # another sweeper is at work, nothing was done
    TAKEN_OVER = "taken_over"  # it was silent for too long, and another sweeper goes on


@dataclass(frozen=True, slots=True)
class Swept:
    """How many rows of a table were put away, and how many deleted."""

    put_away: int = 0
    deleted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweeping:
    """The sweeper at work, or one that has died: then nothing was heard of it since `renewed_at`."""

    name: str
    started_at: datetime
    renewed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepProgress:
    """Where a sweep is: `blocks_done` of the `blocks_total` that the table had when its turn came."""

    subject: Subject
    blocks_done: int
    blocks_total: int
    swept: Swept


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepReport:
    """What a sweep did; of a dry run, what it would have done. `other`: the sweeper that was at work instead."""

    sweeper: str
    ended: Ended
    dry_run: bool
    seconds: float
    outbox: Swept
    event_handled: Swept
    other: Sweeping | None = None


OnProgress: TypeAlias = Callable[[SweepProgress], None]
