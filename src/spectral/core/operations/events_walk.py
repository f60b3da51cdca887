"""Which events a list shows, in which order, and how far it looked.

pending     whatever has been due longest first
in flight   all of them, newest first; there are only as many as workers can hold
failed      the DLQ, by first failure, newest first
otherwise   by id, newest first, for ids begin with the time; those that do not come after all others
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, LiteralString
from uuid import UUID

from psycopg import sql

from spectral.core.operations.dead_letters_walk import choose, cursor_of, step
from spectral.core.operations.events_filter import FOUND, EventFilter, EventStatus, fits, parameters_of
from spectral.core.operations.events_pages import WINDOW, Place, read_cursor, write_cursor
from spectral.core.operations.events_pending import MAX_LINES, find_pending, lines_of
from spectral.core.operations.fingerprints import DeadLetterFilter

if TYPE_CHECKING:
    from spectral.core.database import Database

_NO_TIME: Final = datetime(1970, 1, 1, tzinfo=UTC)
_AHEAD: Final = timedelta(days=1)
"""How far a producer's clock may be ahead for its ids to count as timed."""


@dataclass(frozen=True, slots=True)
class Found:
    """The ids of one page, where the next one begins, and what was looked at, in words."""

    ids: tuple[UUID, ...]
    next_cursor: str | None
    window: str


async def find(database: Database, wanted: EventFilter, limit: int, cursor: str | None) -> Found:
    """The events of one page.

    Raises:
        RefusedError: the cursor is not one of this list.
    """
    match wanted.status:
        case EventStatus.FAILED:
            return await _failed(database, wanted, limit, cursor)
        case EventStatus.IN_FLIGHT:
            return await _in_flight(database, wanted, limit, cursor)
        case EventStatus.PENDING if cursor is None or cursor.startswith("q"):
            return await _pending(database, wanted, limit, cursor)
        case _:
            return await _newest(database, wanted, limit, cursor)


async def _failed(database: Database, wanted: EventFilter, limit: int, cursor: str | None) -> Found:
    letters = DeadLetterFilter(
        event_type=wanted.event_type,
        context=wanted.context,
        workspace_id=wanted.workspace_id,
        generation=wanted.generation,
    )
    walk, after = await choose(database, letters, newest_first=True, cursor=cursor)
    places, following = await step(database, walk, after, limit)
    ids = tuple(place.id for place in places)
    return Found(ids, cursor_of(walk, following), "the DLQ, by first failure, newest first")


async def _pending(database: Database, wanted: EventFilter, limit: int, cursor: str | None) -> Found:
    after = None if cursor is None else read_cursor(cursor, "q")[1]
    lines = await lines_of(database)
    if len(lines) > MAX_LINES:
        return await _newest(database, wanted, limit, None)
    places, following = await find_pending(database, wanted, lines, limit, after)
    ids = tuple(place.id for place in places)
    return Found(ids, write_cursor("q", following), "what is pending, longest due first")


_IN_FLIGHT: Final = """\
with looked as materialized (
    select event.id, ({fits}) as fits
    from core.outbox as event
    where event.status = 'in_flight'
    order by event.claimed_by
    limit %(window)s
)
select looked.id from looked where looked.fits and {beyond} order by looked.id desc limit %(limit)s"""


async def _in_flight(database: Database, wanted: EventFilter, limit: int, cursor: str | None) -> Found:
    after = None if cursor is None else read_cursor(cursor, "i")[1].id
    beyond = sql.SQL("true" if after is None else "looked.id < %(id)s")
    statement = sql.SQL(_IN_FLIGHT).format(fits=fits(wanted), beyond=beyond)
    rows = await database.tuples(statement, parameters_of(wanted) | {"id": after, "window": WINDOW, "limit": limit + 1})
    ids = [event_id for (event_id,) in rows]
    last = Place(_NO_TIME, ids[limit - 1]) if len(ids) > limit else None
    return Found(tuple(ids[:limit]), write_cursor("i", last), f"what is in flight, up to {WINDOW:,} rows")


_NEWEST: Final = """\
with looked as materialized (
    select ranges.*, row_number() over (order by ranges.part, ranges.id desc) as position
    from (
        (
            select 'n' as part, event.id, ({fits}) as fits
            from core.outbox as event
            where event.id < %(timed)s and {beyond_timed}
            order by event.id desc
            limit %(window)s
        )
        union all
        (
            select 'o', event.id, ({fits})
            from core.outbox as event
            where event.id >= %(timed)s and {beyond_others}
            order by event.id desc
            limit %(window)s
        )
    ) as ranges
    order by ranges.part, ranges.id desc
    limit %(window)s
)
{found}"""


async def _newest(database: Database, wanted: EventFilter, limit: int, cursor: str | None) -> Found:
    part, after = (None, None) if cursor is None else read_cursor(cursor, "no")
    beyond: LiteralString = "event.id < %(id)s"
    timed: dict[str | None, LiteralString] = {None: "true", "n": beyond, "o": "false"}
    statement = sql.SQL(_NEWEST).format(
        fits=fits(wanted),
        beyond_timed=sql.SQL(timed[part]),
        beyond_others=sql.SQL(beyond if part == "o" else "true"),
        found=sql.SQL(FOUND).format(columns=sql.SQL("looked.part, looked.id")),
    )
    window = limit + 1 if wanted == EventFilter() else WINDOW
    now: datetime = await database.value("select clock_timestamp()")
    rows = await database.tuples(
        statement,
        parameters_of(wanted)
        | {"timed": first_id_of(now + _AHEAD), "id": after and after.id, "window": window, "limit": limit + 1},
    )
    found = [(each, event_id) for each, event_id, is_horizon in rows if not is_horizon]
    horizon = next(((each, event_id) for each, event_id, is_horizon in rows if is_horizon), None)
    last = found[limit - 1] if len(found) > limit else horizon
    following = None if last is None else write_cursor(last[0], Place(_NO_TIME, last[1]))
    looked = f"the newest {WINDOW:,} events" if cursor is None else f"{WINDOW:,} events before the cursor"
    return Found(tuple(event_id for _, event_id in found[:limit]), following, looked)


def first_id_of(moment: datetime) -> UUID:
    """The first id that begins with this time: where to look from."""
    milliseconds = (moment - _NO_TIME) // timedelta(milliseconds=1)
    return UUID(int=milliseconds << 80)
