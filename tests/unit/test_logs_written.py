"""Log lines: where they go. To the project's own structlog, else to the standard library's logging.

If nobody has configured either, a worker's warnings go to stderr, and a publisher's nowhere.
"""

from __future__ import annotations

import io
import json
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from spectral.core.events import probe
from spectral.core.events.infrastructure.observability import logs
from spectral.core.events.infrastructure.observability.logs import LogTool, handler_logger
from spectral.core.events.infrastructure.observability.outlet import flush_all
from spectral.core.events.outcome import Handled
from tests.unit.log_notes import (
    CANARY,
    NOTES,
    OTHER_TRACE,
    ROW,
    WHO,
    Line,
    delivery,
    envelope,
    finished,
    kept_lines,
    published,
    ran,
    told,
    traceparent,
    unconfigured_structlog,
)


@pytest.fixture
def unconfigured() -> Iterator[None]:
    with unconfigured_structlog():
        yield


@pytest.fixture
def lines() -> Iterator[list[Line]]:
    with kept_lines() as kept:
        yield kept


# a project's own structlog


def test_what_a_project_keeps_in_its_context_is_on_the_lines(lines: list[Line]) -> None:
    kept = structlog.get_config()["processors"]
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, *kept])
    with structlog.contextvars.bound_contextvars(request="r1"):
        (line,) = told(lines, finished(Handled()))
    assert line["request"] == "r1"


@pytest.mark.usefixtures("unconfigured")
def test_a_level_that_nobody_wants_is_asked_first_and_costs_no_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    monkeypatch.setattr(logs, "_of", lambda *_: pytest.fail("the fields were made"))
    for note in (finished(Handled()), ran(), published(envelope()), probe.Claimed("worlds", 1, 0.1, deaf=False)):
        LogTool(WHO, "me").tell(note)


@pytest.mark.usefixtures("unconfigured")
def test_a_log_that_cannot_be_written_is_the_outlet_s_to_count_and_never_the_handler_s() -> None:
    def broken(*_: object) -> str:
        raise BrokenPipeError

    structlog.configure(processors=[broken])
    with pytest.raises(BrokenPipeError):
        LogTool(WHO, "me").tell(finished(Handled()))
    log: Any = handler_logger(delivery(), "worlds.index")
    for level in ("debug", "info", "warning", "error", "exception", "critical"):
        getattr(log, level)("said")


def test_a_handler_s_lines_name_its_event_and_its_trace(lines: list[Line]) -> None:
    log: Any = handler_logger(delivery(), "worlds.index", traceparent(OTHER_TRACE), WHO)
    log.bind(more=1).warning("slow", seconds=3)
    (line,) = lines
    assert (line["level"], line["event"], line["seconds"], line["more"]) == ("warning", "slow", 3, 1)
    assert (line["service"], line["environment"], line["generation"]) == ("shop", "test", 3)
    assert (line["event_id"], line["handler_name"], line["trace_id"]) == (str(ROW), "worlds.index", OTHER_TRACE)


def test_a_handler_s_logger_can_do_what_the_project_s_own_can(lines: list[Line]) -> None:
    log: Any = handler_logger(delivery(), "worlds.index")
    log.info("%d of %s", 3, "them")
    log.new(only="this").info("anew")
    assert [line["event"] for line in lines] == ["3 of them", "anew"]
    assert log.try_unbind("target") is not None


# without structlog


@pytest.mark.usefixtures("unconfigured")
def test_without_structlog_the_line_goes_to_the_standard_library(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "spectral"):
        for note, _, _ in NOTES:
            LogTool(WHO, "me").tell(note)
    assert [(each.levelname.lower(), each.msg.removesuffix(" %s")) for each in caplog.records] == [
        (level, message) for _, level, message in NOTES
    ]
    assert {each.name for each in caplog.records} == {"spectral.publish", "spectral.worker", "spectral.operator"}
    handled: Any = next(each for each in caplog.records if each.msg == "handled %s")
    assert handled.spectral["event_id"] == str(ROW)
    assert f"handled service=shop environment=test generation=3 trace_id={OTHER_TRACE}" in handled.getMessage()


@pytest.mark.usefixtures("unconfigured")
def test_control_characters_are_escaped_and_a_percent_sign_is_only_that(caplog: pytest.LogCaptureFixture) -> None:
    log: Any = handler_logger(delivery(), "worlds.index")
    with caplog.at_level(logging.INFO, "spectral"):
        log.info("100 %\x1b[2J\n", text="a b\x9b\u2028\x7f", listed=["\x1b"], odd={1: float("nan")}, thing={2})
        log.info("%d of %s", 3, "them")
        log.bind(more=1).info("bound")
    first, second, third = (record.getMessage() for record in caplog.records)
    assert first.isascii()
    assert first.isprintable()
    assert first.startswith("100 %\\u001b[2J\\n generation=3 ")
    assert 'text="a b\\u009b\\u2028\\u007f" listed=["\\u001b"]' in first
    assert second.startswith("3 of them ")
    assert third.endswith(" more=1")


def fail() -> None:
    error = ValueError(f"no {CANARY}, postgresql://ada:{CANARY}@db/app")
    error.add_note(CANARY)
    raise error


def log_a_failure(log: Any) -> None:  # noqa: ANN401  any logger
    try:
        fail()
    except ValueError:
        log.exception("failed")


@pytest.mark.usefixtures("unconfigured")
def test_a_handler_s_exception_says_where_it_came_from_and_nothing_of_the_payload(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log_a_failure(handler_logger(delivery(), "worlds.index"))
    (record,) = caplog.records
    shown = logging.Formatter().format(record)
    assert re.search(
        r", in log_a_failure\n    File .*, in fail\n    ValueError: no \[payload\], postgresql://ada:\*+@db/app$", shown
    )
    assert CANARY not in shown + str(vars(record))
    assert (record.module, record.funcName) == ("test_logs_written", "log_a_failure")


@pytest.mark.usefixtures("unconfigured")
def test_lines_of_a_field_of_the_handler_s_own_pass_for_no_record(caplog: pytest.LogCaptureFixture) -> None:
    log: Any = handler_logger(delivery(), "worlds.index")
    log.error("said", exception="x\n\x1b[2Jforged\r\u2028 line")
    (record,) = caplog.records
    first, *others = logging.Formatter("%(message)s").format(record).split("\n")
    assert first.startswith("said generation=3 ")
    assert others == ["    x", "    \\u001b[2Jforged\\r\\u2028 line"]


class Thing:
    def __str__(self) -> str:
        return "S\x1b[2J\nforged"

    __repr__ = __str__


class Unspeakable:
    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


@pytest.mark.usefixtures("unconfigured")
@pytest.mark.parametrize(
    ("event", "shown"),
    [
        (Thing(), r"S\u001b[2J\nforged"),
        (Unspeakable(), "<Unspeakable>"),
        (ValueError("100 %"), "100 %"),
        ({"a": 1}, "{'a': 1}"),
        (None, "None"),
    ],
    ids=["orders", "unspeakable", "exception", "document", "nothing"],
)
def test_what_is_no_text_is_said_all_the_same(caplog: pytest.LogCaptureFixture, event: object, shown: str) -> None:
    log: Any = handler_logger(delivery(), "worlds.index")
    log.error(event, thing=event, listed=[event])
    (record,) = caplog.records
    assert record.getMessage().startswith(f"{shown} generation=3 ")
    assert record.getMessage().isprintable()


@pytest.mark.parametrize("bound", [False, True])
def test_a_project_s_own_structlog_is_not_given_the_exception_either(lines: list[Line], *, bound: bool) -> None:
    log: Any = handler_logger(delivery(), "worlds.index", None, WHO)
    log_a_failure(log.bind(more=1) if bound else log)
    log_a_failure(log.new())
    for line in lines:
        assert "\nValueError: no [payload], " in line["exception"]
        assert CANARY not in str(line)
        assert "exc_info" not in line
    assert len(lines) == 2


# behind an outlet


class Held(io.StringIO):
    """A stream that takes nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.let_go = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.entered.set()
        assert self.let_go.wait(60)
        return super().write(text)


@pytest.fixture
def held() -> Iterator[Held]:
    stream = Held()
    yield stream
    stream.let_go.set()
    assert flush_all(60)


@pytest.mark.usefixtures("unconfigured")
def test_a_handler_s_lines_wait_for_nobody_and_keep_their_order_and_their_context(held: Held) -> None:
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, structlog.processors.JSONRenderer()],
        logger_factory=structlog.WriteLoggerFactory(held),
    )
    log: Any = handler_logger(delivery(), "worlds.index", None, WHO)
    listed: list[int] = []
    for number in range(100):
        with structlog.contextvars.bound_contextvars(request=number):
            log.info("said", listed=listed)
        listed.append(number)
    assert held.entered.wait(60)
    held.let_go.set()
    assert flush_all(60)
    said = [json.loads(line) for line in held.getvalue().splitlines()]
    assert [(line["request"], len(line["listed"])) for line in said] == [(number, number) for number in range(100)]


@pytest.mark.usefixtures("unconfigured")
def test_a_handler_s_records_wait_for_nobody_and_keep_their_order(held: Held) -> None:
    handler = logging.StreamHandler(held)
    handler.setFormatter(logging.Formatter("%(funcName)s %(message)s"))
    logger = logging.getLogger("spectral.handler")
    logger.addHandler(handler)
    try:
        log: Any = handler_logger(delivery(), "worlds.index", None, WHO)
        for number in range(100):
            log.warning("said", number=number)
        assert held.entered.wait(60)
        held.let_go.set()
        assert flush_all(60)
    finally:
        logger.removeHandler(handler)
    said = held.getvalue().splitlines()
    assert [line.rpartition("=")[2] for line in said] == [str(number) for number in range(100)]
    assert {line.split()[0] for line in said} == {"test_a_handler_s_records_wait_for_nobody_and_keep_their_order"}


# without structlog


@pytest.mark.usefixtures("unconfigured")
def test_what_only_structlog_has_is_missing_without_it() -> None:
    log: Any = handler_logger(delivery(), "worlds.index")
    with pytest.raises(AttributeError, match="try_unbind"):
        log.try_unbind("target")


def said_by_a_program(script: str) -> tuple[str, list[str]]:
    """What it leaves on stdout and, line by line, on stderr."""
    head = """
import logging
from datetime import timedelta
from spectral.core.events import EventEnvelope, probe
from spectral.core.events.infrastructure.observability.logs import LogTool
from spectral.core.events.settings import Identity
def tell(worker, *notes):
    for note in notes:
        LogTool(Identity(generation=1), worker).tell(note)
envelope = EventEnvelope(event_type="worlds.scan.completed", source="worlds", target="platform", payload={})
refused = probe.Published(probe.Publish((envelope,), 1), 0.1, probe.Failure("X", "X: no"), None)
lost = probe.SubstrateLost("subscribe", "X: no", timedelta(seconds=1))
"""
    command = [sys.executable, "-c", head + script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout, done.stderr.splitlines()


def test_a_program_that_configured_nothing_hears_of_its_publishers_nothing() -> None:
    assert said_by_a_program("tell(None, refused)") == ("", [])


def test_a_program_that_configured_nothing_hears_of_its_worker_what_went_wrong() -> None:
    out, (first, second) = said_by_a_program(
        "tell(None, refused); tell('me', probe.Stopped(), lost, probe.Crashed('no'))"
    )
    assert out == ""
    assert first.startswith("database lost service=")
    assert second.startswith("crashed service=")


def test_a_program_that_configured_logging_hears_of_both_each_once() -> None:
    configured = "logging.basicConfig(level='INFO', format='%(name)s %(message).9s')"
    _, lines = said_by_a_program(f"tell(None, refused); {configured}; tell(None, refused); tell('me', probe.Stopped())")
    assert lines == ["spectral.publish publish r", "spectral.worker stopped s"]
