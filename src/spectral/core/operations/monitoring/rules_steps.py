"""Alerts about the steps of growth that were taken: the relay and its broker, and the partitions."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING

from spectral.core.events.broker_settings import NO_BROKER
from spectral.core.events.metrics import (
    BROKER_CONNECTED,
    PARTITIONS_AHEAD,
    PARTITIONS_DEADLINE_SECONDS,
    PARTITIONS_DEFAULT_ROWS,
    RELAY_LAG_SECONDS,
    RELAY_MODE,
    RELAYS,
)
from spectral.core.operations.monitoring.alert import Alert, Group, Severity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spectral.core.operations.monitoring.queries import Queries
    from spectral.core.operations.verdict_values import Limits

_database_alert = partial(Alert, group=Group.DATABASE, severity=Severity.WARNING)


def broker_alerts(queries: Queries) -> Iterator[Alert]:
    """Of single processes, by their instance."""
    yield Alert(
        name="SpectralBrokerLost",
        group=Group.WORKERS,
        expr=f"{queries.select(BROKER_CONNECTED)} == 0",
        for_=timedelta(minutes=2),
        severity=Severity.WARNING,
        summary="The broker does not answer: {{ $labels.instance }}",
        description="A worker claims from Postgres meanwhile, a relay sends nothing. Nothing is lost;"
        " both go back to the broker by themselves.",
        runbook="the-broker-or-the-relay-is-gone",
    )


def relay_alerts(queries: Queries, limits: Limits) -> Iterator[Alert]:
    """Of what is sent to the broker, or is not."""
    switched_on = f"{queries.worst(RELAY_MODE, mode=NO_BROKER)} == 0"
    yield _database_alert(
        name="SpectralRelayMissing",
        expr=queries.unless_any(switched_on, RELAYS),
        for_=timedelta(minutes=2),
        summary="Workers wait for a broker, and no relay runs",
        description="They find events by themselves, half a minute late. Start a relay, or switch back to Postgres.",
        runbook="the-broker-or-the-relay-is-gone",
    )
    lag = f"{queries.worst(RELAY_LAG_SECONDS, 'context', 'generation')} >= {limits.relay_lag.total_seconds():.10g}"
    yield _database_alert(
        name="SpectralRelayLag",
        expr=queries.unless_braked(queries.while_any(lag, RELAYS)),
        for_=timedelta(minutes=2),
        summary="Events are sent late: {{ $labels.context }}",
        description="The oldest has been due for {{ $value | humanizeDuration }} and is not on the broker."
        " The broker is away, full or slow, or workers do not keep up.",
        runbook="the-broker-or-the-relay-is-gone",
    )


def partition_alerts(queries: Queries, limits: Limits) -> Iterator[Alert]:
    """Of an outbox in months."""
    yield Alert(
        name="SpectralPartitionsUnfinished",
        group=Group.DATABASE,
        expr=f"{queries.worst(PARTITIONS_DEADLINE_SECONDS)} <= {limits.promise.total_seconds():.10g}",
        for_=timedelta(minutes=5),
        severity=Severity.CRITICAL,
        summary="Publishing fails in {{ $value | humanizeDuration }}",
        description="A conversion to partitions has stopped half-way, after it promised that no event comes from then"
        " on. Run it again, or take it back.",
        runbook="partitions-are-missing",
    )
    yield _database_alert(
        name="SpectralDefaultPartition",
        expr=f"{queries.worst(PARTITIONS_DEFAULT_ROWS)} > 0",
        for_=timedelta(minutes=10),
        summary="{{ $value }} rows are in the default partition",
        description="They fit no month. They are delivered, but no month can be made where they are.",
        runbook="partitions-are-missing",
    )
    yield _database_alert(
        name="SpectralPartitionsMissing",
        expr=f"{queries.worst(PARTITIONS_AHEAD)} < {limits.months}",
        for_=timedelta(hours=1),
        summary="The next month has no partition",
        description="Whatever is to run `spectral partitions maintain` does not."
        " What is published next month lands in the default partition.",
        runbook="partitions-are-missing",
    )
