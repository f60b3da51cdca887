"""What the dashboard shows, row by row: every question an operator asks first, and the metrics that answer it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from spectral.core.events import metrics
from spectral.core.operations.monitoring.queries import Queries

WINDOW: Final = "$__rate_interval"
CONTEXT: Final = "$context"
QUERIES: Final = Queries(filters=(("context", CONTEXT), ("messaging_consumer_group_name", CONTEXT)))
_FAILED_RUNS: Final = replace(QUERIES, filters=(("error_type", ".+"),))
PLACE: Final = ("context", "generation")
AT: Final = "{{context}} {{generation}}"
_HANDLER: Final = "{{spectral_handler}}"


class Unit(StrEnum):
    """Grafana's names of units."""

    COUNT = "short"
    SECONDS = "s"
    SHARE = "percentunit"
    PER_SECOND = "ops"
    BYTES = "bytes"
    SWITCH = "bool_on_off"


@dataclass(frozen=True, slots=True)
class Target:
    """One query, and what its series are called."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One question. `is_number`: the last value, large, instead of a graph."""

    title: str
    description: str
    unit: Unit
    targets: tuple[Target, ...]
    is_number: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading."""

    title: str
    panels: tuple[Panel, ...]


def worst(metric: metrics.Metric, *labels: str, legend: str) -> Target:
    """The largest of a gauge."""
    return Target(QUERIES.worst(metric, *labels), legend)


def rate(metric: metrics.Metric, *labels: str, legend: str) -> Target:
    """A counter, by the second."""
    return Target(QUERIES.rate(metric, WINDOW, *labels), legend)


def quantiles(metric: metrics.Metric, *labels: str, legend: str) -> tuple[Target, ...]:
    """The usual three of a histogram."""
    return tuple(
        Target(QUERIES.quantile(share, metric, WINDOW, *labels), f"{legend} p{share * 100:.0f}".strip())
        for share in (0.5, 0.95, 0.99)
    )


def _runs(queries: Queries) -> str:
    return queries.rate(metrics.PROCESS_DURATION, WINDOW, "spectral_handler", suffix="_count")


def _large(title: str, description: str, unit: Unit, expr: str) -> Panel:
    return Panel(title, description, unit, (Target(expr, ""),), is_number=True)


NOW: Final = Row(
    "Now",
    (
        _large(
            "Due",
            "Events that may be claimed and are not. Counted to 10,000 for each context and generation.",
            Unit.COUNT,
            f"sum({QUERIES.worst(metrics.BACKLOG, *PLACE)})",
        ),
        _large(
            "Oldest",
            "How long the oldest event has been due. Seconds are normal, minutes are not.",
            Unit.SECONDS,
            QUERIES.worst(metrics.BACKLOG_OLDEST_SECONDS),
        ),
        _large(
            "Workers alive",
            "Of all generations, by their liveness locks.",
            Unit.COUNT,
            f"sum({QUERIES.worst(metrics.WORKERS, 'generation')})",
        ),
        _large(
            "Brakes pulled",
            "Contexts whose claiming somebody has stopped: spectral brake status.",
            Unit.COUNT,
            f"sum({QUERIES.worst(metrics.BRAKE, 'context')})",
        ),
        Panel(
            "Backlog",
            "Due now, and pending until later (delays and retries).",
            Unit.COUNT,
            (
                worst(metrics.BACKLOG, *PLACE, legend=f"{AT} due"),
                worst(metrics.BACKLOG_WAITING, *PLACE, legend=f"{AT} later"),
            ),
        ),
        Panel(
            "Oldest event",
            "How long the oldest event of each context has been due.",
            Unit.SECONDS,
            (worst(metrics.BACKLOG_OLDEST_SECONDS, *PLACE, legend=AT),),
        ),
        Panel(
            "Throughput",
            "Published into transactions and settled, a second. Published counts only processes that are scraped.",
            Unit.PER_SECOND,
            (
                rate(metrics.SENT_MESSAGES, legend="published"),
                rate(metrics.CONSUMED_MESSAGES, legend="consumed"),
                rate(metrics.OUTCOMES, "outcome", legend="{{outcome}}"),
            ),
        ),
        Panel(
            "From due to delivered",
            "Acknowledgement latency. Above half a second at p99 for a week the growth plan asks for a relay.",
            Unit.SECONDS,
            quantiles(metrics.ACK_DURATION, legend=""),
        ),
        Panel(
            "In flight",
            "Claimed by workers, and of these the claims of workers that show no sign of life.",
            Unit.COUNT,
            (
                worst(metrics.IN_FLIGHT, *PLACE, legend=AT),
                worst(metrics.STALE_CLAIMS, *PLACE, legend=f"{AT} stale"),
            ),
        ),
        Panel(
            "Consumed by type",
            "Deliveries that reached a handler and were settled, a second.",
            Unit.PER_SECOND,
            (rate(metrics.CONSUMED_MESSAGES, "messaging_destination_name", legend="{{messaging_destination_name}}"),),
        ),
    ),
)

HANDLERS: Final = Row(
    "Handlers",
    (
        Panel(
            "Duration",
            "How long each handler runs, failed runs included.",
            Unit.SECONDS,
            quantiles(metrics.PROCESS_DURATION, "spectral_handler", legend=_HANDLER),
        ),
        Panel(
            "Error rate",
            "Share of runs that ended with an error, retries included.",
            Unit.SHARE,
            (Target(f"{_runs(_FAILED_RUNS)} / {_runs(QUERIES)}", _HANDLER),),
        ),
        Panel("Runs", "How often each handler runs, a second.", Unit.PER_SECOND, (Target(_runs(QUERIES), _HANDLER),)),
        Panel(
            "Retries",
            "Deliveries that failed and will be tried again, a second.",
            Unit.PER_SECOND,
            (rate(metrics.RETRIES, "context", "event_type", legend="{{context}} {{event_type}}"),),
        ),
        Panel(
            "Handlers that block or run away",
            "A loop stands still when a handler waits without letting go; one that ran away ignored its timeout.",
            Unit.PER_SECOND,
            (
                rate(metrics.HANDLERS_RAN_AWAY, "handler", legend="{{handler}} ran away"),
                rate(metrics.LOOP_BLOCKED, "instance", legend="{{instance}} blocked"),
            ),
        ),
    ),
)

DLQ: Final = Row(
    "DLQ",
    (
        Panel(
            "Dead letters",
            "Events that failed for good and wait for a decision: spectral dlq groups.",
            Unit.COUNT,
            (
                worst(metrics.DLQ, *PLACE, legend=AT),
                worst(metrics.DLQ_RECENT, *PLACE, legend=f"{AT} in the last hour"),
            ),
        ),
        Panel(
            "New dead letters",
            "A second, by context and type of event.",
            Unit.PER_SECOND,
            (rate(metrics.DEAD_LETTERS, "context", "event_type", legend="{{context}} {{event_type}}"),),
        ),
        Panel(
            "Without a handler",
            "Events that went to the DLQ because nobody is subscribed to them, a second.",
            Unit.PER_SECOND,
            (rate(metrics.UNHANDLED, "context", legend="{{context}}"),),
        ),
        Panel(
            "Conflicts",
            "Transactions that could not be kept beside others', and handlers kept apart for it, a second.",
            Unit.PER_SECOND,
            (
                rate(metrics.CONFLICTS, "context", legend="{{context}}"),
                rate(metrics.KEPT_APART, "handler", legend="{{handler}} kept apart"),
            ),
        ),
        Panel(
            "Taken back",
            "Claims of lost workers, by what became of the row, and rows that now run alone, a second.",
            Unit.PER_SECOND,
            (
                rate(metrics.REAPED, "result", legend="{{result}}"),
                rate(metrics.QUARANTINED, "context", legend="{{context}} alone"),
            ),
        ),
    ),
)
