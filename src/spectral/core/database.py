"""The connection of people and their tools: short statements, plain errors, nothing shown of how it was reached.

    DatabaseUnavailableError   no connection, or it was lost
    DatabaseTooSlowError       no answer within the statement timeout; nothing was changed
    NotFoundError              there is no such thing
    RefusedError               the database will not do it: the state, the arguments or the role do not allow it

They hang on `SpectralError`; `remedy` is what to run next, where that is known. Messages are the server's first line,
never its DETAIL, which quotes rows.
"""

from __future__ import annotations

import re
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg import conninfo
from psycopg.pq import TransactionStatus
from psycopg.rows import class_row, tuple_row

from spectral.core.events.failure import ConfigurationError, SpectralError
from spectral.core.events.infrastructure.postgres.untaught import UNTAUGHT
from spectral.core.events.probe import NoteTaker

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
    from typing import LiteralString

    from psycopg import sql

    from spectral.core.events.probe import Probe

    Statement = LiteralString | bytes | sql.SQL | sql.Composed
    Parameters = Sequence[object] | Mapping[str, object]

T = TypeVar("T")

_REACH: Final = "psql \"$SPECTRAL_DATABASE_URL\" -c 'select 1'"
_PLAIN: Final = re.compile(r"[A-Za-z0-9_.:,/\[\]-]*")
_CONNECT_SECONDS: Final = 10
_TRANSPORT: Final = {
    # A statement timeout is the server's; of a server that is gone without a word only these tell, as for the workers.
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    "connect_timeout": _CONNECT_SECONDS,
}
_AWAY: Final = frozenset({"57P01", "57P02", "57P03", "53300"})
_TOO_SLOW: Final = frozenset({"57014", "55P03"})
_MIGRATE: Final = "this database has no Spectral schema, or an old one; run: spectral migrate up"
_NO_SCHEMA: Final = frozenset({"3F000", "42P01", "42883", "42703"})
_REFUSALS: Final = frozenset({"55000", "22023", "23514", "23502", "22P02", "22003"})
"""Not in that state, not with that argument: the functions of the schema say it in their own words."""


class OperationError(SpectralError):
    """What an operator asked for was not done."""

    def __init__(self, message: str, remedy: str | None = None) -> None:
        self.remedy = remedy
        super().__init__(message)


class DatabaseUnavailableError(OperationError):
    """The server could not be reached, or went away."""


class DatabaseTooSlowError(OperationError):
    """The server did not answer within the time a statement may take."""


class NotFoundError(OperationError):
    """There is no such thing."""


class RefusedError(OperationError):
    """The database will not do it as things stand."""


class Database:
    """One connection in autocommit mode, for one caller at a time. Every method raises the errors of this module.

    Its limits are set for each transaction, never for the session: behind a transaction pooler they would stay with a
    connection that somebody else is given next. `probe` is told what is replayed, discarded and swept through it.
    """

    def __init__(
        self,
        connection: psycopg.AsyncConnection[tuple[Any, ...]],
        *,
        statement_timeout: timedelta = timedelta(seconds=10),
        probe: Probe | None = None,
    ) -> None:
        self.connection = connection
        self.probe: Probe = NoteTaker() if probe is None else probe
        milliseconds = round(statement_timeout / timedelta(milliseconds=1))
        self._limits = (
            f"set local statement_timeout = {milliseconds}; set local lock_timeout = '5s'; set local timezone = 'UTC'; "
            "set local datestyle = 'ISO'; set local intervalstyle = 'postgres'"  # what the driver reads, and no other
        ).encode()

    async def rows(self, query: Statement, parameters: Parameters = (), *, into: type[T]) -> list[T]:
        """Every row, made into one of these by the names of its columns."""
        async with self.transaction(), self.connection.cursor(row_factory=class_row(into)) as cursor:
            await cursor.execute(query, parameters)
            return await cursor.fetchall()

    async def tuples(self, query: Statement, parameters: Parameters = ()) -> list[tuple[Any, ...]]:
        """Every row as it is."""
        async with self.transaction():
            cursor = await self.connection.execute(query, parameters)
            return await cursor.fetchall()

    async def value(self, query: Statement, parameters: Parameters = ()) -> Any:  # noqa: ANN401  whatever the column holds
        """The first column of the first row; none if there is no row."""
        found = await self.tuples(query, parameters)
        return found[0][0] if found else None

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[None]:
        """Everything inside commits together; inside another one it is part of that."""
        with explained(self.connection):
            if self.connection.info.transaction_status is TransactionStatus.INTRANS:
                yield
                return
            async with self.connection.transaction():
                await self.connection.execute(self._limits)
                yield


@asynccontextmanager
async def connect(
    dsn: str, purpose: str, *, statement_timeout: timedelta = timedelta(seconds=10), probe: Probe | None = None
) -> AsyncGenerator[Database]:
    """A connection that is called by its purpose in `pg_stat_activity`, and waits for no statement longer than this.

    Raises:
        ConfigurationError: the connection string cannot be read, or the database has no schema.
        OperationError: see above.
    """
    where = describe_database(dsn)
    given = conninfo.conninfo_to_dict(dsn)
    options: dict[str, Any] = {name: value for name, value in _TRANSPORT.items() if name not in given}
    options["application_name"] = f"spectral {purpose}"[:63]
    try:
        # Nothing is prepared: what a transaction pooler gives us next would not know it.
        connection = await psycopg.AsyncConnection.connect(
            dsn, autocommit=True, prepare_threshold=None, row_factory=tuple_row, context=UNTAUGHT, **options
        )
    except psycopg.Error as error:
        raise DatabaseUnavailableError(f"no connection to {where}: {connect_reason(error)}", _REACH) from None
    try:
        yield Database(connection, statement_timeout=statement_timeout, probe=probe)
    finally:
        await connection.close()


@contextmanager
def explained(connection: psycopg.AsyncConnection[Any]) -> Generator[None]:
    """Turn the driver's errors into ours."""
    try:
        yield
    except psycopg.Error as error:
        raise explain(error, broken=connection.broken or connection.closed) from None


def explain(error: psycopg.Error, *, broken: bool = False) -> SpectralError:
    """A driver's error in our words, with what to run next."""
    state = error.sqlstate or ""
    message = error.diag.message_primary or type(error).__name__
    hint = error.diag.message_hint
    lost = broken or state.startswith("08") or (not state and isinstance(error, psycopg.OperationalError))
    known: list[tuple[bool, SpectralError]] = [
        (lost, DatabaseUnavailableError("the connection to the database was lost", _REACH)),
        (state in _AWAY, DatabaseUnavailableError(f"the database is not available: {message}", _REACH)),
        (state in _TOO_SLOW, DatabaseTooSlowError(f"the database took too long: {message}", "spectral doctor")),
        (state in _NO_SCHEMA, ConfigurationError(_MIGRATE)),
        (state == "42501", RefusedError(f"this login may not do that: {message}", "grant spectral_operator to <role>")),
        (state == "25006", RefusedError("this server, or this login's sessions, take no writes", "spectral doctor")),
        (state == "P0002", NotFoundError(message, hint)),
        (state in _REFUSALS, RefusedError(message, hint)),
    ]
    unknown = OperationError(f"{message} (SQLSTATE {state or 'unknown'})", hint)
    return next((ours for fits, ours in known if fits), unknown)


def describe_database(dsn: str) -> str:
    """Host, port and database name of a connection string, and nothing else of it.

    Raises:
        ConfigurationError: it cannot be read, or a special character in the password has spilled over into the host.
    """
    try:
        given = conninfo.conninfo_to_dict(dsn)
    except psycopg.Error:
        # The driver's message quotes the connection string.
        raise ConfigurationError(
            "the connection string cannot be read; write it as postgresql://user:password@host:port/database"
        ) from None
    defaults = {each.keyword.decode(): (each.val or b"").decode() for each in psycopg.pq.Conninfo.get_defaults()}
    host, port, name = (str(given.get(key) or defaults.get(key) or "") for key in ("host", "port", "dbname"))
    if not (_PLAIN.fullmatch(host) and re.fullmatch(r"[0-9,]*", port)) or "@" in name:
        raise ConfigurationError(
            "the connection string cannot be read; percent-encode special characters in the password (@ as %40)"
        )
    return f"{host or 'local socket'}:{port or '5432'}/{name or 'default database'}"


def connect_reason(error: psycopg.Error) -> str:
    """The part of libpq's message that cannot hold a piece of the connection string."""
    text = str(error)
    if "could not translate host name" in text or "failed to resolve host" in text:
        return "the host name is not known"
    _, failed, reason = text.rpartition("failed: ")
    return reason.splitlines()[0].removeprefix("FATAL:").strip() if failed and reason else "the server did not answer"
