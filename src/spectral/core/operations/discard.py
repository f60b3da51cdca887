"""Discard: failed rows leave the DLQ, and the table when the sweep comes; until then it can be taken back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spectral.core.database import RefusedError
from spectral.core.events import probe
from spectral.core.operations.dead_letters_batches import MAX_BATCH, Pace, Preview, Progress, in_batches, preview
from spectral.core.operations.dead_letters_changed import answers_of, changed_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime
    from uuid import UUID

    from spectral.core.database import Database
    from spectral.core.operations.fingerprints import DeadLetterFilter

__all__ = [
    "DiscardOptions",
    "DiscardReport",
    "Discarded",
    "Preview",
    "Progress",
    "discard",
    "discard_matching",
    "preview",
]


_DISCARD: Final = answers_of("core.outbox_discard(%s::uuid[], %s, %s)")


@dataclass(frozen=True, slots=True)
class Discarded:
    """What became of one id; a refusal is `unknown`, `discarded`, or the status it has instead of failed."""

    id: UUID
    refusal: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardOptions:
    """Who and why, rows in a second and in a batch."""

    by: str
    reason: str
    rate: float | None = None
    batch: int = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscardReport:
    """What came of it. To go on with the same set, name the same `failed_before`."""

    discarded: int
    refused: int
    remaining: int
    remaining_capped: bool
    stopped: bool
    failed_before: datetime


async def discard(database: Database, ids: Sequence[UUID], *, by: str, reason: str) -> list[Discarded]:
    """Discard these rows; answers each id once, with what became of it.

    Raises:
        RefusedError: no reason was given.
    """
    _require(reason)
    answered: list[Discarded] = []
    for start in range(0, len(ids), MAX_BATCH):
        batch = await database.tuples(_DISCARD, [list(ids[start : start + MAX_BATCH]), by, reason])
        done = changed_rows(batch)
        if done:
            database.probe.tell(probe.Discarded(done, by, reason))
        answered += [Discarded(row_id, refusal) for row_id, refusal, *_ in batch]
    return answered


async def discard_matching(
    database: Database,
    wanted: DeadLetterFilter,
    options: DiscardOptions,
    on_progress: Callable[[Progress], None],
    should_stop: Callable[[], bool],
) -> DiscardReport:
    """Discard every row that the filter means and that was in the DLQ when this began, oldest failure first.

    Raises:
        RefusedError: no reason was given, or the pace makes no sense.
    """
    _require(options.reason)

    async def act(ids: Sequence[UUID]) -> Progress:
        answered = await discard(database, ids, by=options.by, reason=options.reason)
        refused = sum(each.refusal is not None for each in answered)
        return Progress(len(answered) - refused, refused)

    pace = Pace(options.batch, options.rate)
    tally = await in_batches(database, wanted, pace, act, on_progress, should_stop)
    return DiscardReport(
        discarded=tally.done,
        refused=tally.refused,
        remaining=tally.remaining.count,
        remaining_capped=tally.remaining.capped,
        stopped=tally.stopped,
        failed_before=tally.failed_before,
    )


def _require(reason: str) -> None:
    if not reason.strip():
        raise RefusedError("a discard needs a reason: it is what the next one finds in the audit", "--reason '...'")
