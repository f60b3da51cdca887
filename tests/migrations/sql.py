"""Short ways to bring rows into a state through the schema's own functions."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, LiteralString, NamedTuple
from uuid import UUID

import psycopg
import pytest

EVENT_TYPE = "worlds.scan.completed"
CHANNELS = ["outbox_gen_1", "outbox_default"]


class Claim(NamedTuple):
    id: UUID
    token: UUID
    attempts: int


def publish(connection: psycopg.Connection[Any], *, target: str | None = "platform", **given: object) -> UUID:
    """Publish one event by the SQL function."""
    arguments = {"p_event_type": EVENT_TYPE, "p_source": "worlds", "p_target": target, "p_generation": 1, **given}
    named = psycopg.sql.SQL(", ").join(
        psycopg.sql.SQL("{} => {}").format(psycopg.sql.Identifier(name), psycopg.sql.Placeholder(name))
        for name in arguments
    )
    row = connection.execute(psycopg.sql.SQL("select core.outbox_publish({})").format(named), arguments).fetchone()
    assert row is not None
    return UUID(str(row[0]))


def claim(
    connection: psycopg.Connection[Any],
    *,
    worker: str = "worker-1",
    context: str = "platform",
    limit: int = 10,
    generation: int = 1,
) -> list[Claim]:
    """Claim as a worker of that generation."""
    rows = connection.execute(
        "select id, claim_token, attempts from core.outbox_claim(%s, %s, %s, %s, %s, %s)",
        [worker, context, [generation], channels(generation), [EVENT_TYPE], limit],
    )
    return [Claim(*row) for row in rows]


def channels(generation: int) -> list[str]:
    """Those a worker of that generation listens to."""
    return [f"outbox_gen_{generation}", "outbox_default"]


def settle(
    connection: psycopg.Connection[Any], claims: list[Claim], outcome: str, error: str | None = None, delay: str = "0 s"
) -> list[tuple[UUID, str]]:
    """Settle all claims with one outcome; answers (id, new status) of those still held."""
    count = len(claims)
    return connection.execute(
        "select id, status from core.outbox_settle(%s, %s, %s, %s::text[], %s::interval[])",
        [
            [held.id for held in claims],
            [held.token for held in claims],
            [outcome] * count,
            [error] * count,
            [delay] * count,
        ],
    ).fetchall()


def fail(connection: psycopg.Connection[Any], error: str = "ValueError: no") -> UUID:
    """Publish one event and bring it to the DLQ."""
    event_id = publish(connection)
    settled = settle(connection, claim(connection, limit=100), "dead_letter", error)  # it is the last in the line
    assert (event_id, "failed") in settled
    return event_id


def row(connection: psycopg.Connection[Any], event_id: UUID) -> dict[str, Any]:
    """The whole row of an event."""
    with connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        found = cursor.execute("select * from core.outbox where id = %s", [event_id]).fetchone()
    assert found is not None
    return found


def begin(
    connection: psycopg.Connection[Any], claims: list[Claim], handler: str = "platform.project_scan"
) -> list[str]:
    rows = connection.execute(
        "select verdict from core.outbox_begin(%s, %s, %s)",
        [[held.id for held in claims], [held.token for held in claims], [handler] * len(claims)],
    )
    return [verdict for (verdict,) in rows]


def held_by(connection: psycopg.Connection[Any], function: str, claims: list[Claim]) -> list[UUID]:
    statement = psycopg.sql.SQL("select * from core.{}(%s, %s)").format(psycopg.sql.Identifier(function))
    rows = connection.execute(statement, [[held.id for held in claims], [held.token for held in claims]])
    return [event_id for (event_id,) in rows]


def reap(
    connection: psycopg.Connection[Any], *, ttl: str = "300 s", grace: str = "0 s", attempts: int = 6
) -> list[tuple[Any, ...]]:
    return connection.execute(
        "select id, status, reason, attempts from core.outbox_reap(%s, %s, 100, %s)", [ttl, grace, attempts]
    ).fetchall()


def subscribe(
    connection: psycopg.Connection[Any], context: str, event_type: str = EVENT_TYPE, max_attempts: int = 6
) -> None:
    connection.execute(
        "insert into core.subscriptions (generation, context, event_type, handler_name, max_attempts)"
        " values (1, %s, %s, %s, %s)",
        [context, event_type, f"{context}.handler", max_attempts],
    )


def lose(connection: psycopg.Connection[Any], event_id: UUID) -> None:
    """Have a worker claim the row and die."""
    assert event_id in [held.id for held in claim(connection, worker="doomed")]
    assert event_id in [found for found, *_ in reap(connection)]


def waits_for(
    watcher: psycopg.Connection[Any], waiting: psycopg.Connection[Any], holder: psycopg.Connection[Any]
) -> None:
    """Return as soon as one session waits for a lock of the other."""
    deadline = time.monotonic() + 30
    statement = "select %s = any (pg_blocking_pids(%s))"
    while watcher.execute(statement, [holder.info.backend_pid, waiting.info.backend_pid]).fetchone() != (True,):
        assert time.monotonic() < deadline, "nobody waits"


@contextmanager
def held_up(
    watcher: psycopg.Connection[Any],
    holder: psycopg.Connection[Any],
    waiting: psycopg.Connection[Any],
    statement: LiteralString,
    parameters: Sequence[object] = (),
) -> Iterator[Future[list[Any]]]:
    """A statement that one session has begun and that waits for a lock of the other: the answer to come."""
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(lambda: waiting.execute(statement, parameters).fetchall())
        try:
            waits_for(watcher, waiting, holder)
            yield answer
        finally:
            holder.rollback()  # whatever happened inside, nobody waits for ever


def audit(connection: psycopg.Connection[Any]) -> list[dict[str, Any]]:
    """Who did what, why and to how many, in order."""
    with connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        return cursor.execute(
            "select action, actor, session_role, reason, affected, event_ids, detail from core.audit order by id"
        ).fetchall()


def entry(action: str, detail: dict[str, Any], affected: int = 1, **given: object) -> dict[str, Any]:
    """An entry of the audit, by ada as the superuser unless told otherwise."""
    usual = {"actor": "ada", "session_role": "postgres", "reason": "r", "event_ids": []}
    return {**usual, **given, "action": action, "affected": affected, "detail": detail}


def refusal(
    connection: psycopg.Connection[Any], statement: LiteralString, *parameters: object
) -> psycopg.errors.Diagnostic:
    """What the server says to a statement that it must not run; the transaction around it goes on."""
    with pytest.raises(psycopg.Error) as refused, connection.transaction():
        connection.execute(statement, parameters)
    return refused.value.diag
