"""What may be done with a generation, and what a person should be told: pure functions of what was read.

The database refuses the same things by itself, whoever asks. Here they are refused in words that end with a command.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spectral.core.database import RefusedError
from spectral.core.deployments.values import COUNTED_AT_MOST, Blocker, Remark, Status

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spectral.core.deployments.values import Deployment, HandOver, HandOverPreview

_COMMAND: Final = "spectral generations"
_LIST: Final = f"{_COMMAND} list"
_NAMED: Final = 5


def live_one(deployments: Sequence[Deployment]) -> Deployment | None:
    """The one that is live, if any."""
    return next((each for each in deployments if each.status is Status.LIVE), None)


def how_to_have_a_live_one(deployments: Sequence[Deployment]) -> str:
    """The command for a database in which nothing is live."""
    ready = [each.generation for each in deployments if each.status in {Status.ALLOCATED, Status.DRAINING}]
    return f"{_COMMAND} promote {max(ready)}" if ready else f"{_COMMAND} allocate"


def require_allocatable(asked: int | None, highest: int | None, known: Deployment | None) -> int:
    """The number that would be allocated.

    Raises:
        RefusedError: it is beyond that already, or was passed over.
    """
    if asked is None:
        return 1 if highest is None else highest + 1
    if known is not None and known.status not in {Status.ALLOCATED, Status.UNKNOWN}:
        raise RefusedError(f"generation {asked} is {known.status} already", f"{_COMMAND} allocate")
    if highest is not None and asked < highest and (known is None or known.status is Status.UNKNOWN):
        raise RefusedError(f"generation {asked} is below {highest}, the highest so far", f"{_COMMAND} allocate")
    return asked


def require_promotable(deployment: Deployment) -> None:
    """Whatever is known and not retired may become live.

    Raises:
        RefusedError: it is retired, or was never allocated.
    """
    generation = deployment.generation
    if deployment.status is Status.UNKNOWN:
        raise RefusedError(
            f"generation {generation} was never allocated; only rows are stamped with it",
            f"{_COMMAND} allocate --generation {generation}",
        )
    if deployment.status is Status.RETIRED:
        raise RefusedError(f"generation {generation} is retired, and stays so", f"{_COMMAND} allocate")


def require_drainable(deployment: Deployment) -> None:
    """Whatever is known and not retired may drain.

    Raises:
        RefusedError: it is retired, or was never allocated.
    """
    generation = deployment.generation
    if deployment.status is Status.UNKNOWN:
        raise RefusedError(f"generation {generation} was never allocated", _LIST)
    if deployment.status is Status.RETIRED:
        raise RefusedError(f"generation {generation} is retired: nothing of it is left to drain", _LIST)


def before_the_live_one(deployments: Sequence[Deployment]) -> Deployment:
    """The generation that was live before the current one: where a rollback goes.

    Raises:
        RefusedError: there is none; or it is a newer one, as after a rollback. A second rollback would bring back what
            the first one took away, and two people who act at once must not do that.
    """
    live = live_one(deployments)
    earlier = [
        (each.promoted_at, each)
        for each in deployments
        if each.status is Status.DRAINING and each.promoted_at is not None
    ]
    if not earlier:
        current = "none is live" if live is None else f"generation {live.generation} is live"
        raise RefusedError(f"there is nothing to roll back to: {current}, and none before it is draining", _LIST)
    _, found = max(earlier, key=lambda pair: (pair[0], pair[1].generation))
    if live is not None and found.generation > live.generation:
        raise RefusedError(
            f"generation {live.generation} is live by a rollback from {found.generation}; to go forward again, or "
            "further back, say to which",
            f"{_COMMAND} promote {found.generation}",
        )
    return found


def require_retirable(
    deployment: Deployment, blockers: Sequence[Blocker], live: Deployment | None, *, heir: Deployment | None
) -> None:
    """A generation is retired when it is not live and has no rows that wait or are in flight.

    Raises:
        RefusedError: otherwise; says what is left, by context, type and status.
    """
    generation = deployment.generation
    if deployment.status is Status.UNKNOWN:
        raise RefusedError(f"generation {generation} was never allocated", _LIST)
    if deployment.status is Status.LIVE:
        raise RefusedError(
            f"generation {generation} is live; promote another one first",
            # Not one to go back to: whoever retires a live generation has most likely mistyped it.
            _LIST if heir is None or heir.generation < generation else f"{_COMMAND} promote {heir.generation}",
        )
    if blockers and deployment.status is not Status.RETIRED:
        target = live or heir
        # What is in flight is not handed over: its worker finishes it, or it is taken back and waits again.
        waits = any(blocker.status == "pending" for blocker in blockers)
        raise RefusedError(
            f"generation {generation} is not at its end: {list_of_blockers(blockers)}",
            f"{_COMMAND} hand-over {generation} {target.generation}" if waits and target is not None else _LIST,
        )


def require_replayable(deployment: Deployment) -> None:
    """Dead letters go into a generation that somebody has allocated and nobody has retired.

    Raises:
        RefusedError: otherwise.
    """
    if deployment.status in {Status.RETIRED, Status.UNKNOWN}:
        said = "retired" if deployment.status is Status.RETIRED else "not allocated"
        raise RefusedError(f"generation {deployment.generation} is {said}: nothing can be replayed into it", _LIST)


def require_hand_over(order: HandOver, source: Deployment, target: Deployment) -> None:
    """Rows go from a generation that is not live to one that is not retired.

    Raises:
        RefusedError: otherwise. Publishers of a live one would fill it again.
    """
    if order.source == order.target:
        raise RefusedError("a hand-over goes from one generation to another", _LIST)
    if order.batch < 1:
        raise RefusedError("a hand-over takes at least one row at a time", f"{_COMMAND} hand-over --help")
    if target.status in {Status.RETIRED, Status.UNKNOWN}:
        said = "retired" if target.status is Status.RETIRED else "not allocated"
        raise RefusedError(f"generation {order.target} is {said}: nothing can be handed over to it", _LIST)
    if source.status is Status.LIVE:
        raise RefusedError(
            f"generation {order.source} is live: its publishers would go on filling it",
            f"{_COMMAND} promote {order.target}",
        )


def list_of_blockers(blockers: Sequence[Blocker]) -> str:
    """`12 pending worlds.scan.completed of platform, 1 in flight ...`; the rest is summed up."""
    named = [
        f"{_rows(each.rows)} {each.status.replace('_', ' ')} {kind_of(each.context, each.event_type)}"
        for each in blockers[:_NAMED]
    ]
    rest = sum(each.rows for each in blockers[_NAMED:])
    return ", ".join([*named, f"{rest:,} of other types"] if rest else named)


def _rows(count: int) -> str:
    return f"{COUNTED_AT_MOST:,}+" if count > COUNTED_AT_MOST else f"{count:,}"


def kind_of(context: str | None, event_type: str) -> str:
    """What a person calls such rows."""
    return f"{event_type} to all" if context is None else f"{event_type} of {context}"


def warnings(preview: HandOverPreview) -> list[str]:
    """What a person should know before rows are handed over: what would go wrong with them there."""
    target = preview.order.target
    found = [
        f"{each.rows:,} {kind_of(each.context, each.event_type)}: nobody subscribes to them in generation {target}, so "
        f"they would {'be delivered to nobody' if each.context is None else 'end as NoHandlerError'}"
        for each in preview.unhandled
    ]
    if preview.capped:
        found.append(f"there are at least {preview.total.rows:,} rows; nobody has looked at the types of the rest")
    if preview.waiting and not preview.workers:
        found.append(f"generation {target} has no worker")
    return found


def remarks(deployments: Sequence[Deployment]) -> list[Remark]:
    """What a person who looks at these should see to."""
    live = live_one(deployments)
    found: list[Remark] = []
    if live is None:
        found.append(Remark("no generation is live", how_to_have_a_live_one(deployments)))
    for each in deployments:
        generation, rows = each.generation, f"{each.pending} rows"
        hand_over = _LIST if live is None else f"{_COMMAND} hand-over {generation} {live.generation}"
        if each.status in {Status.RETIRED, Status.UNKNOWN} and each.pending.rows:
            said = "retired" if each.status is Status.RETIRED else "not allocated"
            found.append(Remark(f"{rows} wait in generation {generation}, which is {said}", hand_over))
        elif each.workers or each.accepted_by:
            continue
        elif each.status is Status.DRAINING and each.pending.rows:
            found.append(Remark(f"{rows} wait in generation {generation}, which has no worker", hand_over))
        elif each.status is Status.LIVE:
            start = f"SPECTRAL_GENERATION={generation} spectral worker <module>:<consumer>"
            found.append(Remark(f"generation {generation} is live and has no worker", start))
    return found
