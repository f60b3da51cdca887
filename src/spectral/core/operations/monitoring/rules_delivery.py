"""Alerts about events: those that wait, those that failed, those that were left behind."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Final

from spectral.core.events.metrics import (
    BACKLOG_OLDEST_SECONDS,
    BRAKE,
    DEAD_LETTERS,
    DEFAULT_CHANNEL_ROWS,
    DLQ_RECENT,
    OUTCOMES,
    SETTLE_GIVEN_UP,
    STALE_CLAIMS,
    WORKERS_SERVING,
)
from spectral.core.operations.monitoring.alert import Alert, Group, Severity
from spectral.core.operations.verdict_words import spoken

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spectral.core.operations.monitoring.queries import Queries
    from spectral.core.operations.verdict_values import Limits

_PLACE: Final = ("context", "generation")
_WHERE: Final = "{{ $labels.context }}, generation {{ $labels.generation }}"
_FLOOD: Final = 0.1
_FLOOD_LEAST: Final = 10
_FORGOTTEN: Final = timedelta(hours=1)

_alert = partial(Alert, group=Group.DELIVERY)


def delivery_alerts(queries: Queries, limits: Limits) -> Iterator[Alert]:
    """All of them, in the order of an event's way."""
    yield from _waiting(queries, limits)
    yield from _left_behind(queries)
    yield from _failed(queries)


def _waiting(queries: Queries, limits: Limits) -> Iterator[Alert]:
    oldest = queries.worst(BACKLOG_OLDEST_SECONDS, *_PLACE)
    late = f"{oldest} >= {limits.patience.total_seconds():.10g}"
    yield _alert(
        name="SpectralNoWorker",
        expr=queries.unless_braked(queries.unless_any(late, WORKERS_SERVING, *_PLACE)),
        for_=timedelta(minutes=1),
        severity=Severity.CRITICAL,
        summary=f"Events wait and no worker is alive: {_WHERE}",
        description="The oldest event has been due for {{ $value | humanizeDuration }},"
        " and no worker of its context and generation is there to take it.",
        runbook="events-wait",
    )
    yield _alert(
        name="SpectralBacklogLate",
        expr=queries.unless_braked(late),
        for_=timedelta(minutes=5),
        severity=Severity.WARNING,
        summary=f"Events are late: {_WHERE}",
        description="The oldest event has been due for {{ $value | humanizeDuration }}."
        " More is published than handled, or no worker serves this context or class.",
        runbook="events-wait",
    )
    yield _alert(
        name="SpectralBacklogStuck",
        expr=queries.unless_braked(f"{oldest} >= {limits.late.total_seconds():.10g}"),
        for_=timedelta(minutes=1),
        severity=Severity.CRITICAL,
        summary=f"Events have waited for more than {spoken(limits.late)}: {_WHERE}",
        description="The oldest event has been due for {{ $value | humanizeDuration }}.",
        runbook="events-wait",
    )
    yield _alert(
        name="SpectralBrakeForgotten",
        expr=f"{queries.worst(BRAKE, 'context')} > 0",
        for_=_FORGOTTEN,
        severity=Severity.WARNING,
        summary="The brake is on: {{ $labels.context }}",
        description=f"Nothing of it has been claimed for {spoken(_FORGOTTEN)}, on purpose. Is the reason still there?",
        runbook="the-emergency-brake",
    )


def _left_behind(queries: Queries) -> Iterator[Alert]:
    yield _alert(
        name="SpectralStaleClaims",
        expr=f"{queries.worst(STALE_CLAIMS, *_PLACE)} > 0",
        for_=timedelta(minutes=2),
        severity=Severity.WARNING,
        summary=f"Claims that nobody works on: {_WHERE}",
        description="{{ $value | humanize }} events are held by workers that show no sign of life,"
        " and nobody takes them back. A living worker does so within seconds.",
        runbook="stale-claims",
    )
    yield _alert(
        name="SpectralSettleGivenUp",
        expr=queries.happened(SETTLE_GIVEN_UP, "15m", "context"),
        for_=timedelta(0),
        severity=Severity.WARNING,
        summary="Outcomes could not be written: {{ $labels.context }}",
        description="Handlers ran, and the database did not take what became of their events."
        " The reaper takes the events back; plain handlers run again.",
        runbook="outcomes-that-could-not-be-written",
    )
    lately = queries.over("max", (), f"max_over_time({queries.select(DEFAULT_CHANNEL_ROWS)}[15m])")
    yield _alert(
        name="SpectralDefaultChannel",
        # Over some time, for the poll finds such rows within seconds.
        expr=f"{lately} > 0",
        for_=timedelta(0),
        severity=Severity.WARNING,
        summary="Events are inserted without a channel",
        description="Up to {{ $value | humanize }} events at a time wait where nobody listens, up to 15 s.",
        runbook="rows-on-the-default-channel",
    )


def _failed(queries: Queries) -> Iterator[Alert]:
    # Whoever gave them up: a handler that failed, a worker without one, or the reaper. A type of event has no series
    # before its first dead letter, and a context that nobody handles anything of has no outcomes. Both are counted in
    # the same way: what was done before the first scrape, or while nobody scraped, counts on both sides.
    failed = queries.counted(DEAD_LETTERS, "10m", "context")
    few = f"{failed} <= {_FLOOD:g} * {queries.counted(OUTCOMES, '10m', 'context')}"
    yield _alert(
        name="SpectralDlqGrows",
        expr=f"{queries.worst(DLQ_RECENT, *_PLACE)} > 0",
        for_=timedelta(minutes=1),
        severity=Severity.WARNING,
        summary=f"Dead letters: {_WHERE}",
        description="{{ $value | humanize }} events failed for good within the last hour."
        " None of them is retried or swept by itself.",
        runbook="the-dlq-grows",
    )
    yield _alert(
        name="SpectralDlqFlood",
        expr=f"{failed} >= {_FLOOD_LEAST} unless {few}",
        for_=timedelta(minutes=5),
        severity=Severity.CRITICAL,
        summary="Many events fail: {{ $labels.context }}",
        description="{{ $value | humanize }} events failed for good within ten minutes,"
        f" more than {_FLOOD:.0%} of what was settled meanwhile. The brake makes them wait instead.",
        runbook="the-dlq-grows",
    )
