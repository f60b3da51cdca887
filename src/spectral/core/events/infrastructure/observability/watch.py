"""The watch: one probe for the flow, several tools behind it that know nothing of each other and cannot reach it.

Tools that only count in memory are told at once. Tools that write, send or might hang are told by an outlet's thread.
Whatever raises is counted under its name and ignored.
"""

from __future__ import annotations

import time
from collections import Counter
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from spectral.core.events.infrastructure.observability.outlet import Outlet
from spectral.core.events.probe import Failure, Published, TimedActivity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextvars import Context

    from spectral.core.events.probe import Act, Activity, Note


_ASK_EVERY: Final = 1.0
"""Seconds: a log may be configured, a provider set or Sentry initialised after the watch was made."""


class Counting(Protocol):
    """Takes notes by counting them in memory."""

    def tell(self, note: Note) -> None:
        """Take note, at once."""
        ...


class Tool(Protocol):
    """Takes notes in its own time."""

    def cares_for(self, kind: type[Note]) -> bool:
        """Whether it would do anything about notes of this kind, as things stand; asked about once a second."""
        ...

    def tell(self, note: Note, at: float | None = None) -> None:
        """Take note of what happened at this time (of the clock); may raise and may wait, for an outlet tells it."""
        ...


class Traced(Protocol):
    """A span of an act that is under way."""

    @property
    def traceparent(self) -> str | None:
        """See `Activity`."""
        ...

    @property
    def context(self) -> Context | None:
        """See `Activity`."""
        ...

    @property
    def is_recording(self) -> bool:
        """Whether anybody will see it; if not, it need not be ended."""
        ...

    def leave(self) -> None:
        """The act is over; called where it was begun."""
        ...

    def end(self, failure: Failure | None) -> None:
        """End the span, at the time of `leave`; called by an outlet."""
        ...


class Tracer(Protocol):
    """Follows acts."""

    def start(self, act: Act) -> Traced | None:
        """Begin a span; none if nobody wants one."""
        ...


class Watch:
    """Implements `Probe`.

    quick: what only counts in memory, by name. slow: the tools. tracer: follows acts; its spans end behind an
    outlet called `traces`.
    """

    def __init__(
        self,
        slow: Mapping[str, Tool],
        quick: Mapping[str, Counting] | None = None,
        tracer: Tracer | None = None,
    ) -> None:
        self._quick = dict(quick or {})
        self._slow = [(Outlet(name), tool) for name, tool in slow.items()]
        self._tracer = tracer
        self._traces = Outlet("traces")
        self._raised: Counter[str] = Counter()
        self._caring: dict[type[Note], list[tuple[Outlet, Tool]]] = {}
        self._ask_again_at = 0.0

    def tell(self, note: Note) -> None:
        """See `Probe`."""
        for name, counting in self._quick.items():
            try:
                counting.tell(note)
            except Exception:  # noqa: BLE001  counted, and none of the flow's business
                self._raised[name] += 1
        caring = self._caring.get(type(note))
        if caring is None or time.monotonic() >= self._ask_again_at:
            caring = self._ask(type(note))
        if caring:
            at = time.time()
            for outlet, tool in caring:
                outlet.put(_in_context(tool, note, at) if isinstance(note, Published) else partial(tool.tell, note, at))

    def _ask(self, kind: type[Note]) -> list[tuple[Outlet, Tool]]:
        """Who cares for notes of a kind; whoever cannot say does not."""
        if time.monotonic() >= self._ask_again_at:
            self._caring = {}
            self._ask_again_at = time.monotonic() + _ASK_EVERY
        caring: list[tuple[Outlet, Tool]] = []
        for outlet, tool in self._slow:
            try:
                if tool.cares_for(kind):
                    caring.append((outlet, tool))
            except Exception:  # noqa: BLE001  as above
                self._raised[outlet.name] += 1
        self._caring[kind] = caring
        return caring

    def begin(self, act: Act) -> Activity:
        """See `Probe`."""
        traced: Traced | None = None
        if self._tracer is not None:
            try:
                traced = self._tracer.start(act)
            except Exception:  # noqa: BLE001  as above
                self._raised["traces"] += 1
        return TimedActivity(self.tell, act) if traced is None else _TracedActivity(self, act, traced)

    def troubles(self) -> dict[str, tuple[int, int]]:
        """By tool: how many notes were dropped, and how many failed."""
        outlets = [*(outlet for outlet, _ in self._slow), self._traces]
        counted = {outlet.name: (outlet.dropped, outlet.failed + self._raised[outlet.name]) for outlet in outlets}
        return counted | {name: (0, self._raised[name]) for name in self._quick}

    def flush(self, within: float) -> None:
        """Have everything told that can be, within this time."""
        deadline = time.monotonic() + within
        for outlet in (*(outlet for outlet, _ in self._slow), self._traces):
            outlet.flush(max(0.0, deadline - time.monotonic()))

    def end_span(self, traced: Traced, failure: Failure | None) -> None:
        """Have the span ended by its outlet."""
        self._guard("traces", traced.leave)
        if traced.is_recording:
            self._traces.put(partial(traced.end, failure))

    def _guard(self, name: str, call: Callable[[], object]) -> None:
        try:
            call()
        except Exception:  # noqa: BLE001  as above
            self._raised[name] += 1


def _in_context(tool: Tool, note: Note, at: float) -> Callable[[], None]:
    """In the context of whoever publishes: that is where a program keeps what it wants on every line of its log."""
    context = copy_context()
    return lambda: context.run(tool.tell, note, at)


class _TracedActivity(TimedActivity):
    """An act with a span."""

    __slots__ = ("_traced", "_watch")

    def __init__(self, watch: Watch, act: Act, traced: Traced) -> None:
        super().__init__(watch.tell, act, traced.traceparent, traced.context)
        self._watch = watch
        self._traced = traced

    def ended(self, failure: Failure | None) -> None:
        """End the span too."""
        self._watch.end_span(self._traced, failure)
        super().ended(failure)
