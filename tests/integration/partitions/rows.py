"""Rows of another time: written past the triggers, which know only of now."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg

Connection = psycopg.Connection[Any]


def month(connection: Connection, later: int) -> datetime:
    """The beginning of the month that is so many after this one."""
    row = connection.execute("select core.partition_month(clock_timestamp(), %s)", [later]).fetchone()
    assert row is not None
    begin: datetime = row[0]
    return begin


def name_of(connection: Connection, later: int) -> str:
    """The partition of that month."""
    row = connection.execute("select 'outbox_' || core.partition_month_name(%s)", [month(connection, later)]).fetchone()
    assert row is not None
    return str(row[0])


def write(
    connection: Connection,
    created: datetime,
    status: str = "delivered",
    *,
    put_away: timedelta | None = None,
    count: int = 1,
) -> list[UUID]:
    """Rows that were created then and ended a minute later; put away for so long, or not at all."""
    with connection.transaction():
        connection.execute("set local session_replication_role = replica")
        rows = connection.execute(
            "insert into core.outbox (id, event_type, source, target, generation, channel, idempotency_key, created_at,"
            "  next_attempt_at, status, attempts, delivered_at, claim_token, claimed_by, claimed_at, last_error,"
            "  first_failed_at, deleted_at)"
            " select given.id, 'worlds.scan.completed', 'worlds', 'platform', 1, 'outbox_gen_1', given.id::text,"
            "  %(created)s, %(created)s, %(status)s, 1,"
            "  case when %(status)s = 'delivered' then %(created)s + interval '1 minute' end,"
            "  case when %(status)s = 'in_flight' then gen_random_uuid() end, 'somebody', %(created)s,"
            "  case when %(status)s = 'failed' then 'ValueError: no' end,"
            "  case when %(status)s = 'failed' then %(created)s end, clock_timestamp() - %(put_away)s::interval"
            " from (select core.uuid7() as id from generate_series(1, %(count)s)) as given"
            " returning id",
            {"created": created, "status": status, "put_away": put_away, "count": count},
        ).fetchall()
    return [row[0] for row in rows]
