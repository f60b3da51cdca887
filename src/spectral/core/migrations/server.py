"""The server at the other end: reaching it, what it must be able to do, and its errors in our words.

The connection string is used here and nowhere printed; `describe_database` is all that a person is shown of it.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import conninfo
from psycopg.rows import class_row

from spectral.core.database import connect_reason, describe_database
from spectral.core.migrations.failure import DatabaseUnavailableError, MigrationError, UnsupportedServerError

if TYPE_CHECKING:
    from collections.abc import Generator

OLDEST_SUPPORTED = 15
_CONNECT_TIMEOUT_SECONDS = 10

_FACTS = """\
select pg_catalog.current_setting('server_version_num')::int as version,
    pg_catalog.pg_is_in_recovery() as recovering,
    pg_catalog.current_setting('transaction_read_only')::bool as read_only,
    pg_catalog.has_database_privilege(pg_catalog.current_database(), 'create') as may_create,
    exists (select from pg_catalog.pg_namespace where nspname = 'spectral_migrations') as has_ledger,
    current_user as role,
    pg_catalog.current_database() as database"""


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What decides whether this role can migrate this database."""

    version: int
    recovering: bool
    read_only: bool
    may_create: bool
    has_ledger: bool
    role: str
    database: str


def require_supported(version: int) -> None:
    """Refuse a server (`server_version_num`) older than the SQL was written for."""
    if version < OLDEST_SUPPORTED * 10_000:
        raise UnsupportedServerError(
            f"this server is Postgres {version // 10_000}; Spectral needs {OLDEST_SUPPORTED} or newer: upgrade it"
        )


def require_writable(facts: ServerFacts) -> None:
    """Refuse a standby, a read-only session, and a role that may not create the ledger's schema."""
    if facts.recovering:
        raise UnsupportedServerError("this server is a standby (in recovery); connect to the primary")
    if facts.read_only:
        raise UnsupportedServerError(
            "this session is read-only (default_transaction_read_only); connect to the primary, or switch it off "
            f"where it is set: for role {facts.role}, for the database, or in the connection string"
        )
    if not facts.has_ledger and not facts.may_create:
        raise UnsupportedServerError(
            f'role {facts.role} may not create schemas here: grant create on database "{facts.database}" to '
            f'"{facts.role}"'
        )


@contextmanager
def connected(dsn: str) -> Generator[psycopg.Connection[tuple[Any, ...]]]:
    """A connection of the runner's own, with the driver's errors translated.

    Nothing is prepared and nothing is set for the session, so that a transaction pooler in between does not matter.
    """
    where = describe_database(dsn)
    options: dict[str, Any] = {"client_encoding": "UTF8", "fallback_application_name": "spectral-migrate"}
    if "connect_timeout" not in conninfo.conninfo_to_dict(dsn):
        options["connect_timeout"] = _CONNECT_TIMEOUT_SECONDS
    try:
        connection = psycopg.connect(dsn, autocommit=True, prepare_threshold=None, **options)
    except psycopg.Error as error:
        raise DatabaseUnavailableError(f"no connection to {where}: {connect_reason(error)}") from None
    try:
        with connection:
            # A waiting runner must see, once it has the lock, what the one before it committed.
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
            yield connection
    except psycopg.Error as error:
        raise translate(error, where=where, broken=connection.broken) from None


def read_facts(connection: psycopg.Connection[Any]) -> ServerFacts:
    """Ask the server what it is, and refuse one that is too old."""
    with connection.cursor(row_factory=class_row(ServerFacts)) as cursor:
        facts = cursor.execute(_FACTS).fetchone()
    if facts is None:
        raise MigrationError("the server did not answer; run it again")
    require_supported(facts.version)
    return facts


def translate(error: psycopg.Error, *, where: str, broken: bool) -> MigrationError:
    """A driver's error as one of ours, with its SQLSTATE and message and without its DETAIL."""
    if broken or (isinstance(error, psycopg.OperationalError) and error.sqlstate in {None, "57P01", "57P02", "57P03"}):
        return DatabaseUnavailableError(
            f"the connection to {where} was lost; run it again, the ledger knows what was applied"
        )
    reason = error.diag.message_primary or type(error).__name__
    hint = "; connect as the role that ran the first migration" if error.sqlstate == "42501" else ""
    return MigrationError(f"{reason} (SQLSTATE {error.sqlstate or 'unknown'}){hint}")
