"""Log lines: what each note becomes."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import get_args
from uuid import uuid4

import pytest

from spectral.core.events import probe
from spectral.core.events.infrastructure.observability import logs
from spectral.core.events.outcome import AlreadyHandled, DeadLetter, Handled, Outcome, Released, Retry
from tests.unit.log_notes import (
    A_MINUTE,
    CANARY,
    NOTES,
    OTHER_TRACE,
    ROW,
    TRACE,
    WORKSPACE,
    Line,
    delivery,
    envelope,
    finished,
    kept_lines,
    published,
    ran,
    row_ref,
    told,
    traceparent,
)


@pytest.fixture
def lines() -> Iterator[list[Line]]:
    with kept_lines() as kept:
        yield kept


def test_every_kind_of_note_has_its_line(lines: list[Line]) -> None:
    kinds = {kind for group in get_args(probe.Note) for kind in (get_args(group) or (group,))}
    assert {type(note) for note, _, _ in NOTES} == kinds
    for note, level, message in NOTES:
        (line,) = told(lines, note)
        assert (line["level"], line["event"]) == (level, message)


def test_every_message_is_a_constant_of_its_own() -> None:
    said = {message for _, _, message in NOTES}
    constants = [
        value
        for name, value in inspect.getmembers(logs)
        if name.isupper() and isinstance(value, str) and "_" not in value
    ]
    assert len(constants) == len(set(constants))
    assert said == set(constants)


def test_every_line_says_who_speaks_and_in_which_trace(lines: list[Line]) -> None:
    for note, _, _ in NOTES:
        (line,) = told(lines, note)
        assert (line["service"], line["environment"]) == ("shop", "test")
        assert line["generation"] == {"replayed": 4, "discarded": None, "swept": None}.get(line["event"], 3)
        assert line["trace_id"] in {TRACE, OTHER_TRACE, None}


def test_nothing_of_a_payload_is_in_any_line(lines: list[Line]) -> None:
    for note, _, _ in NOTES:
        assert CANARY not in repr(told(lines, note))


def test_what_was_handled_is_told_with_all_its_fields(lines: list[Line]) -> None:
    (line,) = told(lines, finished(DeadLetter("ValueError: worlds.index: no")))
    assert line == {
        "level": "error",
        "event": "handled",
        "service": "shop",
        "environment": "test",
        "generation": 3,
        "trace_id": OTHER_TRACE,
        "event_id": str(ROW),
        "event_type": "platform.order.placed",
        "source": "platform",
        "target": "worlds",
        "workspace_id": str(WORKSPACE),
        "attempts": 2,
        "worker": "me",
        "handler_name": "worlds.index,worlds.count",
        "duration_ms": 12.5,
        "ack_ms": 500.0,
        "status_result": "failed",
        "last_error": "ValueError: worlds.index: no",
    }


@pytest.mark.parametrize(
    ("outcome", "result"),
    [
        (Handled(), "delivered"),
        (AlreadyHandled(), "already handled"),
        (Retry("X: no", A_MINUTE), "retry"),
        (DeadLetter("X: no"), "failed"),
        (Released(), "released"),
    ],
)
def test_each_outcome_has_its_word(lines: list[Line], outcome: Outcome, result: str) -> None:
    (line,) = told(lines, finished(outcome))
    assert line["status_result"] == result


def test_the_trace_is_that_of_the_handler_else_of_the_row_else_none(lines: list[Line]) -> None:
    for trace, expected in ((TRACE, TRACE), (None, None)):
        (line,) = told(lines, probe.Finished(delivery(trace=trace), Handled(), (), 0.0))
        assert line["trace_id"] == expected


def test_a_context_s_row_of_a_broadcast_is_found_by_the_event_and_by_its_own_id(lines: list[Line]) -> None:
    parent = uuid4()
    (line,) = told(lines, probe.Finished(delivery(event_id=parent), Handled(), (), 0.0))
    assert (line["event_id"], line["row_id"]) == (str(parent), str(ROW))


def test_a_handler_s_error_is_told_with_its_end(lines: list[Line]) -> None:
    (line,) = told(lines, ran(probe.Failure("ValueError", "ValueError: no")))
    assert (line["handler_name"], line["duration_ms"], line["error"]) == ("worlds.index", 12.5, "ValueError: no")


def test_one_published_event_has_a_line_of_its_own(lines: list[Line]) -> None:
    one = envelope()
    (line,) = told(lines, published(one), worker=None)
    assert "worker" not in line
    assert (line["event_id"], line["event_type"]) == (str(one.event_id), one.event_type)
    assert (line["source"], line["target"], line["workspace_id"]) == ("platform", "worlds", str(WORKSPACE))
    assert (line["duration_ms"], line["trace_id"]) == (12.5, OTHER_TRACE)


def test_a_published_event_that_brings_its_trace_is_told_in_that_one(lines: list[Line]) -> None:
    (line,) = told(lines, published(envelope(trace_context=traceparent(TRACE))))
    assert line["trace_id"] == TRACE


def test_many_published_events_are_found_by_each_of_their_ids(lines: list[Line]) -> None:
    many = [
        envelope(event_type=f"platform.order.{'placed' if n % 2 else 'paid'}", workspace_id=None) for n in range(250)
    ]
    parts = told(lines, published(*many))
    assert [line["count"] for line in parts] == [100, 100, 50]
    assert [each for line in parts for each in line["event_ids"]] == [str(each.event_id) for each in many]
    assert parts[0]["event_types"] == ["platform.order.paid", "platform.order.placed"]
    assert (parts[0]["sources"], parts[0]["targets"], parts[0]["workspace_ids"]) == (["platform"], ["worlds"], [])


def test_a_refused_publish_says_why(lines: list[Line]) -> None:
    (line,) = told(lines, published(envelope(), failure=probe.Failure("PublishError", "PublishError: too large")))
    assert (line["level"], line["error"]) == ("warning", "PublishError: too large")


def test_what_an_operator_did_to_many_is_told_by_the_hundred(lines: list[Line]) -> None:
    ids = [uuid4() for _ in range(102)]
    rows = [row_ref(each) for each in ids]
    for note in (probe.Replayed(rows, 4, "ada", None), probe.Discarded(rows, "ada", None)):
        parts = told(lines, note)
        assert [line["count"] for line in parts] == [100, 2]
        assert [each for line in parts for each in line["event_ids"]] == [str(each) for each in ids]
        assert {line["by"] for line in parts} == {"ada"}
