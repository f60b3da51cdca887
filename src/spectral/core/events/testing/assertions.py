"""What was published, as a test sees it: on the connection it was published on, before any commit if need be."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast, overload

import psycopg
from psycopg.rows import tuple_row

from spectral.core.events.envelope import EventEnvelope
from spectral.core.events.payload import decode_payload

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

Target: TypeAlias = str | EllipsisType | None
"""A context; none for a broadcast; `...` for whichever."""

_SHOWN: Final = 10
# The broadcast itself, not the shares of its consumers: one event is one event.
_PUBLISHED: Final = (
    b"select id, event_type, event_version, occurred_at, source, target, workspace_id, payload::text, idempotency_key,"
    b" trace_context from core.outbox where parent_id is null order by created_at, id"
)


@overload
def published(
    connection: psycopg.AsyncConnection[Any], *, event_type: str | None = None, target: Target = ...
) -> Coroutine[Any, Any, list[EventEnvelope]]: ...
@overload
def published(
    connection: psycopg.Connection[Any], *, event_type: str | None = None, target: Target = ...
) -> list[EventEnvelope]: ...
def published(
    connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any],
    *,
    event_type: str | None = None,
    target: Target = ...,
) -> Coroutine[Any, Any, list[EventEnvelope]] | list[EventEnvelope]:
    """What was published so far, oldest first, as far as this connection sees it: its own open transaction included.

    Of an async connection, await it.

    Args:
        connection: of psycopg, async or sync.
        event_type: of this type alone.
        target: for this context alone; `None` for broadcasts alone.
    """
    wanted = _Wanted(event_type, target)
    if isinstance(connection, psycopg.AsyncConnection):
        return _later(connection, wanted)
    return [envelope for envelope in _read(connection) if wanted.fits(envelope)]


@overload
def assert_published(
    connection: psycopg.AsyncConnection[Any],
    *,
    event_type: str,
    target: Target = ...,
    payload_contains: Mapping[str, object] | None = None,
    times: int = 1,
) -> Coroutine[Any, Any, list[EventEnvelope]]: ...
@overload
def assert_published(
    connection: psycopg.Connection[Any],
    *,
    event_type: str,
    target: Target = ...,
    payload_contains: Mapping[str, object] | None = None,
    times: int = 1,
) -> list[EventEnvelope]: ...
def assert_published(
    connection: psycopg.AsyncConnection[Any] | psycopg.Connection[Any],
    *,
    event_type: str,
    target: Target = ...,
    payload_contains: Mapping[str, object] | None = None,
    times: int = 1,
) -> Coroutine[Any, Any, list[EventEnvelope]] | list[EventEnvelope]:
    """Raise an `AssertionError` that shows what was published, unless exactly so many events fit; answer those.

    Of an async connection, await it.

    Args:
        connection: of psycopg, async or sync.
        event_type: of this type.
        target: for this context; `None` for a broadcast; whichever, unless told.
        payload_contains: members the payload must have; inner objects may have more than is named, too.
        times: how many; 0 for none at all.
    """
    wanted = _Wanted(event_type, target, payload_contains or {})
    if isinstance(connection, psycopg.AsyncConnection):
        return _assert_later(connection, wanted, times)
    return _asserted(_read(connection), wanted, times)


@dataclass(frozen=True, slots=True)
class _Wanted:
    event_type: str | None
    target: Target
    payload: Mapping[str, object] = field(default_factory=dict[str, object])

    def fits(self, envelope: EventEnvelope) -> bool:
        return (
            self.event_type in (None, envelope.event_type)
            and self.target in (..., envelope.target)
            and _contains(envelope.payload, self.payload)
        )

    def __str__(self) -> str:
        target = "" if isinstance(self.target, EllipsisType) else f" for {self.target or 'everybody'}"
        payload = f" with {_text(self.payload)}" if self.payload else ""
        return f"{self.event_type}{target}{payload}"


async def _later(connection: psycopg.AsyncConnection[Any], wanted: _Wanted) -> list[EventEnvelope]:
    return [envelope for envelope in await _read_async(connection) if wanted.fits(envelope)]


async def _assert_later(connection: psycopg.AsyncConnection[Any], wanted: _Wanted, times: int) -> list[EventEnvelope]:
    return _asserted(await _read_async(connection), wanted, times)


def _read(connection: psycopg.Connection[Any]) -> list[EventEnvelope]:
    # A plain cursor of our own, whatever the connection's factories make.
    rows = psycopg.Cursor(connection, row_factory=tuple_row).execute(_PUBLISHED).fetchall()
    return [_envelope(row) for row in rows]


async def _read_async(connection: psycopg.AsyncConnection[Any]) -> list[EventEnvelope]:
    cursor = await psycopg.AsyncCursor(connection, row_factory=tuple_row).execute(_PUBLISHED)
    return [_envelope(row) for row in await cursor.fetchall()]


def _envelope(row: tuple[Any, ...]) -> EventEnvelope:
    event_id, event_type, version, occurred_at, source, target, workspace_id, payload, key, trace = row
    return EventEnvelope(
        event_id=event_id,
        event_type=event_type,
        event_version=version,
        occurred_at=occurred_at,
        source=source,
        target=target,
        workspace_id=workspace_id,
        payload=decode_payload(payload),
        idempotency_key=key,
        trace_context=trace,
    )


def _asserted(all_of_them: list[EventEnvelope], wanted: _Wanted, times: int) -> list[EventEnvelope]:
    fitting = [envelope for envelope in all_of_them if wanted.fits(envelope)]
    if len(fitting) == times:
        return fitting
    # Of the same type first: most likely the payload or the target is not what the test thinks.
    same_type = [each for each in all_of_them if each.event_type == wanted.event_type]
    shown = [f"{each.event_type} for {each.target or 'everybody'}: {_text(each.payload)}" for each in same_type]
    others = Counter(each.event_type for each in all_of_them if each.event_type != wanted.event_type)
    shown = shown[:_SHOWN] + ([f"and {len(shown) - _SHOWN} more"] if len(shown) > _SHOWN else [])
    shown += [f"{event_type} ({count})" for event_type, count in others.items()]
    listed = "\n  ".join(shown) if shown else "nothing at all (or not in what this connection can see)"
    raise AssertionError(f"{wanted}: published {len(fitting)} times, not {times}. Published was:\n  {listed}")


def _contains(given: object, wanted: object) -> bool:
    if isinstance(wanted, dict) and isinstance(given, dict):
        inner, members = cast("dict[str, object]", given), cast("dict[str, object]", wanted)
        return all(name in inner and _contains(inner[name], value) for name, value in members.items())
    return given == wanted


def _text(payload: Mapping[str, object]) -> str:
    return json.dumps(payload, default=str, ensure_ascii=False)
