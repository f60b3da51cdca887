"""What watches unless somebody says otherwise: the log, OpenTelemetry and Sentry, each only as far as it is set up.

Nothing is configured here: a program that has a tracer provider, a meter provider, a Sentry client or a structlog
configuration of its own is heard through it, and one that has none pays next to nothing.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from spectral.core.events.infrastructure.observability.logs import LogTool
from spectral.core.events.infrastructure.observability.otel_metrics import OpenTelemetryMetrics
from spectral.core.events.infrastructure.observability.plain_lines import PlainLines
from spectral.core.events.infrastructure.observability.sentry import SentryTool
from spectral.core.events.infrastructure.observability.spans import BatchSpans
from spectral.core.events.infrastructure.observability.traces import OpenTelemetryTracer
from spectral.core.events.infrastructure.observability.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

    from spectral.core.events.infrastructure.observability.tools import Counting, Tool
    from spectral.core.events.settings import Identity


_of_publishers: Final[dict[Identity, Watch]] = {}
_counting: Final[dict[str, Counting]] = {}
_all_counting: Final[list[tuple[str, Counting]]] = []


def publishers_watch(identity: Identity) -> Watch:
    """The watch of all publishers of the process that speak as this: it has threads, and is never given back."""
    known = _of_publishers.get(identity)
    if known is None:
        known = _of_publishers.setdefault(identity, standard_watch(identity, quick=_counting))
    return known


def watches_of_publishers() -> list[Watch]:
    """Those that there are in this process."""
    return list(_of_publishers.values())


@contextmanager
def publishes_counted(name: str, counting: Counting) -> Generator[None]:
    """While the block runs, whatever this process publishes is counted by this too; of several, by the last one."""
    _all_counting.append((name, counting))
    _count_with_the_last(name)
    try:
        yield
    finally:
        _all_counting.remove((name, counting))
        _count_with_the_last(name)


def _count_with_the_last(name: str) -> None:
    last = next((counting for known, counting in reversed(_all_counting) if known == name), None)
    if last is None:
        del _counting[name]
    else:
        _counting[name] = last
    for watch in watches_of_publishers():
        watch.count_without(name) if last is None else watch.count_with(name, last)


def standard_watch(
    identity: Identity,
    worker: str | None = None,
    quick: Mapping[str, Counting] | None = None,
    lines: Callable[[str, int], None] | None = None,
) -> Watch:
    """The watch of a publisher, or of the worker of this name.

    quick: what only counts in memory. lines: takes finished lines as one text, and how many, where the worker's
    own log is in use.
    """
    slow: dict[str, Tool] = {
        "logs": LogTool(identity, worker, says_plain=lines is None),
        "sentry": SentryTool(identity, worker),
        "otel_metrics": OpenTelemetryMetrics(),
        "otel_spans": BatchSpans(identity, worker),
    }
    at_once = dict(quick or {})
    if lines is not None:
        at_once["lines"] = PlainLines(identity, worker, lines)
    return Watch(slow, at_once, OpenTelemetryTracer(identity, worker))
