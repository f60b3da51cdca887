"""The watch: one probe for the flow, several tools behind it that know nothing of each other and cannot reach it.

Tools that only work in memory are told where it happens, or soon after. Tools that write, send or might hang are told
by an outlet's thread. Whatever raises is counted under its name and ignored; but what orders the process to end, as the
handler of a signal may at any moment, is left to do so.
"""

from __future__ import annotations

import os
import time
from asyncio import CancelledError
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, cast
from weakref import WeakSet

from spectral.core.events.infrastructure.observability.activities import (
    UNWATCHED,
    HandlerActivity,
    LeanActivity,
    TracedActivity,
    Unwatched,
)
from spectral.core.events.infrastructure.observability.gathered import Gathered
from spectral.core.events.infrastructure.observability.outlet import Outlet, is_in_outlet
from spectral.core.events.infrastructure.observability.slim import MUCH, slim
from spectral.core.events.infrastructure.observability.tools import Carried, Lean
from spectral.core.events.outcome import Handled
from spectral.core.events.probe import (
    Claimed,
    Failure,
    Finished,
    Handle,
    HandlerRan,
    Publish,
    Published,
    SettlementWritten,
    TimedActivity,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextvars import Context

    from spectral.core.events.infrastructure.observability.tools import (
        Begun,
        Closing,
        Counting,
        Tool,
        Traced,
        Tracer,
    )
    from spectral.core.events.probe import Act, Activity, Note


_ASK_EVERY: Final = 1.0
"""Seconds: a log may be configured, a provider set or Sentry initialised after the watch was made."""

_LONG: Final = 0.05
_LONG_IN_A_ROW: Final = 3
_REST: Final = 30.0
"""Seconds. Spans are begun in the flow, by whatever the program has hung into its provider: if that took so long so
often, no span is begun for a while. The first one after it is on trial."""

_SEVERAL: Final = 8
"""So many that were settled together are told at once."""

_RAISED: Final = (Exception, CancelledError)


class _Reader(NamedTuple):
    """A tool, and the way to it."""

    outlet: Outlet
    tool: Tool
    wants: Callable[[Note], bool] | None


class _Quick(NamedTuple):
    """How to tell a tool that works in memory."""

    name: str
    tell: Callable[[Note], None]
    tell_at: Callable[[Note, float], None] | None
    tell_many_at: Callable[[Sequence[Finished] | Sequence[HandlerRan], float], None] | None
    tell_published: Callable[[Sequence[tuple[Published, float]]], None] | None


class _Caring(NamedTuple):
    """Who is told of a kind of notes: at once, by name, and by outlets."""

    quick: tuple[_Quick, ...]
    slow: tuple[_Reader, ...]


_NOBODY: Final = _Caring((), ())


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
        self._slow = [
            _Reader(_outlet_for(name, tool), tool, getattr(tool, "wants", None)) for name, tool in slow.items()
        ]
        self._tracer = tracer
        self._start_many: Callable[[Sequence[Handle]], list[Begun] | None] = getattr(tracer, "start_many", _one_by_one)
        self._leave_many: Callable[[Sequence[Closing], Sequence[float]], Sequence[Closing]] = getattr(
            tracer, "leave_many", _leave_each
        )
        self._traces = Outlet("traces")
        self._raised: Counter[str] = Counter()
        self._caring: dict[type[Note], _Caring] = {}
        self._ask_again_at = 0.0
        self._long_starts = 0
        self._trace_again_at = 0.0
        self._unwatched_until = 0.0
        self._gathered = Gathered(self.catch_up)
        self._is_order_wanted = True  # of handlers that ran
        _watches.add(self)

    def tell(self, note: Note, span: Closing | None = None) -> None:
        """See `Probe`. The span is one of an act that went well, to be sent.

        What goes well is told with more of its kind: after a twentieth of a second, or when there is enough of it, or
        before anything else is. Where a handler has just been waited for, or a commit, nothing of all this is in the
        processor's caches, and takes several times as long as it does for many at once.
        """
        kind = type(note)
        if kind in _OFTEN and _went_well(note):
            if kind is Published and span is None and not any(self._who_cares(Published)):
                return  # most programs that publish have nobody who watches, and want no thread for it
            self._wait(note, span)
            return
        if self._gathered:
            self.catch_up()
        caring = self._who_cares(kind)
        # A log that publishes what it is told would be told of that, and so on for ever.
        self._tell(note, time.time(), _Caring(caring.quick, ()) if is_in_outlet() else caring)

    def tell_many(self, notes: Sequence[Finished]) -> None:
        """See `Probe`. They are many already, so no more are waited for; a few are told as if they came one by one."""
        if len(notes) < _SEVERAL:
            for note in notes:
                self.tell(note)
        else:
            self._gathered.add_heap(list(notes), time.time())

    def _wait(self, note: Note, span: Closing | None) -> None:
        """Have it told with others, soon or when there is enough of them."""
        try:
            kept = slim(note)
        except _RAISED:  # as below
            for reader in self._slow:
                self._raised[reader.outlet.name] += 1
            return
        self._gathered.add(kept, time.time(), span)

    def forget(self) -> None:
        """What waits to be told and what has failed, in the child of a fork: the parent tells it."""
        self._gathered.forget()
        self._raised.clear()

    def catch_up(self) -> None:
        """Tell of what has gathered, asking once who cares: it takes a moment, in which nobody changes his mind."""
        self._gathered.begin()
        heaps = self._gathered.take_ran()
        try:
            for ran, _ in heaps:
                if ran:
                    self._tell_all(ran, time.time(), self._who_cares(HandlerRan))
            self._tell_in_order()
        finally:
            for _, spans in heaps:
                if spans:
                    self._send(spans)

    def _tell_in_order(self) -> None:
        """Of the notes that are not of handlers, or of those too, if somebody wants to know when they ran."""
        ran: list[HandlerRan] = []
        of_handlers = _NOBODY
        try:
            for run in self._gathered.take_notes():
                kind = type(run[0][0])
                if kind is list:
                    for heap, at in run:
                        self._tell_all(cast("list[Finished]", heap), at, self._who_cares(Finished))
                    continue
                notes = cast("list[tuple[Note, float]]", run)
                if kind is Published:
                    self._tell_published(cast("list[tuple[Published, float]]", notes))
                    continue
                if kind is HandlerRan:  # those who take heaps have all of them at the end
                    if not ran:  # once, so that nobody is told of one twice, or not at all
                        of_handlers = self._who_cares(HandlerRan)
                    ran += [cast("HandlerRan", note) for note, _ in notes]
                    caring = _without_heaps(of_handlers)
                else:
                    caring = self._who_cares(cast("type[Note]", kind))
                if any(caring):
                    for note, at in notes:
                        self._tell(note, at, caring)
        finally:
            if ran:
                self._tell_heap(ran, time.time(), of_handlers)

    def _tell_published(self, notes: Sequence[tuple[Published, float]]) -> None:
        """Of publishes that went well, in their order: those who take them together, and of each one the others."""
        quick, slow = self._who_cares(Published)
        for each in quick:
            try:
                if each.tell_published is not None:
                    each.tell_published(notes)
            except _RAISED:  # counted, and none of the flow's business
                self._raised[each.name] += 1
        others = _Caring(tuple([each for each in quick if each.tell_published is None]), slow)
        if any(others):
            for note, at in notes:
                self._tell(note, at, others)

    def _tell_all(self, notes: Sequence[Finished] | Sequence[HandlerRan], at: float, caring: _Caring) -> None:
        """Of many that went well: at once those who take heaps, of each one the others who want any of them."""
        self._tell_heap(notes, at, caring)
        others = _without_heaps(caring)
        others = _Caring(others.quick, tuple([each for each in others.slow if self._wants_any(each, type(notes[0]))]))
        if any(others):
            for note in notes:
                self._tell(note, at, others)

    def _wants_any(self, reader: _Reader, kind: type[Note]) -> bool:
        """Whether it may want a note of something that went well; what it wants of each is asked then."""
        return self._cares(reader.outlet.name, getattr(reader.tool, "wants_well", None), kind)

    def _tell_heap(self, notes: Sequence[Finished] | Sequence[HandlerRan], at: float, caring: _Caring) -> None:
        """Tell those who take many at once."""
        for each in caring.quick:
            if each.tell_many_at is not None:
                try:
                    each.tell_many_at(notes, at)
                except _RAISED:  # as above
                    self._raised[each.name] += 1

    def _send(self, spans: Sequence[Closing]) -> None:
        try:
            if self._tracer is not None:
                self._tracer.send(spans)
        except _RAISED:  # counted, and none of the flow's business
            self._raised["traces"] += 1

    def _tell(self, note: Note, at: float, caring: _Caring) -> None:
        quick, slow = caring
        for name, tell, tell_at, *_ in quick:
            try:
                tell(note) if tell_at is None else tell_at(note, at)
            except _RAISED:  # as above
                self._raised[name] += 1
        if slow:
            self._hand_out(note, slow, at)

    def _hand_out(self, note: Note, caring: tuple[_Reader, ...], at: float) -> None:
        kept: Note | None = None
        for outlet, tool, wants in caring:
            try:
                if wants is None or wants(note):
                    kept = kept or slim(note)
                    within = kept.within if isinstance(kept, Published) else None
                    told = partial(tool.tell, kept, at)
                    # A copy for each: they may be told at the same time, and of a context only one thread can make use.
                    outlet.put(told if within is None else partial(within.copy().run, told))
            except _RAISED:  # as above
                self._raised[outlet.name] += 1

    def _who_cares(self, kind: type[Note]) -> _Caring:
        """As it was a second ago at most."""
        caring = self._caring.get(kind)
        return self._ask(kind) if caring is None or time.monotonic() >= self._ask_again_at else caring

    def _ask(self, kind: type[Note]) -> _Caring:
        """Who cares for notes of a kind; whoever cannot say does not."""
        if time.monotonic() >= self._ask_again_at:
            self._caring = {}
            self._ask_again_at = time.monotonic() + _ASK_EVERY
        quick = [
            _Quick(name, counting.tell, *(getattr(counting, way, None) for way in _Quick._fields[2:]))
            for name, counting in self._quick.items()
            if self._cares(name, getattr(counting, "cares_for", None), kind)
        ]
        slow = [reader for reader in self._slow if self._cares(reader.outlet.name, reader.tool.cares_for, kind)]
        counting = [
            reader for reader in slow if self._cares(reader.outlet.name, partial(_only_counts, reader.tool), kind)
        ]
        quick += [
            _Quick(outlet.name, tool.tell, tool.tell, *(getattr(tool, way, None) for way in _Quick._fields[3:]))
            for outlet, tool, _ in counting
        ]
        slow = [reader for reader in slow if reader not in counting]
        caring = self._caring[kind] = _Caring(tuple(quick), tuple(slow))
        if kind is HandlerRan:
            self._is_order_wanted = any(_without_heaps(caring))
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
        if began < self._unwatched_until and type(act) is Handle and act.delivery.trace_context is None:
            return UNWATCHED
        if self._tracer is None or began < self._trace_again_at or (type(act) is Publish and is_in_outlet()):
            return self._timed(act, began)
        activity: Activity | None = None
        try:
            traced = self._tracer.start(act)
            # Nobody else has had a say in the first two, so they took no time.
            if isinstance(traced, Lean):
                traceparent, context, span, go_back = traced
                return LeanActivity(self, act, began, traceparent, context, span, go_back)
            if isinstance(traced, Carried):
                return self._timed(act, began, traced.traceparent, traced.context)
            if traced is not None:
                activity = TracedActivity(self, act, traced)
            elif type(act) is Handle and act.delivery.trace_context is None and not any(self._who_cares(HandlerRan)):
                self._unwatched_until = self._ask_again_at  # so it is with all that have none, until somebody is asked
        except _RAISED:  # as above
            self._raised["traces"] += 1
        seconds = time.monotonic() - began
        if seconds > _LONG or self._long_starts:
            self._started_within(seconds)
        return self._timed(act, began) if activity is None else activity

    def begin_many(self, acts: Sequence[Handle]) -> list[Activity]:
        """See `Probe`."""
        began = time.monotonic()
        started: list[Begun] | None = None
        if began >= self._trace_again_at:
            try:
                started = self._start_many(acts)
            except _RAISED:  # as above
                self._raised["traces"] += 1
        if started is None:
            return [self.begin(act) for act in acts]
        return [
            self._timed(act, began, traceparent, context)
            if span is None
            else LeanActivity(self, act, began, traceparent, context, span)
            for act, (traceparent, context, span) in zip(acts, started, strict=True)
        ]

    def _timed(
        self, act: Act, began: float, traceparent: str | None = None, context: Context | None = None
    ) -> Activity:
        """Without a span: by the clock, unless it is a handler and nobody counts those or looks closely."""
        if type(act) is not Handle:
            return TimedActivity(self.tell, act, traceparent, context)
        caring = self._caring.get(HandlerRan)
        if caring is None or began >= self._ask_again_at:
            caring = self._ask(HandlerRan)
        if caring.quick or caring.slow:
            return HandlerActivity(self, act, began, (traceparent, context))
        return UNWATCHED if traceparent is None and context is None else Unwatched(traceparent, context)

    def _started_within(self, seconds: float) -> None:
        """Count what took too long, and have no more of it if that goes on."""
        if seconds <= _LONG:
            self._long_starts = 0
            return
        self._raised["traces"] += 1
        self._long_starts += 1
        if self._long_starts >= _LONG_IN_A_ROW:
            self._trace_again_at = time.monotonic() + _REST

    def count_with(self, name: str, counting: Counting) -> None:
        """From now on this is told too."""
        self._quick = {**self._quick, name: counting}  # anew, for another thread may go through it
        self._ask_again_at = 0.0

    def count_without(self, name: str) -> None:
        """From now on it is not, if it was."""
        self._quick = {known: counting for known, counting in self._quick.items() if known != name}
        self._ask_again_at = 0.0

    def troubles(self) -> dict[str, tuple[int, int]]:
        """By tool: how many notes were dropped, and how many failed."""
        counted = {
            outlet.name: (outlet.dropped, outlet.failed + self._raised[outlet.name]) for outlet in self._outlets()
        }
        return counted | {name: (0, self._raised[name]) for name in self._quick}

    def flush(self, within: float) -> bool:
        """Have everything told that can be, within this time; false if something is left."""
        deadline = time.monotonic() + within
        self.catch_up()
        # First that: its thread may have a note in its hand.
        flushed = [
            outlet.flush(max(0.0, deadline - time.monotonic())) for outlet in (self._gathered.outlet, *self._outlets())
        ]
        return all(flushed)

    def _outlets(self) -> list[Outlet]:
        return [*(reader.outlet for reader in self._slow), self._traces]

    def end_lean(self, span: Closing, failure: Failure | None, seconds: float) -> Closing | None:
        """Have it ended by its outlet; or it is to be sent."""
        try:
            if span.leave(failure, seconds):
                return span
            self._traces.put(partial(span.finish, failure))
        except _RAISED:  # as above
            self._raised["traces"] += 1
        return None

    def go_back(self, there: Callable[[], None]) -> None:
        """To what was current before a span that has ended."""
        try:
            there()
        except _RAISED:  # as above
            self._raised["traces"] += 1

    def ran_well(self, act: Handle, seconds: float, traceparent: str | None, span: Closing | None) -> None:
        """A handler has; tell it as `tell` would, without what that has to find out."""
        # As `HandlerRan(...)`, without the call in between.
        note: HandlerRan = tuple.__new__(HandlerRan, (act, seconds, None, traceparent))  # pyright: ignore[reportUnknownMemberType]
        if self._is_order_wanted or len(act.delivery.payload) > MUCH:
            self._wait(note, span)
        else:
            self._gathered.add_ran(note, span)

    def end_many(self, activities: Sequence[Activity]) -> None:
        """See `Probe`."""
        if self._is_order_wanted:
            for activity in activities:
                activity.end()
            return
        ran: list[HandlerRan] = []
        spans: list[Closing] = []
        seconds: list[float] = []
        for activity in activities:
            if type(activity) is LeanActivity or type(activity) is HandlerActivity:
                activity.end_among(ran, spans, seconds)
            else:
                activity.end()
        self._gathered.add_many_ran(ran, self._to_be_sent(spans, seconds) if spans else spans)

    def _to_be_sent(self, spans: Sequence[Closing], seconds: Sequence[float]) -> Sequence[Closing]:
        """Those that may be sent; the others are ended by their outlet."""
        try:
            others = self._leave_many(spans, seconds)
            for span in others:
                self._traces.put(partial(span.finish, None))
            if not others:
                return spans
            theirs = {id(span) for span in others}
            return [span for span in spans if id(span) not in theirs]
        except _RAISED:  # as above
            self._raised["traces"] += 1
            return ()

    def leave_span(self, traced: Traced) -> None:
        """Have it know that its act is over."""
        try:
            traced.leave()
        except _RAISED:  # as above
            self._raised["traces"] += 1

    def end_span(self, traced: Traced, failure: Failure | None) -> None:
        """Have the span ended by its outlet."""
        try:
            if traced.is_recording:
                self._traces.put(partial(traced.end, failure))
        except _RAISED:  # as above
            self._raised["traces"] += 1


_OFTEN: Final = frozenset({HandlerRan, Finished, Published, SettlementWritten, Claimed})
"""What a busy worker tells all the time."""


def _went_well(note: Note) -> bool:
    if isinstance(note, Published):
        return note.failure is None and not is_in_outlet()
    if isinstance(note, HandlerRan):
        return note.failure is None
    return not isinstance(note, Finished) or type(note.outcome) is Handled


def _without_heaps(caring: _Caring) -> _Caring:
    """Those who are told of one note at a time."""
    return _Caring(tuple([each for each in caring.quick if each.tell_many_at is None]), caring.slow)


def _one_by_one(_: Sequence[Handle]) -> None:
    """For tracers that know of no heaps."""


def _leave_each(spans: Sequence[Closing], seconds: Sequence[float]) -> list[Closing]:
    """The same."""
    return [span for span, took in zip(spans, seconds, strict=True) if not span.leave(None, took)]


def _outlet_for(name: str, tool: Tool) -> Outlet:
    return Outlet(name, gather=getattr(tool, "gather", None))


def _only_counts(tool: Tool, _: type[Note]) -> bool:
    return getattr(tool, "only_counts", False) is True


_watches: Final[WeakSet[Watch]] = WeakSet()


def _after_fork() -> None:
    for watch in list(_watches):
        watch.forget()


os.register_at_fork(after_in_child=_after_fork)
