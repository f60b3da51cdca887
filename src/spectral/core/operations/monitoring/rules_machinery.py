"""Alerts about what delivers: the workers, those who watch them, and the database they share."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from spectral.core.events.broker_settings import NO_BROKER
from spectral.core.events.metrics import (
    ACK_DURATION,
    EAR_DOWN_SECONDS,
    EMITTER_UP,
    GROWTH_TRIGGER,
    HANDLERS_RAN_AWAY,
    LOOP_BLOCKED_SECONDS,
    NOTIFY_QUEUE_USAGE,
    PROBE_DROPPED,
    PROBE_FAILED,
    RELAY_MODE,
    SWEEP_LATE,
    WORKER_GENERATION,
    WORKER_STATE,
    XMIN_AGE,
    XMIN_SECONDS,
)
from spectral.core.events.settings import WorkerTimes
from spectral.core.operations.monitoring.alert import Alert, Group, Severity
from spectral.core.operations.monitoring.queries import duration
from spectral.core.operations.verdict_words import spoken

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spectral.core.operations.monitoring.queries import Queries
    from spectral.core.operations.verdict_values import Limits

_DEGRADED: Final = WorkerTimes().degraded_after
_BLOCKED: Final = timedelta(seconds=30)
_SILENT: Final = timedelta(minutes=2)
"""Four looks of the emitter."""
_REMEMBERED: Final = timedelta(hours=6)
"""For how long a database is missed whose workers are all gone, and their series with them."""

_ENOUGH: Final = 1_000

_worker_alert = partial(Alert, group=Group.WORKERS)
_database_alert = partial(Alert, group=Group.DATABASE)
_growth_alert = partial(Alert, group=Group.GROWTH, severity=Severity.INFO, for_=timedelta(hours=1))


def worker_alerts(queries: Queries) -> Iterator[Alert]:
    """Of single workers, by their instance."""
    yield _worker_alert(
        name="SpectralEarDegraded",
        expr=f"{queries.select(EAR_DOWN_SECONDS)} > {_DEGRADED.total_seconds():.10g}",
        for_=timedelta(minutes=1),
        severity=Severity.WARNING,
        summary="A worker cannot listen: {{ $labels.instance }}",
        description="Its listening connection has been down for {{ $value | humanizeDuration }};"
        " it works by polling, up to 5 s late.",
        runbook="a-worker-is-deaf-blocked-or-dead",
    )
    yield _worker_alert(
        name="SpectralWorkerDead",
        expr=f"{queries.select(WORKER_STATE, state='dead')} > 0",
        for_=timedelta(minutes=1),
        severity=Severity.CRITICAL,
        summary="A worker is dead: {{ $labels.instance }}",
        description="It crashed, or its event loop has stood still for longer than any handler may take."
        " Nothing restarts it by itself unless /live is probed.",
        runbook="a-worker-is-deaf-blocked-or-dead",
    )
    yield _worker_alert(
        name="SpectralLoopBlocked",
        expr=f"{queries.select(LOOP_BLOCKED_SECONDS)} > {_BLOCKED.total_seconds():.10g}",
        for_=timedelta(0),
        severity=Severity.WARNING,
        summary="A handler blocks a worker: {{ $labels.instance }}",
        description="Its event loop has not moved for {{ $value | humanizeDuration }}: a handler waits or computes"
        " without letting go. Nothing else of this worker runs meanwhile.",
        runbook="a-worker-is-deaf-blocked-or-dead",
    )
    yield _worker_alert(
        name="SpectralHandlerRanAway",
        expr=queries.happened(HANDLERS_RAN_AWAY, "15m", "context", "handler"),
        for_=timedelta(0),
        severity=Severity.WARNING,
        summary="A handler ignores its timeout: {{ $labels.handler }}",
        description="It was cancelled, did not end and was left behind; it may still run beside its next attempt.",
        runbook="a-worker-is-deaf-blocked-or-dead",
    )


def watch_alerts(queries: Queries) -> Iterator[Alert]:
    """Of those who watch: without them every other alert is silent."""
    workers = f"{queries.select(WORKER_GENERATION)}[{duration(_REMEMBERED)}]"
    known = queries.over("count", (), f"max_over_time({workers})")
    at_once = replace(queries, held=None)  # the one rule that is about the time without numbers
    yield _worker_alert(
        name="SpectralEmitterSilent",
        # An emitter shows its numbers only while they are new: no clock is compared with another's.
        expr=f"{at_once.unless_any(known, EMITTER_UP)} or absent_over_time({workers})",
        for_=_SILENT,
        severity=Severity.CRITICAL,
        summary="Nobody measures the database",
        description=f"No worker has read backlogs and queues for {spoken(_SILENT)}."
        " The database is down, or no worker runs, or none of them is scraped.",
        runbook="nothing-is-measured",
    )
    yield _worker_alert(
        name="SpectralNotesDropped",
        expr=f"{queries.happened(PROBE_DROPPED, '15m', 'tool')} or {queries.happened(PROBE_FAILED, '15m', 'tool')}",
        for_=timedelta(0),
        severity=Severity.WARNING,
        summary="What watches loses notes: {{ $labels.tool }}",
        description="It hangs, is too slow or fails. Delivery does not wait for it, but it does not tell everything.",
        runbook="nothing-is-measured",
    )


def database_alerts(queries: Queries, limits: Limits) -> Iterator[Alert]:
    """Of the database."""
    queue = queries.worst(NOTIFY_QUEUE_USAGE)
    yield _database_alert(
        name="SpectralNotifyQueueFills",
        expr=f"{queue} >= {limits.queue:g}",
        for_=timedelta(minutes=1),
        severity=Severity.WARNING,
        summary="The NOTIFY queue is {{ $value | humanizePercentage }} full",
        description="Somebody listens and sits in a transaction. At 100 % every publish on this server fails.",
        runbook="the-notify-queue-fills-up",
    )
    yield _database_alert(
        name="SpectralNotifyQueueHalfFull",
        expr=f"{queue} >= {limits.queue_full:g}",
        for_=timedelta(0),
        severity=Severity.CRITICAL,
        summary="The NOTIFY queue is {{ $value | humanizePercentage }} full",
        description="End the session that does not read, now. At 100 % every publish on this server fails.",
        runbook="the-notify-queue-fills-up",
    )
    long = f"{queries.worst(XMIN_SECONDS, 'kind')} >= {limits.transaction.total_seconds():.10g}"
    yield _database_alert(
        name="SpectralVacuumHeldUp",
        expr=f"{long} or {queries.worst(XMIN_AGE, 'kind')} >= {limits.held}",
        for_=timedelta(minutes=5),
        severity=Severity.WARNING,
        summary="Dead rows cannot be vacuumed: {{ $labels.kind }}",
        description=f"Somebody has kept a transaction open for more than {spoken(limits.transaction)}, or is more than"
        f" {limits.held:,} transactions behind. Claims and sweeps get slower; the doctor has the name.",
        runbook="a-transaction-that-holds-vacuum-up",
    )
    yield _database_alert(
        name="SpectralSweepOverdue",
        expr=f"{queries.worst(SWEEP_LATE)} > 0",
        for_=timedelta(minutes=10),
        severity=Severity.WARNING,
        summary="The sweep is overdue",
        description="Delivered events and dedup records pile up; whatever is to run `spectral retention run` does not.",
        runbook="the-sweep-is-overdue",
    )


def growth_alerts(queries: Queries, limits: Limits) -> Iterator[Alert]:
    """Nothing is wrong: the next step of the growth plan is due."""
    yield _growth_alert(
        name="SpectralGrowthPartition",
        expr=f"{queries.worst(GROWTH_TRIGGER, step='partition')} > 0",
        summary=f"The outbox has more than {limits.partition:,} rows",
        description="Vacuum and sweep read ever more. With monthly partitions a sweep drops a table instead.",
        runbook="the-next-step-of-growth",
    )
    relay = queries.over("max", (), f"max_over_time({queries.select(GROWTH_TRIGGER, step='relay')}[7d])")
    yield _growth_alert(
        name="SpectralGrowthRelay",
        # Within the week: a full queue is an incident, over before anybody plans anything. Unless it is done.
        expr=queries.unless_zero(f"{relay} > 0", RELAY_MODE, mode=NO_BROKER),
        for_=timedelta(0),
        summary="The outbox has outgrown NOTIFY",
        description=f"It has more than {limits.relay:,} rows, or the NOTIFY queue was"
        f" {limits.queue_full:.0%} full within the last week."
        " A broker can wake and spread the work; the outbox stays the truth.",
        runbook="the-next-step-of-growth",
    )
    slowest = queries.quantile(0.99, ACK_DURATION, "7d")
    counted = queries.over("sum", (), f"increase({queries.select(ACK_DURATION, '_count')}[7d])")
    yield _growth_alert(
        name="SpectralAckSlow",
        expr=f"{slowest} > {limits.ack.total_seconds():g} and {counted} >= {_ENOUGH}",
        summary="One event in a hundred takes {{ $value | humanizeDuration }} to be delivered",
        description="From due to delivered, over the last week. Handlers are slow, workers are few,"
        " or Postgres alone does not wake and spread the work fast enough.",
        runbook="the-next-step-of-growth",
    )
