"""From the id of an event alone: the log, the trace and `spectral events show` each tell its story, and it is the same.

Real processes: a publisher with a log and a tracer of its own, a worker, an operator who replays.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.acceptance.follow_stage import Attempt, Operator, Publication, published
from tests.acceptance.worker_process import WorkerProcess, write_app

COMPLETED: Final = "worlds.scan.completed"
STARTED: Final = "worlds.scan.started"
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


@contextmanager
def following(database: str, directory: Path, event_type: str) -> Iterator[tuple[Operator, WorkerProcess]]:
    """An event of this type was published, and a worker is at it."""
    write_app(directory, HANDLERS)
    with published(database, directory, Publication(event_type)) as (operator,):
        yield operator, operator.crew.start()


def test_an_event_that_succeeds_at_last_has_one_story(database: str, tmp_path: Path) -> None:
    with following(database, tmp_path, COMPLETED) as (operator, worker):
        worker.wait_for("handled", event_id=operator.event_id, status_result="delivered")
        story = operator.agreed_story(attempts=3)
        (published,) = operator.spans("publish")
        first, second, third = operator.spans("process")
        own_lines = worker.logged("indexing", event_id=operator.event_id)

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
    with following(database, tmp_path, STARTED) as (operator, worker):
        worker.wait_for("handled", event_id=operator.event_id, status_result="failed")
        dead = operator.agreed_story(attempts=1)
        (tmp_path / "mended").touch()
        operator.replay()
        worker.wait_for("handled", event_id=operator.event_id, status_result="delivered")
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
