"""What watches, as the watch sees it: what counts, what is told, and what follows acts."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextvars import Context

    from spectral.core.events.probe import Act, Failure, Note


class Counting(Protocol):
    """Takes notes in memory: counts them, or makes a line of one.

    It may have a `cares_for(kind) -> bool` too, as a `Tool` has, a `tell_at(note, at)` if it wants to know when, and a
    `tell_many_at(notes, at)` for many notes of a kind at once, of deliveries or of handlers that went well; and a
    `tell_published(notes)` for many publishes that did, each with its time.
    """

    def tell(self, note: Note) -> None:
        """Take note, without waiting for anything."""
        ...


class Tool(Protocol):
    """Takes notes in its own time.

    It may have a `wants(note) -> bool` too: whether it would do anything about this one. That is asked in the flow, of
    each note of a kind it cares for, so it must be quick; what it does not want is not queued. And it may say that it
    `only_counts`, as things stand: then it is told as whatever is `Counting` is, without an outlet, by its
    `tell_many_at` and `tell_published` too if it has them. By `wants_well(kind) -> bool` it may say, once for many of
    them, whether it would do anything about a delivery or a handler that went well. `gather`: for how many seconds
    notes wait for more of them at the most, if it is told seldom and should not be late.
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
        """End the span, at the time of `leave`, failed, `UNDONE` or well; called by an outlet."""
        ...


class Closing(Protocol):
    """What ends a lean span."""

    @property
    def traceparent(self) -> str:
        """What names it to others."""
        ...

    def leave(self, failure: Failure | None, seconds: float) -> bool:
        """The act is over, after so long; true if its tracer may send it now, else an outlet has to `finish` it."""
        ...

    def finish(self, failure: Failure | None) -> None:
        """End the span, at the time of `leave`."""
        ...


class Carried(NamedTuple):
    """In place of a span that nobody would see: what the act came with, to be handed on. There is nothing to end."""

    traceparent: str | None
    context: Context | None


class Lean(NamedTuple):
    """A span that mostly needs no outlet to be ended.

    go_back: to what was current before it; called where it was begun. None: nothing else has become so.
    """

    traceparent: str | None
    context: Context | None
    span: Closing
    go_back: Callable[[], None] | None = None


Begun: TypeAlias = "tuple[str | None, Context | None, Closing | None]"
"""As `Lean`, with nothing to go back to; or as `Carried`, without a span."""


class Tracer(Protocol):
    """Follows acts.

    It may have a `start_many(acts)` too, for handlers that begin together: each of them `Begun`, or none if that is
    not all there is; then it is asked for each. And then a `leave_many(spans, seconds)`, as `leave` of each, when their
    acts have gone well and taken so long: it answers those that have to be finished.
    """

    def start(self, act: Act) -> Traced | Carried | Lean | None:
        """Begin a span; none if nobody wants one."""
        ...

    def send(self, spans: Sequence[Closing]) -> None:
        """Have lean spans of its own sent, some time; waits for nothing."""
        ...
