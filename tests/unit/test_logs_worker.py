"""The worker process's own configuration of its log: JSON for machines, readable lines for people, nothing to obey."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import cast

import psycopg
import pytest
import structlog

from spectral.core.events import ConfigurationError, probe
from spectral.core.events.infrastructure.observability import outlet as outlets
from spectral.core.events.infrastructure.observability.logs import LogTool, handler_logger
from spectral.core.events.infrastructure.observability.outlet import CAPACITY, flush_all
from spectral.core.events.infrastructure.observability.standard import standard_watch
from spectral.core.events.infrastructure.observability.watch import Watch
from spectral.core.events.outcome import Handled, Retry
from spectral_workers.logs import LEVELS, PatientWriter, configure_logs, json_logger, missed_lines
from spectral_workers.measured import troubles
from tests.unit.log_notes import CANARY, NOTES, WHO, Line, delivery, finished, row_ref, unconfigured_structlog

CANONICAL = ["timestamp", "level", "event", "service", "environment", "generation", "trace_id"]
ORDERS = "a\nb\x1b[2J\x9b\x7f\x00\u2028\u2029\r"


def written(stream: io.StringIO) -> str:
    """What the log has written, once it has."""
    assert flush_all(10)
    return stream.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    with unconfigured_structlog():
        yield


def configured(monkeypatch: pytest.MonkeyPatch, stream: io.StringIO, level: str = "") -> io.StringIO:
    monkeypatch.setattr(sys, "stderr", stream)
    configure_logs(WHO, {"SPECTRAL_LOG_LEVEL": level})
    return stream


def documents(stream: io.StringIO) -> list[Line]:
    return [json.loads(line) for line in written(stream).splitlines()]


def test_every_line_begins_with_the_seven_canonical_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = configured(monkeypatch, io.StringIO(), "debug")
    for note, _, _ in NOTES:
        LogTool(WHO, "me").tell(note)
    structlog.get_logger("spectral.worker").info("of the process itself", more=1)
    handler_logger(delivery(), "worlds.index").info("of a handler", more=1)
    lines = documents(stream)
    assert len(lines) == len(NOTES) + 2
    for line in lines:
        assert list(line)[:7] == CANONICAL
        assert datetime.fromisoformat(line["timestamp"]).tzinfo == UTC
        assert (line["service"], line["environment"]) == ("shop", "test")


@pytest.mark.parametrize("level", LEVELS)
def test_the_level_is_that_of_the_environment(monkeypatch: pytest.MonkeyPatch, level: str) -> None:
    stream = configured(monkeypatch, io.StringIO(), f" {level.upper()} ")
    for each in LEVELS:
        getattr(structlog.get_logger(), each)("said")
    assert [line["level"] for line in documents(stream)] == list(LEVELS)[list(LEVELS).index(level) :]


def test_a_level_that_there_is_not_names_those_there_are() -> None:
    structlog.configure(processors=[])  # it is said even to whom it would not matter
    with pytest.raises(ConfigurationError, match=r"'loud'; set it to one of debug, info, warning, error$"):
        configure_logs(WHO, {"SPECTRAL_LOG_LEVEL": "loud"})


def test_whatever_gives_orders_is_escaped_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = configured(monkeypatch, io.StringIO())
    structlog.get_logger().info(f"said{ORDERS}", text=ORDERS, listed=[ORDERS], **{ORDERS: 1})
    (line,) = written(stream).splitlines()
    assert line.isascii()
    assert line.isprintable()
    assert json.loads(line)["text"] == ORDERS


def test_whatever_gives_orders_is_escaped_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = configured(monkeypatch, Terminal())
    structlog.get_logger().info(f"said{ORDERS}", text=ORDERS, listed=[ORDERS], **{ORDERS: 1})
    try:
        raise ValueError(ORDERS)  # noqa: TRY301  it is the traceback that is looked at
    except ValueError:
        structlog.get_logger().exception("failed")
    shown = written(stream)
    for order in ("\x1b[2J", "\x9b", "\x7f", "\x00", "\u2028", "\u2029", "\r", "a\nb"):
        assert order not in shown
    assert shown.count("a\\nb\\x1b[2J\\x9b\\x7f\\x00\\u2028\\u2029\\r") >= 3
    assert "\n    ValueError: a b" in shown


class Actor:
    """Gives orders whoever asks how it looks, as an object of a handler's may."""

    def __repr__(self) -> str:
        return f"R{ORDERS}"

    def __str__(self) -> str:
        return f"S{ORDERS}"


class Word(Actor, str):
    """The same with a text of its own."""

    __slots__ = ()


class Number(Actor, float):
    """The same with a number."""

    __slots__ = ()


SAID = {
    "an object": Actor(),
    "a list": [Actor()],
    "an object's key": {Actor(): 1},
    "an exception": ValueError(Actor()),
    "a text": Word(f"W {ORDERS}"),
    "a number": Number(3),
}


@pytest.mark.parametrize("name", ["event", "field", "timestamp", "level", "logger", "stack", "exception", "positional"])
@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
def test_whatever_gives_orders_by_the_way_it_looks_is_escaped_too(
    monkeypatch: pytest.MonkeyPatch, said: object, name: str
) -> None:
    stream = configured(monkeypatch, Terminal())
    log = structlog.get_logger()
    if name == "event":
        log.info(said)
    elif name == "positional":
        log.info("said %s", said)
    else:
        log.info("said", **{name: said})
    first, *others = plain(written(stream)).splitlines()
    assert "service=shop" in first
    assert all(line.startswith("    ") for line in others)
    assert "".join([first, *others]).isprintable()


def plain(shown: str) -> str:
    """Without the colours, which are the renderer's own."""
    return re.sub(r"\x1b\[\d*m", "", shown)


def test_what_is_no_text_is_shown_as_it_looks_without_quotation_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = configured(monkeypatch, Terminal())
    structlog.get_logger().info("said", listed=["it's"], number=1.5, yes=True, nothing=None, text="two words")
    assert "listed=[\"it's\"] number=1.5 yes=True nothing=None text='two words'" in plain(written(stream))


def test_a_line_for_a_person_begins_with_what_happened_and_says_nothing_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = configured(monkeypatch, Terminal())
    tool = LogTool(WHO, "me")
    tool.tell(probe.Started("me", 3, ("worlds",)))
    failure = "ConnectionError: worlds.index: the index is away"
    tool.tell(finished(Retry(failure, timedelta(0))), 1_700_000_000.5)
    started, handled = plain(written(stream)).splitlines()
    event = delivery()
    assert started.endswith("worker=me service=shop environment=test generation=3")
    assert handled.startswith(
        f"22:13:20.500 [warning  ] handled   {event.event_type} retry last_error='{failure}' attempts="
    )
    assert f" event_id={event.event_id} " in handled
    assert not {"service", "environment", "generation", "timestamp"} & set(re.findall(r"(\w+)=", handled))
    assert "None" not in started + handled


def test_on_a_terminal_a_line_says_who_speaks_if_it_is_the_first_or_of_somebody_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = configured(monkeypatch, Terminal())
    log = structlog.get_logger()
    for fields in ({}, {}, {"generation": 2}, {"generation": True}, {"trace_id": None, "found": None, "trace": None}):
        log.info("said", **fields)
    log.info("started")
    *said, started = plain(written(stream)).splitlines()
    first, second, other, odd, own = (line.partition("said")[2] for line in said)
    assert first.split() == ["service=shop", "environment=test", "generation=3"]
    assert (second.split(), other.split(), odd.split()) == ([], ["generation=2"], ["generation=True"])
    assert own.split() == ["found=None", "trace=None"], "what somebody says himself is said"
    assert started.endswith("started   service=shop environment=test generation=3")


def test_what_a_handler_says_itself_stands_before_where_it_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = configured(monkeypatch, Terminal())
    cast("structlog.stdlib.BoundLogger", handler_logger(delivery(), "worlds.index", None, WHO)).info("found", pages=7)
    (line,) = plain(written(stream)).splitlines()
    assert line.split("] ")[1].startswith(f"found     {delivery().event_type} attempts=")
    assert re.findall(r"(\w+)=", line)[:4] == ["attempts", "pages", "handler_name", "event_id"]
    assert "service=" not in line, "the first line of a worker may well be a handler's"


@pytest.mark.parametrize("time", ["yesterday", "2023-11-14 22:13:20", "2023-11-14T22:13:20.123456Z\x1b[2J"])
def test_a_time_of_somebody_s_own_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch, time: str) -> None:
    stream = configured(monkeypatch, Terminal())
    structlog.get_logger().info("said", timestamp=time)
    assert plain(written(stream)).startswith(time.replace("\x1b", "\\x1b") + " [info")


def test_what_has_no_name_on_a_terminal_passes_for_no_other_field(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = configured(monkeypatch, Terminal())
    structlog.get_logger().info("said", event_type="a.b.c failed error=forged", status_result="already handled")
    assert "'a.b.c failed error=forged' 'already handled'" in plain(written(stream))


def test_lines_of_a_field_of_the_handler_s_own_pass_for_none_of_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = configured(monkeypatch, Terminal())
    structlog.get_logger().info("said", stack="first\nforged", exception="second\nforged")
    first, *others = plain(written(stream)).splitlines()
    assert first.endswith("said      service=shop environment=test generation=3")
    assert [line for line in others if line.strip("=")] == ["    first", "    forged", "    second", "    forged"]


@pytest.mark.parametrize("terminal", [True, False])
def test_what_turns_the_direction_of_a_text_is_escaped(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> None:
    stream = configured(monkeypatch, Terminal() if terminal else io.StringIO())
    turns = [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]
    structlog.get_logger().info("".join(map(chr, turns)), text=[chr(turn) for turn in turns])
    shown = written(stream)
    assert not {chr(turn) for turn in turns} & set(shown)
    for turn in turns:
        assert shown.count(f"\\u{turn:x}") == 2


@pytest.mark.parametrize(("value", "has_colors"), [("1", False), ("", True), (None, True)])
def test_readable_lines_have_no_colours_for_whoever_wants_none(
    monkeypatch: pytest.MonkeyPatch, value: str | None, *, has_colors: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    configure_logs(WHO, {} if value is None else {"NO_COLOR": value})
    structlog.get_logger().info("said")
    assert ("\x1b[" in written(stream)) == has_colors


def test_what_json_cannot_say_is_said_as_well_as_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    class Unspeakable:
        def __repr__(self) -> str:
            raise RuntimeError

    stream = configured(monkeypatch, io.StringIO())
    circle: list[object] = []
    circle.append(circle)
    log = structlog.get_logger()
    log.info("said", number=float("nan"), keyed={(1, 2): 3}, n=1)
    log.info("said", circle=circle, thing={2}, n=1)
    log.info("said", odd={(1,): Unspeakable()}, n=1)
    first, second, third = documents(stream)
    assert (first["number"], first["keyed"], first["n"]) == ("nan", "{(1, 2): 3}", 1)
    assert (second["circle"], second["thing"]) == ("[[...]]", "{2}")
    assert (third["odd"], third["n"]) == ("<dict>", 1)


def test_an_exception_says_where_and_what_but_nothing_it_quotes(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = configured(monkeypatch, io.StringIO())

    def query() -> None:
        hidden = "canary in a variable"
        raise psycopg.errors.UniqueViolation(f"duplicate key\nDETAIL:  Key (x)=({hidden[:6]}) exists")

    def handle() -> None:
        try:
            query()
        except psycopg.Error as error:
            raise ValueError("password=canary") from error

    try:
        handle()
    except ValueError as error:
        structlog.get_logger().exception("failed")
        structlog.get_logger().error("failed", exc_info=error)
        structlog.get_logger().error("failed", exc_info=(type(error), error, error.__traceback__))
    structlog.get_logger().error("nothing is wrong", exc_info=True)
    *failed, fine = documents(stream)
    assert "canary" not in written(stream)
    assert "exception" not in fine
    told = failed[0]["exception"]
    assert [line["exception"] for line in failed] == [told] * 3
    assert "in query\nUniqueViolation: duplicate key" in told
    assert "\nwhich led to:\n" in told
    assert told.endswith("in handle\nValueError: password=***")


def test_a_logger_of_its_own_leaves_the_program_s_log_alone() -> None:
    stream = io.StringIO()
    LogTool(WHO, logger=json_logger(WHO, stream)).tell(probe.Replayed([row_ref()], 4, "ada", "it's fixed"))
    assert not structlog.is_configured()
    (line,) = documents(stream)
    assert list(line)[:7] == CANONICAL
    assert (line["event"], line["generation"], line["reason"]) == ("replayed", 4, "it's fixed")


def test_the_time_goes_on_within_a_second_and_beyond(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = configured(monkeypatch, io.StringIO())
    seconds = 1_700_000_000
    for moment in (seconds, seconds + 0.75, seconds + 1.5):
        LogTool(WHO, "me").tell(finished(Handled()), moment)
    # What a test before this one has published may be told by now.
    assert [line["timestamp"] for line in documents(stream) if line["event"] == "handled"] == [
        "2023-11-14T22:13:20.000000Z",
        "2023-11-14T22:13:20.750000Z",
        "2023-11-14T22:13:21.500000Z",
    ]


def test_a_handler_s_exception_is_told_without_its_payload(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = configured(monkeypatch, io.StringIO())
    try:
        raise ValueError(f"no {CANARY}")  # noqa: TRY301  it is the line that is looked at
    except ValueError:
        cast("structlog.stdlib.BoundLogger", handler_logger(delivery(), "worlds.index", None, WHO)).exception("failed")
    (line,) = documents(stream)
    assert line["exception"].endswith("\nValueError: no [payload]")


# lines that are not written


class Stuck(io.StringIO):
    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()

    def write(self, text: str) -> int:
        assert self.let_go.wait(60)
        return super().write(text)


def test_lines_that_nobody_reads_are_dropped_and_counted_as_the_log_s() -> None:
    watch = Watch({"logs": LogTool(WHO, "me")})
    before = troubles(watch)["logs"]
    stream = Stuck()
    writer = PatientWriter(stream)
    for _ in range(2 * CAPACITY + 7):  # some of them may be on their way already
        writer.msg("said")
    stream.let_go.set()
    assert flush_all(60)
    dropped, failed = troubles(watch)["logs"]
    assert dropped - before[0] == writer.dropped == 2 * CAPACITY + 7 - len(stream.getvalue().splitlines())
    assert writer.dropped >= 7
    assert failed == before[1]


def test_lines_are_written_in_the_order_of_their_times_although_some_are_made_late() -> None:
    writer = PatientWriter(stream := io.StringIO())
    late, *others = ('{"timestamp": "2026-11-19T08:00:00.00000%dZ"}' % each for each in (2, 1, 3, 3))  # noqa: UP031
    writer.write_lines("\n".join(others[1:]), 2)
    for line in (late, others[0]):
        writer.msg(line)
    assert written(stream).splitlines() == [others[0], late, *others[1:]]
    for line in ("on a terminal", "nothing", "is moved"):
        writer.msg(line)
    assert written(stream).splitlines()[4:] == ["on a terminal", "nothing", "is moved"]


def test_what_failed_is_said_before_what_went_well_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    lines = configure_logs(WHO, {})
    watch = standard_watch(WHO, "me", lines=lines)
    arrived = threading.Event()
    monkeypatch.setattr(outlets, "_GATHER", threading.TIMEOUT_MAX)

    def msg(self: PatientWriter, line: str) -> None:
        self.write_lines(line, 1)
        arrived.set()

    monkeypatch.setattr(PatientWriter, "warning", msg)
    watch.tell(finished(Retry("X: no", timedelta(0))))
    assert arrived.wait(10), "it has not waited for more of its kind"
    watch.tell(finished(Handled()))
    assert [line["status_result"] for line in documents(stream)] == ["retry", "delivered"]


def test_of_lines_that_come_together_those_are_dropped_for_which_there_is_no_room() -> None:
    stream = Stuck()
    writer = PatientWriter(stream)
    writer.write_lines("", 0)
    for _ in range(3):  # the first of them may be on their way already
        writer.write_lines("\n".join(f"{number}" for number in range(CAPACITY - 10)), CAPACITY - 10)
    stream.let_go.set()
    assert flush_all(60)
    written = stream.getvalue().splitlines()
    assert writer.dropped == 3 * (CAPACITY - 10) - len(written) >= CAPACITY - 20
    assert written[CAPACITY - 10 : CAPACITY] == [f"{number}" for number in range(10)], "the first are kept"


def test_whoever_interrupts_a_line_may_say_one_of_his_own() -> None:
    stream = io.StringIO()
    writer = PatientWriter(stream)
    with writer._counting:  # as the handler of a signal may come at any moment
        writer.msg("said")
    assert flush_all(60)
    assert stream.getvalue() == "said\n"


def test_lines_that_cannot_be_written_are_counted_one_by_one() -> None:
    before = missed_lines()
    stream = io.StringIO()
    writer = PatientWriter(stream)
    stream.close()
    for _ in range(3):
        writer.msg("said")
    assert flush_all(60)
    assert missed_lines() == (before[0], before[1] + 3)
    assert writer.failed == 3


def test_the_child_of_a_fork_has_a_log_and_numbers_of_its_own() -> None:
    script = """
import os, sys
from spectral.core.events.infrastructure.observability.outlet import flush_all
from spectral.core.events.infrastructure.observability.recorder import Recorder
from spectral.core.events.probe import LoopBlocked
from spectral_workers.logs import LineWriter, PatientWriter
recorder, plain, patient = Recorder(), LineWriter(sys.stdout), PatientWriter(sys.stdout)
patient.msg("of the parent")
patient.dropped, patient.failed = 2, 3
with recorder._lock, plain._one, patient._one:
    child = os.fork()
    if child == 0:
        assert (patient.dropped, patient.failed) == (0, 0)
        plain.msg("plain")
        patient.msg("patient")
        recorder.tell(LoopBlocked(1.0))
        assert flush_all(10)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
assert flush_all(10)
"""
    # Newer interpreters warn of a fork beside threads, which is what this is about.
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["plain", "patient", "of the parent"]
