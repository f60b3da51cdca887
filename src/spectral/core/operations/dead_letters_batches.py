"""Doing something to many failed rows, in batches: oldest first, at a rate, stopped between batches, told as it goes.

The set is fixed when it begins: rows that were in the DLQ before that moment of the database's clock. What fails again
meanwhile is not among them, so the work ends, and whoever goes on later with the same moment goes on with the same set.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from math import ceil
from time import monotonic
from typing import TYPE_CHECKING, Final

from spectral.core.database import RefusedError
from spectral.core.operations.dead_letters import Counted, count_dead_letters
from spectral.core.operations.dead_letters_walk import choose, step
from spectral.core.operations.events_pages import reading

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from datetime import datetime
    from uuid import UUID

    from spectral.core.database import Database
    from spectral.core.operations.dead_letters_walk import Walk
    from spectral.core.operations.events_pages import Place
    from spectral.core.operations.fingerprints import DeadLetterFilter

MAX_BATCH: Final = 5_000
_PATIENCE: Final = 0.1
"""How long a pause goes on at most before it is asked again whether to stop."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Rows in one transaction, and rows in a second at most (none: as fast as it goes)."""

    batch: int = 500
    rate: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.batch <= MAX_BATCH:
            raise RefusedError(f"a batch has 1 to {MAX_BATCH} rows, not {self.batch}", "--batch 500")
        if self.rate is not None and not self.rate > 0:
            raise RefusedError(f"a rate is more than 0 rows a second, not {self.rate}", "--rate 100")

    @property
    def size(self) -> int:
        """Rows in one batch: with a rate, never more than a second's."""
        return self.batch if self.rate is None else max(1, min(self.batch, ceil(self.rate)))


@dataclass(frozen=True, slots=True)
class Preview:
    """What would be done: how many, and the moment that fixes which."""

    count: int
    capped: bool
    failed_before: datetime


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is."""

    done: int
    refused: int


@dataclass(frozen=True, slots=True)
class Tally:
    """What came of it; `remaining` are those of the set that are still there."""

    done: int
    refused: int
    remaining: Counted
    stopped: bool
    failed_before: datetime


async def preview(database: Database, wanted: DeadLetterFilter) -> Preview:
    """How many rows are meant as of now, or of the moment that the filter names."""
    fixed, moment = await _fix(database, wanted)
    counted = await count_dead_letters(database, fixed)
    return Preview(counted.count, counted.capped, moment)


async def in_batches(
    database: Database,
    wanted: DeadLetterFilter,
    pace: Pace,
    act: Callable[[Sequence[UUID]], Awaitable[Progress]],
    on_progress: Callable[[Progress], None],
    should_stop: Callable[[], bool],
) -> Tally:
    """Act on every row that is meant, one batch after the other; each call of `act` is a transaction of its own."""
    fixed, moment = await _fix(database, wanted)
    async with reading(database):
        walk, _ = await choose(database, fixed, newest_first=False)
    so_far, after, began = Progress(0, 0), None, monotonic()
    while not (stopped := should_stop()):
        places, after = await _following(database, walk, after, pace.size)
        if places:
            more = await act([place.id for place in places])
            so_far = Progress(so_far.done + more.done, so_far.refused + more.refused)
            on_progress(so_far)
        if after is None:
            break
        if pace.rate is not None:
            await _pause(began + (so_far.done + so_far.refused) / pace.rate, should_stop)
    remaining = await count_dead_letters(database, fixed)
    return Tally(so_far.done, so_far.refused, remaining, stopped, moment)


async def _fix(database: Database, wanted: DeadLetterFilter) -> tuple[DeadLetterFilter, datetime]:
    """The filter with a moment to end at: now, by the database's clock, unless it has one."""
    moment = wanted.failed_before or await database.value("select clock_timestamp()")
    return replace(wanted, failed_before=moment), moment


async def _following(
    database: Database, walk: Walk, after: Place | None, limit: int
) -> tuple[list[Place], Place | None]:
    async with reading(database):
        return await step(database, walk, after, limit, thrifty=True)


async def _pause(until: float, should_stop: Callable[[], bool]) -> None:
    while (left := until - monotonic()) > 0 and not should_stop():  # noqa: ASYNC110  whether to stop is the caller's to say
        await asyncio.sleep(min(left, _PATIENCE))
