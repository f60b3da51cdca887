"""Notes as they may wait: ten thousand of them, with their payloads, would be gigabytes."""

from __future__ import annotations

from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from spectral.core.events import probe
from spectral.core.events.probe import EventRef, Finished, HandlerRan, Publish, Published

if TYPE_CHECKING:
    from spectral.core.events.envelope import EventEnvelope
    from spectral.core.events.lease import Delivery
    from spectral.core.events.probe import Note

MUCH: Final = 2_048
"""Characters of a payload that are not worth a copy to be rid of."""

_OF_A_DELIVERY: Final = (
    probe.LeaseWasLost,
    probe.LeftInDoubt,
    probe.SettleGivenUp,
    probe.HandlerRanAway,
    probe.Quarantined,
    probe.Conflicted,
)


def slim(note: Note) -> Note:
    """The note, without what is in its events if that is much; where it was published is where this is called."""
    if isinstance(note, Published):
        return note if note.within is not None else _published(note)
    if isinstance(note, HandlerRan):
        delivery = note.act.delivery
        return note._replace(act=note.act._replace(delivery=_without(delivery))) if _is_much(delivery) else note
    if isinstance(note, Finished):
        return note._replace(delivery=_without(note.delivery)) if _is_much(note.delivery) else note
    if isinstance(note, _OF_A_DELIVERY) and _is_much(note.delivery):
        return replace(note, delivery=_without(note.delivery))
    return note


def _published(note: Published) -> Published:
    # Always, for the size of a payload is not known here, and it is the publisher's to change or to let go.
    # As `Published(...)`, without the call in between, as in `_ref`: it is done in the flow, for each publish.
    (envelopes, generation), seconds, failure, traceparent, _ = note
    act: Publish = tuple.__new__(Publish, ([_ref(envelope) for envelope in envelopes], generation))  # pyright: ignore[reportUnknownMemberType]
    return tuple.__new__(Published, (act, seconds, failure, traceparent, copy_context()))  # pyright: ignore[reportUnknownMemberType]


def _ref(event: EventEnvelope | EventRef) -> EventRef:
    fields = (event.event_id, event.event_type, event.source, event.target, event.workspace_id, event.trace_context)
    return tuple.__new__(EventRef, fields)  # pyright: ignore[reportUnknownMemberType]


def _is_much(delivery: Delivery) -> bool:
    return len(delivery.payload) > MUCH


def _without(delivery: Delivery) -> Delivery:
    return delivery._replace(payload="")
