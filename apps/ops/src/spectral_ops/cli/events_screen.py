"""One event, whole, for people: what `spectral events show` and `spectral dlq show` print."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import typer

from spectral.core.operations import verdict_words as words
from spectral.core.operations.documents import as_document
from spectral.core.operations.events import get_event
from spectral_ops.cli.events_options import exactly_when, plain
from spectral_ops.cli.output import emit_json
from spectral_ops.cli.running import with_events

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from uuid import UUID

    from spectral.core.operations.events import EventDetail
    from spectral.core.operations.events_detail import HandlerState, Related


_NOT_VISIBLE: Final = ("not visible", "to this login; one in spectral_operator sees them")


def show_event(event_id: UUID, *, as_json: bool) -> EventDetail:
    """Read the event, and print it."""
    detail = with_events("events show", lambda database: get_event(database, event_id))
    if as_json:
        emit_json(as_document(detail))
    else:
        typer.echo("\n".join(lines_of(detail)))
    return detail


def lines_of(detail: EventDetail) -> Iterator[str]:
    """The event, section by section."""
    yield f"{plain(detail.event_type)} (version {detail.event_version}), {_state(detail)}"
    yield from _aligned(_facts(detail))
    course = [(exactly_when(each.at), _told(each.what, each.by, each.detail)) for each in detail.timeline]
    yield from _section("course", course)
    yield from _section("handlers", _handlers(detail))
    related = [("share of", detail.parent), *(("share", child) for child in detail.children)]
    yield from _section("broadcast", [(name, _related(each)) for name, each in related if each is not None])
    yield from _section("audit", _audit(detail))
    yield from _payload(detail)


def _handlers(detail: EventDetail) -> list[tuple[str, str]]:
    if detail.handlers is None:
        return [_NOT_VISIBLE]
    return [(plain(each.handler_name), _effect(each, detail.id)) for each in detail.handlers]


def _audit(detail: EventDetail) -> list[tuple[str, str]]:
    if detail.audit is None:
        return [_NOT_VISIBLE]
    return [(exactly_when(each.recorded_at), _told(each.action, each.actor, each.reason)) for each in detail.audit]


def _state(detail: EventDetail) -> str:
    times = f" after {detail.attempts} execution{'' if detail.attempts == 1 else 's'}" if detail.attempts else ""
    return f"{detail.status.replace('_', ' ')}{times}"


def _nobody(detail: EventDetail) -> list[tuple[str, str]]:
    """Why it waits although workers run, and how that ends."""
    if not detail.unsubscribed:
        return []
    context, generation = plain(detail.context), detail.generation
    return [
        ("waits", f"no handler of {context} is on record for this type in generation {generation}"),
        ("", f"if none appears, a worker of {context} puts it into the DLQ as NoHandlerError,"),
        ("", f"{words.GIVEN_UP} after it was due (unless its unhandled_after is another)"),
    ]


def _facts(detail: EventDetail) -> list[tuple[str, str]]:
    error = detail.error
    release = f"{detail.generation} ({detail.generation_status or 'unknown'}), channel {plain(detail.channel)}"
    facts = [
        ("id", str(detail.id)),
        ("from", plain(detail.source)),
        ("to", plain(detail.context) or "every context that subscribes"),
        ("workspace", plain(detail.workspace_id)),
        ("occurred", exactly_when(detail.occurred_at)),
        ("generation", release),
        ("class", "" if detail.content_class == "event" else plain(detail.content_class)),
        ("key", "" if detail.idempotency_key == str(detail.id) else plain(detail.idempotency_key)),
        ("trace", plain(detail.trace_id)),
        ("replays", str(detail.replays) if detail.replays else ""),
    ]
    if error is not None:
        where = f" in {error.handler_name}" if error.handler_name else ""
        number = "" if detail.error_execution is None else f", execution {detail.error_execution} of {detail.attempts}"
        facts.append(("last error", plain(f"{error.error_class}{where}{number}")))
        facts.append(("", plain(error.message)))
    return [(name, value) for name, value in [*facts, *_nobody(detail)] if value]


def _told(what: str, by: str | None, detail: str | None) -> str:
    return plain(what) + (f" by {plain(by)}" if by else "") + (f": {plain(detail)}" if detail else "")


def _effect(handler: HandlerState, event_id: UUID) -> str:
    gone = "" if handler.subscribed else " (not in this generation)"
    if handler.handled_at is None:
        return f"has not taken effect{gone}"
    other = "" if handler.handled_as == event_id else f", as {handler.handled_as}"
    return f"took effect {exactly_when(handler.handled_at)}{other}{gone}"


def _related(event: Related) -> str:
    return f"{event.id} {plain(event.context) or '(broadcast)'} {event.status.replace('_', ' ')}"


def _payload(detail: EventDetail) -> Iterator[str]:
    shown = "" if not detail.payload_truncated else ", the beginning"
    yield f"payload ({detail.payload_bytes:,} bytes{shown})"
    if detail.payload is None:
        yield plain(detail.payload_text)
        return
    # Line by line: what the payload holds must not be taken for an order by the terminal.
    yield from map(plain, json.dumps(detail.payload, indent=2, ensure_ascii=False).split("\n"))


def _section(title: str, rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    if rows:
        yield title
        yield from _aligned(rows)


def _aligned(rows: Iterable[tuple[str, str]]) -> Iterator[str]:
    known = list(rows)
    width = max((len(name) for name, _ in known), default=0)
    return (f"  {name:{width}}  {value}" for name, value in known)
