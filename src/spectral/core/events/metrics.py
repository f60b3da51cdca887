"""The catalogue of metrics: every number this library gives, under one name, with its unit and labels.

Names and units are OpenTelemetry's; `prometheus_name` derives the other. Labels come from bounded sets, `BoundedLabels`
sees to that. Metrics of messages follow the semantic conventions; OpenTelemetry is told `messaging.system` with them.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """How a number behaves."""

    COUNTER = "counter"  # only grows, until its process ends
    GAUGE = "gauge"  # is what it is at the moment
    HISTOGRAM = "histogram"  # counts values by their size


@dataclass(frozen=True, slots=True, eq=False)
class Metric:
    """One entry of the catalogue; there is one object of each, so they are compared by identity.

    unit: as UCUM writes it, in braces where it is none of time or size. Never 1: who translates what comes by OTLP for
    Prometheus calls a gauge of that unit a ratio. labels: their names, in the order of the values of a `Sample`.
    buckets: upper bounds.
    """

    name: str
    kind: Kind
    unit: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """A counter or a gauge, for one set of labels, at the moment of reading."""

    metric: Metric
    labels: tuple[str, ...]
    value: float

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.metric.labels):
            raise ValueError(f"{self.metric.name} takes the labels {self.metric.labels}, not {self.labels}")


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram, for one set of labels: how many values fell into each bucket and beyond the last, and their sum."""

    metric: Metric
    labels: tuple[str, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self.counts)


def prometheus_name(metric: Metric) -> str:
    """Its name in Prometheus: underscores, the unit where it is one of time or size, `_total` for what only grows."""
    name = _underscored(metric.name)
    suffix = _SUFFIXES.get(metric.unit, "")
    if not name.endswith(suffix):
        name += suffix
    return f"{name}_total" if metric.kind is Kind.COUNTER else name


def prometheus_labels(metric: Metric) -> tuple[str, ...]:
    """The names of its labels in Prometheus."""
    return tuple(_underscored(label) for label in metric.labels)


def _underscored(name: str) -> str:
    return name.replace(".", "_")


_SUFFIXES: Final = {"s": "_seconds", "By": "_bytes"}

OTHER: Final = "_other"
"""What a label says once too many values were seen."""

_MOST_VALUES: Final = 200
_MOST_SETS: Final = 2_000


class BoundedLabels:
    """Keeps labels from growing without end: the first so many values of a label keep their names, the rest are other.

    A metric has a limit for its sets of labels too, because labels multiply. Not for threads at the same time.
    """

    def __init__(self, most_values: int = _MOST_VALUES, most_sets: int = _MOST_SETS) -> None:
        self._most_values = most_values
        self._most_sets = most_sets
        self._values: defaultdict[str, set[str]] = defaultdict(set)
        self._sets: defaultdict[str, set[tuple[str, ...]]] = defaultdict(set)

    def of(self, metric: Metric, labels: tuple[str, ...]) -> tuple[str, ...]:
        """The labels to count under: these, or with `_other` where there were too many."""
        granted = self._sets[metric.name]
        if labels in granted:
            return labels
        bounded = tuple(self._value(label, value) for label, value in zip(metric.labels, labels, strict=True))
        if bounded not in granted:
            if len(granted) >= self._most_sets:
                return (OTHER,) * len(labels)
            granted.add(bounded)
        return bounded

    def _value(self, label: str, value: str) -> str:
        known = self._values[label]
        if value in known:
            return value
        if len(known) >= self._most_values:
            return OTHER
        known.add(value)
        return value


# Labels

_OPERATION: Final = ("messaging.operation.name", "messaging.operation.type")
_ERROR: Final = "error.type"
_DESTINATION: Final = "messaging.destination.name"
_GROUP: Final = "messaging.consumer.group.name"
_CONTEXT: Final = ("context",)
_EVENT: Final = ("context", "event_type")
_PLACE: Final = ("context", "generation")

# Buckets, in seconds

_CONVENTIONAL: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
# Fine where a healthy worker is; 0.5 is the bound above which the relay is worth its while, 300 a lost worker's lease.
_FINE: Final = (
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.025, 0.035, 0.05, 0.075),
    *(0.1, 0.15, 0.2, 0.25, 0.35, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0),
)


def _histogram(name: str, says: str, labels: tuple[str, ...], buckets: tuple[float, ...]) -> Metric:
    return Metric(name, Kind.HISTOGRAM, "s", says, labels, buckets)


def _counter(name: str, unit: str, says: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(name, Kind.COUNTER, unit, says, labels)


def _gauge(name: str, unit: str, says: str, labels: tuple[str, ...] = ()) -> Metric:
    return Metric(name, Kind.GAUGE, unit, says, labels)


# Messages, by the semantic conventions

OPERATION_DURATION: Final = _histogram(
    "messaging.client.operation.duration",
    "How long it took to publish, with the class of the error if that failed, to claim (by context that had rows) and"
    " to settle.",
    (*_OPERATION, _ERROR),
    _CONVENTIONAL,
)
SENT_MESSAGES: Final = _counter(
    "messaging.client.sent.messages",
    "{message}",
    "Events this process published into its transactions, whether these were committed or not; with those that were"
    " there already and ignored.",
    (_DESTINATION,),
)
CONSUMED_MESSAGES: Final = _counter(
    "messaging.client.consumed.messages",
    "{message}",
    "Deliveries that reached their handlers and were settled.",
    (_DESTINATION, _GROUP),
)
PROCESS_DURATION: Final = _histogram(
    "messaging.process.duration",
    "How long a handler ran, with the class of its error if it failed.",
    (_DESTINATION, _GROUP, "spectral.handler", _ERROR),
    _CONVENTIONAL,
)

# Deliveries, as a worker counts them

ACK_DURATION: Final = _histogram(
    "spectral.ack.duration",
    "From the moment an event was due to its settlement as delivered; begins anew with each retry and replay.",
    _CONTEXT,
    _FINE,
)
OUTCOMES: Final = _counter(
    "spectral.outcomes",
    "{delivery}",
    "Deliveries settled, by what became of them: delivered, already_handled, retry, failed or released.",
    (*_CONTEXT, "outcome"),
)
RETRIES: Final = _counter("spectral.retries", "{delivery}", "Deliveries that failed and will be tried again.", _EVENT)
DEAD_LETTERS: Final = _counter(
    "spectral.dead_letters",
    "{event}",
    "Events that went to the DLQ because a handler failed, because none was there, or by the reaper; spectral.unhandled"
    " and spectral.reaped count the last two as well.",
    _EVENT,
)
LEASES_LOST: Final = _counter(
    "spectral.leases.lost", "{delivery}", "Deliveries whose claim was taken away before they were settled.", _CONTEXT
)
REAPED: Final = _counter(
    "spectral.reaped", "{claim}", "Abandoned claims taken back, by what the row is now: pending or failed.", ("result",)
)
UNHANDLED: Final = _counter(
    "spectral.unhandled", "{event}", "Events that went to the DLQ because no handler was subscribed.", _CONTEXT
)
FANNED_OUT: Final = _counter("spectral.fanned_out", "{event}", "Broadcasts that became a row for each context.")
SETTLE_GIVEN_UP: Final = _counter(
    "spectral.settle.given_up", "{delivery}", "Deliveries whose outcome could not be written.", _CONTEXT
)
HANDLERS_RAN_AWAY: Final = _counter(
    "spectral.handlers.ran_away", "{run}", "Handlers that ignored their cancellation.", (*_CONTEXT, "handler")
)
QUARANTINED: Final = _counter(
    "spectral.quarantined", "{delivery}", "Deliveries run alone because their workers were lost before.", _CONTEXT
)
CONFLICTS: Final = _counter(
    "spectral.conflicts",
    "{delivery}",
    "Transactions that could not be kept beside others' and were run again.",
    _CONTEXT,
)
KEPT_APART: Final = _counter(
    "spectral.handlers.kept_apart",
    "{time}",
    "Times that events of a handler were kept from sharing transactions, for the deadlocks they met in them.",
    ("handler",),
)
POLL_FALLBACKS: Final = _counter(
    "spectral.poll.fallbacks", "{claim}", "Claims that found rows while the worker could not listen.", _CONTEXT
)
DATABASE_LOST: Final = _counter(
    "spectral.database.lost", "{failure}", "Requests to the database that failed and were tried again.", ("doing",)
)
LOOP_BLOCKED: Final = _counter("spectral.loop.blocked", "{report}", "Reports that a handler blocked the event loop.")
RELAY_SENT: Final = _counter(
    "spectral.relay.sent", "{reference}", "References to rows that the relay sent to the broker.", _CONTEXT
)
RELAY_RESENT: Final = _counter(
    "spectral.relay.resent",
    "{reference}",
    "Of these, sent again because their messages were given up for lost.",
    _CONTEXT,
)
RELAY_REFUSED: Final = _counter(
    "spectral.relay.refused", "{reference}", "References that the broker refused for want of room.", _CONTEXT
)
RELAY_VOID: Final = _counter(
    "spectral.relay.void",
    "{reference}",
    "References that a worker received and that named nothing to claim any more.",
    _CONTEXT,
)
BROKER_LOST: Final = _counter(
    "spectral.broker.lost",
    "{loss}",
    "Times this process lost the broker; a worker then claims from Postgres.",
    ("broker",),
)
PROBE_DROPPED: Final = _counter(
    "spectral.probe.dropped", "{note}", "Notes dropped because a tool that watches was too slow.", ("tool",)
)
PROBE_FAILED: Final = _counter(
    "spectral.probe.failed", "{note}", "Notes on which a tool that watches failed.", ("tool",)
)

# The worker

WORKER_HELD: Final = _gauge("spectral.worker.held", "{delivery}", "Deliveries the worker holds.")
WORKER_RUNNING: Final = _gauge("spectral.worker.running", "{delivery}", "Deliveries whose handlers run now.")
WORKER_STATE: Final = _gauge(
    "spectral.worker.state", "{worker}", "1 for the state the worker is in, else 0.", ("state",)
)
WORKER_GENERATION: Final = _gauge("spectral.worker.generation", "{generation}", "The generation the worker belongs to.")
EAR_CONNECTED: Final = _gauge(
    "spectral.ear.connected", "{connection}", "1 while the worker listens, 0 while it has to poll."
)
EAR_DOWN_SECONDS: Final = _gauge("spectral.ear.down.seconds", "s", "For how long the worker has not been listening.")
LOOP_BLOCKED_SECONDS: Final = _gauge(
    "spectral.loop.blocked.seconds", "s", "For how long the worker's event loop has not moved."
)

BROKER_CONNECTED: Final = _gauge(
    "spectral.broker.connected",
    "{connection}",
    "1 while the broker answers this process, 0 while it does not; none without one.",
)

# The database, as the elected emitter reads it

BACKLOG: Final = _gauge("spectral.backlog", "{event}", "Events that are due and not claimed.", _PLACE)
BACKLOG_WAITING: Final = _gauge("spectral.backlog.waiting", "{event}", "Pending events that are not due yet.", _PLACE)
BACKLOG_OLDEST_SECONDS: Final = _gauge(
    "spectral.backlog.oldest.seconds", "s", "For how long the oldest event of the backlog has been due.", _PLACE
)
IN_FLIGHT: Final = _gauge("spectral.in_flight", "{event}", "Events that a worker has claimed.", _PLACE)
STALE_CLAIMS: Final = _gauge(
    "spectral.stale_claims", "{event}", "Events claimed by workers that show no sign of life.", _PLACE
)
DLQ: Final = _gauge("spectral.dlq", "{event}", "Events in the DLQ.", _PLACE)
DLQ_RECENT: Final = _gauge("spectral.dlq.recent", "{event}", "Events that went to the DLQ in the last hour.", _PLACE)
DEFAULT_CHANNEL_ROWS: Final = _gauge(
    "spectral.default_channel.rows", "{event}", "Pending events on the default channel, where nobody listens."
)
NOTIFY_QUEUE_USAGE: Final = _gauge(
    "spectral.notify_queue.usage", "{queue}", "How full the server's notification queue is, from 0 to 1."
)
TABLE_ROWS: Final = _gauge("spectral.table.rows", "{row}", "Live rows of a table, as estimated.", ("table",))
TABLE_BYTES: Final = _gauge("spectral.table.bytes", "By", "Size of a table with its indexes and TOAST.", ("table",))
TABLE_DEAD: Final = _gauge("spectral.table.dead", "{row}", "Dead rows of a table, as estimated.", ("table",))
XMIN_AGE: Final = _gauge(
    "spectral.xmin.age",
    "{transaction}",
    "How many transactions old the oldest snapshot is.",
    ("kind",),
)
XMIN_SECONDS: Final = _gauge("spectral.xmin.seconds", "s", "For how long the oldest snapshot has been held.", ("kind",))
SWEEP_AGE_SECONDS: Final = _gauge("spectral.sweep.age.seconds", "s", "How long ago the last complete sweep ended.")
SWEEP_LATE: Final = _gauge(
    "spectral.sweep.late", "{sweep}", "1 if no sweep has run for too long, by the doctor's rule."
)
GROWTH_TRIGGER: Final = _gauge(
    "spectral.growth.trigger",
    "{step}",
    "1 if measured figures ask for this step of growth: partition or relay.",
    ("step",),
)
RELAY_MODE: Final = _gauge(
    "spectral.relay.mode", "{mode}", "1 for what workers are to take events from: postgres, nats or redis.", ("mode",)
)
RELAYS: Final = _gauge(
    "spectral.relays", "{relay}", "Relay processes that are alive, for the broker in use if there is one."
)
RELAY_UNSENT: Final = _gauge(
    "spectral.relay.unsent",
    "{event}",
    "Events that are due and that no relay has sent, while there is a broker.",
    _PLACE,
)
RELAY_LAG_SECONDS: Final = _gauge(
    "spectral.relay.lag.seconds", "s", "For how long the oldest of them has been due.", _PLACE
)
PARTITIONS_AHEAD: Final = _gauge(
    "spectral.partitions.ahead",
    "{month}",
    "Months after this one that have a partition; none if there are no partitions.",
)
PARTITIONS_DEFAULT_ROWS: Final = _gauge(
    "spectral.partitions.default.rows", "{row}", "Rows in the default partition, which fit no month."
)
PARTITIONS_DROPPABLE: Final = _gauge(
    "spectral.partitions.droppable", "{partition}", "Partitions whose rows are all over and past their retention."
)
PARTITIONS_DEADLINE_SECONDS: Final = _gauge(
    "spectral.partitions.deadline.seconds",
    "s",
    "In how long publishing fails unless a conversion to partitions that stopped half-way goes on or is taken back.",
)
BRAKE: Final = _gauge("spectral.brake", "{brake}", "1 for a context whose delivery is braked.", _CONTEXT)
WORKERS: Final = _gauge("spectral.workers", "{worker}", "Workers that are alive.", ("generation",))
WORKERS_SERVING: Final = _gauge(
    "spectral.workers.serving",
    "{worker}",
    "Workers that are alive and take events of this context and generation; one that takes several is in each of them.",
    _PLACE,
)
EMITTER_UP: Final = _gauge("spectral.emitter.up", "{emitter}", "1 while this process reads the database's gauges.")
EMITTER_TIMESTAMP: Final = _gauge("spectral.emitter.timestamp", "s", "When the database's gauges were read.")

METRICS: Final[tuple[Metric, ...]] = tuple(each for each in list(globals().values()) if isinstance(each, Metric))
"""All of them, in the order of this page."""
