"""What the tests of the schema share: rows written past the functions, and sessions of roles with few rights."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID, uuid4

import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

from spectral.core.embedded import PostgresServer

Connection = psycopg.Connection[Any]

MINIMAL: Mapping[str, object] = {"event_type": "worlds.scan.completed", "source": "worlds", "generation": 1}
"""All that a plain INSERT has to say."""

STATES: Mapping[str, Mapping[str, object]] = {
    "pending": {"status": "pending"},
    "in_flight": {"status": "in_flight", "attempts": 1, "claimed_by": "worker-1", "claimed_at": "2026-01-01T00:00Z"},
    "delivered": {"status": "delivered", "attempts": 1, "delivered_at": "2026-01-01T00:00Z"},
    "failed": {
        "status": "failed",
        "attempts": 6,
        "claimed_by": "worker-1",
        "claimed_at": "2026-01-01T00:00Z",
        "last_error": "ValueError: no",
        "first_failed_at": "2026-01-01T00:00Z",
    },
}
"""The columns that make a row of each status whole; a row in flight has a token of its own as well."""


def insert(connection: Connection, table: str, columns: Mapping[str, object]) -> None:
    """A plain INSERT; dicts and lists that are no arrays go as JSON."""
    values = {name: Jsonb(value) if isinstance(value, dict) else value for name, value in columns.items()}
    connection.execute(
        sql.SQL("insert into core.{} ({}) values ({})").format(
            sql.Identifier(table),
            sql.SQL(", ").join(map(sql.Identifier, values)),
            sql.SQL(", ").join(map(sql.Placeholder, values)),
        ),
        values,
    )


def outbox_row(connection: Connection, status: str = "pending", **columns: object) -> UUID:
    """A whole row of that status for the context platform, unless told otherwise; answers its id."""
    event_id = uuid4()
    token = {"claim_token": uuid4()} if status == "in_flight" else {}
    row = {**MINIMAL, "id": event_id, "target": "platform", "channel": "outbox_gen_1", **STATES[status], **token}
    insert(connection, "outbox", {**row, **columns})
    return event_id


def update(connection: Connection, event_id: UUID, **columns: object) -> int:
    """A plain UPDATE of one outbox row; answers how many rows it changed."""
    assignments = [sql.SQL("{} = {}").format(sql.Identifier(name), sql.Placeholder(name)) for name in columns]
    statement = sql.SQL("update core.outbox set {} where id = {}").format(
        sql.SQL(", ").join(assignments), sql.Placeholder("which")
    )
    return connection.execute(statement, {**columns, "which": event_id}).rowcount


def value(connection: Connection, query: str | sql.Composed, parameters: Sequence[object] = ()) -> Any:  # noqa: ANN401  whatever it selects
    """The only value of the only row."""
    rows = connection.execute(query, parameters or None).fetchall()
    assert len(rows) == 1
    (only,) = rows[0]
    return only


@contextmanager
def role(dsn: str, attributes: str = "", groups: tuple[str, ...] = ()) -> Iterator[str]:
    """A login role with a name of its own, member of the groups, gone afterwards; answers the DSN it logs in with."""
    name, password = f"spectral_test_{secrets.token_hex(6)}", secrets.token_hex(8)
    with psycopg.connect(dsn, autocommit=True) as superuser:
        superuser.execute(
            sql.SQL("create role {} login password {} {}").format(
                sql.Identifier(name),
                sql.Literal(password),
                sql.SQL(attributes),
            )
        )
        for group in groups:
            superuser.execute(sql.SQL("grant {} to {}").format(sql.Identifier(group), sql.Identifier(name)))
    try:
        yield psycopg.conninfo.make_conninfo(dsn, user=name, password=password)
    finally:
        with psycopg.connect(dsn, autocommit=True) as superuser:
            # What a session made in pg_temp goes with the session, so that has to be gone first.
            superuser.execute(
                "select pg_terminate_backend(pid, 10000) from pg_stat_activity where usename = %s", [name]
            )
            superuser.execute(sql.SQL("drop owned by {} cascade").format(sql.Identifier(name)))
            superuser.execute(sql.SQL("drop role {}").format(sql.Identifier(name)))


@contextmanager
def logged_in(dsn: str, *groups: str) -> Iterator[Connection]:
    """A session, in autocommit mode, of a new login role that is a member of these groups and has nothing else."""
    with role(dsn, groups=groups) as own, psycopg.connect(own, autocommit=True) as connection:
        yield connection


@contextmanager
def prepared_database(server: PostgresServer, template: str) -> Iterator[str]:
    """A database like that of the fixture `database`, for a whole module whose tests roll back what they did."""
    dsn = server.create_database(template=template)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "insert into core.deployments (generation, status, promoted_at, retired_at) values"
            " (0, 'retired', null, now()), (1, 'live', now(), null), (2, 'allocated', null, null)"
        )
    try:
        yield dsn
    finally:
        server.drop_database(dsn)


@contextmanager
def undone(dsn: str) -> Iterator[Connection]:
    """A superuser's session whose transaction is rolled back at the end."""
    with psycopg.connect(dsn, autocommit=True) as connection, connection.transaction(force_rollback=True):
        yield connection
