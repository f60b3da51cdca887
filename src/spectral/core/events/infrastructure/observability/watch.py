"""The watch: one probe for the flow, several tools behind it that know nothing of each other and cannot reach it.

Tools that only work in memory are told at once. Tools that write, send or might hang are told by an outlet's thread.
Whatever raises is counted under its name and ignored; but what orders the process to end, as the handler of a signal
may at any moment, is left to do so.
"""

from __future__ import annotations

import time
from asyncio import CancelledError
from collections import Counter
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from spectral.core.events import probe
from spectral.core.events.infrastructure.observability.outlet import Outlet, is_in_outlet
from spectral.core.events.probe import EventRef, Finished, HandlerRan, Publish, Published, TimedActivity

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextvars import Context

    from spectral.core.events.envelope import EventEnvelope
    from spectral.core.events.lease import Delivery
    from spectral.core.events.probe import Act, Activity, Failure, Note


_ASK_EVERY: Final = 1.0
"""Seconds: a log may be configured, a provider set or Sentry initialised after the watch was made."""

_LONG: Final = 0.05
_LONG_IN_A_ROW: Final = 3
_REST: Final = 30.0
"""Seconds. Spans are begun in the flow, by whatever the program has hung into its provider: if that took so long so
often, no span is begun for a while. The first one after it is on trial."""

_MUCH: Final = 2_048
"""Characters of a payload that are not worth a copy to be rid of."""

_RAISED: Final = (Exception, CancelledError)
_OF_A_DELIVERY: Final = (probe.LeaseWasLost, probe.SettleGivenUp, probe.HandlerRanAway, probe.Quarantined)


class Counting(Protocol):
    """Takes notes in memory: counts them, or makes a line of one.

    It may have a `cares_for(kind) -> bool` too, as a `Tool` has.
    """

    def tell(self, note: Note) -> None:
        """Take note, at once."""
        ...


class Tool(Protocol):
    """Takes notes in its own time.

    It may have a `wants(note) -> bool` too: whether it would do anything about this one. That is asked in the flow, of
    each note of a kind it cares for, so it must be quick; what it does not want is not queued.
    """

    def cares_for(self, kind: type[Note]) -> bool:
        """Whether it would do anything about notes of this kind, as things stand; asked about once a second."""
        ...

    def tell(self, note: Note, at: float | None = None) -> None:
        """Take note of what happened at this time (of the clock); may raise and may wait, for an outlet tells it.

        The note says nothing of what is in an event: it may be a copy without the payload.
        """
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


class Carried(NamedTuple):
    """In place of a span that nobody would see: what the act came with, to be handed on. There is nothing to end."""

    traceparent: str | None
    context: Context | None


class Tracer(Protocol):
    """Follows acts."""

    def start(self, act: Act) -> Traced | Carried | None:
        """Begin a span; none if nobody wants one."""
        ...


class _Reader(NamedTuple):
    """A tool, and the way to it."""

    outlet: Outlet
    tool: Tool
    wants: Callable[[Note], bool] | None


class _Caring(NamedTuple):
    """Who is told of a kind of notes: at once, by name, and by outlets."""

    quick: tuple[tuple[str, Callable[[Note], None]], ...]
    slow: tuple[_Reader, ...]


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
        self._slow = [_Reader(Outlet(name), tool, getattr(tool, "wants", None)) for name, tool in slow.items()]
        self._tracer = tracer
        self._traces = Outlet("traces")
        self._raised: Counter[str] = Counter()
        self._caring: dict[type[Note], _Caring] = {}
        self._ask_again_at = 0.0
        self._long_starts = 0
        self._trace_again_at = 0.0

    def tell(self, note: Note) -> None:
        """See `Probe`."""
        kind = type(note)
        caring = self._caring.get(kind)
        if caring is None or time.monotonic() >= self._ask_again_at:
            caring = self._ask(kind)
        for name, tell in caring.quick:
            try:
                tell(note)
            except _RAISED:  # counted, and none of the flow's business
                self._raised[name] += 1
        # A log that publishes what it is told would be told of that, and so on for ever.
        if caring.slow and not is_in_outlet():
            self._hand_out(note, caring.slow)

    def _hand_out(self, note: Note, caring: tuple[_Reader, ...]) -> None:
        at = time.time()
        slim: Note | None = None
        for outlet, tool, wants in caring:
            try:
                if wants is None or wants(note):
                    slim = slim or _slim(note)
                    of_a_publish = isinstance(note, Published)
                    outlet.put(_in_context(tool, slim, at) if of_a_publish else partial(tool.tell, slim, at))
            except _RAISED:  # as above
                self._raised[outlet.name] += 1

    def _ask(self, kind: type[Note]) -> _Caring:
        """Who cares for notes of a kind; whoever cannot say does not."""
        if time.monotonic() >= self._ask_again_at:
            self._caring = {}
            self._ask_again_at = time.monotonic() + _ASK_EVERY
        quick = [
            (name, counting.tell)
            for name, counting in self._quick.items()
            if self._cares(name, getattr(counting, "cares_for", None), kind)
        ]
        slow = [reader for reader in self._slow if self._cares(reader.outlet.name, reader.tool.cares_for, kind)]
        caring = self._caring[kind] = _Caring(tuple(quick), tuple(slow))
        return caring

    def _cares(self, name: str, ask: Callable[[type[Note]], bool] | None, kind: type[Note]) -> bool:
        try:
            return ask is None or ask(kind)
        except _RAISED:  # as above
            self._raised[name] += 1
            return False

    def begin(self, act: Act) -> Activity:
        """See `Probe`."""
        began = time.monotonic()
        if self._tracer is None or began < self._trace_again_at or is_in_outlet():
            return TimedActivity(self.tell, act)
        activity: Activity | None = None
        try:
            traced = self._tracer.start(act)
            if isinstance(traced, Carried):
                activity = TimedActivity(self.tell, act, traced.traceparent, traced.context)
            elif traced is not None:
                activity = _TracedActivity(self, act, traced)
        except _RAISED:  # as above
            self._raised["traces"] += 1
        seconds = time.monotonic() - began
        if seconds > _LONG or self._long_starts:
            self._started_within(seconds)
        return activity or TimedActivity(self.tell, act)

    def _started_within(self, seconds: float) -> None:
        """Count what took too long, and have no more of it if that goes on."""
        if seconds <= _LONG:
            self._long_starts = 0
            return
        self._raised["traces"] += 1
        self._long_starts += 1
        if self._long_starts >= _LONG_IN_A_ROW:
            self._trace_again_at = time.monotonic() + _REST

    def troubles(self) -> dict[str, tuple[int, int]]:
        """By tool: how many notes were dropped, and how many failed."""
        counted = {
            outlet.name: (outlet.dropped, outlet.failed + self._raised[outlet.name]) for outlet in self._outlets()
        }
        return counted | {name: (0, self._raised[name]) for name in self._quick}

    def flush(self, within: float) -> bool:
        """Have everything told that can be, within this time; false if something is left."""
        deadline = time.monotonic() + within
        flushed = [outlet.flush(max(0.0, deadline - time.monotonic())) for outlet in self._outlets()]
        return all(flushed)

    def _outlets(self) -> list[Outlet]:
        return [*(reader.outlet for reader in self._slow), self._traces]

    def end_span(self, traced: Traced, failure: Failure | None) -> None:
        """Have the span ended by its outlet."""
        try:
            traced.leave()
        except _RAISED:  # as above
            self._raised["traces"] += 1
        try:
            if traced.is_recording:
                self._traces.put(partial(traced.end, failure))
        except _RAISED:  # as above
            self._raised["traces"] += 1


def _in_context(tool: Tool, note: Note, at: float) -> Callable[[], None]:
    """In the context of whoever publishes: that is where a program keeps what it wants on every line of its log."""
    context = copy_context()
    return lambda: context.run(tool.tell, note, at)


def _slim(note: Note) -> Note:
    """The note as it may wait: ten thousand of them, with their payloads, would be gigabytes."""
    if isinstance(note, Published):
        # Always, for the size of a payload is not known here, and it is the publisher's to change or to let go.
        return replace(note, act=Publish([_ref(envelope) for envelope in note.act.envelopes], note.act.generation))
    if isinstance(note, HandlerRan):
        delivery = note.act.delivery
        return note._replace(act=note.act._replace(delivery=_without(delivery))) if _is_much(delivery) else note
    if isinstance(note, Finished):
        return note._replace(delivery=_without(note.delivery)) if _is_much(note.delivery) else note
    if isinstance(note, _OF_A_DELIVERY) and _is_much(note.delivery):
        return replace(note, delivery=_without(note.delivery))
    return note


def _ref(event: EventEnvelope | EventRef) -> EventRef:
    return EventRef(
        event.event_id, event.event_type, event.source, event.target, event.workspace_id, event.trace_context
    )


def _is_much(delivery: Delivery) -> bool:
    return len(delivery.payload) > _MUCH


def _without(delivery: Delivery) -> Delivery:
    return delivery._replace(payload="")


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
