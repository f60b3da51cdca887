"""The steps of a generation's life: allocated, live, draining, retired. Each is one call of the database's function.

With `dry_run` a step is judged and not taken; it raises and answers what it would otherwise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spectral.core.database import NotFoundError, RefusedError
from spectral.core.deployments import judging
from spectral.core.deployments.reading import find_deployment, highest_generation, list_blockers, list_deployments
from spectral.core.deployments.values import Allocation, Promotion, Status

if TYPE_CHECKING:
    from spectral.core.database import Database
    from spectral.core.deployments.values import Deployment, Release


async def allocate(
    database: Database, release: Release, *, by: str, reason: str | None = None, dry_run: bool = False
) -> Allocation:
    """Give a release its generation, and record who handles what in it, before any worker of it runs.

    Allocating again what is still only allocated brings its label and its subscriptions up to date.

    Raises:
        RefusedError: the number that was asked for is beyond that, or was passed over.
    """
    known = None
    if release.generation is not None:
        try:
            known = await find_deployment(database, release.generation)
        except NotFoundError:
            known = None
    generation = judging.require_allocatable(release.generation, await highest_generation(database), known)
    if not dry_run:
        generation = await database.value(
            "select core.deployment_allocate(%s, %s, %s::text[], %s::text[], %s::text[], %s::integer[], %s, %s)",
            [
                release.generation,
                release.label,
                [each.context for each in release.subscriptions],
                [each.event_type for each in release.subscriptions],
                [each.handler_name for each in release.subscriptions],
                [each.max_attempts for each in release.subscriptions],
                by,
                reason,
            ],
        )
    new = known is None or known.status is Status.UNKNOWN
    return Allocation(generation, release.label, len(release.subscriptions), new)


async def promote(
    database: Database, generation: int, *, by: str, reason: str | None = None, dry_run: bool = False
) -> Promotion:
    """Make a generation the live one; the one that was starts draining. Promoting the live one changes nothing.

    Raises:
        NotFoundError: there is no such generation.
        RefusedError: it is retired.
    """
    deployment = await find_deployment(database, generation)
    judging.require_promotable(deployment)
    if dry_run:
        live = judging.live_one(await list_deployments(database))
        return Promotion(generation, None if live is None else live.generation)
    before = await database.value("select core.deployment_promote(%s, %s, %s)", [generation, by, reason])
    return Promotion(generation, before)


async def rollback(
    database: Database, *, by: str, reason: str | None = None, leaving: int | None = None, dry_run: bool = False
) -> Promotion:
    """Make the generation live that was so before the current one.

    Args:
        database: where.
        by: who, for the audit.
        reason: why, for the audit.
        leaving: the generation to roll back from, for a person who has seen it live and was asked.
        dry_run: judge, and change nothing.

    Raises:
        RefusedError: there is none before it, or it is newer, or another one than `leaving` is live by now.
    """
    deployments = await list_deployments(database)
    live = judging.live_one(deployments)
    if leaving is not None and (live is None or live.generation != leaving):
        now = "none is" if live is None else f"{live.generation} is"
        raise RefusedError(f"generation {leaving} is not live any more, {now}", "spectral generations list")
    found = judging.before_the_live_one(deployments)
    return await promote(database, found.generation, by=by, reason=reason, dry_run=dry_run)


async def drain(
    database: Database, generation: int, *, by: str, reason: str | None = None, dry_run: bool = False
) -> Deployment:
    """Say that a generation is on its way out. If it is the live one, none is live afterwards.

    Raises:
        NotFoundError: there is no such generation.
        RefusedError: it is retired.
    """
    deployment = await find_deployment(database, generation)
    judging.require_drainable(deployment)
    if dry_run:
        return deployment
    await database.value("select core.deployment_drain(%s, %s, %s)", [generation, by, reason])
    return await find_deployment(database, generation)


async def retire(
    database: Database, generation: int, *, by: str, reason: str | None = None, dry_run: bool = False
) -> Deployment:
    """Put a generation away: no worker of it starts any more, nothing is replayed or handed over into it.

    Raises:
        NotFoundError: there is no such generation.
        RefusedError: it is live, or rows of it wait or are in flight; the message says how many of what.
    """
    deployment = await _require_retirable(database, generation)
    if dry_run:
        return deployment
    try:
        await database.value("select core.deployment_retire(%s, %s, %s)", [generation, by, reason])
    except RefusedError:
        await _require_retirable(database, generation)  # something came in between: say what
        raise
    return await find_deployment(database, generation)


async def _require_retirable(database: Database, generation: int) -> Deployment:
    deployment = await find_deployment(database, generation)
    others = [each for each in await list_deployments(database) if each.generation != generation]
    heir = next((each for each in others if each.status in {Status.ALLOCATED, Status.DRAINING}), None)
    blockers = await list_blockers(database, generation)
    judging.require_retirable(deployment, blockers, judging.live_one(others), heir=heir)
    return deployment
