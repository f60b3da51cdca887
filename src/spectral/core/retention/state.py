"""What is known of the sweep: who sweeps now, when the last one ended and with what, and the oldest event in sight.

The times are the database's, and so is `now`: whoever judges them needs no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from spectral.core.retention.report import Ended, Sweeping, Swept

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spectral.core.database import Database
    from spectral.core.retention.report import SweepReport

_STATE: Final = """
    select clock_timestamp() as now, name, started_at, renewed_at, finished_at, result
    from core.sweeper
"""
_OLDEST: Final = "select core.insight_oldest_delivered()"


@dataclass(frozen=True, slots=True, kw_only=True)
class LastSweep:
    """The sweep that ended last, complete or not."""

    finished_at: datetime
    complete: bool = True
    sweeper: str | None = None
    seconds: float | None = None
    outbox: Swept = field(default_factory=Swept)
    event_handled: Swept = field(default_factory=Swept)


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepState:
    """Everything that is known, at one moment.

    completed_at: when a sweep last came to its end; one that was stopped does not count.
    oldest_delivered_at: of the events at the beginning of the outbox that are not put away.
    """

    now: datetime
    sweeping: Sweeping | None
    last: LastSweep | None
    completed_at: datetime | None
    oldest_delivered_at: datetime | None


@dataclass(frozen=True, slots=True)
class _Row:
    now: datetime
    name: str | None
    started_at: datetime | None
    renewed_at: datetime | None
    finished_at: datetime | None
    result: dict[str, Any]


async def last_sweep(database: Database) -> SweepState:
    """Who sweeps, and when and how the last sweep ended. Any role but publisher's may ask.

    Raises:
        OperationError: the database could not be asked.
    """
    (row,) = await database.rows(_STATE, into=_Row)
    oldest: datetime | None = await database.value(_OLDEST)
    last = _last(row.finished_at, row.result)
    return SweepState(
        now=row.now,
        sweeping=_sweeping(row),
        last=last,
        completed_at=last.finished_at if last is not None and last.complete else _moment(row.result),
        oldest_delivered_at=oldest,
    )


def result_of(report: SweepReport, *, completed_before: datetime | None) -> dict[str, object]:
    """What is kept of a sweep. One that is not complete carries on when the last complete one ended."""
    return {
        "complete": report.ended is Ended.COMPLETE,
        "sweeper": report.sweeper,
        "seconds": report.seconds,
        "outbox": {"put_away": report.outbox.put_away, "deleted": report.outbox.deleted},
        "event_handled": {"put_away": report.event_handled.put_away, "deleted": report.event_handled.deleted},
        "completed_before": None if completed_before is None else completed_before.isoformat(),
    }


def _sweeping(row: _Row) -> Sweeping | None:
    if row.name is None or row.started_at is None or row.renewed_at is None:
        return None
    return Sweeping(name=row.name, started_at=row.started_at, renewed_at=row.renewed_at)


def _last(finished_at: datetime | None, result: Mapping[str, Any]) -> LastSweep | None:
    """Whatever the result says: somebody with psql may have written it, so nothing of it is relied on."""
    if finished_at is None:
        return None
    sweeper, seconds = result.get("sweeper"), result.get("seconds")
    return LastSweep(
        finished_at=finished_at,
        complete=result.get("complete") is not False,
        sweeper=sweeper if isinstance(sweeper, str) else None,
        seconds=seconds if isinstance(seconds, int | float) else None,
        outbox=_swept(result.get("outbox")),
        event_handled=_swept(result.get("event_handled")),
    )


def _swept(counts: object) -> Swept:
    match counts:
        case {"put_away": int(put_away), "deleted": int(deleted)}:
            return Swept(put_away, deleted)
        case _:
            return Swept()


def _moment(result: Mapping[str, Any]) -> datetime | None:
    given = result.get("completed_before")
    try:
        moment = datetime.fromisoformat(given) if isinstance(given, str) else None
    except ValueError:
        return None
    return moment if moment is not None and moment.tzinfo is not None else None
