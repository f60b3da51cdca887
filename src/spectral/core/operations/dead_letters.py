"""The DLQ to look at: one by one or in groups, at any size. Payloads are not in lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from psycopg import sql

from spectral.core.database import DatabaseTooSlowError
from spectral.core.operations.dead_letters_walk import Way, choose, cursor_of, step
from spectral.core.operations.events_filter import STATUS
from spectral.core.operations.events_pages import reading
from spectral.core.operations.fingerprints import DeadLetterFilter, fingerprints
from spectral.core.operations.fingerprints_sql import (
    OF_SELECTED,
    SELECTED,
    conditions_of_row,
    conditions_of_time,
    in_order,
    parameters_of,
    range_of,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from spectral.core.database import Database

__all__ = [
    "Counted",
    "DeadLetter",
    "DeadLetterFilter",
    "DeadLetterGroup",
    "DeadLetterGroups",
    "DeadLetterPage",
    "count_dead_letters",
    "find_dead_letters",
    "group_dead_letters",
    "list_dead_letters",
    "states_of",
]

GROUP_CAP: Final = 10_000
"""A group is counted up to here."""

_COUNTED_AT_MOST: Final = 40_000
"""Rows that are counted for all groups together: the rows of a group lie far apart, and each is a page to read."""

COUNT_CAPS: Final = {Way.FINGERPRINT: 30_000, Way.TIME: 250_000}
"""What a filter means is counted up to here. Rows that failed one after the other mostly lie side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A failed row; the error's message is cut."""

    id: UUID
    event_type: str
    event_version: int
    source: str
    context: str | None
    workspace_id: UUID | None
    generation: int
    channel: str
    attempts: int
    error_class: str
    handler_name: str | None
    error: str
    first_failed_at: datetime
    failed_at: datetime | None
    claimed_by: str | None
    created_at: datetime
    replays: int


@dataclass(frozen=True, slots=True)
class DeadLetterPage:
    """Failed rows, by first failure, newest first. Behind a cursor there may be more, even if the page is empty."""

    items: tuple[DeadLetter, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterGroup:
    """Failed rows with the same fingerprint. Where the count is capped there are at least so many."""

    event_type: str
    context: str | None
    handler_name: str | None
    error_class: str
    count: int
    capped: bool
    first_failed_at: datetime
    last_failed_at: datetime
    sample_id: UUID


@dataclass(frozen=True, slots=True)
class DeadLetterGroups:
    """The largest groups first; incomplete where there are more fingerprints than are looked at."""

    items: tuple[DeadLetterGroup, ...]
    complete: bool


@dataclass(frozen=True, slots=True)
class Counted:
    """How many; where capped, at least so many."""

    count: int
    capped: bool


# By their ids alone: they are known to be failed, and to say so again would offer the planner the indexes of those.
_LETTERS: Final = """\
select letter.id, letter.event_type, letter.event_version, letter.source, letter.target as context,
    letter.workspace_id, letter.generation, letter.channel, letter.attempts,
    left(split_part(letter.last_error, ':', 1), 120) as error_class,
    left(substring(letter.last_error from '^[^:]*: ([a-z][a-z0-9_]*(?:\\.[a-z][a-z0-9_]*)+): '), 200) as handler_name,
    left(letter.last_error, 300) as error, letter.first_failed_at, letter.claimed_at as failed_at, letter.claimed_by,
    letter.created_at, jsonb_array_length(letter.failure_history) as replays
from core.outbox as letter
where letter.id = any (%s)"""


async def list_dead_letters(
    database: Database, wanted: DeadLetterFilter, *, limit: int, cursor: str | None = None
) -> DeadLetterPage:
    """One page of the failed rows that are meant, by first failure, newest first.

    Raises:
        RefusedError: the cursor is not one of this list.
    """
    async with reading(database):
        walk, after = await choose(database, wanted, newest_first=True, cursor=cursor)
        places, following = await step(database, walk, after, limit)
        found = await database.rows(_LETTERS, [[place.id for place in places]], into=DeadLetter)
    letters = {each.id: each for each in found}
    return DeadLetterPage(tuple(letters[place.id] for place in places), cursor_of(walk, following))


_STATES: Final = sql.SQL("select event.id, {status} from core.outbox as event where event.id = any (%s)").format(
    status=STATUS
)


async def find_dead_letters(database: Database, ids: Sequence[UUID]) -> list[DeadLetter]:
    """Those of these ids that are in the DLQ, in the order of their ids."""
    async with reading(database):
        states = await _states(database, ids)
        failed = [event_id for event_id, state in states.items() if state == "failed"]
        found = await database.rows(_LETTERS, [failed], into=DeadLetter)
    return sorted(found, key=lambda letter: letter.id)


async def states_of(database: Database, ids: Sequence[UUID]) -> dict[UUID, str]:
    """What each of these ids is: `failed` for what is in the DLQ, or why it is not, as a refusal to replay says it."""
    async with reading(database):
        known = await _states(database, ids)
    return {event_id: known.get(event_id, "unknown") for event_id in ids}


async def _states(database: Database, ids: Sequence[UUID]) -> dict[UUID, str]:
    return dict(await database.tuples(_STATES, [list(ids)]))


# Of each group the newest rows are looked at, up to a cap. What is asked of the rows themselves may hold for few of
# many, so its oldest is the oldest that was looked at; otherwise it is the oldest of all.
_GROUPS: Final = sql.SQL("""\
select selected.event_type, nullif(selected.context, '') as context,
    nullif(selected.handler_name, '') as handler_name, selected.error_class,
    least(newest.fitting, %(cap)s) as count, newest.looked > %(cap)s as capped,
    coalesce(oldest.first_failed_at, newest.first_failed_at) as first_failed_at, newest.last_failed_at,
    newest.sample_id
from {selected}
cross join lateral (
    select count(*) as looked, count(*) filter (where looked.fits) as fitting,
        min(looked.first_failed_at) filter (where looked.fits) as first_failed_at,
        max(coalesce(looked.failed_at, looked.first_failed_at)) filter (where looked.fits) as last_failed_at,
        (array_agg(looked.id) filter (where looked.fits))[1] as sample_id
    from (
        select letter.id, letter.first_failed_at, letter.failed_at, ({fits}) as fits
        from core.dead_letters as letter
        where {of_selected} and {within}
        order by {newest_first}
        limit %(cap)s + 1
    ) as looked
) as newest
left join lateral (
    select letter.first_failed_at
    from core.dead_letters as letter
    where {of_selected} and {within}
    order by {oldest_first}
    limit 1
) as oldest on not %(by_row)s
where newest.fitting > 0
order by newest.fitting desc, newest.last_failed_at desc, newest.sample_id""")


async def group_dead_letters(database: Database, wanted: DeadLetterFilter, *, limit: int) -> DeadLetterGroups:
    """The failed rows that are meant, by fingerprint."""
    async with reading(database):
        found = await fingerprints(database, wanted)
        if not found.selected:
            return DeadLetterGroups((), complete=not found.too_many)
        cap = min(GROUP_CAP, _COUNTED_AT_MOST // len(found.selected))
        statement = _GROUPS.format(
            selected=SELECTED,
            of_selected=OF_SELECTED,
            within=conditions_of_time(wanted),
            fits=conditions_of_row(wanted, by_fingerprint=False),
            newest_first=in_order(newest_first=True),
            oldest_first=in_order(newest_first=False),
        )
        parameters = {**parameters_of(wanted, found.selected), **range_of(wanted), "cap": cap, "by_row": wanted.by_row}
        groups = await database.rows(statement, parameters, into=DeadLetterGroup)
    return DeadLetterGroups(tuple(groups[:limit]), complete=not found.too_many and len(groups) <= limit)


_COUNT_BY_FINGERPRINT: Final = sql.SQL("""\
select count(*) filter (where looked.fits), count(*)
from (
    select letter.fits
    from {selected}
    cross join lateral (
        select ({fits}) as fits
        from core.dead_letters as letter
        where {of_selected} and {within}
        order by {order}
        limit %(cap)s + 1
    ) as letter
    limit %(cap)s + 1
) as looked""")

_COUNT_BY_TIME: Final = sql.SQL("""\
select count(*) filter (where looked.fits), count(*)
from (
    select ({fits}) as fits
    from core.dead_letters as letter
    where {within}
    order by letter.first_failed_at desc, letter.id
    limit %(cap)s + 1
) as looked""")


async def count_dead_letters(database: Database, wanted: DeadLetterFilter) -> Counted:
    """How many failed rows are meant: exactly, or as many as there are among the first that were looked at.

    Where even those take too long to read, all that is said is that there may be some: nobody has to wait for a count.
    """
    try:
        async with reading(database):
            return await _count(database, wanted)
    except DatabaseTooSlowError:
        return Counted(0, capped=True)


async def _count(database: Database, wanted: DeadLetterFilter) -> Counted:
    walk, _ = await choose(database, wanted, newest_first=False)
    by_fingerprint = walk.way is Way.FINGERPRINT
    if by_fingerprint and not walk.selected:
        return Counted(0, capped=False)
    statement = (_COUNT_BY_FINGERPRINT if by_fingerprint else _COUNT_BY_TIME).format(
        selected=SELECTED,
        of_selected=OF_SELECTED,
        within=conditions_of_time(wanted),
        fits=conditions_of_row(wanted, by_fingerprint=not by_fingerprint),
        order=in_order(newest_first=True),
    )
    cap = COUNT_CAPS[walk.way]
    parameters = {**parameters_of(wanted, walk.selected), **range_of(wanted), "cap": cap}
    ((fitting, looked),) = await database.tuples(statement, parameters)
    return Counted(min(fitting, cap), capped=looked > cap)
