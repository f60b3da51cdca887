"""The emergency brake: nothing of a context, or of any, is claimed until it is let go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spectral.core.operations.insights import take_snapshot
from spectral.core.operations.insights_values import EVERY_CONTEXT, NOTHING, Amount, Brake
from spectral.core.operations.verdict_words import several

if TYPE_CHECKING:
    from spectral.core.database import Database

__all__ = ["EVERY_CONTEXT", "Brake", "Held", "list_brakes", "look", "pull_brake", "release_brake"]

_LIST: Final = b"""
select brake.context, brake.pulled_at, brake.pulled_by, brake.reason
from core.brakes as brake
order by brake.context
limit 500
"""
_IS_KNOWN: Final = b"select exists (select from core.subscriptions as each where each.context = %s)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a brake is about: the brake itself if it is pulled, and what waits and runs of its context.

    still_braked: other brakes that hold this context, or parts of it.
    """

    context: str
    brake: Brake | None
    due: Amount
    in_flight: Amount
    still_braked: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        waiting = several(self.due, "event waits", "events wait") if self.due else "nothing waits"
        return f"{waiting}, {self.in_flight} in flight"


async def look(database: Database, context: str) -> Held:
    """What pulling the brake of a context (or `*`) would hold up, or does. Raises as `take_snapshot`."""
    snapshot = await take_snapshot(database)
    every = context == EVERY_CONTEXT
    backlogs = [backlog for backlog in snapshot.backlogs if every or backlog.context == context]
    unknown = not every and not await database.value(_IS_KNOWN, [context])
    return Held(
        context=context,
        brake=next((brake for brake in snapshot.brakes if brake.context == context), None),
        due=sum((backlog.due for backlog in backlogs), NOTHING),
        in_flight=sum((backlog.in_flight for backlog in backlogs), NOTHING),
        still_braked=tuple(
            brake.context
            for brake in snapshot.brakes
            if brake.context != context and (every or brake.context == EVERY_CONTEXT)
        ),
        warnings=(f"no worker has ever subscribed for {context!r}: is the name right?",) if unknown else (),
    )


async def list_brakes(database: Database) -> list[Brake]:
    """The brakes that are pulled."""
    return await database.rows(_LIST, into=Brake)


async def pull_brake(database: Database, context: str, *, by: str, reason: str) -> bool:
    """Stop the claiming of a context, or of all (`*`); what runs is finished. Answers whether the brake was free.

    Raises:
        RefusedError: there is no reason, the name is no context's, or this login may not.
    """
    return bool(await database.value(b"select core.brake_pull(%s, %s, %s)", [context, by, reason]))


async def release_brake(database: Database, context: str, *, by: str, reason: str | None = None) -> bool:
    """Let go, and wake every channel on which something waits. Answers whether the brake was pulled.

    Raises:
        RefusedError: this login may not.
    """
    return bool(await database.value(b"select core.brake_release(%s, %s, %s)", [context, by, reason]))
