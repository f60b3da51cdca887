"""What the flow tells whoever watches: one port, the acts it may follow, and a closed sum of notes it may be told.

A note carries names, counts and times, and errors as they may be kept; never a payload. A probe must not raise and must
not wait; `Probe` adapters see to that, the flow does not look. What a busy worker makes for every event is a tuple: a
frozen dataclass takes twice as long to make.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from spectral.core.events.conceal import MAX_PAYLOAD, UNKNOWN
from spectral.core.events.describe import describe
from spectral.core.events.failure import ConfigurationError, PublishError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextvars import Context
    from datetime import timedelta
    from uuid import UUID

    from spectral.core.events.envelope import EventEnvelope
    from spectral.core.events.lease import Delivery
    from spectral.core.events.outcome import Outcome


class EventRef(NamedTuple):
    """What names an event, without what is in it: what is left of an envelope where notes wait to be read."""

    event_id: UUID
    event_type: str
    source: str
    target: str | None
    workspace_id: UUID | None
    trace_context: str | None


class RowRef(NamedTuple):
    """A row and the event that it delivers; they have one id, but for a context's own row of a broadcast."""

    row_id: UUID
    event: EventRef


# acts, which last and within which others happen


class Publish(NamedTuple):
    """Events are written into the caller's transaction; whether that commits is not known here."""

    envelopes: Sequence[EventEnvelope | EventRef]
    generation: int


class Handle(NamedTuple):
    """A handler runs."""

    delivery: Delivery
    handler_name: str


Act: TypeAlias = Publish | Handle


class Failure(NamedTuple):
    """An error as it may be kept and shown: its class, and one line without contents or credentials.

    is_charged: to its event; else it is run again, as if it had not been run.
    """

    kind: str
    text: str
    is_charged: bool = True

    @classmethod
    def of(cls, error: BaseException, payload: str | None = None, *, is_charged: bool = True) -> Failure:
        """What may be kept of an error, which may quote this payload."""
        return cls(type(error).__name__, describe(error, payload=payload), is_charged)

    @classmethod
    def of_act(cls, act: Act, error: BaseException, *, is_charged: bool = True) -> Failure:
        """What may be kept of an error that an act ended in, which may quote what its events carry."""
        payload = act.delivery.payload if isinstance(act, Handle) else _payloads_beside(act, error)
        return cls.of(error, payload, is_charged=is_charged)


UNDONE: Final = Failure("undone", "what it did is not known to be kept", is_charged=False)
"""In place of a failure, where a span ends: a handler ended in a transaction that is not known to be committed."""


def _payloads_beside(act: Publish, error: BaseException) -> str | None:
    """What a publish carries, as JSON; none where the words of its error are our own, which quote nothing of it.

    More than can be looked through, if that is so or cannot be known: then the error's message is withheld.
    """
    # Not those that somebody has derived from them.
    if isinstance(error, PublishError | ConfigurationError) and type(error).__module__ == PublishError.__module__:
        return None
    found: list[str] = []
    length = 0
    try:
        for each in act.envelopes:
            if length <= MAX_PAYLOAD and not isinstance(each, EventRef):
                found.append(json.dumps(each.payload, ensure_ascii=False))
                length += len(found[-1])
    except Exception:  # noqa: BLE001  it is the caller's, and may be anything by now
        return UNKNOWN
    return f"[{', '.join(found)}]"


# notes, of what has happened


class Published(NamedTuple):
    """A publish has ended; `failure` if it was refused. `traceparent` is what rows get that have none of their own.

    within: where it was published, for there a program keeps what it wants on every line of its log; none: here.
    """

    act: Publish
    seconds: float
    failure: Failure | None
    traceparent: str | None
    within: Context | None = None


class HandlerRan(NamedTuple):
    """A handler has ended, well or not; what becomes of its event is another note.

    Of one that wrote in a transaction it is told when that is over: that it ran well, if what it wrote was committed.
    If that was not, through no fault of its own, nothing is told; it is run again.
    """

    act: Handle
    seconds: float
    failure: Failure | None
    traceparent: str | None


@dataclass(frozen=True, slots=True)
class Claimed:
    """Rows of a context were claimed; `seconds` is what the claim of all contexts took."""

    context: str
    rows: int
    seconds: float
    deaf: bool


@dataclass(frozen=True, slots=True)
class SettlementWritten:
    """What became of so many rows was written in one transaction, in a lane or by the settler."""

    rows: int
    seconds: float


class Finished(NamedTuple):
    """A delivery was settled; `handlers` are those that ran now, for so many seconds.

    ack_seconds: from the moment it was due to the moment it was settled. traceparent: of the handler that ran last.
    """

    delivery: Delivery
    outcome: Outcome
    handlers: tuple[str, ...]
    seconds: float
    ack_seconds: float = 0.0
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class LeaseWasLost:
    """A delivery's claim was taken away before it was settled; nothing of it was kept."""

    delivery: Delivery


@dataclass(frozen=True, slots=True)
class LeftInDoubt:
    """What became of a delivery was sent, and the worker has ended before it knew whether that stands."""

    delivery: Delivery


@dataclass(frozen=True, slots=True)
class SettleGivenUp:
    """The outcome of a delivery could not be written; the reaper will take it back."""

    delivery: Delivery
    error: str


class DeadRow(NamedTuple):
    """A row that went to the DLQ without having been claimed by whoever sent it there: whose it was."""

    row_id: UUID
    event_id: UUID
    event_type: str
    source: str
    target: str
    workspace_id: UUID | None
    trace_context: str | None
    attempts: int
    last_error: str
    generation: int


@dataclass(frozen=True, slots=True)
class Reaped:
    """A claim that nobody worked on was taken back: pending again, or failed, and then there is `dead` too."""

    row_id: UUID
    status: str
    reason: str
    worker: str
    attempts: int
    event: EventRef
    dead: DeadRow | None = None


@dataclass(frozen=True, slots=True)
class Unhandled:
    """Rows went to the DLQ because no handler of their context is subscribed to their type."""

    context: str
    dead: Sequence[DeadRow]


@dataclass(frozen=True, slots=True)
class FannedOut:
    """A broadcast became one row for each of these contexts; none at all if nobody subscribes."""

    event: EventRef
    contexts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EarOpened:
    """The worker listens on these channels."""

    channels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EarLost:
    """The connection that listens is gone; until it is back the worker polls."""

    error: str
    retry_in: timedelta


@dataclass(frozen=True, slots=True)
class SubstrateLost:
    """Something the worker wanted of the database failed for now and will be tried again."""

    doing: str
    error: str
    retry_in: timedelta


@dataclass(frozen=True, slots=True)
class HandlerRanAway:
    """A handler ignored its cancellation after the timeout; it was left behind and may still run."""

    delivery: Delivery
    handler_name: str


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A row whose workers were lost again and again runs alone in its process."""

    delivery: Delivery


@dataclass(frozen=True, slots=True)
class Conflicted:
    """A row's transaction could not be kept beside others'; it is run again, uncharged, for the so-manieth time."""

    delivery: Delivery
    times: int


@dataclass(frozen=True, slots=True)
class KeptApart:
    """A handler's rows met conflicts where they shared a transaction, and do so no more for this long.

    one_group: but for one group of them at a time, among all workers that know; of handlers that are trusted.
    """

    handler_name: str
    keeps: timedelta
    one_group: bool


@dataclass(frozen=True, slots=True)
class LoopBlocked:
    """The event loop has not moved for this long: a handler blocks it."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Started:
    """The worker has subscribed and begins to claim."""

    worker: str
    generation: int
    contexts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NeverAllocated:
    """The worker runs a generation far above the live one that nobody had allocated; the number is taken now."""

    generation: int
    live: int


@dataclass(frozen=True, slots=True)
class Stopping:
    """The worker claims no more; what it holds is finished within the grace, then given back."""

    held: int
    grace: timedelta


@dataclass(frozen=True, slots=True)
class Stopped:
    """The worker has ended in good order."""


@dataclass(frozen=True, slots=True)
class Crashed:
    """A part of the worker died of an error that is nobody's event; the worker goes down with it."""

    error: str


@dataclass(frozen=True, slots=True)
class Replayed:
    """An operator has replayed these dead letters into a generation."""

    rows: Sequence[RowRef]
    generation: int
    by: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class Discarded:
    """An operator has discarded these dead letters."""

    rows: Sequence[RowRef]
    by: str
    reason: str | None


@dataclass(frozen=True, slots=True)
class Swept:
    """A sweep has ended: rows put away and deleted, by the name of what they are kept as."""

    put_away: int
    deleted: int
    seconds: float
    finished: bool


@dataclass(frozen=True, slots=True)
class Relayed:
    """References to rows of one lane were sent to a broker; `resent` of them once more, for they seemed lost.

    seconds: from taking them to the broker's answer. lag: for how many seconds the oldest of them had been due.
    refused: so many the broker had no room for; they stay for later and are not among the rows.
    """

    broker: str
    generation: int
    channel: str
    context: str
    rows: int
    resent: int
    refused: int
    seconds: float
    lag: float


UNREADABLE: Final = "-"
"""Stands for the context of messages that are no references."""


@dataclass(frozen=True, slots=True)
class ReferencesVoid:
    """So many references led to no claim: somebody has the row, or had it, or it is in another life by now."""

    context: str
    references: int


@dataclass(frozen=True, slots=True)
class BrokerLost:
    """The broker is gone: a worker claims from the database meanwhile, a relay waits."""

    broker: str
    error: str
    retry_in: timedelta


@dataclass(frozen=True, slots=True)
class BrokerBack:
    """The broker is there, for the first time or after so many seconds.

    advice: what its operator should change, as far as this process has not said so before.
    """

    broker: str
    down_seconds: float
    advice: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RelaySwitched:
    """From now on rows are taken from there, as far as this process is concerned: postgres, or its broker."""

    mode: str


DeliveryNote: TypeAlias = (
    Published
    | HandlerRan
    | Claimed
    | SettlementWritten
    | Finished
    | LeaseWasLost
    | LeftInDoubt
    | SettleGivenUp
    | Reaped
    | Unhandled
    | FannedOut
    | HandlerRanAway
    | Quarantined
    | Conflicted
)
"""Of one event, or a few."""

WorkerNote: TypeAlias = (
    EarOpened
    | EarLost
    | SubstrateLost
    | KeptApart
    | LoopBlocked
    | NeverAllocated
    | Started
    | Stopping
    | Stopped
    | Crashed
)
"""Of the worker itself."""

RelayNote: TypeAlias = Relayed | ReferencesVoid | BrokerLost | BrokerBack | RelaySwitched
"""Of the way over a broker."""

OperatorNote: TypeAlias = Replayed | Discarded | Swept
"""Of what a person, an agent or a timer did."""

Note: TypeAlias = DeliveryNote | WorkerNote | RelayNote | OperatorNote


class Activity(Protocol):
    """An act that is under way."""

    @property
    def traceparent(self) -> str | None:
        """What an event that comes of it should carry; none if nobody traces.

        Of a handler: the trace that it runs in; none if that is the one its event came with, unless it has failed.
        """
        ...

    @property
    def context(self) -> Context | None:
        """Where it has to run, so that whatever it starts is seen to belong to it; none: anywhere."""
        ...

    def leave(self) -> None:
        """It is over, and took until now; whether what it did is kept is not known yet. `end` or `undo` follows."""
        ...

    def end(self, error: BaseException | None = None) -> None:
        """It has ended, with this error or well; call it once."""
        ...

    def undo(self, error: BaseException | None = None) -> None:
        """What it did is not known to be kept, and it is run again; in place of `end`. It had ended well, or so."""
        ...


class Probe(Protocol):
    """Is told what happens; called from the worker's loop, from the thread beside it, and by publishers.

    One that tells others in its own time has `flush(within)` too, see `NoteTaker`; `Publishing.flush` calls it. One
    that is quicker with many at once may have `tell_many(notes)`: by that it is told of deliveries that were settled
    together and went well, each a `Finished`; and `end_many(activities)`, for those of its own that were left and have
    gone well. By `begin_many(acts)` it is told of handlers that begin together.
    """

    def tell(self, note: Note) -> None:
        """Take note."""
        ...

    def begin(self, act: Act) -> Activity:
        """Watch something from its beginning; its end is told as a note."""
        ...


class TimedActivity:
    """Implements `Activity` for whoever takes notes and traces nothing: times the act and tells of its end."""

    __slots__ = ("_act", "_began", "_seconds", "_tell", "context", "traceparent")

    def __init__(
        self,
        tell: Callable[[Note], None],
        act: Act,
        traceparent: str | None = None,
        context: Context | None = None,
    ) -> None:
        self._tell = tell
        self._act = act
        self._began = time.perf_counter()
        self._seconds: float | None = None
        self.traceparent = traceparent
        self.context = context

    def leave(self) -> None:
        """See `Activity`."""
        self._seconds = time.perf_counter() - self._began

    def undo(self, error: BaseException | None = None) -> None:
        """See `Activity`."""

    def end(self, error: BaseException | None = None) -> None:
        """See `Activity`."""
        self.ended(None if error is None else Failure.of_act(self._act, error))

    def ended(self, failure: Failure | None) -> None:
        """Tell of it."""
        if self._seconds is None:
            self.leave()
        act, seconds = self._act, self._seconds or 0.0
        if isinstance(act, Handle):
            # As `HandlerRan(...)`, without the call in between.
            self._tell(tuple.__new__(HandlerRan, (act, seconds, failure, self.traceparent)))  # pyright: ignore[reportUnknownMemberType]
        else:
            self._tell(Published(act, seconds, failure, self.traceparent))


class NoteTaker:
    """A base for probes that take notes and trace nothing; they say how with `tell`."""

    def tell(self, note: Note) -> None:
        """Take note; nobody does unless told how."""

    def flush(self, within: float) -> bool:  # noqa: ARG002  for those that have something to wait for
        """Have everything told, within this time; false if something is left."""
        return True

    def begin(self, act: Act) -> Activity:
        """Watch it by the clock."""
        return TimedActivity(self.tell, act)
