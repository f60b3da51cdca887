"""Tail: events as they are published, and as they change state.

Ids begin with the time they were made at, so what is new is among the highest. Some commit later than others that were
made after them: each look goes back half a minute and takes what it has not seen. The shares of a broadcast, whose ids
carry its time, are found by it. What was made without a time in its id, or by a clock far behind, is not shown.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final, LiteralString

from psycopg import sql

from spectral.core.operations.events_filter import STATUS, EventFilter, fits, parameters_of
from spectral.core.operations.events_pages import reading
from spectral.core.operations.events_walk import find, first_id_of
from spectral.core.operations.tail_changes import Change, Missed, Sight, TailMemory, what_changed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import datetime

    from spectral.core.database import Database

__all__ = ["Change", "Missed", "Sight", "TailMemory", "look", "recent", "tail"]

LOOK_BACK: Final = timedelta(seconds=30)
_AHEAD: Final = timedelta(hours=1)
MAX_SEEN: Final = 2_000
"""Events that one look takes in."""

_SIGHT: Final = """\
select event.id, event.event_type, event.target as context, event.generation, {status} as status, event.attempts,
    jsonb_array_length(event.failure_history) as replays, left(event.last_error, 200) as error,
    event.created_at
from core.outbox as event
where {which} and {fits}"""
_NEWEST: Final = "event.id >= %(from)s and event.id < %(to)s"
# No order for those that are named: to have it from an index, a planner that must not sort would read the whole index.
_ENDS: Final[dict[str, LiteralString]] = {_NEWEST: " order by event.id desc limit %(limit)s"}
_SHARES: Final = "event.parent_id = any (%(parents)s) and event.parent_id is not null"
_WATCHED: Final = "event.id = any (%(watched)s)"


async def tail(
    database: Database, wanted: EventFilter, *, every: timedelta, memory: TailMemory | None = None
) -> AsyncIterator[Change | Missed]:
    """What happens from now on, until the caller stops; with a status, only what comes into it.

    Raises:
        DatabaseUnavailableError: the connection was lost. With the same memory, on another one, nothing is repeated.
    """
    kept = TailMemory() if memory is None else memory
    while True:
        for each in await look(database, wanted, kept):
            yield each
        await asyncio.sleep(every.total_seconds())


async def recent(database: Database, wanted: EventFilter, memory: TailMemory, *, limit: int) -> list[Change]:
    """The last events that there were, as they are now, oldest first; a tail with this memory goes on from there."""
    await look(database, wanted, memory)
    async with reading(database):
        found = await find(database, wanted, limit, None)
        sights = await _sights(database, EventFilter(), _WATCHED, {"watched": list(found.ids)})
    seen = {event.id: event for event in sights}
    events = [seen[event_id] for event_id in reversed(found.ids)]
    for event in events:
        memory.know(event.id)
        memory.watch(event)
    return [Change(event.created_at, what_changed(None, event) or event.status, event) for event in events]


async def look(database: Database, wanted: EventFilter, memory: TailMemory) -> list[Change | Missed]:
    """What has changed since the last look; nothing at the first, which only remembers what is there."""
    everything = replace(wanted, status=None)
    async with reading(database):
        now: datetime = await database.value("select clock_timestamp()")
        newest = await _sights(database, everything, _NEWEST, _range(now))
        watched = await _sights(database, everything, _WATCHED, {"watched": list(memory.watched)})
        moved = _moved(watched, memory, now)
        told = [*_new(newest[:MAX_SEEN], memory, now), *moved]
        split = [change.event.id for change in told if change.event.context is None and change.event.is_over]
        if split:
            told += _new(await _sights(database, everything, _SHARES, {"parents": split}), memory, now)
    overflow = len(newest) > MAX_SEEN and memory.know(newest[-1].id)
    if not memory.begun:
        memory.begun = True
        return []
    shown: list[Change | Missed] = [each for each in told if wanted.status in (None, each.event.status)]
    return [Missed(now), *shown] if overflow else shown


def _range(now: datetime) -> dict[str, object]:
    return {"from": first_id_of(now - LOOK_BACK), "to": first_id_of(now + _AHEAD)}


async def _sights(
    database: Database, wanted: EventFilter, which: LiteralString, parameters: dict[str, object]
) -> list[Sight]:
    """Those events as they are, newest first."""
    statement = sql.SQL(_SIGHT).format(status=STATUS, which=sql.SQL(which), fits=fits(wanted))
    statement += sql.SQL(_ENDS.get(which, ""))
    given = {**parameters_of(wanted), **parameters, "limit": MAX_SEEN + 1}
    found = await database.rows(statement, given, into=Sight)
    return sorted(found, key=lambda event: event.id, reverse=True)


def _new(newest: list[Sight], memory: TailMemory, now: datetime) -> list[Change]:
    """Those not seen before, oldest first; from now on they are watched."""
    found = [event for event in reversed(newest) if memory.know(event.id)]
    for event in found:
        memory.watch(event)
    return [Change(now, what, event) for event in found if (what := what_changed(None, event)) is not None]


def _moved(watched: list[Sight], memory: TailMemory, now: datetime) -> list[Change]:
    """Those that are not as they were; what is gone was swept, and is watched no more."""
    found: list[Change] = []
    gone = memory.watched.keys() - {event.id for event in watched}
    for event_id in gone:
        del memory.watched[event_id]
    for event in reversed(watched):
        what = what_changed(memory.watched.get(event.id), event)
        if what is not None:
            found.append(Change(now, what, event))
            memory.watch(event)
    return found
