"""The other rows of the dashboard: the workers, the database, the steps of growth, and those who watch."""

from __future__ import annotations

from typing import Final

from spectral.core.events import metrics
from spectral.core.operations.monitoring.panels import AT, PLACE, QUERIES, WINDOW, Panel, Row, Target, Unit, rate, worst

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
            "Workers by context",
            "Those that take events of a context and generation. 0 where events are and nobody is.",
            Unit.COUNT,
            (worst(metrics.WORKERS_SERVING, *PLACE, legend=AT),),
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

RELAY: Final = Row(
    "Relay & partitions",
    (
        Panel(
            "Taken from",
            "What workers are to take events from: spectral relay status.",
            Unit.SWITCH,
            (worst(metrics.RELAY_MODE, "mode", legend="{{mode}}"),),
        ),
        Panel(
            "Relays alive",
            "Processes that send to the broker. One is enough, two keep it prompt when one is lost.",
            Unit.COUNT,
            (worst(metrics.RELAYS, legend="relays"),),
        ),
        Panel(
            "Not sent yet",
            "Events that are due and that no relay has sent.",
            Unit.COUNT,
            (worst(metrics.RELAY_UNSENT, *PLACE, legend=AT),),
        ),
        Panel(
            "Relay lag",
            "For how long the oldest of them has been due. Workers look for themselves after half a minute.",
            Unit.SECONDS,
            (worst(metrics.RELAY_LAG_SECONDS, *PLACE, legend=AT),),
        ),
        Panel(
            "References",
            "Sent, sent again, refused for want of room, and received in vain, a second.",
            Unit.PER_SECOND,
            (
                rate(metrics.RELAY_SENT, "context", legend="{{context}} sent"),
                rate(metrics.RELAY_RESENT, "context", legend="{{context}} sent again"),
                rate(metrics.RELAY_REFUSED, "context", legend="{{context}} refused"),
                rate(metrics.RELAY_VOID, "context", legend="{{context}} void"),
            ),
        ),
        Panel(
            "Broker",
            "1 while it answers. At 0 a worker claims from Postgres, and a relay sends nothing.",
            Unit.SWITCH,
            (worst(metrics.BROKER_CONNECTED, "instance", legend=_INSTANCE),),
        ),
        Panel(
            "Broker lost",
            "How often workers and relays lost it, a second.",
            Unit.PER_SECOND,
            (rate(metrics.BROKER_LOST, "broker", legend="{{broker}}"),),
        ),
        Panel(
            "Partitions",
            "Months ahead, and partitions that a sweep can drop.",
            Unit.COUNT,
            (
                worst(metrics.PARTITIONS_AHEAD, legend="ahead"),
                worst(metrics.PARTITIONS_DROPPABLE, legend="droppable"),
            ),
        ),
        Panel(
            "Rows in the default partition",
            "They fit no month: spectral partitions maintain.",
            Unit.COUNT,
            (worst(metrics.PARTITIONS_DEFAULT_ROWS, legend="rows"),),
        ),
        Panel(
            "Conversion has to go on within",
            "Only while a conversion to partitions is under way and has made its promise.",
            Unit.SECONDS,
            (worst(metrics.PARTITIONS_DEADLINE_SECONDS, legend="left"),),
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
