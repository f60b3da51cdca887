"""Events as they are, whatever became of them: many at a glance, or one whole. Payloads are not in lists."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from psycopg import sql

from spectral.core.operations.events_detail import EventDetail, get_event
from spectral.core.operations.events_filter import STATUS, EventFilter, EventStatus
from spectral.core.operations.events_pages import reading
from spectral.core.operations.events_walk import find

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from spectral.core.database import Database

__all__ = ["Event", "EventDetail", "EventFilter", "EventPage", "EventStatus", "get_event", "list_events"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event; the error's message is cut."""

    id: UUID
    event_type: str
    event_version: int
    source: str
    context: str | None
    workspace_id: UUID | None
    generation: int
    channel: str
    status: str
    attempts: int
    created_at: datetime
    next_attempt_at: datetime
    claimed_by: str | None
    claimed_at: datetime | None
    delivered_at: datetime | None
    error: str | None
    parent_id: UUID | None


@dataclass(frozen=True, slots=True)
class EventPage:
    """Events, and what was looked at, in words. With a cursor there may be more, even behind an empty page."""

    items: tuple[Event, ...]
    next_cursor: str | None
    window: str


_EVENTS: Final = sql.SQL("""\
select event.id, event.event_type, event.event_version, event.source, event.target as context, event.workspace_id,
    event.generation, event.channel, {status} as status, event.attempts, event.created_at, event.next_attempt_at,
    event.claimed_by, event.claimed_at, event.delivered_at, left(event.last_error, 300) as error, event.parent_id
from core.outbox as event
where event.id = any (%s)""").format(status=STATUS)


async def list_events(database: Database, wanted: EventFilter, *, limit: int, cursor: str | None = None) -> EventPage:
    """One page of the events that are meant. At most 50,000 rows are looked at; the page says which.

    Raises:
        RefusedError: the cursor is not one of this list.
    """
    async with reading(database):
        found = await find(database, wanted, limit, cursor)
        rows = await database.rows(_EVENTS, [list(found.ids)], into=Event)
    events = {each.id: each for each in rows}
    return EventPage(tuple(events[event_id] for event_id in found.ids), found.next_cursor, found.window)
