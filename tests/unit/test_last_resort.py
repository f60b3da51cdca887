"""What others say by the standard library's log where nobody has configured it."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import logging
import sys
import warnings
from collections.abc import Iterator

import pytest
import structlog
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from spectral_workers.last_resort import hear_the_unheard
from spectral_workers.logs import configure_logs
from tests.unit.log_notes import CANARY, WHO, Line, unconfigured_structlog
from tests.unit.test_worker_process import written

TRACE = int("a" * 32, 16)


class Oddity:
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.fixture
def unheard(monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """A logger without a handler, and with none above it: the test runner's would hear it."""
    monkeypatch.setattr(logging, "lastResort", logging.lastResort)  # is put back
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    with unconfigured_structlog():
        yield logging.Logger("shop")  # noqa: LOG001  one that nothing is above


@pytest.fixture
def stream(unheard: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> io.StringIO:  # noqa: ARG001  it puts things back
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    configure_logs(WHO, {})
    return stream


def lines(stream: io.StringIO) -> list[Line]:
    return [json.loads(line) for line in written(stream).splitlines()]


def test_what_nobody_hears_is_a_line_like_any_other(unheard: logging.Logger, stream: io.StringIO) -> None:
    unheard.warning("%s is\n\x1b[31mlate", "it")
    unheard.critical("worse")
    unheard.info("chatter")
    line, worse = lines(stream)
    assert list(line)[:3] == ["timestamp", "level", "event"]
    assert (line["level"], line["event"], line["logger"]) == ("warning", "it is\n\x1b[31mlate", "shop")
    assert (line["service"], line["environment"], line["generation"]) == ("shop", "test", 3)
    assert line["trace_id"] is None
    assert worse["level"] == "critical"
    assert "\x1b" not in stream.getvalue()


def test_it_is_in_the_trace_of_whoever_says_it(unheard: logging.Logger, stream: io.StringIO) -> None:
    span = NonRecordingSpan(SpanContext(TRACE, 1, is_remote=True, trace_flags=TraceFlags(1)))
    with trace.use_span(span):
        unheard.warning("within")
    (line,) = lines(stream)
    assert line["trace_id"] == "a" * 32


def test_of_an_exception_it_keeps_what_may_be_kept(unheard: logging.Logger, stream: io.StringIO) -> None:
    try:
        raise ValueError(f"postgresql://me:{CANARY}@db/shop")  # noqa: TRY301  it is the traceback that is looked at
    except ValueError:
        unheard.exception("failed", stack_info=True)
    (line,) = lines(stream)
    assert "test_last_resort" in line["exception"]
    assert "ValueError" in line["exception"]
    assert "Stack" in line["stack"]
    assert CANARY not in stream.getvalue()


async def test_of_what_asyncio_says_nothing_is_kept_that_it_quotes(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("asyncio"), "propagate", False)  # as above
    loop = asyncio.get_running_loop()

    async def parse() -> int:
        return int(CANARY)

    def refuse(_: dict[str, str]) -> None:
        raise LookupError(CANARY)

    task = loop.create_task(parse())
    await asyncio.wait([task])
    del task
    gc.collect()
    loop.call_soon(refuse, {"card": CANARY})
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    never, callback = lines(stream)
    assert never["event"] == "Task exception was never retrieved"
    assert "in parse" in never["exception"]
    assert "ValueError" in never["exception"]
    assert callback["event"].startswith("Exception in callback")
    assert "LookupError" in callback["exception"]
    assert CANARY not in stream.getvalue()


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("socket.send() raised exception.", "socket.send() raised exception."),
        (f"<Handle {CANARY}> took long", "asyncio"),
    ],
)
def test_of_what_asyncio_says_the_constant_is_kept(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch, said: str, kept: str
) -> None:
    monkeypatch.setattr(logging.getLogger("asyncio"), "propagate", False)  # as above
    logging.getLogger("asyncio").warning(said)
    (line,) = lines(stream)
    assert line["event"] == kept


@pytest.mark.parametrize(("said", "arguments"), [("%d left", ("none",)), ("left: %s", (Oddity(),))])
def test_what_cannot_be_filled_in_is_said_as_it_is(
    unheard: logging.Logger, stream: io.StringIO, said: str, arguments: tuple[object, ...]
) -> None:
    unheard.warning(said, *arguments)
    (line,) = lines(stream)
    assert line["event"] == said


def test_warnings_are_lines_too(stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("py.warnings"), "propagate", False)  # as above
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        hear_the_unheard(WHO)  # the runner and this block have each put their own there
        warnings.warn("old\nways", UserWarning, stacklevel=1)
        aside = io.StringIO()
        warnings.showwarning("elsewhere", UserWarning, "there.py", 1, aside)
    (line,) = lines(stream)
    assert line["event"].startswith("UserWarning: old\nways (")
    assert line["logger"] == "py.warnings"
    assert "elsewhere" in aside.getvalue()


def test_who_shows_warnings_himself_keeps_that(unheard: logging.Logger, stream: io.StringIO) -> None:
    shown: list[str] = []
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *_, **__: shown.append(str(message))
        hear_the_unheard(WHO)
        warnings.warn("old ways", UserWarning, stacklevel=1)
    unheard.warning("the end")
    assert shown == ["old ways"]
    assert [line["event"] for line in lines(stream)] == ["the end"]


def test_who_configures_logging_keeps_that_whenever_it_does(unheard: logging.Logger, stream: io.StringIO) -> None:
    heard = logging.StreamHandler(io.StringIO())
    unheard.warning("before")
    unheard.addHandler(heard)
    try:
        unheard.warning("after")
    finally:
        unheard.removeHandler(heard)
    assert heard.stream.getvalue() == "after\n"
    assert [line["event"] for line in lines(stream)] == ["before"]


@pytest.mark.usefixtures("unheard")
def test_who_configures_structlog_has_logging_left_alone() -> None:
    structlog.configure(processors=[])
    before = logging.lastResort
    configure_logs(WHO, {})
    assert logging.lastResort is before


def test_without_our_log_it_is_python_s_own_again(unheard: logging.Logger, stream: io.StringIO) -> None:
    structlog.reset_defaults()
    unheard.warning("still\nsaid")
    assert stream.getvalue() == "still\nsaid\n"
