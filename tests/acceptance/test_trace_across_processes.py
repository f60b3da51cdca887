"""One event, two processes, one trace: as a collector gets it over OTLP from a publisher and from `spectral worker`."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

from tests.acceptance.collector import CollectedSpan, Collector, open_collector
from tests.acceptance.worker_process import Outbox, WorkerProcess, publish, write_app

PRODUCER, CONSUMER, ERROR = 4, 5, 2
"""Numbers of the protocol."""

COMPLETED, STARTED = "worlds.scan.completed", "worlds.scan.started"
PUBLISHER = """
import sys
import psycopg
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from spectral.core.events import EventEnvelope
from spectral.core.events.bootstrap import publisher_for, publishing

trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
event = EventEnvelope(event_type="worlds.scan.completed", source="worlds", target="platform", payload={"n": "canary"})
with psycopg.connect(sys.argv[1]) as connection, trace.get_tracer("shop").start_as_current_span("request"):
    with connection.transaction():
        publisher_for(connection, publishing()).publish(event)
print(event.event_id)
"""
HANDLERS = """
from opentelemetry import trace

@platform.on("worlds.scan.completed", retry=RetryPolicy(max_retries=3, base=timedelta(0), cap=timedelta(0)))
async def index(event: EventEnvelope, context: DeliveryContext, tx: Transaction) -> None:
    with trace.get_tracer("shop").start_as_current_span("inside"):
        await tx.execute("select 1")
    if context.attempt == 1:
        raise RuntimeError("not yet")
    await tx.publish(EventEnvelope(event_type="worlds.scan.started", source="platform", target="platform", payload={}))

@platform.on("worlds.scan.started")
async def begun(event: EventEnvelope) -> None:
    pass
"""


def write_traced_app(directory: Path) -> None:
    """A consumer of its own: its first attempt fails, its second publishes what its other handler takes."""
    write_app(directory, "\nplatform = Consumer('platform')\n" + dedent(HANDLERS))


def publish_traced(database: str, collector: Collector) -> str:
    """Publish an event from a process that exports its spans; answers its id."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PUBLISHER, database],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={
            "PATH": "/usr/bin:/bin",
            "SPECTRAL_GENERATION": "1",
            "OTEL_SERVICE_NAME": "shop",
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
        },
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def is_child_of(span: CollectedSpan, parent: CollectedSpan) -> bool:
    return (span.trace_id, span.parent_id) == (parent.trace_id, parent.span_id)


def attempt(number: int, handled: CollectedSpan) -> bool:
    return handled.attributes["spectral.attempt"] == number


def test_the_trace_of_an_event_spans_its_publisher_and_its_worker(database: str, tmp_path: Path) -> None:
    write_traced_app(tmp_path)
    with open_collector() as collector:
        event_id = publish_traced(database, collector)
        variables = {
            "SPECTRAL_DATABASE_URL": database,
            "SPECTRAL_ENVIRONMENT": "tests",
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
        }
        with WorkerProcess(tmp_path, "app:platform", "--drain", **variables) as worker:
            assert worker.end() == 0
        published = collector.wait_for(f"publish {COMPLETED}")
        request = collector.wait_for("request")
        first = collector.wait_for(f"process {COMPLETED}", lambda span: attempt(1, span))
        second = collector.wait_for(f"process {COMPLETED}", lambda span: attempt(2, span))
        published_then = collector.wait_for(f"publish {STARTED}")
        handled_then = collector.wait_for(f"process {STARTED}")
        inside = {span.parent_id for span in collector.spans("inside")}
        assert "/v1/metrics" in collector.paths

    # from process to process: the first attempt continues the trace of the publish, the second only points to it
    assert is_child_of(published, request)
    assert is_child_of(first, published)
    assert (second.parent_id, second.trace_id == published.trace_id) == ("", False)
    assert first.links == second.links == ((published.trace_id, published.span_id),)
    assert (published.kind, first.kind, second.kind) == (PRODUCER, CONSUMER, CONSUMER)

    # what a handler does belongs to its span, and what it publishes continues its trace
    assert inside == {first.span_id, second.span_id}
    assert is_child_of(published_then, second)
    assert is_child_of(handled_then, published_then)
    assert handled_then.links == ((published_then.trace_id, published_then.span_id),)

    # who says so, and of which event
    assert (published.resource["service.name"], first.resource["service.name"]) == ("shop", "spectral-worker")
    assert (first.resource["deployment.environment.name"], first.resource["spectral.generation"]) == ("tests", 1)
    assert {first.scope, published.scope} == {"spectral"}
    for span in (published, first, second):
        assert span.attributes["messaging.message.id"] == event_id
    assert (first.status, second.status) == ((ERROR, "RuntimeError: not yet"), (0, ""))
    assert (first.attributes["error.type"], second.attributes["spectral.outcome"]) == ("RuntimeError", "ok")
    assert "canary" not in repr((published, first, second, published_then, handled_then))


def test_a_collector_that_hangs_costs_no_event_and_does_not_keep_the_worker(database: str, tmp_path: Path) -> None:
    write_app(tmp_path)
    publish(database, COMPLETED, 50)
    with socket.create_server(("127.0.0.1", 0)) as mute:  # connections are taken, and nothing ever answers
        endpoint = f"http://user:canary@127.0.0.1:{mute.getsockname()[1]}"
        variables = {"SPECTRAL_DATABASE_URL": database, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
        with WorkerProcess(tmp_path, "app:platform", "--drain", **variables) as worker:
            worker.wait_for("stopped")
            began = time.monotonic()
            assert worker.end() == 0
            took = time.monotonic() - began
    # It is three seconds at most, and more on a busy machine; the SDK by itself waits for ten and longer.
    assert took < 8
    assert Outbox(database).count() == {("delivered", 1): 50}
    assert "canary" not in worker.text
    assert "Traceback" not in worker.text
