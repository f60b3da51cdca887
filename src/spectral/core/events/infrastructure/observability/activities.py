"""Acts that are under way, as the watch follows them: by the clock, with a span, or for nobody.

What ends well is told by the watch with more of its kind; what fails, at once.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from spectral.core.events.infrastructure.observability.slim import MUCH
from spectral.core.events.probe import UNDONE, Failure, Handle, HandlerRan, Published, TimedActivity

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

    from spectral.core.events.infrastructure.observability.tools import Closing, Traced
    from spectral.core.events.infrastructure.observability.watch import Watch
    from spectral.core.events.probe import Act


class Unwatched:
    """Implements `Activity` for handlers whose end is told to nobody."""

    __slots__ = ("context", "traceparent")

    def __init__(self, traceparent: str | None = None, context: Context | None = None) -> None:
        self.traceparent = traceparent
        self.context = context

    def leave(self) -> None:
        """See `Activity`."""

    def end(self, error: BaseException | None = None) -> None:
        """See `Activity`."""

    def undo(self, error: BaseException | None = None) -> None:
        """See `Activity`."""


UNWATCHED: Final = Unwatched()


def _undone(act: Act, error: BaseException | None) -> Failure:
    return UNDONE if error is None else Failure.of_act(act, error, is_charged=False)


class TracedActivity(TimedActivity):
    """An act with a span."""

    __slots__ = ("_traced", "_watch")

    def __init__(self, watch: Watch, act: Act, traced: Traced) -> None:
        super().__init__(watch.tell, act, traced.traceparent, traced.context)
        self._watch = watch
        self._traced = traced

    def leave(self) -> None:
        """See `Activity`."""
        super().leave()
        self._watch.leave_span(self._traced)

    def ended(self, failure: Failure | None) -> None:
        """End the span too."""
        if self._seconds is None:
            self.leave()
        self._watch.end_span(self._traced, failure)
        super().ended(failure)

    def undo(self, error: BaseException | None = None) -> None:
        """See `Activity`."""
        if self._seconds is None:
            self.leave()
        self._watch.end_span(self._traced, _undone(self._act, error))


class HandlerActivity:
    """A handler whose end is told, without a span."""

    __slots__ = ("_act", "_began", "_seconds", "_watch", "context", "traceparent")

    def __init__(self, watch: Watch, act: Handle, began: float, within: tuple[str | None, Context | None]) -> None:
        self._watch = watch
        self._act = act
        self._began = began
        self._seconds: float | None = None
        self.traceparent, self.context = within

    def leave(self) -> None:
        """See `Activity`."""
        self._seconds = time.monotonic() - self._began

    def undo(self, error: BaseException | None = None) -> None:
        """See `Activity`."""

    def end_among(self, ran: list[HandlerRan], _: list[Closing], __: list[float]) -> None:
        """It has ended well after it was left, among many."""
        if self._seconds is None or len(self._act.delivery.payload) > MUCH:
            self.end()
            return
        # As `HandlerRan(...)`, without the call in between.
        ran.append(tuple.__new__(HandlerRan, (self._act, self._seconds, None, self.traceparent)))  # pyright: ignore[reportUnknownMemberType]

    def end(self, error: BaseException | None = None) -> None:
        """See `Activity`."""
        seconds = time.monotonic() - self._began if self._seconds is None else self._seconds
        if error is None:
            self._watch.ran_well(self._act, seconds, self.traceparent, None)
            return
        failure = Failure.of_act(self._act, error)
        self._watch.tell(HandlerRan(self._act, seconds, failure, self.traceparent))


class LeanActivity:
    """An act with a span that is easily ended."""

    __slots__ = ("_act", "_began", "_go_back", "_seconds", "_span", "_watch", "context", "traceparent")

    def __init__(  # noqa: PLR0913, PLR0917  made for each event
        self,
        watch: Watch,
        act: Act,
        began: float,
        traceparent: str | None,
        context: Context | None,
        span: Closing,
        go_back: Callable[[], None] | None = None,
    ) -> None:
        self._watch = watch
        self._act = act
        self._began = began
        self._seconds: float | None = None
        self._span = span
        self._go_back = go_back
        self.traceparent = traceparent
        self.context = context

    def leave(self) -> None:
        """See `Activity`."""
        self._seconds = time.monotonic() - self._began
        if self._go_back is not None:
            self._watch.go_back(self._go_back)

    def undo(self, error: BaseException | None = None) -> None:
        """See `Activity`."""
        failure = _undone(self._act, error)
        self._watch.end_lean(self._span, failure, self._seconds or time.monotonic() - self._began)

    def end_among(self, ran: list[HandlerRan], spans: list[Closing], seconds: list[float]) -> None:
        """It has ended well after it was left, among many."""
        act, took = self._act, self._seconds
        if type(act) is not Handle or took is None or len(act[0][8]) > MUCH:  # its payload
            self.end()
            return
        spans.append(self._span)
        seconds.append(took)
        # As `HandlerRan(...)`, without the call in between.
        ran.append(tuple.__new__(HandlerRan, (act, took, None, self.traceparent)))  # pyright: ignore[reportUnknownMemberType]

    def end(self, error: BaseException | None = None) -> None:
        """See `Activity`."""
        if self._seconds is None:
            self.leave()
        watch, act, seconds = self._watch, self._act, self._seconds or 0.0
        failure = None if error is None else Failure.of_act(act, error)
        span = watch.end_lean(self._span, failure, seconds)
        if isinstance(act, Handle):
            if failure is None:
                watch.ran_well(act, seconds, self.traceparent, span)
            else:
                self.traceparent = self._span.traceparent  # whoever reports it names its span
                watch.tell(HandlerRan(act, seconds, failure, self.traceparent), span)
        else:
            watch.tell(Published(act, seconds, failure, self.traceparent), span)
