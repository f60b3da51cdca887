"""One look at the database: what waits, what runs, what failed, who is at work, and what holds things up.

It reads and judges nothing; `verdict`, `doctor` and `gauges` do. Every count stops at ten thousand and every list is
bounded, so that the look costs about the same with a hundred rows and with a hundred million.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final

from spectral.core.operations import insights_sql as statements
from spectral.core.operations.insights_growth import read_partitioning, read_relaying
from spectral.core.operations.insights_values import (
    COUNT_CAP,
    EVERY_CONTEXT,
    NOTHING,
    Amount,
    Backlog,
    Brake,
    Deployment,
    Holder,
    Lane,
    Snapshot,
    Stray,
    Table,
    Worker,
)
from spectral.core.retention import last_sweep

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from spectral.core.database import Database

__all__ = [
    "COUNT_CAP",
    "EVERY_CONTEXT",
    "Amount",
    "Backlog",
    "Brake",
    "Deployment",
    "Holder",
    "Lane",
    "Snapshot",
    "Stray",
    "Table",
    "Worker",
    "take_snapshot",
]

LANES_CAP: Final = 200
STRAYS_LOOKED: Final = 20
"""Rows of a lane that are looked at: what nobody takes is passed by all others, and so comes to stand first."""

_A_WHILE: Final = timedelta(seconds=10)

WINDOWS: Final = {
    "backlogs": "now",
    "backlogs.failed": "now; the newest ten thousand dead letters",
    "backlogs.failed_lately": "the last hour",
    "workers": "now; those that vanished within the last day",
    "tables": "estimated; counters since the statistics were reset",
    "holders": "now",
}

_Key = tuple[str | None, int]


async def take_snapshot(database: Database) -> Snapshot:
    """One consistent, bounded look. Operators, workers and read-only logins get the same numbers.

    Raises:
        OperationError: the database is away, too slow, or this login may not look (`grant spectral_operator`).
        ConfigurationError: the database has no schema.
    """
    async with database.transaction():
        await database.connection.execute(statements.BEGIN)
        ((taken_at, login, visible, notify_queue, live),) = await database.tuples(statements.WHO)
        bounds = {"now": taken_at, "cap": COUNT_CAP + 1, "lanes": LANES_CAP + 1}
        lanes = [_lane(*row) for row in await database.tuples(statements.LANES, bounds)]
        in_flight = await database.tuples(statements.IN_FLIGHT, bounds)
        failed = await database.tuples(statements.FAILED, bounds)
        workers = [_worker(*row) for row in await database.tuples(statements.WORKERS)]
        snapshot = Snapshot(
            taken_at=taken_at,
            login=login,
            activity_visible=visible,
            live_generation=live,
            deployments=tuple(await database.rows(statements.DEPLOYMENTS, into=Deployment)),
            backlogs=_backlogs(lanes[:LANES_CAP], in_flight, failed),
            lanes=tuple(lanes[:LANES_CAP]),
            lanes_capped=len(lanes) > LANES_CAP,
            workers=_with_claims(workers, in_flight),
            brakes=tuple(await database.rows(statements.BRAKES, into=Brake)),
            notify_queue=notify_queue,
            tables=tuple(await database.rows(statements.TABLES, into=Table)),
            holders=tuple(await database.rows(statements.HOLDERS, bounds, into=Holder)),
            sweep=await last_sweep(database),
            relaying=await read_relaying(database),
            partitioning=await read_partitioning(database),
            windows=WINDOWS,
        )
        return replace(snapshot, strays=await _read_strays(database, snapshot))


async def _read_strays(database: Database, snapshot: Snapshot) -> tuple[Stray, ...]:
    """What waits for nobody, in lanes that are behind; the last statements of the look."""
    late = [
        lane
        for lane in snapshot.lanes
        if lane.context is not None and lane.oldest_due is not None and lane.oldest_due >= _A_WHILE
    ]
    if not late or not await database.value(statements.SEES_EVENTS):
        return ()
    await database.connection.execute(statements.BY_INDEX)
    asked = {
        "now": snapshot.taken_at,
        "looked": STRAYS_LOOKED,
        "generations": [lane.generation for lane in late],
        "channels": [lane.channel for lane in late],
        "contexts": [lane.context for lane in late],
    }
    return tuple([_stray(*row) for row in await database.tuples(statements.STRAYS, asked)])


def _lane(*row: Any) -> Lane:  # noqa: ANN401  a row of the statement
    generation, status, channel, context, due, waiting, oldest_due, next_due = row
    return Lane(generation, status, channel, context, Amount.of(due), Amount.of(waiting), oldest_due, next_due)


def _stray(*row: Any) -> Stray:  # noqa: ANN401  as above
    context, generation, channel, event_types, rows, looked, oldest_due = row
    return Stray(context, generation, channel, tuple(event_types), rows, looked, oldest_due)


def _worker(*row: Any) -> Worker:  # noqa: ANN401  as above
    *values, unsubscribed = row
    name, generation, generations, contexts, channels, *rest = values
    worker = Worker(name, generation, tuple(generations), tuple(contexts), tuple(channels), *rest)
    return replace(worker, unsubscribed=tuple(unsubscribed))


def _backlogs(
    lanes: Iterable[Lane], in_flight: Iterable[tuple[Any, ...]], failed: Iterable[tuple[Any, ...]]
) -> tuple[Backlog, ...]:
    """Everything of one context and generation in one place, the newest generation first."""
    known: dict[_Key, Backlog] = {}

    def at(context: str | None, generation: int, status: str | None) -> Backlog:
        return known.setdefault((context, generation), Backlog(context, generation, status))

    for lane in lanes:
        before = at(lane.context, lane.generation, lane.generation_status)
        ages = [age for age in (before.oldest_due, lane.oldest_due) if age is not None]
        known[lane.context, lane.generation] = replace(
            before, due=before.due + lane.due, waiting=before.waiting + lane.waiting, oldest_due=max(ages, default=None)
        )
    for (context, generation, status), rows, stale in _held(in_flight):
        before = at(context, generation, status)
        known[context, generation] = replace(before, in_flight=rows, stale=stale)
    failed = list(failed)
    capped = sum(rows for *_, rows, _ in failed) > COUNT_CAP
    for generation, status, context, rows, lately in failed:
        before = at(context, generation, status)
        known[context, generation] = replace(
            before, failed=Amount(rows, capped), failed_lately=Amount(lately, capped and lately == rows)
        )
    return tuple(sorted(known.values(), key=lambda each: (-each.generation, each.context is None, each.context or "")))


def _held(in_flight: Iterable[tuple[Any, ...]]) -> Iterable[tuple[tuple[str | None, int, str | None], Amount, Amount]]:
    """Rows in flight, and the stale ones among them, by context and generation."""
    rows = list(in_flight)
    capped = sum(held for *_, held, _ in rows) > COUNT_CAP
    sums: dict[tuple[str | None, int, str | None], list[int]] = defaultdict(lambda: [0, 0])
    for generation, status, context, _, held, stale in rows:
        both = sums[context, generation, status]
        both[0] += held
        both[1] += stale
    for key, (held, stale) in sums.items():
        yield key, Amount(held, capped), Amount(stale, capped) if stale else NOTHING


def _with_claims(workers: Iterable[Worker], in_flight: Iterable[tuple[Any, ...]]) -> tuple[Worker, ...]:
    held: Mapping[str, int] = _claims(in_flight)
    return tuple(replace(worker, in_flight=held.get(worker.name, 0)) for worker in workers)


def _claims(in_flight: Iterable[tuple[Any, ...]]) -> dict[str, int]:
    claims: dict[str, int] = defaultdict(int)
    for _, _, _, worker, held, _ in in_flight:
        claims[worker] += held
    return claims
