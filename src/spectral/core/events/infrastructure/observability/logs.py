"""What happens, as log lines: the message is a constant, the data are fields. Payloads are never among them.

Every line says who speaks (service, environment, generation) and in which trace; the time and the level are added by
whoever renders it. A line about an event names it, so that everything about it is found by its id.
"""

from __future__ import annotations

from logging import CRITICAL, DEBUG, ERROR, INFO, WARNING
from typing import TYPE_CHECKING, Any, Final, assert_never

from spectral.core.events import probe
from spectral.core.events.infrastructure.observability.log_writer import EventLogger, LogWriter, timestamp, who_speaks
from spectral.core.events.infrastructure.observability.plain_lines import is_plain
from spectral.core.events.outcome import AlreadyHandled, DeadLetter, Handled, Outcome, Released, Retry

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TypeVar
    from uuid import UUID

    from spectral.core.events.envelope import EventEnvelope
    from spectral.core.events.lease import Delivery
    from spectral.core.events.protocols import Logger
    from spectral.core.events.settings import Identity

    T = TypeVar("T")

PUBLISHED: Final = "published"
PUBLISH_REFUSED: Final = "publish refused"
CLAIMED: Final = "claimed"
HANDLER_RAN: Final = "handler ran"
HANDLED: Final = "handled"
SETTLED: Final = "settled"
LEASE_LOST: Final = "lease lost"
LEFT_IN_DOUBT: Final = "left in doubt"
SETTLE_GIVEN_UP: Final = "settle given up"
REAPED: Final = "reaped"
NOBODY_HANDLES: Final = "nobody handles"
FANNED_OUT: Final = "fanned out"
BROADCAST_UNHEARD: Final = "broadcast without subscribers"
KEPT_APART: Final = "kept apart"
HANDLER_RAN_AWAY: Final = "handler ran away"
RUNNING_ALONE: Final = "running alone"
CONFLICTED: Final = "conflicted"
LISTENING: Final = "listening"
EAR_LOST: Final = "ear lost"
DATABASE_LOST: Final = "database lost"
LOOP_BLOCKED: Final = "event loop blocked"
NEVER_ALLOCATED: Final = "never allocated"
STARTED: Final = "started"
STOPPING: Final = "stopping"
STOPPED: Final = "stopped"
CRASHED: Final = "crashed"
RELAYED: Final = "relayed"
REFERENCES_VOID: Final = "references void"
BROKER_LOST: Final = "broker lost"
BROKER_BACK: Final = "broker back"
RELAY_SWITCHED: Final = "relay switched"
REPLAYED: Final = "replayed"
DISCARDED: Final = "discarded"
SWEPT: Final = "swept"

IDS_PER_LINE: Final = 100
"""A line about many events names each of them; log collectors cut lines that are too long."""

_TRACEPARENT_LENGTH: Final = 55
_FOR_A_CLOSE_LOOK: Final = (
    probe.HandlerRan,
    probe.Claimed,
    probe.SettlementWritten,
    probe.Relayed,
    probe.ReferencesVoid,
)
_OF_OPERATORS: Final = (probe.Replayed, probe.Discarded, probe.Swept)
_LEVELS: Final = {"retry": WARNING, "failed": ERROR}


def handler_logger(
    delivery: Delivery,
    handler_name: str,
    traceparent: str | None = None,
    identity: Identity | None = None,
    worker: str | None = None,
) -> Logger:
    """The logger a handler is given: every line says which event it is about.

    identity: the worker's. Without one it is a test that runs the handler, and its lines are there when it returns.
    """

    def fields() -> dict[str, Any]:
        who = {"generation": delivery.generation} if identity is None else who_speaks(identity)
        named = {} if worker is None else {"worker": worker}
        return _of(who, delivery, traceparent) | named | {"handler_name": handler_name}

    return EventLogger("spectral.handler", fields, delivery.payload, patient=identity is not None)


_SOON: Final = 0.002  # seconds


class LogTool:
    """Implements `Tool`: a line for every note.

    worker: whose notes these are, if they are a worker's. logger: a structlog logger to write with, whatever the
    program has configured. says_plain: whether it says of an event that all went well; else `PlainLines` does.
    """

    def __init__(
        self,
        identity: Identity,
        worker: str | None = None,
        *,
        logger: object = None,
        says_plain: bool = True,
    ) -> None:
        self._says_plain = says_plain
        self.gather = None if says_plain else _SOON
        """See `Tool`. Else what failed would be said after what went well next."""
        self._identity = self._who = who_speaks(identity)
        self._named = {} if worker is None else {"worker": worker}
        self._publisher = LogWriter("spectral.publish", logger)
        self._log = LogWriter("spectral.worker", logger)
        self._operator = LogWriter("spectral.operator", logger)
        self._says_handled = self._says_published = True

    def cares_for(self, kind: type[probe.Note]) -> bool:
        """Whether anybody reads lines of the worst level that such a note may have."""
        if kind is probe.Published:
            self._says_published = self._publisher.at(INFO) is not None
            return self._says_published or self._publisher.at(WARNING) is not None
        if kind in _OF_OPERATORS:
            return self._operator.at(INFO) is not None
        if kind is probe.Finished:
            self._says_handled = self._log.at(INFO) is not None
            return self._says_handled or self._log.at(ERROR) is not None
        return self._log.at(DEBUG if kind in _FOR_A_CLOSE_LOOK else CRITICAL) is not None

    def wants(self, note: probe.Note) -> bool:
        """Whether anybody reads lines of its own level."""
        # Of these there are many: as it was when `cares_for` was last asked.
        if isinstance(note, probe.Finished):
            if not self._says_handled:
                return isinstance(note.outcome, Retry | DeadLetter)
            return self._says_plain or not is_plain(note)
        if isinstance(note, probe.Published):
            if note.failure is not None:
                return True
            return self._says_published and (self._says_plain or not is_plain(note))
        return True

    def wants_well(self, _kind: type[probe.Note]) -> bool:
        """Whether it says of an event that all went well; as `wants` does, for many of them."""
        return self._says_handled and self._says_plain

    def tell(self, note: probe.Note, at: float | None = None) -> None:  # noqa: C901, PLR0912  one case for each kind of note
        """Log it; raises what the log raises."""
        self._who = self._identity if at is None else {"timestamp": timestamp(at), **self._identity}
        match note:
            case probe.Finished():
                self._finished(note)
            case probe.HandlerRan():
                self._handler_ran(note)
            case probe.Published():
                self._published(note)
            case probe.LeaseWasLost(delivery):
                self._say_of(WARNING, LEASE_LOST, delivery)
            case probe.LeftInDoubt(delivery):
                self._say_of(WARNING, LEFT_IN_DOUBT, delivery)
            case probe.SettleGivenUp(delivery, error):
                self._say_of(ERROR, SETTLE_GIVEN_UP, delivery, error=error)
            case probe.HandlerRanAway(delivery, handler_name):
                self._say_of(ERROR, HANDLER_RAN_AWAY, delivery, handler_name=handler_name)
            case probe.Quarantined(delivery):
                self._say_of(WARNING, RUNNING_ALONE, delivery)
            case probe.Conflicted(delivery, times):
                self._say_of(INFO, CONFLICTED, delivery, conflicts=times)
            case probe.Claimed() | probe.SettlementWritten():
                self._tell_of_a_batch(note)
            case probe.Reaped() | probe.Unhandled() | probe.FannedOut():
                self._tell_of_rows(note)
            case probe.Replayed() | probe.Discarded() | probe.Swept():
                self._tell_of_an_operator(note)
            case (
                probe.Relayed()
                | probe.ReferencesVoid()
                | probe.BrokerLost()
                | probe.BrokerBack()
                | probe.RelaySwitched()
            ):
                self._tell_of_the_relay(note)
            case _:
                self._tell_of_the_worker(note)

    # what is told for every event of a busy worker, and so made in as few steps as possible

    def _finished(self, note: probe.Finished) -> None:
        result, error = _result(note.outcome)
        level = _LEVELS.get(result, INFO)
        write = self._log.at(level)
        if write is None:
            return
        fields = _of(self._who, note.delivery, note.traceparent)
        fields.update(self._named)
        fields["handler_name"] = ",".join(note.handlers)
        fields["duration_ms"] = _milliseconds(note.seconds)
        fields["ack_ms"] = _milliseconds(note.ack_seconds)
        fields["status_result"] = result
        if error is not None:
            fields["last_error"] = error
        write(HANDLED, **fields)

    def _handler_ran(self, note: probe.HandlerRan) -> None:
        write = self._log.at(DEBUG)
        if write is not None:
            fields = _of(self._who, note.act.delivery, note.traceparent) | self._named
            fields |= {"handler_name": note.act.handler_name, "duration_ms": _milliseconds(note.seconds)}
            if note.failure is not None:
                fields["error"] = note.failure.text
            write(HANDLER_RAN, **fields)

    def _tell_of_a_batch(self, note: probe.Claimed | probe.SettlementWritten) -> None:
        if self._log.at(DEBUG) is None:
            return
        told = {"rows": note.rows, "duration_ms": _milliseconds(note.seconds)}
        if isinstance(note, probe.Claimed):
            self._say(DEBUG, CLAIMED, target=note.context, deaf=note.deaf, **told)
        else:
            self._say(DEBUG, SETTLED, **told)

    # the others

    def _published(self, note: probe.Published) -> None:
        level, message = (INFO, PUBLISHED) if note.failure is None else (WARNING, PUBLISH_REFUSED)
        write = self._publisher.at(level)
        if write is None:
            return
        more: dict[str, Any] = {"duration_ms": _milliseconds(note.seconds)}
        if note.failure is not None:
            more["error"] = note.failure.text
        for part in _parts(note.act.envelopes):
            about = _one(part[0]) if len(part) == 1 else _several(part)
            # The trace that the rows carry, for it is the one their handlers continue.
            traces = {envelope.trace_context or note.traceparent for envelope in part}
            trace_id = _trace_id(traces.pop() if len(traces) == 1 else note.traceparent)
            fields = {**self._who, "generation": note.act.generation, "trace_id": trace_id, **self._named}
            write(message, **fields, **about, **more)

    def _tell_of_rows(self, note: probe.Reaped | probe.Unhandled | probe.FannedOut) -> None:
        match note:
            case probe.Reaped(row_id, status, reason, worker, attempts, event, dead):
                about = _row(row_id, event) | {"attempts": attempts, "status_result": status}
                if dead is not None:
                    about["last_error"] = dead.last_error
                level = WARNING if dead is None else ERROR
                self._say(level, REAPED, **about, reason=reason, lost_worker=worker)
            case probe.Unhandled(_, rows):
                for dead in rows:
                    became = {"attempts": dead.attempts, "status_result": "failed", "last_error": dead.last_error}
                    self._say(ERROR, NOBODY_HANDLES, **_row(dead.row_id, dead), **became)
            case probe.FannedOut(event, contexts):
                level, message = (INFO, FANNED_OUT) if contexts else (WARNING, BROADCAST_UNHEARD)
                self._say(level, message, **_row(event.event_id, event), to=contexts)
            case _:
                assert_never(note)

    def _tell_of_the_worker(self, note: probe.WorkerNote) -> None:  # noqa: C901  as above
        match note:
            case probe.EarOpened(channels):
                self._say(INFO, LISTENING, channels=channels)
            case probe.EarLost(error, retry_in):
                self._say(WARNING, EAR_LOST, error=error, retry_seconds=retry_in.total_seconds())
            case probe.SubstrateLost(doing, error, retry_in):
                self._say(WARNING, DATABASE_LOST, doing=doing, error=error, retry_seconds=retry_in.total_seconds())
            case probe.KeptApart(handler_name, keeps, one_group):
                sharing = "one group at a time" if one_group else "nothing"
                seconds = keeps.total_seconds()
                self._say(WARNING, KEPT_APART, handler_name=handler_name, shares=sharing, seconds=seconds)
            case probe.LoopBlocked(seconds):
                self._say(ERROR, LOOP_BLOCKED, seconds=round(seconds, 1))
            case probe.NeverAllocated(generation, live):
                advice = f"generation {generation} was never allocated; live is {live}: check SPECTRAL_GENERATION"
                self._say(WARNING, NEVER_ALLOCATED, live=live, advice=advice)
            case probe.Started(_, _, contexts):
                self._say(INFO, STARTED, contexts=contexts)
            case probe.Stopping(held, grace):
                self._say(INFO, STOPPING, held=held, grace_seconds=grace.total_seconds())
            case probe.Stopped():
                self._say(INFO, STOPPED)
            case probe.Crashed(error):
                self._say(CRITICAL, CRASHED, error=error)
            case _:
                assert_never(note)

    def _tell_of_the_relay(self, note: probe.RelayNote) -> None:
        match note:
            case probe.Relayed(broker, generation, channel, context, rows, resent, refused, seconds, lag):
                where = {"target": context, "channel": channel, "generation": generation}
                told = {"rows": rows, "resent": resent, "refused": refused, "lag_seconds": round(lag, 3)}
                self._say(DEBUG, RELAYED, broker=broker, **where, **told, duration_ms=_milliseconds(seconds))
            case probe.ReferencesVoid(context, references):
                self._say(DEBUG, REFERENCES_VOID, target=context, references=references)
            case probe.BrokerLost(broker, error, retry_in):
                seconds = retry_in.total_seconds()
                self._say(WARNING, BROKER_LOST, broker=broker, error=error, retry_seconds=seconds)
            case probe.BrokerBack(broker, down_seconds, advice):
                more = {"advice": "; ".join(advice)} if advice else {}
                level = WARNING if advice else INFO
                self._say(level, BROKER_BACK, broker=broker, down_seconds=round(down_seconds, 1), **more)
            case probe.RelaySwitched(mode):
                self._say(INFO, RELAY_SWITCHED, mode=mode)
            case _:
                assert_never(note)

    def _tell_of_an_operator(self, note: probe.OperatorNote) -> None:
        # Not the generation of whoever runs the command: an operator acts on the rows of all of them.
        told: dict[str, Any] = {**self._who, "generation": None, "trace_id": None}
        match note:
            case probe.Replayed(rows, generation, by, reason):
                told["generation"] = generation
                for part in _parts(rows):
                    self._operator.write(INFO, REPLAYED, told | _rows(part) | {"by": by, "reason": reason})
            case probe.Discarded(rows, by, reason):
                for part in _parts(rows):
                    self._operator.write(INFO, DISCARDED, told | _rows(part) | {"by": by, "reason": reason})
            case probe.Swept(put_away, deleted, seconds, finished):
                told |= {"put_away": put_away, "deleted": deleted, "finished": finished}
                self._operator.write(INFO, SWEPT, told | {"duration_ms": _milliseconds(seconds)})
            case _:
                assert_never(note)

    def _say_of(self, level: int, message: str, delivery: Delivery, **more: object) -> None:
        self._log.write(level, message, {**_of(self._who, delivery, None), **self._named, **more})

    def _say(self, level: int, message: str, **fields: object) -> None:
        self._log.write(level, message, {**self._who, "trace_id": None, **self._named, **fields})


def _of(who: dict[str, Any], delivery: Delivery, traceparent: str | None) -> dict[str, Any]:
    event_id, workspace_id = delivery.event_id, delivery.workspace_id
    fields = {
        **who,
        "trace_id": _trace_id(traceparent or delivery.trace_context),
        "event_id": str(event_id),
        "event_type": delivery.event_type,
        "source": delivery.source,
        "target": delivery.target,
        "workspace_id": None if workspace_id is None else str(workspace_id),
        "attempts": delivery.attempts,
    }
    row_id = delivery.lease.row_id
    if row_id != event_id:  # a context's own row of a broadcast
        fields["row_id"] = str(row_id)
    return fields


def _row(row_id: UUID, event: probe.EventRef | probe.DeadRow) -> dict[str, Any]:
    """A row that nobody has claimed here: its event, in the trace that it was published in."""
    fields = {"trace_id": _trace_id(event.trace_context), **_one(event)}
    if row_id != event.event_id:  # a context's own row of a broadcast
        fields["row_id"] = str(row_id)
    return fields


def _rows(rows: Sequence[probe.RowRef]) -> dict[str, Any]:
    """The same of one or several; with their number, so that the lines of a long replay add up."""
    if len(rows) == 1:
        return {**_row(*rows[0]), "count": 1}
    fields = _several([event for _, event in rows])
    traces = {_trace_id(event.trace_context) for _, event in rows}
    fields["trace_ids"] = sorted(trace_id for trace_id in traces if trace_id is not None)
    if any(row_id != event.event_id for row_id, event in rows):
        fields["row_ids"] = [str(row_id) for row_id, _ in rows]
    return fields


def _one(envelope: EventEnvelope | probe.EventRef | probe.DeadRow) -> dict[str, Any]:
    return {
        "event_id": str(envelope.event_id),
        "event_type": envelope.event_type,
        "source": envelope.source,
        "target": envelope.target,
        "workspace_id": None if envelope.workspace_id is None else str(envelope.workspace_id),
    }


def _several(envelopes: Sequence[EventEnvelope | probe.EventRef]) -> dict[str, Any]:
    workspaces = {str(each.workspace_id) for each in envelopes if each.workspace_id is not None}
    return {
        "event_ids": [str(each.event_id) for each in envelopes],
        "count": len(envelopes),
        "event_types": sorted({each.event_type for each in envelopes}),
        "sources": sorted({each.source for each in envelopes}),
        "targets": sorted({each.target for each in envelopes if each.target is not None}),
        "workspace_ids": sorted(workspaces),
    }


def _parts(every: Sequence[T]) -> Iterator[Sequence[T]]:
    return (every[start : start + IDS_PER_LINE] for start in range(0, len(every), IDS_PER_LINE))


def _trace_id(traceparent: str | None) -> str | None:
    return None if traceparent is None or len(traceparent) < _TRACEPARENT_LENGTH else traceparent[3:35]


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 1)


def _result(outcome: Outcome) -> tuple[str, str | None]:
    match outcome:
        case Handled():
            return "delivered", None
        case AlreadyHandled():
            return "already handled", None
        case Retry(error):
            return "retry", error
        case DeadLetter(error):
            return "failed", error
        case Released():
            return "released", None
        case _:
            assert_never(outcome)
