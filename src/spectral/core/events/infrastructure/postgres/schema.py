"""What a worker asks of its schema, before it takes anything on.

A worker that finds out in the middle of its work that a function is missing has claimed rows that it cannot settle, or
runs for hours without what makes it quick and then dies of the first event that kills its process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from spectral.core.events.failure import ConfigurationError

if TYPE_CHECKING:
    import psycopg

FUNCTIONS: Final = (
    "bell_asleep",
    "bell_awake",
    "bell_hold",
    "bell_mend",
    "bell_quiet",
    "bell_ring",
    "outbox_begin",
    "outbox_begin_one",
    "outbox_begin_together",
    "outbox_claim_aside",
    "outbox_claim_from",
    "outbox_claim_late",
    "outbox_claim_these",
    "outbox_deliver",
    "outbox_deliver_alike",
    "outbox_deliver_together",
    "outbox_fail_unhandled",
    "outbox_fan_out",
    "outbox_label",
    "outbox_became",
    "outbox_next_due",
    "outbox_reap",
    "outbox_release",
    "outbox_release_unknown",
    "outbox_renew",
    "outbox_set_aside",
    "outbox_settle",
    "outbox_subscribe",
    "relay_mode",
    "require_role",
    "worker_lock_key",
    "worker_quarantine_key",
    "worker_sign_in",
    "worker_sign_out",
)
"""By name: one that does something else, or takes something else, has another."""

_LACKING: Final = (
    b"select coalesce(array_agg('core.' || needed.name), '{}')"
    b" from pg_catalog.unnest(%s::text[]) as needed (name)"
    b" where not exists (select from pg_catalog.pg_proc as known"
    b" where known.pronamespace = 'core'::pg_catalog.regnamespace and known.proname = needed.name)"
)
_SHOWN: Final = 3


async def require_functions(connection: psycopg.AsyncConnection[Any]) -> None:
    """Refuse a schema that is older than this worker.

    Raises:
        ConfigurationError: functions are missing; the message says what to do.
    """
    row = await (await connection.execute(_LACKING, [list(FUNCTIONS)])).fetchone()
    lacking: list[str] = [] if row is None else row[0]
    if lacking:
        more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
        raise ConfigurationError(
            f"the schema of this database is older than this worker: it lacks {', '.join(lacking[:_SHOWN])}{more}; "
            "run: spectral migrate up"
        )
