"""An operator with the id of an event, and what the log, the trace and the command line tell of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.acceptance.cli_desk import Desk
from tests.acceptance.collector import CollectedSpan, Collector, open_collector
from tests.acceptance.worker_process import WorkerProcess, eventually

PUBLISHER: Final = """
import sys
import psycopg
import structlog
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from spectral.core.events import EventEnvelope
from spectral.core.events.bootstrap import publisher_for, publishing

structlog.configure(
    processors=[structlog.processors.add_log_level, structlog.processors.JSONRenderer()],
    logger_factory=structlog.PrintLoggerFactory(sys.stderr),
)
trace.set_tracer_provider(TracerProvider())
trace.get_tracer_provider().add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
_, dsn, event_type, target, count = sys.argv
events = [
    EventEnvelope(event_type=event_type, source="worlds", target=target or None, payload={}) for _ in range(int(count))
]
with psycopg.connect(dsn) as connection, connection.transaction():
    publisher = publisher_for(connection, publishing())
    publisher.publish_many(events) if len(events) > 1 else publisher.publish(events[0])
print(*(event.event_id for event in events))
"""


@dataclass(frozen=True)
class Attempt:
    """One run of a handler; `error` is what became of it, none if it went well."""

    number: int
    handler: str
    error: str | None
    generation: int


@dataclass(frozen=True)
class Story:
    """What can be told of an event; `traces` are those of its attempts, and no part of what has to agree with all."""

    published_in: str
    attempts: tuple[Attempt, ...]
    state: str
    traces: tuple[str, ...] = field(compare=False)


def told_by_log(lines: Sequence[dict[str, Any]]) -> Story:
    """By the lines that name the event."""
    (published,) = (line for line in lines if line["event"] == "published")
    handled = [line for line in lines if line["event"] == "handled"]
    return Story(
        published_in=published["trace_id"],
        attempts=tuple(
            Attempt(
                line["attempts"], line["handler_name"], _without_handler(line.get("last_error")), line["generation"]
            )
            for line in handled
        ),
        state=handled[-1]["status_result"],
        traces=tuple(line["trace_id"] for line in handled),
    )


def told_by_trace(published: CollectedSpan, processed: Sequence[CollectedSpan]) -> Story:
    """By the spans that have the event's id; a row that failed for good is told by its last span's error."""
    states = {"ok": "delivered", "failed": "failed"}
    return Story(
        published_in=published.trace_id,
        attempts=tuple(_attempt(span.attributes, span.status[1] or None) for span in processed),
        state=states[str(processed[-1].attributes["spectral.outcome"])],
        traces=tuple(span.trace_id for span in processed),
    )


def _attempt(attributes: Any, error: str | None) -> Attempt:  # noqa: ANN401  values of a span
    number, generation = attributes["spectral.attempt"], attributes["spectral.generation"]
    return Attempt(number, attributes["spectral.handler"], error, generation)


def _without_handler(error: str | None) -> str | None:
    """`Class: platform.index: text` as a span says it, which has the handler's name elsewhere: `Class: text`."""
    if error is None:
        return None
    kind, _, text = error.split(": ", 2)
    return f"{kind}: {text}"


@dataclass(frozen=True)
class Crew:
    """Those who work on it, one after the other."""

    directory: Path
    variables: dict[str, str]
    running: ExitStack
    workers: list[WorkerProcess] = field(default_factory=list)

    def start(self, *apps: str, kind: type[WorkerProcess] = WorkerProcess) -> WorkerProcess:
        worker = self.running.enter_context(kind(self.directory, *(apps or ("app:platform",)), **self.variables))
        self.workers.append(worker)
        return worker


@dataclass(frozen=True)
class Operator:
    """Somebody with the event's id, and access to the log, the collector and the command line."""

    event_id: str
    desk: Desk
    collector: Collector
    published: list[dict[str, Any]]
    crew: Crew
    done: list[dict[str, Any]] = field(default_factory=list)

    def show(self, row_id: str | None = None) -> dict[str, Any]:
        """Of the event, or of the row that a context has of it."""
        shown = self.desk.spectral("events", "show", row_id or self.event_id, "--json")
        assert shown.code == 0, shown.err
        document: dict[str, Any] = json.loads(shown.out)
        return document

    def replay(self) -> None:
        ran = self.desk.spectral("dlq", "replay", self.event_id, "--yes", "--by", "ada", "--reason", "mended")
        assert ran.code == 0, ran.err
        self.done.extend(json.loads(line) for line in ran.err.splitlines() if line.startswith("{"))

    def lines(self) -> list[dict[str, Any]]:
        """In the order of what they tell: a line may be written after one of something later."""
        worked = [line for worker in self.crew.workers for line in worker.lines]
        every = [*self.published, *worked, *self.done]
        named = [line for line in every if self.event_id in (line.get("event_id"), *line.get("event_ids", ()))]
        return sorted(named, key=lambda line: str(line["timestamp"]))

    def said(self, message: str) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["event"] == message]

    def attempted(self) -> list[dict[str, Any]]:
        return self.said("handled")

    def spans(self, what: str) -> list[CollectedSpan]:
        named = self.collector.spans(f"{what} {self.show()['event_type']}")
        found = [span for span in named if span.attributes["messaging.message.id"] == self.event_id]
        return sorted(found, key=lambda span: span.began)  # they are sent as they end, and in heaps

    def agreed_story(self, attempts: int) -> Story:
        """The story after so many attempts, asserted to be the same wherever it is told."""
        eventually(lambda: len(self.spans("process")) >= attempts, f"{attempts} spans of {self.event_id}")
        eventually(lambda: len(self.attempted()) >= attempts, f"{attempts} lines of {self.event_id}")
        (published,) = self.spans("publish")
        processed = self.spans("process")
        by_log, by_trace = told_by_log(self.lines()), told_by_trace(published, processed)
        assert by_log == by_trace
        assert by_log.traces == by_trace.traces
        for span in processed:  # each attempt leads to the publish, whether or not it continues its trace
            assert span.links == ((published.trace_id, published.span_id),)
        assert_shown(self.show(), by_log)
        return by_log


def assert_shown(shown: dict[str, Any], story: Story) -> None:
    """The command line keeps the last error of each cycle, and how many attempts there were."""
    assert (shown["status"], shown["trace_id"]) == (story.state, story.published_in)
    assert {shown["generation"]} == {attempt.generation for attempt in story.attempts}
    assert sum(cycle["attempts"] for cycle in shown["cycles"]) + shown["attempts"] == len(story.attempts)
    assert shown["timeline"][0]["what"] == "published"
    assert [handler["handler_name"] for handler in shown["handlers"]] == [story.attempts[0].handler]
    assert (shown["handlers"][0]["handled_at"] is not None) is (story.state == "delivered")
    kept = [_without_handler(cycle["last_error"]) for cycle in shown["cycles"]]
    if shown["error"] is not None:
        assert shown["error"]["handler_name"] == story.attempts[0].handler
        kept.append(f"{shown['error']['error_class']}: {shown['error']['message']}")
        failed = [attempt.number for attempt in story.attempts if attempt.error is not None]
        assert shown["error_execution"] == failed[-1]
        told = [moment["detail"] for moment in shown["timeline"] if moment["what"] in {"first failure", "failed"}]
        assert told[-1].endswith(shown["error"]["message"])
    errors = [attempt.error for attempt in story.attempts if attempt.error is not None]
    assert kept == errors[-len(kept) :]


@dataclass(frozen=True)
class Publication:
    """What is published, in one call: so many events of this type, to this context; none: to all that subscribe."""

    event_type: str
    target: str | None = "platform"
    count: int = 1


@contextmanager
def published(database: str, directory: Path, what: Publication) -> Iterator[list[Operator]]:
    """It was published, by a process with a log and a tracer of its own; an operator for each event."""
    with open_collector() as collector:
        variables = {
            "SPECTRAL_GENERATION": "1",
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        arguments = [database, what.event_type, what.target or "", str(what.count)]
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", PUBLISHER, *arguments],
            env={"PATH": "/usr/bin:/bin", **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        lines = [json.loads(line) for line in done.stderr.splitlines()]
        desk = Desk(database, directory)
        with ExitStack() as workers:
            crew = Crew(directory, {"SPECTRAL_DATABASE_URL": database, **variables}, workers)
            yield [Operator(event_id, desk, collector, lines, crew) for event_id in done.stdout.split()]
