"""As `test_follow_an_event`, of events that have more rows than one, or less of a story: what each tells of it."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any, Final

import psycopg

from tests.acceptance.follow_stage import Operator, Publication, published
from tests.acceptance.worker_process import HastyWorkerProcess, eventually, write_app

COMPLETED: Final = "worlds.scan.completed"
STARTED: Final = "worlds.scan.started"
FAILED: Final = "worlds.scan.failed"
FORGOTTEN: Final = "worlds.scan.forgotten"
HANDLERS: Final = """
from pathlib import Path
from spectral.core.events import TerminalHandlerError

platform, worlds = Consumer("platform"), Consumer("worlds")

@platform.on("worlds.scan.completed")
async def index(event: EventEnvelope) -> None:
    pass

@worlds.on("worlds.scan.completed")
async def count(event: EventEnvelope) -> None:
    raise TerminalHandlerError("too many to count")

@platform.on("worlds.scan.started")
async def announce(event: EventEnvelope, context: DeliveryContext) -> None:
    context.logger.info("announcing")
    if not Path("mended").exists():
        await asyncio.Event().wait()

@platform.on("worlds.scan.failed")
async def seat(event: EventEnvelope, tx: Transaction) -> None:
    await tx.execute("insert into public.seats values (1), (1)")
"""


def fields(line: dict[str, Any], *names: str) -> tuple[object, ...]:
    return tuple(line[name] for name in names)


def wait_for_spans(operator: Operator, count: int) -> None:
    """They come later than the lines."""
    eventually(lambda: len(operator.spans("process")) >= count, f"{count} spans of {operator.event_id}")


def test_an_attempt_that_was_lost_with_its_worker_is_told_by_who_took_it_back(database: str, tmp_path: Path) -> None:
    write_app(tmp_path, HANDLERS)
    with published(database, tmp_path, Publication(STARTED)) as (operator,):
        killed = operator.crew.start(kind=HastyWorkerProcess)
        killed.wait_for("announcing", event_id=operator.event_id)
        killed.stop(signal.SIGKILL)
        killed.end()
        (tmp_path / "mended").touch()
        operator.crew.start(kind=HastyWorkerProcess).wait_for("handled", event_id=operator.event_id)
        wait_for_spans(operator, 1)
        (began,) = killed.logged("announcing")
        (worker,) = {line["worker"] for line in killed.logged("started")}
        lines, shown = operator.lines(), operator.show()
        (sent,), (span,) = operator.spans("publish"), operator.spans("process")

    assert [line["event"] for line in lines] == ["published", "announcing", "reaped", "announcing", "handled"]
    reaped, handled = lines[2], lines[4]
    # The lost attempt: where it began, and that it is lost. It has no span, for nobody was left to send one.
    assert (began["attempts"], began["trace_id"]) == (1, sent.trace_id)
    assert fields(reaped, "attempts", "status_result", "lost_worker", "trace_id") == (
        1,
        "pending",
        worker,
        sent.trace_id,
    )
    # The one after it, in a trace of its own with a link to the publish.
    assert (span.attributes["spectral.attempt"], span.attributes["spectral.outcome"]) == (2, "ok")
    assert span.links == ((sent.trace_id, sent.span_id),)
    assert fields(handled, "attempts", "status_result", "trace_id") == (2, "delivered", span.trace_id)
    assert fields(shown, "status", "attempts", "trace_id") == ("delivered", 2, sent.trace_id)
    assert fields(shown["error"], "error_class", "message") == ("WorkerLostError", f"worker {worker} is gone")
    # The row keeps when it was lost, and which execution it was, though the next one did well.
    course = [fields(moment, "what", "by", "detail") for moment in shown["timeline"]]
    assert course == [
        ("published", "worlds", None),
        ("first failure", None, f"execution 1: WorkerLostError: worker {worker} is gone"),
        ("claimed", handled["worker"], "execution 2"),
        ("delivered", None, None),
    ]
    assert shown["error_execution"] == 1


def test_a_broadcast_has_a_story_for_each_context_under_one_id(database: str, tmp_path: Path) -> None:
    write_app(tmp_path, HANDLERS)
    with published(database, tmp_path, Publication(COMPLETED, target=None)) as (operator,):
        operator.crew.start("app:platform", "app:worlds").wait_for("handled", times=2, event_id=operator.event_id)
        wait_for_spans(operator, 2)
        (split,) = operator.said("fanned out")
        by_log = {line["target"]: line for line in operator.attempted()}
        by_trace = {str(span.attributes["messaging.consumer.group.name"]): span for span in operator.spans("process")}
        (sent,), shown = operator.spans("publish"), operator.show()
        by_row = {child["context"]: operator.show(child["id"]) for child in shown["children"]}

    assert fields(split, "to", "event_type", "source", "target", "trace_id") == (
        ["platform", "worlds"],
        COMPLETED,
        "worlds",
        None,
        sent.trace_id,
    )
    assert set(by_log) == set(by_trace) == set(by_row) == {"platform", "worlds"}
    error = "too many to count"
    for context, state, outcome in (("platform", "delivered", "ok"), ("worlds", "failed", "failed")):
        line, span, row = by_log[context], by_trace[context], by_row[context]
        assert fields(line, "row_id", "status_result", "attempts", "trace_id") == (row["id"], state, 1, sent.trace_id)
        assert (span.attributes["spectral.outcome"], span.parent_id) == (outcome, sent.span_id)
        assert fields(row, "status", "attempts", "trace_id") == (state, 1, sent.trace_id)
        assert row["parent"]["id"] == operator.event_id
    assert by_log["worlds"]["last_error"] == f"TerminalHandlerError: worlds.count: {error}"
    assert by_trace["worlds"].status[1] == f"TerminalHandlerError: {error}"
    assert fields(by_row["worlds"]["error"], "handler_name", "message") == ("worlds.count", error)
    assert fields(by_row["worlds"]["timeline"][-1], "what", "by") == ("failed", by_log["worlds"]["worker"])


def test_an_event_without_a_handler_has_no_attempt_and_a_reason(database: str, tmp_path: Path) -> None:
    write_app(tmp_path, HANDLERS)
    with published(database, tmp_path, Publication(FORGOTTEN)) as (operator,):
        operator.crew.start(kind=HastyWorkerProcess).wait_for("nobody handles", event_id=operator.event_id)
        lines, shown = operator.lines(), operator.show()
        (sent,) = operator.spans("publish")
        processed = operator.spans("process")

    reason = f"no handler of platform is subscribed to {FORGOTTEN} in generation 1"
    assert [line["event"] for line in lines] == ["published", "nobody handles"]
    assert fields(lines[1], "attempts", "status_result", "last_error", "trace_id") == (
        0,
        "failed",
        f"NoHandlerError: {reason}",
        sent.trace_id,
    )
    assert processed == []
    assert fields(shown, "attempts", "status", "trace_id") == (0, "failed", sent.trace_id)
    assert fields(shown["error"], "error_class", "handler_name", "message") == ("NoHandlerError", None, reason)
    assert shown["error_execution"] is None
    assert fields(shown["timeline"][-1], "what", "by") == ("failed", None), "nobody had it"


def test_of_events_that_were_published_together_each_leads_to_the_one_publish(database: str, tmp_path: Path) -> None:
    write_app(tmp_path, HANDLERS)
    with published(database, tmp_path, Publication(COMPLETED, count=3)) as operators:
        operators[0].crew.start().wait_for("handled", times=3)
        ids = [operator.event_id for operator in operators]
        (sent,) = operators[0].collector.spans(f"publish {COMPLETED}")
        for operator in operators:
            wait_for_spans(operator, 1)
            said, handled = operator.lines()
            (span,) = operator.spans("process")
            shown = operator.show()
            assert fields(said, "event", "event_ids", "count", "trace_id") == ("published", ids, 3, sent.trace_id)
            assert fields(handled, "event", "event_id", "trace_id") == ("handled", operator.event_id, sent.trace_id)
            assert (span.parent_id, span.links) == (sent.span_id, ((sent.trace_id, sent.span_id),))
            assert fields(shown, "status", "attempts", "trace_id") == ("delivered", 1, sent.trace_id)
            assert shown["trace_context"].split("-")[2] == sent.span_id

    assert sent.attributes["messaging.batch.message_count"] == len(ids)
    assert "messaging.message.id" not in sent.attributes  # it is of all of them: found by the trace, not by an id


def test_what_a_commit_refuses_is_told_by_the_log_the_row_and_the_span(database: str, tmp_path: Path) -> None:
    write_app(tmp_path, HANDLERS)
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute("create table public.seats (number integer unique deferrable initially deferred)")
    with published(database, tmp_path, Publication(FAILED)) as (operator,):
        operator.crew.start().wait_for("handled", event_id=operator.event_id)
        wait_for_spans(operator, 1)
        (handled,), shown = operator.attempted(), operator.show()
        (sent,), (span,) = operator.spans("publish"), operator.spans("process")

    error = 'duplicate key value violates unique constraint "seats_number_key" (23505)'
    assert fields(handled, "attempts", "handler_name", "status_result", "last_error") == (
        1,
        "platform.seat",
        "failed",
        f"UniqueViolation: platform.seat: {error}",
    )
    assert fields(shown, "status", "attempts", "trace_id") == ("failed", 1, sent.trace_id)
    assert fields(shown["error"], "error_class", "handler_name", "message") == (
        "UniqueViolation",
        "platform.seat",
        error,
    )
    assert (handled["trace_id"], span.parent_id) == (span.trace_id, sent.span_id)
    attributes = fields(dict(span.attributes), "spectral.attempt", "spectral.outcome", "error.type")
    assert attributes == (1, "failed", "UniqueViolation")
