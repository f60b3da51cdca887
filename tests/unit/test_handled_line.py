"""The line that is made without a detour is the line that structlog would have made."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import timedelta
from uuid import uuid4

import pytest

from spectral.core.events.infrastructure.observability.handled_line import HandledLine
from spectral.core.events.infrastructure.observability.logs import LogTool
from spectral.core.events.outcome import AlreadyHandled, DeadLetter, Handled, Outcome, Released, Retry
from spectral.core.events.probe import Finished
from spectral.core.events.settings import Identity
from spectral_workers.logs import json_logger
from tests.unit.log_notes import unconfigured_structlog
from tests.unit.test_routes import delivery

WHO = Identity(generation=7, service='a "service"\n', environment="test")
AT = 1_700_000_000.25
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    with unconfigured_structlog():
        yield


def finished(outcome: Outcome, **fields: object) -> Finished:
    given = delivery()
    whole = given._replace(event_id=given.lease.row_id)._replace(**fields)  # type: ignore[arg-type]
    return Finished(whole, outcome, ("platform.project", "platform.mail"), 0.01234, 1.5, None)


@pytest.mark.parametrize(
    "fields", [{}, {"workspace_id": uuid4()}, {"trace_context": TRACE}, {"trace_context": "short"}, {"attempts": 3}]
)
@pytest.mark.parametrize("worker", ["host-1", 'a "name" \u2028', None])
def test_it_is_the_same_line(fields: dict[str, object], worker: str | None) -> None:
    note = finished(Handled(), **fields)
    stream = io.StringIO()
    LogTool(WHO, worker, logger=json_logger(WHO, stream)).tell(note, AT)
    line = HandledLine(WHO, worker).of(note, AT)
    assert line is not None
    assert list(json.loads(line).items()) == list(json.loads(stream.getvalue()).items())
    assert line.isascii()
    assert "\n" not in line


@pytest.mark.parametrize(
    "note",
    [
        finished(AlreadyHandled()),
        finished(Retry("OSError: away", timedelta(1))),
        finished(DeadLetter("ValueError: no")),
        finished(Released()),
        finished(Handled(), event_id=uuid4()),  # a context's own row of a broadcast
    ],
    ids=["already handled", "retry", "dead letter", "released", "child"],
)
def test_what_has_more_to_say_takes_the_long_way(note: Finished) -> None:
    assert HandledLine(WHO, "me").of(note, AT) is None
    lines: list[str] = []
    stream = io.StringIO()
    LogTool(WHO, "me", logger=json_logger(WHO, stream), lines=lines.append).tell(note, AT)
    assert lines == []
    assert json.loads(stream.getvalue())["event_id"] == str(note.delivery.event_id)


def test_the_tool_hands_over_the_finished_line() -> None:
    lines: list[str] = []
    LogTool(WHO, "me", lines=lines.append).tell(finished(Handled()), AT)
    (line,) = lines
    assert json.loads(line)["status_result"] == "delivered"
