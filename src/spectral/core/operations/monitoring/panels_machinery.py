"""The other rows of the dashboard: the workers, the database, and those who watch."""

from __future__ import annotations

from typing import Final

from spectral.core.events import metrics
from spectral.core.operations.monitoring.panels import QUERIES, WINDOW, Panel, Row, Target, Unit, rate, worst

_INSTANCE: Final = "{{instance}}"
_OPERATION: Final = "messaging_operation_name"

WORKERS: Final = Row(
    "Ears & workers",
    (
        Panel(
            "Workers alive",
            "By the generation they belong to, as the database sees them.",
            Unit.COUNT,
            (worst(metrics.WORKERS, "generation", legend="generation {{generation}}"),),
        ),
        Panel(
            "States",
            "How many of the scraped workers are in which state.",
            Unit.COUNT,
            (Target(QUERIES.total(metrics.WORKER_STATE, "state"), "{{state}}"),),
        ),
        Panel(
            "Generations",
            "Which generation each worker belongs to: two of them during a rolling deploy.",
            Unit.COUNT,
            (worst(metrics.WORKER_GENERATION, "instance", legend=_INSTANCE),),
        ),
        Panel(
            "Held and running",
            "Deliveries that each worker holds, and those whose handlers run.",
            Unit.COUNT,
            (
                Target(QUERIES.total(metrics.WORKER_HELD, "instance"), f"{_INSTANCE} held"),
                Target(QUERIES.total(metrics.WORKER_RUNNING, "instance"), f"{_INSTANCE} running"),
            ),
        ),
        Panel(
            "Ears",
            "1 while the worker listens. At 0 it works by polling, up to 5 s late.",
            Unit.SWITCH,
            (worst(metrics.EAR_CONNECTED, "instance", legend=_INSTANCE),),
        ),
        Panel(
            "Deaf for",
            "For how long a worker has not been listening; degraded from half a minute on.",
            Unit.SECONDS,
            (worst(metrics.EAR_DOWN_SECONDS, "instance", legend=_INSTANCE),),
        ),
        Panel(
            "Loop blocked for",
            "For how long a worker's event loop has not moved.",
            Unit.SECONDS,
            (worst(metrics.LOOP_BLOCKED_SECONDS, "instance", legend=_INSTANCE),),
        ),
        Panel(
            "Trouble",
            "What had to be tried again, found by polling, given up or left to another worker, a second.",
            Unit.PER_SECOND,
            (
                rate(metrics.DATABASE_LOST, "doing", legend="database lost: {{doing}}"),
                rate(metrics.POLL_FALLBACKS, legend="found while deaf"),
                rate(metrics.LEASES_LOST, legend="lease lost"),
                rate(metrics.SETTLE_GIVEN_UP, legend="settle given up"),
            ),
        ),
        Panel(
            "Publish, claim and settle (p99)",
            "How long the database takes for each, in one round.",
            Unit.SECONDS,
            (Target(QUERIES.quantile(0.99, metrics.OPERATION_DURATION, WINDOW, _OPERATION), f"{{{{{_OPERATION}}}}}"),),
        ),
        Panel(
            "Broadcasts split",
            "Events for everybody that became one row for each subscribed context, a second.",
            Unit.PER_SECOND,
            (rate(metrics.FANNED_OUT, legend="split"),),
        ),
    ),
)

DATABASE: Final = Row(
    "Database",
    (
        Panel(
            "NOTIFY queue",
            "Share in use, of the whole server. From a quarter on find out who listens and does not read.",
            Unit.SHARE,
            (worst(metrics.NOTIFY_QUEUE_USAGE, legend="in use"),),
        ),
        Panel(
            "Oldest snapshot",
            "For how long somebody has kept dead rows from being vacuumed.",
            Unit.SECONDS,
            (worst(metrics.XMIN_SECONDS, "kind", legend="{{kind}}"),),
        ),
        Panel(
            "Oldest snapshot, in transactions",
            "The same, by how many transactions there have been since.",
            Unit.COUNT,
            (worst(metrics.XMIN_AGE, "kind", legend="{{kind}}"),),
        ),
        Panel(
            "Rows",
            "Estimated by the server.",
            Unit.COUNT,
            (
                worst(metrics.TABLE_ROWS, "table", legend="{{table}}"),
                worst(metrics.TABLE_DEAD, "table", legend="{{table}} dead"),
            ),
        ),
        Panel(
            "Size",
            "With indexes and TOAST.",
            Unit.BYTES,
            (worst(metrics.TABLE_BYTES, "table", legend="{{table}}"),),
        ),
        Panel(
            "Last sweep",
            "How long ago the last complete one ended; late by the doctor's rule.",
            Unit.SECONDS,
            (worst(metrics.SWEEP_AGE_SECONDS, legend="ago"), worst(metrics.SWEEP_LATE, legend="late (1)")),
        ),
        Panel(
            "Rows without a channel",
            "Undelivered events that somebody inserted where nobody listens.",
            Unit.COUNT,
            (worst(metrics.DEFAULT_CHANNEL_ROWS, legend="rows"),),
        ),
        Panel(
            "Steps of growth",
            "On when measured figures ask for the next step.",
            Unit.SWITCH,
            (worst(metrics.GROWTH_TRIGGER, "step", legend="{{step}}"),),
        ),
    ),
)

PROBE: Final = Row(
    "Probe",
    (
        Panel(
            "Notes dropped",
            "By the tool that was too slow for them, a second. Delivery does not wait for it.",
            Unit.PER_SECOND,
            (rate(metrics.PROBE_DROPPED, "tool", legend="{{tool}}"),),
        ),
        Panel(
            "Notes failed",
            "By the tool that raised, a second.",
            Unit.PER_SECOND,
            (rate(metrics.PROBE_FAILED, "tool", legend="{{tool}}"),),
        ),
        Panel(
            "Emitters",
            "Which worker measures the database: one of them.",
            Unit.COUNT,
            (worst(metrics.EMITTER_UP, "instance", legend=_INSTANCE),),
        ),
        Panel(
            "Last measured",
            "How long ago the database was last read; half a minute at most.",
            Unit.SECONDS,
            (Target(f"time() - {QUERIES.worst(metrics.EMITTER_TIMESTAMP)}", "ago"),),
        ),
    ),
)
