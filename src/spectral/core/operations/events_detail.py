"""One event, whole: envelope and payload, routing, course, errors taken apart, who handled it, what was done to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from psycopg import sql

from spectral.core.database import NotFoundError
from spectral.core.events.failure import FailureCycle, UndecodablePayloadError
from spectral.core.events.payload import decode_payload, has_long_number
from spectral.core.operations.audit import AuditEntry, AuditFilter, find_audit
from spectral.core.operations.events_filter import STATUS
from spectral.core.operations.events_pages import reading
from spectral.core.operations.fingerprints import ErrorParts, take_apart
from spectral.core.operations.timeline import Course, Moment, timeline

if TYPE_CHECKING:
    from datetime import datetime
    from uuid import UUID

    from spectral.core.database import Database

MAX_PAYLOAD_SHOWN: Final = 65_536
MAX_CYCLES_SHOWN: Final = 50
MAX_ENTRIES_SHOWN: Final = 50
MAX_CHILDREN_SHOWN: Final = 200


@dataclass(frozen=True, slots=True)
class HandlerState:
    """A handler that the event is for, and whether it took effect.

    `subscribed` is false for one that only another generation has. `handled_as` is the row by which the key took
    effect, which may be another than this one.
    """

    context: str
    handler_name: str
    subscribed: bool
    handled_at: datetime | None
    handled_as: UUID | None


@dataclass(frozen=True, slots=True)
class Related:
    """The broadcast that an event is a share of, or one context's share of it."""

    id: UUID
    context: str | None
    status: str
    attempts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDetail:
    """Everything about one event.

    A payload that is longer than 64 kB, or cannot be read as JSON, is null; `payload_text` holds its beginning.
    Of cycles and audit entries the last 50 are shown. handlers, audit: none if this login may not see them.
    error: the last one of this cycle, which a later execution may have made good; error_execution: which one ended in
    it, none if that is not known or if it was none of them.
    unsubscribed: it waits for a context of which nobody has this type on record in its generation, so it will be run by
    nobody; after a while a worker of that context puts it into the DLQ.
    """

    id: UUID
    event_type: str
    event_version: int
    occurred_at: datetime
    source: str
    context: str | None
    content_class: str
    workspace_id: UUID | None
    idempotency_key: str
    trace_context: str | None
    trace_id: str | None
    payload: dict[str, Any] | None
    payload_text: str | None
    payload_bytes: int
    payload_truncated: bool
    channel: str
    generation: int
    generation_status: str | None
    status: str
    attempts: int
    created_at: datetime
    next_attempt_at: datetime
    claimed_by: str | None
    claimed_at: datetime | None
    delivered_at: datetime | None
    first_failed_at: datetime | None
    deleted_at: datetime | None
    error: ErrorParts | None
    error_execution: int | None
    replays: int
    cycles: tuple[FailureCycle, ...]
    timeline: tuple[Moment, ...]
    handlers: tuple[HandlerState, ...] | None
    unsubscribed: bool
    parent: Related | None
    children: tuple[Related, ...]
    audit: tuple[AuditEntry, ...] | None


@dataclass(frozen=True, slots=True)
class _Row:
    id: UUID
    event_type: str
    event_version: int
    occurred_at: datetime
    source: str
    context: str | None
    content_class: str
    workspace_id: UUID | None
    idempotency_key: str
    trace_context: str | None
    trace_id: str | None
    channel: str
    generation: int
    generation_status: str | None
    status: str
    attempts: int
    created_at: datetime
    next_attempt_at: datetime
    claimed_by: str | None
    claimed_at: datetime | None
    delivered_at: datetime | None
    first_failed_at: datetime | None
    deleted_at: datetime | None
    replays: int
    last_error: str | None
    parent_id: UUID | None
    payload_bytes: int
    payload_shown: str
    cycles: list[dict[str, Any]]


# The payload is cut here: a large one must not even be sent.
_EVENT: Final = sql.SQL("""\
select event.id, event.event_type, event.event_version, event.occurred_at, event.source, event.target as context,
    event.content_class, event.workspace_id, event.idempotency_key, event.trace_context,
    split_part(event.trace_context, '-', 2) as trace_id, event.channel, event.generation,
    (select deployment.status from core.deployments as deployment where deployment.generation = event.generation)
        as generation_status,
    {status} as status, event.attempts, event.created_at, event.next_attempt_at, event.claimed_by, event.claimed_at,
    event.delivered_at, event.first_failed_at, event.deleted_at, jsonb_array_length(event.failure_history) as replays,
    event.last_error, event.parent_id,
    octet_length(written.payload) as payload_bytes,
    -- as many characters as bytes: whatever is not longer than the limit is whole
    left(written.payload, %(shown)s) as payload_shown,
    jsonb_path_query_array(event.failure_history, ('$[last - ' || %(cycles)s - 1 || ' to last]')::jsonpath) as cycles
from core.outbox as event
cross join lateral (select event.payload::text as payload) as written
where event.id = %(id)s""").format(status=STATUS)

_HANDLERS: Final = """\
select subscription.context, subscription.handler_name, bool_or(subscription.generation = %(generation)s) as subscribed,
    handled.handled_at, handled.event_id as handled_as
from core.subscriptions as subscription
left join lateral (
    select record.handled_at, record.event_id
    from core.event_handled as record
    where record.handler_name = subscription.handler_name and record.idempotency_key = %(key)s
    limit 1
) as handled on true
where subscription.event_type = %(event_type)s and subscription.context = coalesce(%(context)s, subscription.context)
group by subscription.context, subscription.handler_name, handled.handled_at, handled.event_id
-- what another generation had, and never ran, is nobody's concern here
having bool_or(subscription.generation = %(generation)s) or handled.handled_at is not null
order by subscription.context, subscription.handler_name"""

# By the record, as the workers go by it when they give up a row. A listener takes whatever comes on its only channel.
_UNSUBSCRIBED: Final = """\
select not exists (
    select
    from core.subscriptions as subscription
    where subscription.generation = %(generation)s and subscription.event_type = %(event_type)s
      and subscription.context = %(context)s
) and not exists (
    select
    from core.workers as worker
    where %(generation)s = any (worker.generations) and %(context)s = any (worker.contexts)
      and cardinality(worker.channels) = 1 and core.worker_lives(worker.name)
)"""

# Neither the dedup records nor the audit know workspaces: a login that only reads sees none of them.
_SEES: Final = b"select has_table_privilege(%s, 'select')"

_RELATED: Final = """\
select event.id, event.target as context, {status} as status, event.attempts
from core.outbox as event
where {which}"""
_PARENT: Final = sql.SQL(_RELATED).format(status=STATUS, which=sql.SQL("event.id = %s"))
_CHILDREN: Final = sql.SQL(_RELATED).format(
    status=STATUS, which=sql.SQL("event.parent_id = %s order by event.parent_id, event.target limit %s")
)


async def get_event(database: Database, event_id: UUID) -> EventDetail:
    """Everything about the event.

    Raises:
        NotFoundError: there is no such event, or no more.
    """
    async with reading(database):
        limits = {"id": event_id, "shown": MAX_PAYLOAD_SHOWN, "cycles": MAX_CYCLES_SHOWN}
        rows = await database.rows(_EVENT, limits, into=_Row)
        if not rows:
            raise NotFoundError(f"there is no event {event_id}, or it has been swept", "spectral events list")
        (row,) = rows
        parents = await database.rows(_PARENT, [row.parent_id], into=Related)
        children = await database.rows(_CHILDREN, [event_id, MAX_CHILDREN_SHOWN], into=Related)
        unsubscribed = row.status == "pending" and row.context is not None and await _is_unsubscribed(database, row)
        handlers = audit = None
        if await database.value(_SEES, ["core.event_handled"]):
            handlers = tuple(await database.rows(_HANDLERS, _key_of(row), into=HandlerState))
        if await database.value(_SEES, ["core.audit"]):
            about = AuditFilter(event_id=event_id)
            audit = tuple((await find_audit(database, about, limit=MAX_ENTRIES_SHOWN, before=None))[0])
    relations = (parents[0] if parents else None, tuple(children))
    return _detail(row, handlers, relations, audit, unsubscribed=unsubscribed)


async def _is_unsubscribed(database: Database, row: _Row) -> bool:
    """Whether nobody is to handle it, as far as this login may know."""
    for table in ("core.subscriptions", "core.workers"):
        if not await database.value(_SEES, [table]):
            return False
    return bool(await database.value(_UNSUBSCRIBED, _key_of(row)))


def _key_of(row: _Row) -> dict[str, object]:
    return {
        "generation": row.generation,
        "event_type": row.event_type,
        "context": row.context,
        "key": row.idempotency_key,
    }


def _detail(
    row: _Row,
    handlers: tuple[HandlerState, ...] | None,
    relations: tuple[Related | None, tuple[Related, ...]],
    audit: tuple[AuditEntry, ...] | None,
    *,
    unsubscribed: bool,
) -> EventDetail:
    same = {name: getattr(row, name) for name in _Row.__slots__ if name in EventDetail.__slots__ and name != "cycles"}
    course = Course(**{name: getattr(row, name) for name in Course.__slots__})
    cycles = tuple(FailureCycle.model_validate(each) for each in row.cycles)
    truncated = len(row.payload_shown) < row.payload_bytes and row.payload_bytes > MAX_PAYLOAD_SHOWN
    payload = None if truncated else _decoded(row.payload_shown)
    parent, children = relations
    return EventDetail(
        **same,
        payload=payload,
        payload_text=row.payload_shown if payload is None else None,
        payload_truncated=truncated,
        error=None if row.last_error is None else take_apart(row.last_error),
        error_execution=course.failed_execution,
        cycles=cycles,
        timeline=timeline(course, cycles, audit or ()),
        handlers=handlers,
        unsubscribed=unsubscribed,
        parent=parent,
        children=children,
        audit=audit,
    )


def _decoded(text: str) -> dict[str, Any] | None:
    """The payload, if it can be read: rows written by hand may hold numbers that no program reads back."""
    if has_long_number(text):
        return None
    try:
        return decode_payload(text)
    except UndecodablePayloadError:
        return None
