"""Log lines: which fields each kind has, all of them, and that those about an event lead to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final
from uuid import UUID, uuid4

import pytest

from spectral.core.events import probe
from spectral.core.events.infrastructure.observability import logs
from spectral.core.events.infrastructure.observability.logs import LogTool
from tests.unit.log_notes import (
    NOTES,
    OTHER_TRACE,
    ROW,
    TRACE,
    WHO,
    WORKSPACE,
    Line,
    dead_row,
    envelope,
    event_ref,
    kept_lines,
    published,
    row_ref,
    told,
)

CANONICAL: Final = {"timestamp", "level", "event", "service", "environment", "generation", "trace_id"}
EVENT: Final = {"event_id", "event_type", "source", "target", "workspace_id"}
DELIVERY: Final = EVENT | {"attempts", "worker"}
FIELDS: Final[dict[str, set[str]]] = {
    logs.PUBLISHED: EVENT | {"worker", "duration_ms"},
    logs.PUBLISH_REFUSED: EVENT | {"worker", "duration_ms", "error"},
    logs.CLAIMED: {"worker", "target", "deaf", "rows", "duration_ms"},
    logs.HANDLER_RAN: DELIVERY | {"handler_name", "duration_ms"},
    logs.SETTLED: {"worker", "rows", "duration_ms"},
    logs.HANDLED: DELIVERY | {"handler_name", "duration_ms", "ack_ms", "status_result"},
    logs.LEASE_LOST: DELIVERY,
    logs.SETTLE_GIVEN_UP: DELIVERY | {"error"},
    logs.REAPED: DELIVERY | {"status_result", "reason", "lost_worker"},
    logs.NOBODY_HANDLES: DELIVERY | {"status_result", "last_error"},
    logs.FANNED_OUT: EVENT | {"worker", "to"},
    logs.BROADCAST_UNHEARD: EVENT | {"worker", "to"},
    logs.HANDLER_RAN_AWAY: DELIVERY | {"handler_name"},
    logs.RUNNING_ALONE: DELIVERY,
    logs.LEFT_IN_DOUBT: DELIVERY,
    logs.CONFLICTED: DELIVERY | {"conflicts"},
    logs.REPLAYED: EVENT | {"count", "by", "reason"},
    logs.DISCARDED: EVENT | {"count", "by", "reason"},
    logs.SWEPT: {"put_away", "deleted", "finished", "duration_ms"},
}
SEVERAL: Final = {"event_ids", "count", "event_types", "sources", "targets", "workspace_ids", "trace_ids"}
CHILD: Final = UUID(int=7)


@pytest.fixture
def lines() -> Iterator[list[Line]]:
    with kept_lines() as kept:
        yield kept


@pytest.mark.parametrize(("note", "message"), [(note, message) for note, _, message in NOTES if message in FIELDS])
def test_every_line_about_events_has_its_fields_and_no_others(
    lines: list[Line], note: probe.Note, message: str
) -> None:
    LogTool(WHO, "me").tell(note, 1_700_000_000)
    (line,) = lines
    fails = line["level"] in {"warning", "error"} and message == logs.HANDLED
    fails = fails or (line["level"], message) == ("error", logs.REAPED)
    assert set(line) == CANONICAL | FIELDS[message] | ({"last_error"} if fails else set())


def test_every_kind_of_note_about_events_is_among_them() -> None:
    others = {message for note, _, message in NOTES if not isinstance(note, probe.WorkerNote | probe.RelayNote)}
    assert others == set(FIELDS)


def test_a_row_that_was_taken_back_and_died_is_told_with_all_its_fields(lines: list[Line]) -> None:
    note = probe.Reaped(CHILD, "failed", "orphaned", "other", 5, event_ref(), dead_row()._replace(row_id=CHILD))
    (line,) = told(lines, note)
    assert line == {
        "level": "error",
        "event": "reaped",
        "service": "shop",
        "environment": "test",
        "generation": 3,
        "trace_id": TRACE,
        "worker": "me",
        "event_id": str(ROW),
        "row_id": str(CHILD),
        "event_type": "platform.order.placed",
        "source": "platform",
        "target": "worlds",
        "workspace_id": str(WORKSPACE),
        "attempts": 5,
        "status_result": "failed",
        "last_error": "X: no",
        "reason": "orphaned",
        "lost_worker": "other",
    }


def test_a_context_s_own_row_of_a_broadcast_leads_to_the_event_whatever_becomes_of_it(lines: list[Line]) -> None:
    child = row_ref(ROW, CHILD)
    for note in (
        probe.Reaped(CHILD, "pending", "orphaned", "other", 1, event_ref()),
        probe.Unhandled("worlds", [dead_row()._replace(row_id=CHILD)]),
        probe.Replayed([child], 4, "ada", None),
        probe.Discarded([child], "ada", None),
    ):
        (line,) = told(lines, note)
        assert (line["event_id"], line["row_id"], line["trace_id"]) == (str(ROW), str(CHILD), TRACE)


def test_what_an_operator_did_to_several_leads_to_each_of_them(lines: list[Line]) -> None:
    other = uuid4()
    rows = [row_ref(ROW), row_ref(other, CHILD, OTHER_TRACE)]
    for note in (probe.Replayed(rows, 4, "ada", "fixed"), probe.Discarded(rows, "ada", "fixed")):
        (line,) = told(lines, note)
        assert set(line) == CANONICAL - {"timestamp"} | SEVERAL | {"row_ids", "by", "reason"}
        assert (line["event_ids"], line["row_ids"]) == ([str(ROW), str(other)], [str(ROW), str(CHILD)])
        assert (line["trace_id"], line["trace_ids"]) == (None, [TRACE, OTHER_TRACE])
        assert (line["event_types"], line["sources"], line["targets"]) == (
            ["platform.order.placed"],
            ["platform"],
            ["worlds"],
        )


def test_several_that_were_published_at_once_lead_to_each_of_them(lines: list[Line]) -> None:
    (line,) = told(lines, published(envelope(), envelope()))
    assert set(line) == CANONICAL - {"timestamp"} | SEVERAL - {"trace_ids"} | {"worker", "duration_ms"}
