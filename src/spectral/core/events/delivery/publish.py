"""Publish: turn an envelope into the row that a driver will insert, or refuse it before any SQL.

Here lives the invariant that a bad event never costs the caller's transaction: everything the table would refuse
is refused here first, by name, while nothing has been sent yet.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypedDict

from spectral.core.events.channels import channel_for
from spectral.core.events.envelope import is_traceparent
from spectral.core.events.failure import DuplicateEventError, PublishError, UnknownContextError
from spectral.core.events.payload import encode_payload
from spectral.core.events.probe import NoteTaker, Publish

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence
    from datetime import datetime
    from uuid import UUID

    from spectral.core.events.envelope import EventEnvelope
    from spectral.core.events.probe import Probe
    from spectral.core.events.protocols import TraceContextSource
    from spectral.core.events.settings import PublishSettings

BATCH_ROWS: Final = 5_000
BATCH_BYTES: Final = 8 * 1024 * 1024
"""What one statement of a bulk publish carries at most."""

CONTENT_CLASSES: Final = frozenset({"event", "agent_task"})


class PublishOptions(TypedDict, total=False):
    """What a caller may say beside the envelope.

    on_conflict: `"raise"` (default) or `"ignore"`, which makes publishing a known event id a no-op.
    delay: not delivered before this much time has passed, by the database's clock.
    processing_class: a channel of its own for work of another kind, such as `"hot"` or `"cold"`.
    content_class: what retention files it under, `"event"` unless told.
    """

    on_conflict: Literal["raise", "ignore"]
    delay: timedelta
    processing_class: str
    content_class: Literal["event", "agent_task"]


class OutboxRow(NamedTuple):
    """One row to insert, field by field as the table has it; the rest is the table's own business."""

    id: UUID
    event_type: str
    event_version: int
    occurred_at: datetime
    source: str
    target: str | None
    workspace_id: UUID | None
    payload: str
    idempotency_key: str
    trace_context: str | None


class Stamp(NamedTuple):
    """What all rows of one publish share."""

    channel: str
    generation: int
    content_class: str
    delay: timedelta


@dataclass(frozen=True, slots=True)
class Insert:
    """One statement's worth: rows, their stamp, and what to do when an id is known."""

    rows: tuple[OutboxRow, ...]
    stamp: Stamp
    ignore_known: bool

    def single(self) -> dict[str, Any]:
        """Parameters by column name, for a statement that inserts one row."""
        return self.rows[0]._asdict() | self.stamp._asdict()

    def columns(self) -> dict[str, Any]:
        """Parameters by column name, the row's columns as lists, for a statement that inserts them all."""
        columns = (list(column) for column in zip(*self.rows, strict=True))
        return dict(zip(OutboxRow._fields, columns, strict=True)) | self.stamp._asdict()

    def confirm(self, inserted: int) -> int:
        """Check how many rows the server says it inserted.

        Raises:
            DuplicateEventError: fewer than given, and that was not to be ignored.
        """
        if inserted < len(self.rows) and not self.ignore_known:
            raise DuplicateEventError([row.id for row in self.rows])
        return inserted


@dataclass(frozen=True, slots=True)
class Publishing:
    """The decisions of publishing, shared by the publishers of every driver."""

    settings: PublishSettings
    current_trace: TraceContextSource
    probe: Probe = field(default_factory=NoteTaker, compare=False)

    @contextmanager
    def watched(self, envelopes: Sequence[EventEnvelope]) -> Generator[str | None]:
        """Have whoever watches see the publish, from its beginning to its end; gives the trace it belongs to."""
        activity = self.probe.begin(Publish(envelopes, self.settings.generation))
        try:
            yield activity.traceparent
        except BaseException as error:
            activity.end(error)
            raise
        activity.end()

    def flush(self, within: float = 1.0) -> bool:
        """Have whoever watches be done with what was published so far, within so many seconds; false if it is not.

        For whatever may end or be frozen right after a publish, such as a script or a function in the cloud. A
        telemetry provider of the program's own has to be flushed after it.
        """
        flush = getattr(self.probe, "flush", None)  # not every probe has anything to wait for
        return flush is None or flush(within) is not False

    def prepare(self, envelope: EventEnvelope, options: PublishOptions, trace: str | None = None) -> Insert:
        """The insert for one event; `trace` is what it carries instead of the current one.

        Raises:
            PublishError: the event cannot be published; nothing was sent to the server.
        """
        return Insert((self._row(envelope, self._trace(trace)),), self._stamp(options), _ignores(options))

    def prepare_many(
        self, envelopes: Iterable[EventEnvelope], options: PublishOptions, trace: str | None = None
    ) -> list[Insert]:
        """The inserts for many events, all of them checked before the first is sent.

        Raises:
            PublishError: one of them cannot be published; nothing was sent to the server.
        """
        stamp, ignore, trace = self._stamp(options), _ignores(options), self._trace(trace)
        rows = [self._row(envelope, trace) for envelope in envelopes]
        if not ignore:
            _refuse_repeats(rows)
        return [Insert(batch, stamp, ignore) for batch in _batches(rows)]

    def _row(self, envelope: EventEnvelope, trace: str | None) -> OutboxRow:
        source, target, contexts = envelope.source, envelope.target, self.settings.contexts
        if source not in contexts:
            raise _unknown("source", source, contexts)
        if target is not None and target not in contexts:
            raise _unknown("target", target, contexts)
        # By position: by name, a tuple takes four times as long to make.
        return OutboxRow(
            envelope.event_id,
            envelope.event_type,
            envelope.event_version,
            _in_utc(envelope.occurred_at),
            source,
            target,
            envelope.workspace_id,
            encode_payload(envelope.payload),
            envelope.idempotency_key,
            envelope.trace_context or trace,
        )

    def _trace(self, trace: str | None) -> str | None:
        """What the tracing library says, if the table would take it."""
        trace = trace or self.current_trace()
        return trace if trace is not None and is_traceparent(trace) else None

    def _stamp(self, options: PublishOptions) -> Stamp:
        unknown = sorted(options.keys() - PublishOptions.__annotations__.keys())
        if unknown:
            raise PublishError(f"unknown options {unknown}; known are {sorted(PublishOptions.__annotations__)}")
        delay: object = options.get("delay", timedelta(0))
        if not isinstance(delay, timedelta) or not timedelta(0) <= delay <= timedelta(days=3650):
            raise PublishError(f"delay must be a timedelta between nothing and ten years, not {delay!r}")
        content_class: object = options.get("content_class", "event")
        if not isinstance(content_class, str) or content_class not in CONTENT_CLASSES:
            raise PublishError(f"content_class must be one of {sorted(CONTENT_CLASSES)}, not {content_class!r}")
        try:
            channel = channel_for(self.settings.generation, options.get("processing_class"))
        except ValueError as refusal:
            raise PublishError(str(refusal)) from None
        return Stamp(channel, self.settings.generation, content_class, delay)


def _in_utc(moment: datetime) -> datetime:
    """Not every driver and server takes every offset that Python does."""
    return moment if moment.tzinfo is UTC else moment.astimezone(UTC)


def _unknown(role: str, context: str, contexts: Iterable[str]) -> UnknownContextError:
    return UnknownContextError(
        f"{role} {context!r} is not a declared context (declared: {', '.join(sorted(contexts))}); declare yours with "
        "SPECTRAL_CONTEXTS or PublishSettings(contexts=...), for handlers WorkerSettings(contexts=...), in tests "
        "drain or run_handler(..., contexts=...)"
    )


def _ignores(options: PublishOptions) -> bool:
    choice = options.get("on_conflict", "raise")
    if choice not in ("raise", "ignore"):
        raise PublishError(f'on_conflict must be "raise" or "ignore", not {choice!r}')
    return choice == "ignore"


def _refuse_repeats(rows: list[OutboxRow]) -> None:
    if len({row.id for row in rows}) == len(rows):
        return
    counted = Counter(row.id for row in rows)
    raise DuplicateEventError([event_id for event_id, times in counted.items() if times > 1])


def _batches(rows: list[OutboxRow]) -> Iterator[tuple[OutboxRow, ...]]:
    batch: list[OutboxRow] = []
    size = 0
    for row in rows:
        payload_bytes = len(row.payload) if row.payload.isascii() else len(row.payload.encode())
        if batch and (len(batch) >= BATCH_ROWS or size + payload_bytes > BATCH_BYTES):
            yield tuple(batch)
            batch, size = [], 0
        batch.append(row)
        size += payload_bytes
    if batch:
        yield tuple(batch)
