"""The tools that change: plan first, then do what was planned and never more.

Before a plan is carried out its events are looked at again. One that was replayed or discarded meanwhile, or that has
failed anew since, is refused and named; the others go on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spectral.core import deployments
from spectral.core.database import DatabaseUnavailableError, NotFoundError, RefusedError
from spectral.core.operations.dead_letters import find_dead_letters, list_dead_letters, states_of
from spectral.core.operations.discard import discard
from spectral.core.operations.replay import replay
from spectral_ops.mcp import arguments
from spectral_ops.mcp.plans import Action, Plan, PlannedEvent
from spectral_ops.mcp.results_change import Change, Refusal, Step

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from spectral.core.database import Database
    from spectral.core.operations.dead_letters import DeadLetter, DeadLetterFilter
    from spectral.core.operations.discard import Discarded
    from spectral.core.operations.replay import Replayed
    from spectral_ops.mcp.plans import PlanBook

_MOST_PAGES: Final = 10
"""Pages that a plan reads at most: a filter that few rows fit may find nothing on one."""

_FAILED_ANEW: Final = "failed anew since it was planned"


async def plan_replay(database: Database, plans: PlanBook, asked: arguments.PlanReplay) -> Change:
    """Say which failed events would be replayed, and into which generation; nothing is changed.

    Raises:
        NotFoundError: none of them is in the DLQ, there is no such generation, or none is live.
        RefusedError: nothing can be replayed into that generation.
    """
    generation = await _target(database, asked.to_generation)
    return await _planned(database, plans, asked, Plan(Action.REPLAY, (), generation))


async def plan_discard(database: Database, plans: PlanBook, asked: arguments.PlanDiscard) -> Change:
    """Say which failed events would be discarded; nothing is changed.

    Raises:
        NotFoundError: none of them is in the DLQ.
    """
    return await _planned(database, plans, asked, Plan(Action.DISCARD, ()))


async def replay_dlq_event(database: Database, plans: PlanBook, asked: arguments.ReplayDlqEvent, *, by: str) -> Change:
    """Plan the replay of one event, or carry out a plan: with a token, exactly what was planned or less.

    Raises:
        RefusedError: the token is not good (any more), or the generation was retired meanwhile.
        NotFoundError: the event is not in the DLQ.
    """
    if asked.token is None:
        ids = [asked.event_id] if asked.event_id is not None else None
        wanted = arguments.PlanReplay(event_ids=ids, to_generation=asked.to_generation)
        return await plan_replay(database, plans, wanted)
    return await _applied(database, _spent(plans, Action.REPLAY, asked.token, asked.event_id), by, asked.reason)


async def discard_dlq_event(
    database: Database, plans: PlanBook, asked: arguments.DiscardDlqEvent, *, by: str
) -> Change:
    """Plan the discarding of one event, or carry out a plan: with a token, exactly what was planned or less.

    Raises:
        RefusedError: the token is not good (any more).
        NotFoundError: the event is not in the DLQ.
    """
    if asked.token is None:
        ids = [asked.event_id] if asked.event_id is not None else None
        return await plan_discard(database, plans, arguments.PlanDiscard(event_ids=ids))
    return await _applied(database, _spent(plans, Action.DISCARD, asked.token, asked.event_id), by, asked.reason)


async def _target(database: Database, asked: int | None) -> int:
    """The generation to replay into. The database refuses a retired one too; such a plan is not worth a token."""
    if asked is None:
        return await deployments.live_generation(database)
    found = await deployments.find_deployment(database, asked)
    if found.status in {deployments.Status.RETIRED, deployments.Status.UNKNOWN}:
        raise RefusedError(
            f"generation {asked} is {found.status}: nothing can be replayed into it", "list_generations()"
        )
    return found.generation


async def _planned(
    database: Database, plans: PlanBook, asked: arguments.PlanReplay | arguments.PlanDiscard, empty: Plan
) -> Change:
    ids = list(dict.fromkeys(asked.event_ids or ()))
    marks, more = (await _marks(database, ids), False) if ids else await _matching(database, asked.wanted, asked.limit)
    if not marks and more:
        raise NotFoundError(
            "none was found as far as one plan looks", "a filter that says more: event_type, error_class"
        )
    if not marks:
        raise NotFoundError("none of these events is in the DLQ", "triage_dlq()")
    plan = Plan(empty.action, tuple(PlannedEvent(*each) for each in marks.items()), empty.to_generation)
    return Change(
        step=Step.PLANNED,
        action=plan.action,
        to_generation=plan.to_generation,
        count=len(marks),
        event_ids=list(marks),
        refused=await _refusals(database, [each for each in ids if each not in marks]),
        more=more,
        token=plans.keep(plan),
        expires_in_seconds=plans.lifetime.total_seconds(),
    )


async def _matching(database: Database, wanted: DeadLetterFilter, limit: int) -> tuple[dict[UUID, str], bool]:
    """The marks of the failed events that are meant, so many at most; and whether there are more."""
    found: dict[UUID, str] = {}
    cursor: str | None = None
    for _ in range(_MOST_PAGES):
        page = await list_dead_letters(database, wanted, limit=limit - len(found), cursor=cursor)
        found |= {letter.id: _mark(letter) for letter in page.items}
        cursor = page.next_cursor
        if cursor is None or len(found) == limit:
            break
    return found, cursor is not None


async def _marks(database: Database, ids: Sequence[UUID]) -> dict[UUID, str]:
    """The marks of those of these events that are in the DLQ now."""
    letters = await find_dead_letters(database, ids)
    return {letter.id: _mark(letter) for letter in letters}


def _mark(letter: DeadLetter) -> str:
    """What differs between two failures of one event: every replay in between is one more in its history."""
    return f"{letter.replays} {letter.failed_at}"


def _spent(plans: PlanBook, action: Action, token: str, event_id: UUID | None) -> Plan:
    if event_id is not None:
        plans.read(token, action).only(event_id)  # an event that is not part of it must not cost the token
    plan = plans.spend(token, action)
    return plan if event_id is None else plan.only(event_id)


async def _applied(database: Database, plan: Plan, by: str, reason: str) -> Change:
    marks = await _marks(database, [each.event_id for each in plan.events])
    gone = [each.event_id for each in plan.events if each.event_id not in marks]
    anew = [each.event_id for each in plan.events if marks.get(each.event_id, each.mark) != each.mark]
    same = [each.event_id for each in plan.events if marks.get(each.event_id) == each.mark]
    refused = await _refusals(database, gone)  # before the change: what is done must not end in an error
    answered = await _changed(database, plan, same, by, reason)
    done = [each.id for each in answered if each.refusal is None]
    return Change(
        step=Step.APPLIED,
        action=plan.action,
        to_generation=plan.to_generation,
        count=len(done),
        event_ids=done,
        refused=[
            *refused,
            *(Refusal(event_id=each, refusal=_FAILED_ANEW) for each in anew),
            *(Refusal(event_id=each.id, refusal=each.refusal) for each in answered if each.refusal is not None),
        ],
    )


async def _refusals(database: Database, ids: Sequence[UUID]) -> list[Refusal]:
    """Why these are not in the DLQ, in the words in which a replay is refused."""
    states = await states_of(database, ids) if ids else {}
    return [Refusal(event_id=each, refusal=state) for each, state in states.items()]


async def _changed(
    database: Database, plan: Plan, ids: Sequence[UUID], by: str, reason: str
) -> Sequence[Replayed | Discarded]:
    if not ids:
        return ()
    try:
        if plan.action is Action.REPLAY:
            return await replay(database, ids, generation=plan.to_generation, by=by, reason=reason)
        return await discard(database, ids, by=by, reason=reason)
    except DatabaseUnavailableError as error:
        look = f'list_audit(event_id="{ids[0]}") says whether it was done'
        raise DatabaseUnavailableError(f"{error}; all of it was done, or nothing", look) from None
