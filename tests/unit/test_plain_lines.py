"""The lines that are made without a detour are the lines that structlog would have made."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
import structlog

from spectral.core.events import EventEnvelope
from spectral.core.events.infrastructure.observability.logs import LogTool
from spectral.core.events.infrastructure.observability.plain_lines import PlainLines, is_plain
from spectral.core.events.infrastructure.observability.slim import slim
from spectral.core.events.infrastructure.observability.standard import standard_watch
from spectral.core.events.outcome import AlreadyHandled, DeadLetter, Handled, Outcome, Released, Retry
from spectral.core.events.probe import Failure, Finished, Publish, Published, Stopped
from spectral.core.events.settings import Identity
from spectral_workers.logs import json_logger
from tests.unit.log_notes import unconfigured_structlog
from tests.unit.test_routes import delivery

WHO = Identity(generation=7, service='a "service"\n', environment="test")
AT = 1_700_000_000.25
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Written:
    """Takes finished lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.counts: list[int] = []

    def write(self, text: str, lines: int) -> None:
        self.lines += text.split("\n")
        self.counts.append(lines)


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    with unconfigured_structlog():
        yield


def finished(outcome: Outcome, **fields: object) -> Finished:
    given = delivery()
    whole = given._replace(event_id=given.lease.row_id)._replace(**fields)  # type: ignore[arg-type]
    return Finished(whole, outcome, ("platform.project", "platform.mail"), 0.01234, 1.5, None)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"workspace_id": uuid4()},
        {"trace_context": TRACE},
        {"trace_context": "short"},
        {"attempts": 3},
        {"event_id": uuid4()},  # a context's own row of a broadcast
    ],
)
@pytest.mark.parametrize("worker", ["host-1", 'a "name" \u2028', None])
def test_it_is_the_same_line(fields: dict[str, object], worker: str | None) -> None:
    note = finished(Handled(), **fields)
    stream = io.StringIO()
    LogTool(WHO, worker, logger=json_logger(WHO, stream)).tell(note, AT)
    line = PlainLines(WHO, worker, print).of_handled([note], AT)
    assert is_plain(note)
    assert list(json.loads(line).items()) == list(json.loads(stream.getvalue()).items())
    assert line.isascii()
    assert "\n" not in line


def test_a_heap_has_the_lines_of_its_events_in_order() -> None:
    who = Identity(generation=7, service="100 %s", environment="%d")
    notes = [
        finished(Handled(), attempts=number, **fields)
        for number in (1, 2)
        for fields in ({}, {"workspace_id": uuid4()}, {"trace_context": TRACE})
    ]
    made = PlainLines(who, "50 %", (written := Written()).write)
    made.tell_many_at(notes, AT)
    assert written.counts == [6]
    lines = written.lines
    assert lines == [made.of_handled([note], AT) for note in notes]
    assert [json.loads(line)["attempts"] for line in lines] == [1, 1, 1, 2, 2, 2]
    assert {(line["service"], line["environment"], line["worker"]) for line in map(json.loads, lines)} == {
        ("100 %s", "%d", "50 %")
    }


@pytest.mark.parametrize(
    "note",
    [
        finished(AlreadyHandled()),
        finished(Retry("OSError: away", timedelta(1))),
        finished(DeadLetter("ValueError: no")),
        finished(Released()),
    ],
    ids=["already handled", "retry", "dead letter", "released"],
)
def test_what_has_more_to_say_takes_the_long_way(note: Finished) -> None:
    written = Written()
    PlainLines(WHO, "me", written.write).tell(note)
    assert written.lines == []
    stream = io.StringIO()
    tool = LogTool(WHO, "me", logger=json_logger(WHO, stream), says_plain=False)
    assert tool.wants(note)
    tool.tell(note, AT)
    assert json.loads(stream.getvalue())["event_id"] == str(note.delivery.event_id)


def test_a_plain_one_is_written_soon_and_by_nobody_else() -> None:
    written = Written()
    note = finished(Handled())
    watch = standard_watch(WHO, "me", None, written.write)
    watch.tell(note)
    watch.catch_up()
    (line,) = written.lines
    assert json.loads(line)["status_result"] == "delivered"
    assert not LogTool(WHO, "me", says_plain=False).wants(note)


def test_other_notes_are_none_of_its_business() -> None:
    written = Written()
    PlainLines(WHO, "me", written.write).tell(Stopped())
    assert written.lines == []


def published(count: int = 1, failure: Failure | None = None, fields: dict[str, Any] | None = None) -> Published:
    envelopes = [
        EventEnvelope(event_type="worlds.card.sent", source="worlds", payload={"secret": 1}, **fields or {})
        for _ in range(count)
    ]
    note = slim(Published(Publish(envelopes, 8), 0.01234, failure, TRACE))
    assert isinstance(note, Published)
    return note


@pytest.mark.parametrize(
    "fields", [{}, {"target": "platform"}, {"workspace_id": uuid4()}, {"trace_context": TRACE.replace("0a", "0b")}]
)
@pytest.mark.parametrize("worker", ["host-1", None])
def test_so_is_that_of_a_publish(fields: dict[str, object], worker: str | None) -> None:
    note = published(fields=fields)
    stream = io.StringIO()
    LogTool(WHO, worker, logger=json_logger(WHO, stream)).tell(note, AT)
    line = PlainLines(WHO, worker, print).of_published([(note, AT)])
    assert is_plain(note)
    assert list(json.loads(line).items()) == list(json.loads(stream.getvalue()).items())


@pytest.mark.parametrize(
    "note",
    [published(2), published(0), published(failure=Failure("PublishError", "no"))],
    ids=["several", "none", "refused"],
)
def test_a_publish_of_which_there_is_more_to_say_takes_the_long_way(note: Published) -> None:
    written = Written()
    PlainLines(WHO, "me", written.write).tell(note)
    assert written.lines == []
    assert LogTool(WHO, "me", says_plain=False).wants(note)


def test_fields_that_a_handler_has_bound_for_all_lines_are_on_the_line_of_what_it_publishes() -> None:
    written = Written()
    with structlog.contextvars.bound_contextvars(order="A-1"):
        note = published()
    assert is_plain(published())  # where they are bound no more
    PlainLines(WHO, "me", written.write).tell(note)
    assert written.lines == []
    assert LogTool(WHO, "me", says_plain=False).wants(note)


def test_a_plain_publish_is_written_soon_and_by_nobody_else() -> None:
    written = Written()
    watch = standard_watch(WHO, "me", None, written.write)
    act = Publish([EventEnvelope(event_type="worlds.card.sent", source="worlds", payload={"secret": 1})], 7)
    watch.begin(act).end()
    assert written.lines == []
    watch.catch_up()
    (line,) = written.lines
    assert json.loads(line)["event"] == "published"
    assert not LogTool(WHO, "me", says_plain=False).wants(slim(Published(act, 0.1, None, None)))


def test_publishes_that_waited_together_have_their_lines_in_order_and_each_its_time() -> None:
    fields: list[dict[str, Any]] = [{}, {"target": "platform"}, {"workspace_id": uuid4()}, {}]
    notes = [published(fields=each) for each in fields]
    with structlog.contextvars.bound_contextvars(order="A-1"):
        notes.insert(1, published())  # somebody else says that one
    made = PlainLines(WHO, "50 %", (written := Written()).write)
    made.tell_published([(note, AT + number) for number, note in enumerate(notes)])
    assert written.counts == [4]
    expected = [(note, AT + number) for number, note in enumerate(notes) if number != 1]
    assert written.lines == [made.of_published([each]) for each in expected]
    made.tell_published([(notes[1], AT)])
    assert written.counts == [4], "nothing is nothing to write"
