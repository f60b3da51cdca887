"""What has gone well and waits to be told with more of its kind, and when it is.

That is when there is enough of it: then soon, by the loop that it came from, as soon as whoever told it has to wait for
something. Their next statement is on its way by then, and what is written of the last one costs nobody any time. Where
there is no loop it is at once; and however little there is, after a twentieth of a second or two, by a thread.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from spectral.core.events.infrastructure.observability.outlet import Outlet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from spectral.core.events.infrastructure.observability.tools import Closing
    from spectral.core.events.probe import Finished, HandlerRan, Note

T = TypeVar("T")

MANY: Final = 128
"""So many notes of events that go well wait to be told: of each there are two."""

_TOO_MANY: Final = 20 * MANY
"""So many do not wait for the loop."""


class Gathered:
    """Notes, in their order, each with its time; handlers that ran, which are of no order; and spans to be sent.

    catch_up: has all of it told. It says first that it does, by `begin`, and then looks: what is added after that is
    seen to anew.
    """

    def __init__(self, catch_up: Callable[[], None]) -> None:
        self._catch_up = catch_up
        self.outlet: Final = Outlet("many")
        self.notes: deque[tuple[Note | list[Finished], float]] = deque()
        self._ran: deque[HandlerRan] = deque()
        self._spans: deque[Closing] = deque()
        self._heaps: deque[tuple[Sequence[HandlerRan], Sequence[Closing]]] = deque()
        self._in_heaps = 0  # about: what is told by two threads at once may count for nothing
        self._is_seen_to = self._is_soon = self._is_told = False

    def __bool__(self) -> bool:
        return bool(self.notes or self._ran or self._spans or self._heaps)

    def add(self, note: Note, at: float, span: Closing | None) -> None:
        """A note, and the span of its act if that is to be sent."""
        if span is not None:
            self._spans.append(span)
        self.notes.append((note, at))
        self._see_to_it(is_enough=len(self.notes) >= MANY)

    def add_heap(self, notes: list[Finished], at: float) -> None:
        """Many of a kind, which are enough."""
        self.notes.append((notes, at))
        self._see_to_it(is_enough=True)

    def add_ran(self, note: HandlerRan, span: Closing | None) -> None:
        """A handler that ran, told to nobody who wants to know in which order."""
        if span is not None:
            self._spans.append(span)
        self._ran.append(note)
        if not self._is_seen_to or len(self._ran) >= MANY:
            self._see_to_it(is_enough=len(self._ran) >= MANY)

    def add_many_ran(self, notes: Sequence[HandlerRan], spans: Sequence[Closing]) -> None:
        """Handlers that ran, and their spans, which need be no more than they are."""
        self._heaps.append((notes, spans))
        self._in_heaps += len(notes)
        self._see_to_it(is_enough=self._in_heaps >= MANY)

    def _see_to_it(self, *, is_enough: bool) -> None:
        if not self._is_seen_to:
            self._is_seen_to = True
            try:
                self.outlet.put(self._look)
            except BaseException:  # the handler of a signal may raise anywhere
                self._is_seen_to = False
                raise
        elif not self.outlet.has_thread:
            self.outlet.try_again()
        if not is_enough:
            return
        if not self._is_soon:
            # First, for what raises here must not keep anybody from trying it again.
            loop = _running_loop()
            if loop is not None:
                self._is_soon = True
                loop.call_soon(self._catch_up)
                return
        elif max(len(self.notes), len(self._ran), self._in_heaps) < _TOO_MANY:
            return
        self._catch_up()

    def _look(self) -> None:
        """By the outlet: as long as a loop tells of it all by itself, nobody else has to."""
        if self._is_told and self:
            self._is_told = False
            self.outlet.put(self._look)
            return
        self._is_seen_to = False  # first, as above
        if self:
            self._catch_up()

    def begin(self) -> None:
        """Whatever there is now is told."""
        self._in_heaps = 0
        self._is_soon = False
        self._is_told = True

    def take_notes(self) -> Iterator[list[tuple[Note | list[Finished], float]]]:
        """Those that nobody else has taken, in their order: such of a kind together as come one after the other."""
        run: list[tuple[Note | list[Finished], float]] = []
        with suppress(IndexError):  # that was all, or another thread is at it
            while True:
                told = self.notes.popleft()
                if run and type(told[0]) is not type(run[0][0]):
                    yield run
                    run = []
                run.append(told)
        if run:
            yield run

    def take_ran(self) -> list[tuple[Sequence[HandlerRan], Sequence[Closing]]]:
        """Those that nobody else has taken, and spans: in the heaps that they came in, and at last all others."""
        taken = _all(self._heaps)
        ran, spans = _all(self._ran), _all(self._spans)
        if ran or spans:
            taken.append((ran, spans))
        return taken

    def forget(self) -> None:
        """All of it, in the child of a fork: the parent tells it."""
        self.notes.clear()
        self._ran.clear()
        self._spans.clear()
        self._heaps.clear()
        self._in_heaps = 0
        self._is_seen_to = self._is_soon = self._is_told = False


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _all(queue: deque[T]) -> list[T]:
    """Whatever is in it, each taken by one thread."""
    taken: list[T] = []
    with suppress(IndexError):  # that was all; what was taken before is kept
        taken.extend(iter(queue.popleft, None))
    return taken
