"""The audit: who changed the course of events, what, why and how many."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final, LiteralString

from psycopg import sql

from spectral.core.database import RefusedError
from spectral.core.operations.events_pages import WINDOW, reading

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime
    from uuid import UUID

    from spectral.core.database import Database

SHOWN_IDS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which entries; whatever is none does not matter."""

    action: str | None = None
    actor: str | None = None
    event_id: UUID | None = None
    since: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """One entry. Of the events it touched the first ten are named; `affected` says how many there were."""

    id: int
    recorded_at: datetime
    action: str
    actor: str
    session_role: str
    reason: str | None
    affected: int
    event_ids: Sequence[UUID]
    detail: dict[str, Any]


@dataclass(frozen=True, slots=True)
class AuditPage:
    """Entries, newest first. Where there is a cursor there may be more, even behind an empty page."""

    items: tuple[AuditEntry, ...]
    next_cursor: str | None


# What was looked at, of that what is meant, and the last entry if there may be more behind it.
_WALK: Final = """\
with looked as materialized (
    select entry.id, entry.recorded_at, ({fits}) as fits,
        row_number() over (order by entry.id desc) as position
    from core.audit as entry
    where {within}
    order by entry.id desc
    limit {window}
)
(select looked.id, false from looked where looked.fits order by looked.id desc limit %(limit)s)
union all
-- Numbers are given out before they are committed, so the times behind this entry may be a little later than its own.
(
    select looked.id, true
    from looked
    where looked.position = {window} and (looked.recorded_at >= %(since)s::timestamptz - interval '1 day') is not false
)"""

# The index of events is not in the order of the entries: all that touched the event are found, then put in order.
_OF_EVENT: Final = """\
with touching as materialized (
    select entry.id, entry.recorded_at, entry.action, entry.actor
    from core.audit as entry
    where entry.event_ids @> array[%(event_id)s::uuid]
)
select entry.id, false from touching as entry where {fits} and {within} order by entry.id desc limit %(limit)s"""

_ENTRIES: Final = """\
select entry.id, entry.recorded_at, entry.action, entry.actor, entry.session_role, entry.reason, entry.affected,
    entry.event_ids[1:%(shown)s] as event_ids, entry.detail
from core.audit as entry
where entry.id = any (%(ids)s)"""

_CONDITIONS: Final[dict[str, LiteralString]] = {
    "actor": "entry.actor = %(actor)s",
    "since": "entry.recorded_at >= %(since)s",
}


async def list_audit(database: Database, wanted: AuditFilter, *, limit: int, cursor: str | None = None) -> AuditPage:
    """One page of the entries that are meant, newest first.

    Raises:
        RefusedError: the cursor is not one of this list.
    """
    before = None if cursor is None else _read(cursor)
    async with reading(database):
        entries, following = await find_audit(database, wanted, limit=limit, before=before)
    return AuditPage(tuple(entries), None if following is None else f"a{following:x}")


async def find_audit(
    database: Database, wanted: AuditFilter, *, limit: int, before: int | None
) -> tuple[list[AuditEntry], int | None]:
    """The entries of one page, and the last that was looked at if there may be more; inside `reading`."""
    parameters = asdict(wanted) | {"before": before, "limit": limit + 1}
    if wanted.event_id is not None:
        # An index of arrays knows no other way.
        await database.connection.execute("set local enable_bitmapscan = on")
    rows = await database.tuples(_statement(wanted, after_cursor=before is not None), parameters)
    found = [number for number, is_horizon in rows if not is_horizon]
    horizon = next((number for number, is_horizon in rows if is_horizon), None)
    entries = await database.rows(_ENTRIES, {"ids": found[:limit], "shown": SHOWN_IDS}, into=AuditEntry)
    entries.sort(key=lambda entry: entry.id, reverse=True)
    return entries, found[limit - 1] if len(found) > limit else horizon


def _statement(wanted: AuditFilter, *, after_cursor: bool) -> sql.Composed:
    fits = [sql.SQL(condition) for name, condition in _CONDITIONS.items() if getattr(wanted, name) is not None]
    within = [sql.SQL("entry.action = %(action)s")] if wanted.action is not None else []
    within += [sql.SQL("entry.id < %(before)s")] if after_cursor else []
    conjunction = sql.SQL(" and ")
    return sql.SQL(_WALK if wanted.event_id is None else _OF_EVENT).format(
        fits=conjunction.join(fits or [sql.SQL("true")]),
        within=conjunction.join(within or [sql.SQL("true")]),
        window=sql.SQL("%(limit)s") if not fits else sql.Literal(WINDOW),
    )


def _read(cursor: str) -> int:
    try:
        if cursor.startswith("a"):
            return int(cursor[1:], 16)
    except ValueError:
        pass
    raise RefusedError("that is no cursor of this list", "the same command without --cursor")
