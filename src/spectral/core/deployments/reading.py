"""What the database knows of generations. Every answer is bounded, however large the backlog is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spectral.core.database import NotFoundError
from spectral.core.deployments.judging import how_to_have_a_live_one, require_replayable
from spectral.core.deployments.values import COUNTED_AT_MOST, Blocker, Count, Deployment, HandOver, Status, Waiting
from spectral.core.events.consumer import Subscription

if TYPE_CHECKING:
    from datetime import datetime

    from spectral.core.database import Database

SHOWN_RETIRED: Final = 10
"""Retired generations that a list shows: the newest ones. All others are always shown."""

PREVIEWED_AT_MOST: Final = 1_000_000
"""Rows whose types a hand-over looks at before it moves them: a second's work at most."""

_DEPLOYMENTS: Final = """
with recursive stamped as (
    -- generations that rows wait in, allocated or not: one look each, however many rows wait
    (
        select outbox.generation
        from core.outbox
        where outbox.status = 'pending' and outbox.deleted_at is null
        order by outbox.generation
        limit 1
    )
    union all
    select following.generation
    from stamped
    cross join lateral (
        select outbox.generation
        from core.outbox
        where outbox.status = 'pending' and outbox.deleted_at is null and outbox.generation > stamped.generation
        order by outbox.generation
        limit 1
    ) as following
),
shown as (
    select deployment.generation from core.deployments as deployment
    where deployment.status <> 'retired'
    union
    select stamped.generation from stamped
    union
    (
        select deployment.generation from core.deployments as deployment
        where deployment.status = 'retired'
        order by deployment.generation desc
        limit %(retired)s
    )
),
dead as (
    -- The DLQ has no index by generation; its newest rows tell of the releases that matter.
    select newest.generation, count(*) as rows
    from (
        select outbox.generation
        from core.outbox
        where outbox.status = 'failed' and outbox.deleted_at is null
        order by outbox.first_failed_at desc, outbox.id
        limit %(cap)s + 1
    ) as newest
    group by newest.generation
)
select shown.generation, coalesce(deployment.status, 'unknown') as status, deployment.label,
    deployment.allocated_at, deployment.promoted_at, deployment.drained_at, deployment.retired_at,
    coalesce(remaining.pending, 0)::bigint as pending, coalesce(remaining.in_flight, 0)::bigint as in_flight,
    coalesce(dead.rows, 0) as failed, (select coalesce(sum(dead.rows), 0) from dead)::bigint as all_failed
from shown
left join core.deployments as deployment on deployment.generation = shown.generation
left join dead on dead.generation = shown.generation
cross join lateral (
    select
        sum(blocker.rows) filter (where blocker.status = 'pending') as pending,
        sum(blocker.rows) filter (where blocker.status = 'in_flight') as in_flight
    from core.deployment_blockers(shown.generation, %(cap)s + 1) as blocker
) as remaining
where %(only)s::bigint is null or shown.generation = %(only)s
order by shown.generation desc
"""

_WORKERS: Final = """
select worker.name, worker.generation, worker.generations
from core.workers as worker
where core.worker_lives(worker.name)
order by worker.name
"""

_WAITING: Final = """
select waiting.context, waiting.event_type, count(*) as rows,
    exists (
        select
        from core.subscriptions as subscription
        where subscription.generation = %(target)s
          and subscription.event_type = waiting.event_type
          and (waiting.context is null or subscription.context = waiting.context)
    ) as subscribed
from (
    select outbox.target as context, outbox.event_type
    from core.outbox
    where outbox.status = 'pending' and outbox.deleted_at is null and outbox.generation = %(source)s
      and (%(context)s::text is null or outbox.target = %(context)s)
    limit %(cap)s + 1
) as waiting
group by waiting.context, waiting.event_type
order by count(*) desc, waiting.context, waiting.event_type
"""

_BLOCKERS: Final = "select status, context, event_type, rows from core.deployment_blockers(%s, %s)"
_SUBSCRIPTIONS: Final = """
select context, event_type, handler_name, max_attempts from core.subscriptions
where generation = %s
order by context, event_type, handler_name
"""


@dataclass(frozen=True, slots=True)
class _Found:
    """A row of `_DEPLOYMENTS`."""

    generation: int
    status: str
    label: str | None
    allocated_at: datetime | None
    promoted_at: datetime | None
    drained_at: datetime | None
    retired_at: datetime | None
    pending: int
    in_flight: int
    failed: int
    all_failed: int


@dataclass(frozen=True, slots=True)
class _Worker:
    """A worker that lives."""

    name: str
    generation: int
    generations: list[int]


async def list_deployments(database: Database, *, retired: int = SHOWN_RETIRED) -> list[Deployment]:
    """Every generation, the newest first; of those that are retired and empty, only so many.

    A login that sees the events of one workspace counts those.
    """
    return await _read(database, retired=retired, only=None)


async def find_deployment(database: Database, generation: int) -> Deployment:
    """One generation.

    Raises:
        NotFoundError: there is none of that number, and no row waits for it.
    """
    found = await _read(database, retired=None, only=generation)
    if not found:
        raise NotFoundError(f"there is no generation {generation}", "spectral generations list")
    return found[0]


async def live_generation(database: Database) -> int:
    """The one generation that is live. After a rollback that is not the highest one.

    Raises:
        NotFoundError: none is live.
    """
    live = await database.value("select generation from core.live_generation")
    if live is None:
        deployments = await list_deployments(database)
        raise NotFoundError("no generation is live", how_to_have_a_live_one(deployments))
    return int(live)


async def replay_target(database: Database, asked: int | None) -> int:
    """The generation that dead letters are replayed into: the one that is asked for, else the live one.

    Raises:
        NotFoundError: there is no such generation, or none is live.
        RefusedError: nothing can be replayed into it.
    """
    if asked is None:
        return await live_generation(database)
    require_replayable(await find_deployment(database, asked))
    return asked


async def list_blockers(database: Database, generation: int) -> list[Blocker]:
    """What keeps a generation from being retired, the most first. Of each status 10,001 rows are counted at most."""
    return await database.rows(_BLOCKERS, [generation, COUNTED_AT_MOST + 1], into=Blocker)


async def list_subscriptions(database: Database, generation: int) -> list[Subscription]:
    """Who handles what in this generation."""
    return [Subscription(*row) for row in await database.tuples(_SUBSCRIPTIONS, [generation])]


async def list_waiting(database: Database, order: HandOver) -> tuple[list[Waiting], bool]:
    """What a hand-over would move, and whether there is more of it than was looked at."""
    asked = {"source": order.source, "target": order.target, "context": order.context, "cap": PREVIEWED_AT_MOST}
    waiting = await database.rows(_WAITING, asked, into=Waiting)
    return waiting, sum(each.rows for each in waiting) > PREVIEWED_AT_MOST


async def highest_generation(database: Database) -> int | None:
    """The highest number that was ever allocated."""
    highest = await database.value("select max(generation) from core.deployments")
    return None if highest is None else int(highest)


def capped(rows: int) -> Count:
    """A count that may have ended at the cap."""
    return Count(min(rows, COUNTED_AT_MOST), rows > COUNTED_AT_MOST)


async def _read(database: Database, *, retired: int | None, only: int | None) -> list[Deployment]:
    asked = {"retired": retired, "only": only, "cap": COUNTED_AT_MOST}
    found = await database.rows(_DEPLOYMENTS, asked, into=_Found)
    workers = await database.rows(_WORKERS, into=_Worker)
    return [_deployment(each, workers) for each in found]


def _deployment(found: _Found, workers: list[_Worker]) -> Deployment:
    generation = found.generation
    return Deployment(
        generation=generation,
        status=Status(found.status),
        label=found.label,
        allocated_at=found.allocated_at,
        promoted_at=found.promoted_at,
        drained_at=found.drained_at,
        retired_at=found.retired_at,
        pending=capped(found.pending),
        in_flight=capped(found.in_flight),
        failed=Count(min(found.failed, COUNTED_AT_MOST), found.all_failed > COUNTED_AT_MOST),
        workers=tuple(each.name for each in workers if each.generation == generation),
        accepted_by=tuple(
            each.name for each in workers if each.generation != generation and generation in each.generations
        ),
    )
