"""The database's gauges: one look, as the metrics count it. Pure, so that they say what `spectral status` says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from spectral.core.events import metrics
from spectral.core.events.broker_settings import NO_BROKER, BrokerKind
from spectral.core.events.metrics import BoundedLabels, Sample
from spectral.core.operations import growth
from spectral.core.operations.insights_values import EVERY_CONTEXT
from spectral.core.operations.verdict_values import Limits
from spectral.core.retention import overdue

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import timedelta

    from spectral.core.events.metrics import Metric
    from spectral.core.operations.insights_values import Backlog, Snapshot

    Reading = tuple[Metric, tuple[str, ...], float]

_OLDEST: Final = frozenset(
    {metrics.BACKLOG_OLDEST_SECONDS, metrics.RELAY_LAG_SECONDS, metrics.XMIN_AGE, metrics.XMIN_SECONDS}
)
"""Of several under the same labels the largest counts; of everything else the sum."""


def gauges(snapshot: Snapshot, limits: Limits | None = None) -> list[Sample]:
    """Every gauge of the database. What cannot be known, as the age of a sweep that never was, is left out.

    Broadcasts that are not split yet stand under the context `*`. Counts stop where the look's counts stop.
    """
    limits = limits or Limits()
    labels = BoundedLabels()  # anew each time: whoever inserts rows may invent contexts and generations
    merged: dict[tuple[Metric, tuple[str, ...]], float] = {}
    for metric, given, value in _readings(snapshot, limits):
        key = metric, labels.of(metric, given)
        before = merged.get(key)
        merged[key] = value if before is None else max(before, value) if metric in _OLDEST else before + value
    return [Sample(metric, given, float(value)) for (metric, given), value in merged.items()]


def _readings(snapshot: Snapshot, limits: Limits) -> Iterator[Reading]:
    yield from _delivery(snapshot)
    yield from _pressure(snapshot)
    yield from _sweep(snapshot)
    yield from _growth(snapshot, limits)
    yield from _relay(snapshot)
    yield from _partitions(snapshot)


def _delivery(snapshot: Snapshot) -> Iterator[Reading]:
    for context, generation in _served(snapshot):
        # A series that only exists while something waits cannot be seen to grow from nothing.
        yield from _backlog(context, generation, None)
    for backlog in snapshot.backlogs:
        yield from _backlog(backlog.context or EVERY_CONTEXT, backlog.generation, backlog)
    yield metrics.DEFAULT_CHANNEL_ROWS, (), snapshot.on_default_channel().value
    for brake in snapshot.brakes:
        yield metrics.BRAKE, (brake.context,), 1
    for deployment in snapshot.deployments:
        if deployment.status == "live":
            yield metrics.WORKERS, (str(deployment.generation),), 0
    for worker in snapshot.living:
        yield metrics.WORKERS, (str(worker.generation),), 1
    yield from _serving(snapshot)


def _served(snapshot: Snapshot) -> Iterable[tuple[str, int]]:
    """What a living worker takes, the newest generation first."""
    served = {
        (context, generation)
        for worker in snapshot.living
        for generation in worker.generations
        for context in (*worker.contexts, EVERY_CONTEXT)
    }
    return sorted(served, key=lambda each: (-each[1], each[0]))


def _serving(snapshot: Snapshot) -> Iterator[Reading]:
    """Who is there for what, as `status` and the doctor see it; nobody where something is and no worker takes it."""
    there = [(backlog.context or EVERY_CONTEXT, backlog.generation) for backlog in snapshot.backlogs]
    for context, generation in dict.fromkeys([*_served(snapshot), *there]):
        servants = snapshot.servants(None if context == EVERY_CONTEXT else context, generation)
        yield metrics.WORKERS_SERVING, (context, str(generation)), len(servants)


def _backlog(context: str, generation: int, backlog: Backlog | None) -> Iterator[Reading]:
    labels = context, str(generation)
    yield metrics.BACKLOG, labels, backlog.due.value if backlog else 0
    yield metrics.BACKLOG_WAITING, labels, backlog.waiting.value if backlog else 0
    yield metrics.BACKLOG_OLDEST_SECONDS, labels, _seconds(backlog.oldest_due) if backlog else 0
    yield metrics.IN_FLIGHT, labels, backlog.in_flight.value if backlog else 0
    yield metrics.STALE_CLAIMS, labels, backlog.stale.value if backlog else 0
    yield metrics.DLQ, labels, backlog.failed.value if backlog else 0
    yield metrics.DLQ_RECENT, labels, backlog.failed_lately.value if backlog else 0


def _pressure(snapshot: Snapshot) -> Iterator[Reading]:
    yield metrics.NOTIFY_QUEUE_USAGE, (), snapshot.notify_queue
    for table in snapshot.tables:
        yield metrics.TABLE_ROWS, (table.name,), table.rows
        yield metrics.TABLE_BYTES, (table.name,), table.bytes
        yield metrics.TABLE_DEAD, (table.name,), table.dead
    # Who it is may be anybody's choice of words, and is no label: the log and the doctor say it.
    for holder in snapshot.holders:
        yield metrics.XMIN_AGE, (holder.kind,), holder.age
        if holder.since is not None:
            yield metrics.XMIN_SECONDS, (holder.kind,), _seconds(holder.since)


def _sweep(snapshot: Snapshot) -> Iterator[Reading]:
    state = snapshot.sweep
    if state is None:
        return
    if state.completed_at is not None:
        yield metrics.SWEEP_AGE_SECONDS, (), _seconds(state.now - state.completed_at)
    yield metrics.SWEEP_LATE, (), overdue(state).overdue


def _growth(snapshot: Snapshot, limits: Limits) -> Iterator[Reading]:
    yield metrics.GROWTH_TRIGGER, ("partition",), any(growth.reasons_to_partition(snapshot, limits))
    yield metrics.GROWTH_TRIGGER, ("relay",), any(growth.reasons_to_relay(snapshot, limits))


def _relay(snapshot: Snapshot) -> Iterator[Reading]:
    relaying = snapshot.relaying
    if relaying is None:
        return
    for mode in (NO_BROKER, *BrokerKind):
        yield metrics.RELAY_MODE, (mode,), relaying.mode == mode
    yield metrics.RELAYS, (), relaying.relays
    if relaying.is_on:
        for context, generation in _served(snapshot):
            # As with the backlog: what is not there cannot be seen to grow. A broadcast is split before it is sent.
            if context != EVERY_CONTEXT:
                yield metrics.RELAY_UNSENT, (context, str(generation)), 0
                yield metrics.RELAY_LAG_SECONDS, (context, str(generation)), 0
    for unsent in relaying.unsent:
        yield metrics.RELAY_UNSENT, (unsent.context, str(unsent.generation)), unsent.rows.value
        yield metrics.RELAY_LAG_SECONDS, (unsent.context, str(unsent.generation)), _seconds(unsent.oldest)


def _partitions(snapshot: Snapshot) -> Iterator[Reading]:
    layout = snapshot.partitioning
    if layout is not None and layout.refuses_in is not None:
        yield metrics.PARTITIONS_DEADLINE_SECONDS, (), _seconds(layout.refuses_in)
    if layout is not None and layout.enabled:
        yield metrics.PARTITIONS_AHEAD, (), layout.ahead
        yield metrics.PARTITIONS_DEFAULT_ROWS, (), layout.default_rows.value
        yield metrics.PARTITIONS_DROPPABLE, (), layout.droppable


def _seconds(span: timedelta | None) -> float:
    return 0.0 if span is None else max(span.total_seconds(), 0.0)
