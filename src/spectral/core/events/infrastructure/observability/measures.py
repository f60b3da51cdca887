"""What a note means in numbers: the one place where notes become metrics, whoever counts them then."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, TypeAlias, assert_never

from spectral.core.events import metrics, probe
from spectral.core.events.metrics import Metric
from spectral.core.events.outcome import AlreadyHandled, DeadLetter, Handled, Released, Retry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spectral.core.events.probe import Note

Measure: TypeAlias = tuple[Metric, tuple[str, ...], float]
"""A metric, the values of its labels, and how much it grows by, or what is to be put into its buckets."""

# The last one is the error: of a claim and of a settlement, only those that succeed are told.
PUBLISH: Final = ("publish", "send", "")
CLAIM: Final = ("claim", "receive", "")
SETTLE: Final = ("settle", "settle", "")
_LISTEN: Final = "listen"

_OUTCOMES: Final = ("delivered", "already_handled", "retry", "failed", "released")


def measure(note: Note) -> Sequence[Measure]:
    """What is to be counted; the notes of a delivery come first, because they are the many."""
    match note:
        case probe.Finished():
            return _finished(note)
        case probe.HandlerRan(act, seconds, failure):
            error = "" if failure is None else failure.kind
            delivery, handler_name = act
            labels = (delivery.event_type, delivery.target, handler_name, error)
            return ((metrics.PROCESS_DURATION, labels, seconds),)
        case probe.SettlementWritten():
            return ((metrics.OPERATION_DURATION, SETTLE, note.seconds),)
        case probe.Claimed(context, _, seconds, deaf):
            took = (metrics.OPERATION_DURATION, CLAIM, seconds)
            return (took, (metrics.POLL_FALLBACKS, (context,), 1)) if deaf else (took,)
        case probe.Published():
            return _published(note)
        case _:
            return _rare(note)


def _finished(note: probe.Finished) -> Sequence[Measure]:
    delivery, outcome = note.delivery, note.outcome
    context, event_type = delivery.target, delivery.event_type
    consumed: Measure = (metrics.CONSUMED_MESSAGES, (event_type, context), 1)
    match outcome:
        case Handled():
            acked: Measure = (metrics.ACK_DURATION, (context,), note.ack_seconds)
            return consumed, (metrics.OUTCOMES, (context, "delivered"), 1), acked
        case AlreadyHandled():
            acked = (metrics.ACK_DURATION, (context,), note.ack_seconds)
            return (metrics.OUTCOMES, (context, "already_handled"), 1), acked
        case Retry():
            again: Measure = (metrics.RETRIES, (context, event_type), 1)
            return consumed, (metrics.OUTCOMES, (context, "retry"), 1), again
        case DeadLetter():
            dead: Measure = (metrics.DEAD_LETTERS, (context, event_type), 1)
            return consumed, (metrics.OUTCOMES, (context, "failed"), 1), dead
        case Released():
            return ((metrics.OUTCOMES, (context, "released"), 1),)
    assert_never(outcome)


def _published(note: probe.Published) -> Sequence[Measure]:
    if note.failure is not None:
        return ((metrics.OPERATION_DURATION, (*PUBLISH[:-1], note.failure.kind), note.seconds),)
    took: Measure = (metrics.OPERATION_DURATION, PUBLISH, note.seconds)
    types = Counter(envelope.event_type for envelope in note.act.envelopes)
    return took, *((metrics.SENT_MESSAGES, (event_type,), times) for event_type, times in types.items())


def _relayed(note: probe.Relayed) -> Sequence[Measure]:
    counted = (
        (metrics.RELAY_SENT, note.rows),
        (metrics.RELAY_RESENT, note.resent),
        (metrics.RELAY_REFUSED, note.refused),
    )
    return tuple((metric, (note.context,), times) for metric, times in counted)


_Rare: TypeAlias = (
    probe.LeaseWasLost
    | probe.LeftInDoubt
    | probe.SettleGivenUp
    | probe.Reaped
    | probe.Unhandled
    | probe.FannedOut
    | probe.HandlerRanAway
    | probe.Quarantined
    | probe.Conflicted
    | probe.WorkerNote
    | probe.RelayNote
    | probe.OperatorNote
)


def _rare(note: _Rare) -> Sequence[Measure]:  # noqa: C901, PLR0912  one case for each kind of note
    measures: Sequence[Measure] = ()
    match note:
        case probe.LeaseWasLost(delivery):
            measures = ((metrics.LEASES_LOST, (delivery.target,), 1),)
        case probe.SettleGivenUp(delivery):
            measures = ((metrics.SETTLE_GIVEN_UP, (delivery.target,), 1),)
        case probe.Reaped(status=status, dead=dead):
            letters = [] if dead is None else [(metrics.DEAD_LETTERS, (dead.target, dead.event_type), 1)]
            measures = ((metrics.REAPED, (status,), 1), *letters)
        case probe.Unhandled(context, rows):
            letters = [(metrics.DEAD_LETTERS, (context, row.event_type), 1) for row in rows]
            measures = ((metrics.UNHANDLED, (context,), len(rows)), *letters)
        case probe.FannedOut():
            measures = ((metrics.FANNED_OUT, (), 1),)
        case probe.HandlerRanAway(delivery, handler_name):
            measures = ((metrics.HANDLERS_RAN_AWAY, (delivery.target, handler_name), 1),)
        case probe.Quarantined(delivery):
            measures = ((metrics.QUARANTINED, (delivery.target,), 1),)
        case probe.Conflicted(delivery):
            measures = ((metrics.CONFLICTS, (delivery.target,), 1),)
        case probe.SubstrateLost(doing):
            measures = ((metrics.DATABASE_LOST, (doing,), 1),)
        case probe.EarLost():
            measures = ((metrics.DATABASE_LOST, (_LISTEN,), 1),)
        case probe.Relayed():
            measures = _relayed(note)
        case probe.ReferencesVoid(context, references):
            measures = ((metrics.RELAY_VOID, (context,), references),)
        case probe.BrokerLost(broker):
            measures = ((metrics.BROKER_LOST, (broker,), 1),)
        case probe.LoopBlocked():
            measures = ((metrics.LOOP_BLOCKED, (), 1),)
        case probe.Started(_, _, contexts):
            measures = _nothing_yet(contexts)
        case probe.KeptApart(handler_name):
            measures = ((metrics.KEPT_APART, (handler_name,), 1),)
        case probe.NeverAllocated() | probe.LeftInDoubt():
            pass  # at the start, and at the end, when nobody scrapes any more
        case probe.EarOpened() | probe.Stopping() | probe.Stopped() | probe.Crashed():
            pass  # gauges say how the worker is
        case probe.BrokerBack(broker):
            measures = ((metrics.BROKER_LOST, (broker,), 0),)  # a series before there is something to count
        case probe.RelaySwitched():
            pass  # as above
        case probe.Replayed() | probe.Discarded() | probe.Swept():
            pass  # done by a process that nobody scrapes; the audit log counts them
        case _:
            assert_never(note)
    return measures


def _nothing_yet(contexts: tuple[str, ...]) -> Sequence[Measure]:
    """Zeros for what may come: a counter that appears with its first event hides that event from a rate."""
    of_context = (metrics.LEASES_LOST, metrics.UNHANDLED, metrics.SETTLE_GIVEN_UP, metrics.QUARANTINED)
    measures: list[Measure] = [(metrics.FANNED_OUT, (), 0), (metrics.LOOP_BLOCKED, (), 0)]
    measures += [(metrics.REAPED, (status,), 0) for status in ("pending", "failed")]
    for context in contexts:
        measures += [(metric, (context,), 0) for metric in (*of_context, metrics.POLL_FALLBACKS)]
        measures += [(metrics.OUTCOMES, (context, word), 0) for word in _OUTCOMES]
    return measures
