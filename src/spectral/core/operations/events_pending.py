"""Pending events, whatever has been due longest first, so that the stuck ones stand above.

They wait in lines (generation, channel, context), each a range of the claim's index in the order in which they are due;
the lines are merged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from psycopg import sql

from spectral.core.operations.events_filter import FOUND, EventFilter, fits, parameters_of
from spectral.core.operations.events_pages import WINDOW, Order, Place, merge, stretches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spectral.core.database import Database

Line: TypeAlias = "tuple[int, str, str | None]"

MAX_LINES: Final = 200
"""Lines that are merged, at most."""

_DUE_FIRST: Final = Order(newest_first=False, ids_descend=False)

# One look for each line, however many rows wait in it. A target may be null, which no comparison steps over.
_LINES: Final = """\
with recursive pair as (
    (
        select event.generation, event.channel
        from core.outbox as event
        where event.status = 'pending' and event.deleted_at is null
        order by event.generation, event.channel
        limit 1
    )
    union all
    select following.generation, following.channel
    from pair
    cross join lateral (
        select event.generation, event.channel
        from core.outbox as event
        where event.status = 'pending' and event.deleted_at is null
          and (event.generation, event.channel) > (pair.generation, pair.channel)
        order by event.generation, event.channel
        limit 1
    ) as following
)
select pair.generation, pair.channel, line.target
from pair
cross join lateral (
    with recursive context as (
        (
            select event.target
            from core.outbox as event
            where event.status = 'pending' and event.deleted_at is null
              and event.generation = pair.generation and event.channel = pair.channel and event.target is not null
            order by event.target
            limit 1
        )
        union all
        select following.target
        from context
        cross join lateral (
            select event.target
            from core.outbox as event
            where event.status = 'pending' and event.deleted_at is null
              and event.generation = pair.generation and event.channel = pair.channel
              and event.target > context.target
            order by event.target
            limit 1
        ) as following
    )
    select context.target from context
    union all
    (
        select null
        from core.outbox as event
        where event.status = 'pending' and event.deleted_at is null
          and event.generation = pair.generation and event.channel = pair.channel and event.target is null
        limit 1
    )
) as line
limit %(lines)s"""

_PENDING: Final = """\
select line.ordinal, found.*
from unnest(%(generations)s::bigint[], %(channels)s::text[], %(targets)s::text[])
    with ordinality as line (generation, channel, target, ordinal)
cross join lateral (
    with looked as materialized (
        select waiting.*, row_number() over (order by waiting.next_attempt_at, waiting.id) as position
        from (
            (
                select event.id, event.next_attempt_at, ({fits}) as fits
                from core.outbox as event
                where event.status = 'pending' and event.deleted_at is null and event.generation = line.generation
                  and event.channel = line.channel and event.target = line.target and {beyond}
                order by event.next_attempt_at, event.id
                limit %(window)s
            )
            union all
            (
                select event.id, event.next_attempt_at, ({fits})
                from core.outbox as event
                where event.status = 'pending' and event.deleted_at is null and event.generation = line.generation
                  and event.channel = line.channel and event.target is null and line.target is null and {beyond}
                -- the target is null in all of them; naming it lets the index's own order be used
                order by event.target, event.next_attempt_at, event.id
                limit %(window)s
            )
        ) as waiting
    )
    {found}
) as found"""


async def lines_of(database: Database) -> list[Line]:
    """The lines in which anything waits: generation, channel, context; one more than are merged, if there are more."""
    return [
        (generation, channel, target)
        for generation, channel, target in await database.tuples(_LINES, {"lines": MAX_LINES + 1})
    ]


async def find_pending(
    database: Database, wanted: EventFilter, lines: Sequence[Line], limit: int, after: Place | None
) -> tuple[list[Place], Place | None]:
    """The next events of these lines that are meant, and where to go on; none at the end."""
    meant = [line for line in lines if _is_meant(line, wanted)]
    if not meant:
        return [], None
    by_line_alone = wanted.event_type is None and wanted.workspace_id is None
    generations, channels, targets = (list(column) for column in zip(*meant, strict=True))
    parameters = parameters_of(wanted) | {
        "window": limit + 1 if by_line_alone else max(WINDOW // len(meant), limit + 1),
        "limit": limit + 1,
        "at": after and after.at,
        "id": after and after.id,
        "generations": generations,
        "channels": channels,
        "targets": targets,
    }
    beyond = "true" if after is None else "(event.next_attempt_at, event.id) > (%(at)s, %(id)s)"
    found = sql.SQL(FOUND).format(columns=sql.SQL("looked.id, looked.next_attempt_at"))
    statement = sql.SQL(_PENDING).format(fits=fits(wanted), beyond=sql.SQL(beyond), found=found)
    return merge(stretches(await database.tuples(statement, parameters)), limit, _DUE_FIRST.key)


def _is_meant(line: Line, wanted: EventFilter) -> bool:
    generation, _, target = line
    return wanted.generation in (None, generation) and wanted.context in (None, target or "")
