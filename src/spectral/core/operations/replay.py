"""Replay: failed rows start anew, under the same id and key. What was handled before is not handled twice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spectral.core.deployments import live_generation
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
    "Preview",
    "Progress",
    "ReplayOptions",
    "ReplayReport",
    "Replayed",
    "preview",
    "replay",
    "replay_matching",
]


_REPLAY: Final = answers_of("core.outbox_replay_many(%s::uuid[], %s::bigint, %s, %s)", "answer.cycle")


@dataclass(frozen=True, slots=True)
class Replayed:
    """What became of one id: the cycle that was closed, or why it was not.

    A refusal is `unknown`, `discarded`, or the status that the row has instead of failed.
    """

    id: UUID
    cycle: int | None
    refusal: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Into which generation (the live one, unless told), who and why, rows in a second and in a batch."""

    by: str
    reason: str | None = None
    generation: int | None = None
    rate: float | None = None
    batch: int = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """What came of it. To go on with the same set, name the same `failed_before`."""

    replayed: int
    refused: int
    remaining: int
    remaining_capped: bool
    stopped: bool
    failed_before: datetime
    generation: int


async def replay(
    database: Database, ids: Sequence[UUID], *, generation: int | None = None, by: str, reason: str | None = None
) -> list[Replayed]:
    """Replay these rows; answers each id once, with what became of it.

    Raises:
        RefusedError: the generation is unknown or retired.
        NotFoundError: none is named, and none is live.
    """
    into = await live_generation(database) if generation is None else generation
    answered: list[Replayed] = []
    for start in range(0, len(ids), MAX_BATCH):
        batch = await database.tuples(_REPLAY, [list(ids[start : start + MAX_BATCH]), into, by, reason])
        done = changed_rows(batch)
        if done:
            database.probe.tell(probe.Replayed(done, into, by, reason))
        answered += [Replayed(row_id, cycle, refusal) for row_id, refusal, *_, cycle in batch]
    return answered


async def replay_matching(
    database: Database,
    wanted: DeadLetterFilter,
    options: ReplayOptions,
    on_progress: Callable[[Progress], None],
    should_stop: Callable[[], bool],
) -> ReplayReport:
    """Replay every row that the filter means and that was in the DLQ when this began, oldest failure first.

    Stops between two batches when `should_stop` says so; what was replayed by then stays replayed.

    Raises:
        RefusedError: the generation is unknown or retired, or the pace makes no sense.
        NotFoundError: none is named, and none is live.
    """
    into = await live_generation(database) if options.generation is None else options.generation

    async def act(ids: Sequence[UUID]) -> Progress:
        answered = await replay(database, ids, generation=into, by=options.by, reason=options.reason)
        refused = sum(each.refusal is not None for each in answered)
        return Progress(len(answered) - refused, refused)

    pace = Pace(options.batch, options.rate)
    tally = await in_batches(database, wanted, pace, act, on_progress, should_stop)
    return ReplayReport(
        replayed=tally.done,
        refused=tally.refused,
        remaining=tally.remaining.count,
        remaining_capped=tally.remaining.capped,
        stopped=tally.stopped,
        failed_before=tally.failed_before,
        generation=into,
    )
