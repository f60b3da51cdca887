"""The ways in which `benchmarks.observability` has a worker watched, from a log to everything, and tools that hang."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import threading
import urllib.request
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_PAGE: Final = 4096


@dataclass(frozen=True, slots=True)
class Watched:
    """How a worker is watched: its variables, its options, and where its log goes."""

    variables: dict[str, str] = field(default_factory=dict[str, str])
    port: int | None = None
    log: int = subprocess.DEVNULL


@dataclass(frozen=True, slots=True)
class Line:
    """One way to be watched; `open` sets up what it needs, given the collector's port."""

    name: str
    open: Callable[[int, ExitStack], Watched]
    is_judged: bool = False


def _logs(_: int, __: ExitStack) -> Watched:
    return Watched()


def _metrics(_: int, meanwhile: ExitStack) -> Watched:
    port = _free_port()
    meanwhile.enter_context(_scraped(port))
    return Watched(port=port)


def _traces(sampler: dict[str, str]) -> Callable[[int, ExitStack], Watched]:
    def opened(collector: int, meanwhile: ExitStack) -> Watched:
        endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{collector}"}
        return Watched({**endpoint, **sampler}, port=_metrics(collector, meanwhile).port)

    return opened


def _hanging(_: int, meanwhile: ExitStack) -> Watched:
    mute = meanwhile.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
    reading, writing = os.pipe()
    meanwhile.callback(os.close, reading)
    meanwhile.callback(os.close, writing)
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PAGE)
    os.write(writing, bytes(_PAGE))
    variables = {
        **_ALL,
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{mute}",
        "SENTRY_DSN": f"http://k@127.0.0.1:{mute}/1",
    }
    return Watched(variables, port=_free_port(), log=writing)


_TENTH: Final = {
    "OTEL_TRACES_SAMPLER": "parentbased_traceidratio",
    "OTEL_TRACES_SAMPLER_ARG": "0.1",
    "OTEL_METRICS_EXPORTER": "none",
}
_ALL: Final = {"OTEL_TRACES_SAMPLER": "always_on"}
LINES: Final = (
    Line("logs", _logs),
    Line("logs, metrics", _metrics),
    Line("logs, metrics, traces of 10 %", _traces(_TENTH), is_judged=True),
    Line("logs, metrics, all traces", _traces({**_ALL, "OTEL_METRICS_EXPORTER": "none"}), is_judged=True),
    Line("the same, metrics by OTLP too", _traces(_ALL)),
    Line("everything hangs", _hanging),
)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
    return port


@contextmanager
def _scraped(port: int) -> Iterator[None]:
    """Scrape the worker every second, as soon as it can be."""
    over = threading.Event()

    def scrape() -> None:
        while not over.wait(1.0):
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=2) as answer:
                answer.read()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
