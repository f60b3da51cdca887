"""Short ways to sweep, and rows as old as one likes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import UUID, uuid4

from psycopg import sql

from tests.migrations.schema import Connection, insert, outbox_row, value

HANDLER = "platform.project_scan"
ALL = 4_294_967_295
"""More blocks than any table has."""


def ago(**since: float) -> datetime:
    """So long before now."""
    return datetime.now(UTC) - timedelta(**since)


class Swept(NamedTuple):
    """What a step answers."""

    put_away: int
    deleted: int
    more: bool


@dataclass(frozen=True)
class Step:
    """One call, with the times of the default policies unless told otherwise."""

    sweeper: str | None = "s"
    start: int | None = 0
    end: int | None = ALL
    active: str | None = "45 days"
    grace: str | None = "7 days"
    limit: int | None = 5000
    dry_run: bool | None = False


EVERYTHING = Step(active="0 s", grace="0 s")
"""As if every time had come long ago."""


def begin(connection: Connection, sweeper: str = "s", lease: str = "2 minutes") -> bool:
    return bool(value(connection, "select core.sweep_begin(%s, %s)", [sweeper, lease]))


def sweep(connection: Connection, step: Step = Step(), table: str = "outbox") -> Swept:  # noqa: B008  frozen
    """One call of the function for that table (outbox or handled)."""
    statement = sql.SQL("select * from core.{}(%s, %s, %s, %s, %s, %s, %s)").format(sql.Identifier(f"sweep_{table}"))
    asked = [step.sweeper, step.start, step.end, step.active, step.grace, step.limit, step.dry_run]
    (found,) = connection.execute(statement, asked).fetchall()
    return Swept(*found)


def delivered(connection: Connection, days: float, **columns: object) -> UUID:
    """A row that was delivered so many days ago."""
    return outbox_row(connection, "delivered", **{"delivered_at": ago(days=days), **columns})


def record(connection: Connection, key: object, days: float = 1_000, **columns: object) -> None:
    """A handler's record of a key, written so many days ago."""
    given = {"handler_name": HANDLER, "idempotency_key": str(key), "event_id": uuid4(), "handled_at": ago(days=days)}
    insert(connection, "event_handled", {**given, **columns})


def left(connection: Connection) -> set[UUID]:
    """The rows that are there."""
    return {event_id for (event_id,) in connection.execute("select id from core.outbox").fetchall()}


def put_away(connection: Connection) -> set[UUID]:
    """The rows that have a tombstone."""
    found = connection.execute("select id from core.outbox where deleted_at is not null").fetchall()
    return {event_id for (event_id,) in found}


def keys(connection: Connection) -> set[str]:
    """The keys on record."""
    return {key for (key,) in connection.execute("select idempotency_key from core.event_handled").fetchall()}
