"""The trace of an event, from whoever publishes it through its handlers to what they publish, as the SDK exports it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanContext, SpanKind, StatusCode

from spectral.core.database import connect
from spectral.core.events import Consumer, DatabaseSettings, EventEnvelope, PublishSettings, RetryPolicy, Transaction
from spectral.core.events.bootstrap import publisher_for, publishing, worker
from spectral.core.events.infrastructure.observability.spans import BatchSpans
from spectral.core.events.infrastructure.observability.traces import OpenTelemetryTracer
from spectral.core.events.infrastructure.observability.watch import Watch
from spectral.core.events.settings import Identity
from spectral.core.operations.replay import replay
from tests.integration.delivery.platform_worker import COMPLETED, DEADLINE, SETTINGS, STARTED, Bench, open_bench

TWICE = RetryPolicy(max_retries=1, base=timedelta(0), cap=timedelta(0))


class Side:
    """One of two programs: its own provider, what watches it, and what it has exported. They share nothing."""

    def __init__(self, service: str, worker_name: str | None = None) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(resource=Resource({"service.name": service}), shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.own = self.provider.get_tracer("tests")
        identity = Identity(generation=1)
        spans = {"otel_spans": BatchSpans(identity, worker_name, self.provider)}
        self.watch = Watch(spans, None, OpenTelemetryTracer(identity, worker_name, self.provider))

    def all_spans(self) -> list[ReadableSpan]:
        """As they began."""
        self.watch.flush(DEADLINE)
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def spans(self, name: str) -> list[ReadableSpan]:
        """The spans of this name, as they began."""
        return [span for span in self.all_spans() if span.name == name]

    def span(self, name: str) -> ReadableSpan:
        """The only span of this name."""
        (found,) = self.spans(name)
        return found


class Traced:
    """A program that publishes, a worker, and nothing between them but the row."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.producer = Side("shop")
        self.worker = Side("billing", "worker-1")

    async def publish(self, event_type: str = COMPLETED, **payload: object) -> UUID:
        """Publish from inside a span of the program's own, called `request`."""
        envelope = EventEnvelope(event_type=event_type, source="worlds", target="platform", payload=payload)
        shared = publishing(PublishSettings(generation=1), probe=self.producer.watch)
        with self.producer.own.start_as_current_span("request"):
            async with self.bench.connection.transaction():
                await publisher_for(self.bench.connection, shared).publish(envelope)
        return envelope.event_id

    async def drain(self, consumer: Consumer, lanes: int = SETTINGS.lanes) -> None:
        """Run a worker until nothing is left to do."""
        settings, database = replace(SETTINGS, lanes=lanes), DatabaseSettings(dsn=self.bench.dsn)
        async with asyncio.timeout(DEADLINE):
            await worker(consumer, settings=settings, database=database, probe=self.worker.watch).run(until="drained")


@pytest.fixture
async def traced(database: str) -> AsyncIterator[Traced]:
    async with open_bench(database) as bench:
        yield Traced(bench)


def context_of(span: ReadableSpan) -> SpanContext:
    context = span.get_span_context()
    assert context is not None
    return context


def ids_of(context: SpanContext | None) -> tuple[int, int] | None:
    return None if context is None else (context.trace_id, context.span_id)


def is_child_of(span: ReadableSpan, parent: ReadableSpan) -> bool:
    return ids_of(span.parent) == ids_of(context_of(parent))


def is_linked_only_to(span: ReadableSpan, other: ReadableSpan) -> bool:
    return [ids_of(link.context) for link in span.links] == [ids_of(context_of(other))]


def failing(reason: Callable[[], BaseException]) -> Consumer:
    """Platform, whose only handler fails; it is retried once, at once."""
    consumer = Consumer("platform", retry=TWICE)

    @consumer.on(COMPLETED)
    async def index(event: EventEnvelope) -> None:
        del event
        raise reason()

    return consumer


async def test_a_publish_is_part_of_the_callers_trace_and_its_span_is_on_the_row(traced: Traced) -> None:
    event_id = await traced.publish()
    span = traced.producer.span(f"publish {COMPLETED}")
    assert is_child_of(span, traced.producer.span("request"))
    assert span.kind is SpanKind.PRODUCER
    assert (span.attributes or {})["messaging.message.id"] == str(event_id)
    context = context_of(span)
    on_the_row = await traced.bench.value("select trace_context from core.outbox where id = %s", event_id)
    assert on_the_row == f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


async def test_two_programs_that_share_only_the_row_make_one_trace(traced: Traced) -> None:
    consumer = Consumer("platform", retry=TWICE)

    @consumer.on(COMPLETED)
    async def index(event: EventEnvelope) -> None:
        del event

    await traced.publish()
    await traced.drain(consumer)
    sent, worked = traced.producer.all_spans(), traced.worker.all_spans()
    assert {span.name for span in sent} == {"request", f"publish {COMPLETED}"}
    assert {span.name for span in worked} == {"claim platform", f"process {COMPLETED}", "settle"}
    for spans, service in ((sent, "shop"), (worked, "billing")):
        assert {span.resource.attributes["service.name"] for span in spans} == {service}
    request, published = traced.producer.span("request"), traced.producer.span(f"publish {COMPLETED}")
    handled = traced.worker.span(f"process {COMPLETED}")
    assert is_child_of(handled, published)
    assert is_linked_only_to(handled, published)
    assert context_of(handled).trace_id == context_of(published).trace_id == context_of(request).trace_id
    assert handled.parent is not None
    assert handled.parent.is_remote


async def test_a_handler_and_all_it_does_belong_to_the_trace_of_its_event(traced: Traced) -> None:
    consumer = Consumer("platform", retry=TWICE)

    @consumer.on(COMPLETED)
    async def index(event: EventEnvelope, tx: Transaction) -> None:
        del event
        with traced.worker.own.start_as_current_span("inside"):
            await tx.execute("select 1")
        await tx.publish(EventEnvelope(event_type=STARTED, source="platform", target="platform", payload={}))

    @consumer.on(STARTED)
    async def begun(event: EventEnvelope) -> None:
        del event
        with traced.worker.own.start_as_current_span("further"):
            await asyncio.sleep(0)

    await traced.publish()
    await traced.drain(consumer)
    published, handled = traced.producer.span(f"publish {COMPLETED}"), traced.worker.span(f"process {COMPLETED}")
    published_then, handled_then = traced.worker.span(f"publish {STARTED}"), traced.worker.span(f"process {STARTED}")
    for span, parent in (
        (handled, published),
        (traced.worker.span("inside"), handled),
        (published_then, handled),
        (handled_then, published_then),
        (traced.worker.span("further"), handled_then),
    ):
        assert is_child_of(span, parent), f"{span.name} is not a child of {parent.name}"
    assert is_linked_only_to(handled, published)
    assert is_linked_only_to(handled_then, published_then)
    assert len({context_of(span).trace_id for span in (traced.producer.span("request"), handled_then)}) == 1
    assert handled.kind is SpanKind.CONSUMER
    assert (handled.attributes or {})["spectral.outcome"] == "ok"


async def test_a_retry_is_a_trace_of_its_own_that_is_linked_to_the_publish(traced: Traced) -> None:
    await traced.publish()
    await traced.drain(failing(lambda: RuntimeError("not today")))
    published = traced.producer.span(f"publish {COMPLETED}")
    first, second = traced.worker.spans(f"process {COMPLETED}")
    assert is_child_of(first, published)
    assert second.parent is None
    assert context_of(second).trace_id != context_of(published).trace_id
    for attempt, span in enumerate((first, second), start=1):
        attributes = span.attributes or {}
        assert is_linked_only_to(span, published)
        assert (attributes["spectral.attempt"], attributes["spectral.outcome"]) == (attempt, "failed")
        assert (attributes["error.type"], span.status.status_code) == ("RuntimeError", StatusCode.ERROR)
        assert "not today" in (span.status.description or "")


async def test_a_run_that_could_not_be_committed_beside_others_is_no_success(traced: Traced) -> None:
    await traced.bench.execute("create table public.seats (number integer unique deferrable initially deferred)")
    consumer = Consumer("platform", retry=RetryPolicy(max_retries=0))

    @consumer.on(COMPLETED)
    async def index(event: EventEnvelope, tx: Transaction) -> None:
        await tx.execute("insert into public.seats values (%s), (%s)", event.payload["seats"])

    well, refused = await traced.publish(seats=[1, 2]), await traced.publish(seats=[3, 3])
    await traced.drain(consumer, lanes=1)
    outcomes: dict[str, list[str]] = {}
    for span in traced.worker.spans(f"process {COMPLETED}"):
        attributes = span.attributes or {}
        outcomes.setdefault(str(attributes["messaging.message.id"]), []).append(str(attributes["spectral.outcome"]))
        assert span.status.status_code is (
            StatusCode.ERROR if attributes["spectral.outcome"] == "failed" else StatusCode.UNSET
        )
    assert outcomes == {str(well): ["undone", "ok"], str(refused): ["undone", "failed"]}


async def test_a_run_that_failed_because_of_others_says_why_and_counts_for_nothing(traced: Traced) -> None:
    consumer = Consumer("platform", retry=RetryPolicy(max_retries=0))
    met: list[EventEnvelope] = []

    @consumer.on(COMPLETED)
    async def index(event: EventEnvelope, tx: Transaction) -> None:
        met.append(event)
        if len(met) == 1:
            await tx.execute("do $$ begin raise exception 'somebody was quicker' using errcode = '40001'; end $$")

    event_id = await traced.publish()
    await traced.drain(consumer, lanes=1)
    first, second = traced.worker.spans(f"process {COMPLETED}")
    for span, outcome in ((first, "undone"), (second, "ok")):
        attributes = span.attributes or {}
        assert (attributes["spectral.outcome"], attributes["spectral.attempt"]) == (outcome, 1)
    assert ((first.attributes or {})["error.type"], first.status.status_code) == (
        "SerializationFailure",
        StatusCode.ERROR,
    )
    assert "somebody was quicker" in (first.status.description or "")
    assert second.status.status_code is StatusCode.UNSET
    assert (await traced.bench.row(event_id))["attempts"] == 1


async def test_a_replay_is_a_trace_of_its_own_that_is_linked_to_the_publish(traced: Traced) -> None:
    consumer = failing(lambda: RuntimeError("not today"))
    event_id = await traced.publish()
    await traced.drain(consumer)
    async with connect(traced.bench.dsn, "test") as operator:
        await replay(operator, [event_id], by="ada", reason="fixed")
    await traced.drain(consumer)
    published, spans = traced.producer.span(f"publish {COMPLETED}"), traced.worker.spans(f"process {COMPLETED}")
    assert [(span.attributes or {})["spectral.attempt"] for span in spans] == [1, 2, 1, 2]
    assert [span.parent is None for span in spans] == [False, True, True, True]
    assert all(is_linked_only_to(span, published) for span in spans)
    assert len({context_of(span).trace_id for span in spans}) == 4


async def test_what_an_event_holds_and_what_the_server_tells_of_values_is_in_no_span(traced: Traced) -> None:
    consumer = Consumer("platform", retry=TWICE)
    await traced.bench.execute("create table public.once (value text unique)")

    @consumer.on(COMPLETED)
    async def index(event: EventEnvelope, tx: Transaction) -> None:
        for _ in range(2):  # the server's detail says which value is there already
            await tx.execute("insert into public.once values (%s)", [event.payload["secret"]])

    await traced.publish(secret="canary")
    await traced.drain(consumer)
    first, *_ = traced.worker.spans(f"process {COMPLETED}")
    assert (first.attributes or {})["error.type"] == "UniqueViolation"
    assert "canary" not in "".join(
        span.to_json() for span in (*traced.producer.all_spans(), *traced.worker.all_spans())
    )


async def test_claims_and_settlements_are_traces_of_their_own(traced: Traced) -> None:
    consumer = Consumer("platform", retry=TWICE)

    @consumer.on(COMPLETED)
    async def index(event: EventEnvelope) -> None:
        del event

    await traced.publish()
    with traced.worker.own.start_as_current_span("program"):  # the worker's tasks are begun in it
        await traced.drain(consumer)
    for span in (traced.worker.span("claim platform"), traced.worker.span("settle")):
        assert (span.parent, (span.attributes or {})["messaging.batch.message_count"]) == (None, 1)
    assert is_child_of(traced.worker.span(f"process {COMPLETED}"), traced.producer.span(f"publish {COMPLETED}"))
