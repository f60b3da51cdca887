"""From the id of an event alone: the log, the trace and `spectral events show` each tell its story, and it is the same.

Real processes: a publisher with a log and a tracer of its own, a worker, an operator who replays.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.acceptance.cli_desk import Desk
from tests.acceptance.collector import CollectedSpan, Collector, open_collector
from tests.acceptance.worker_process import WorkerProcess, eventually, write_app

COMPLETED: Final = "worlds.scan.completed"
STARTED: Final = "worlds.scan.started"
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
event = EventEnvelope(event_type=sys.argv[2], source="worlds", target="platform", payload={})
with psycopg.connect(sys.argv[1]) as connection, connection.transaction():
    publisher_for(connection, publishing()).publish(event)
print(event.event_id)
"""
HANDLERS: Final = """
from pathlib import Path
from spectral.core.events import TerminalHandlerError

soon = RetryPolicy(max_retries=3, base=timedelta(milliseconds=20), cap=timedelta(milliseconds=50))
platform = Consumer("platform", retry=soon)

@platform.on("worlds.scan.completed")
async def index(event: EventEnvelope, context: DeliveryContext) -> None:
    context.logger.info("indexing")
    if context.attempt <= 2:
        raise ConnectionError(f"the index is away, try {context.attempt}")

@platform.on("worlds.scan.started")
async def announce(event: EventEnvelope, context: DeliveryContext, tx: Transaction) -> None:
    if not Path("mended").exists():
        raise TerminalHandlerError("there is nobody to tell")
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
class Operator:
    """Somebody with the event's id, and access to the log, the collector and the command line."""

    event_id: str
    desk: Desk
    collector: Collector
    published: list[dict[str, Any]]
    worker: WorkerProcess
    done: list[dict[str, Any]] = field(default_factory=list)

    def show(self) -> dict[str, Any]:
        shown = self.desk.spectral("events", "show", self.event_id, "--json")
        assert shown.code == 0, shown.err
        document: dict[str, Any] = json.loads(shown.out)
        return document

    def replay(self) -> None:
        ran = self.desk.spectral("dlq", "replay", self.event_id, "--yes", "--by", "ada", "--reason", "mended")
        assert ran.code == 0, ran.err
        self.done.extend(json.loads(line) for line in ran.err.splitlines() if line.startswith("{"))

    def lines(self) -> list[dict[str, Any]]:
        """In the order of what they tell: a line may be written after one of something later."""
        every = [*self.published, *self.worker.lines, *self.done]
        named = [line for line in every if self.event_id in (line.get("event_id"), *line.get("event_ids", ()))]
        return sorted(named, key=lambda line: str(line["timestamp"]))

    def attempted(self) -> list[dict[str, Any]]:
        return [line for line in self.lines() if line["event"] == "handled"]

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
    errors = [attempt.error for attempt in story.attempts if attempt.error is not None]
    assert kept == errors[-len(kept) :]


@contextmanager
def following(database: str, directory: Path, event_type: str) -> Iterator[Operator]:
    """An event of this type was published, and a worker is at it."""
    write_app(directory, HANDLERS)
    with open_collector() as collector:
        variables = {
            "SPECTRAL_GENERATION": "1",
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", PUBLISHER, database, event_type],
            env={"PATH": "/usr/bin:/bin", **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        published = [json.loads(line) for line in done.stderr.splitlines()]
        desk = Desk(database, directory)
        with WorkerProcess(directory, "app:platform", SPECTRAL_DATABASE_URL=database, **variables) as worker:
            yield Operator(done.stdout.strip(), desk, collector, published, worker)


def test_an_event_that_succeeds_at_last_has_one_story(database: str, tmp_path: Path) -> None:
    with following(database, tmp_path, COMPLETED) as operator:
        operator.worker.wait_for("handled", event_id=operator.event_id, status_result="delivered")
        story = operator.agreed_story(attempts=3)
        (published,) = operator.spans("publish")
        first, second, third = operator.spans("process")
        own_lines = operator.worker.logged("indexing", event_id=operator.event_id)

    assert story.state == "delivered"
    assert story.attempts == (
        Attempt(1, "platform.index", "ConnectionError: the index is away, try 1", 1),
        Attempt(2, "platform.index", "ConnectionError: the index is away, try 2", 1),
        Attempt(3, "platform.index", None, 1),
    )
    # The first attempt continues the trace of the publish, and the others have each its own; the log says which.
    assert (first.trace_id, first.parent_id) == (published.trace_id, published.span_id)
    assert (second.parent_id, third.parent_id) == ("", "")
    assert len({published.trace_id, second.trace_id, third.trace_id}) == 3
    assert [(line["attempts"], line["trace_id"]) for line in own_lines] == list(enumerate(story.traces, 1))


def test_an_event_that_was_replayed_has_one_story(database: str, tmp_path: Path) -> None:
    with following(database, tmp_path, STARTED) as operator:
        operator.worker.wait_for("handled", event_id=operator.event_id, status_result="failed")
        dead = operator.agreed_story(attempts=1)
        (tmp_path / "mended").touch()
        operator.replay()
        operator.worker.wait_for("handled", event_id=operator.event_id, status_result="delivered")
        story = operator.agreed_story(attempts=2)
        shown = operator.show()
        (replayed,) = (line for line in operator.lines() if line["event"] == "replayed")

    failed = Attempt(1, "platform.announce", "TerminalHandlerError: there is nobody to tell", 1)
    assert (dead.state, dead.attempts) == ("failed", (failed,))
    # After a replay the row counts its attempts anew.
    assert (story.state, story.attempts) == ("delivered", (failed, Attempt(1, "platform.announce", None, 1)))
    # Who replayed it, and why: in the log, in the row's cycles and in the audit.
    assert (replayed["by"], replayed["reason"], replayed["generation"]) == ("ada", "mended", 1)
    assert [(cycle["replayed_by"], cycle["attempts"]) for cycle in shown["cycles"]] == [("ada", 1)]
    assert [(entry["action"], entry["actor"], entry["reason"]) for entry in shown["audit"]] == [
        ("replay", "ada", "mended")
    ]
