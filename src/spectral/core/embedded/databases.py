"""Databases on a server, whoever started it: from a template in tens of milliseconds, and away again.

Invariant: a template either is whole or does not exist under its name. It is prepared as `<name>_building`, then
closed to connections and renamed, all under an advisory lock, so that parallel test workers on one server share it.
"""

from __future__ import annotations

import secrets
import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from spectral.core.embedded.failure import EmbeddedPostgresError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from types import TracebackType
    from typing import LiteralString, Self

    from psycopg import Connection, sql
    from psycopg.rows import TupleRow

_LONGEST_NAME = 63  # bytes: NAMEDATALEN - 1
_BUILDING = "_building"
_EMPTY_SECONDS = 2.0


class PostgresServer(ABC):
    """A server to use: `with server: ...` starts it, if it is ours to start, and stops it."""

    @property
    @abstractmethod
    def dsn(self) -> str:
        """The shortest way in, as superuser, to the maintenance database. Not for logs: it may carry a password."""

    @property
    @abstractmethod
    def tcp_dsn(self) -> str:
        """The way in over TCP. Not for logs: it carries a password."""

    @abstractmethod
    def start(self) -> Self:
        """Start the server and return when it accepts connections."""

    @abstractmethod
    def stop(self) -> None:
        """Stop the server and return when nothing of it is left running. Does nothing the second time."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def create_template(self, name: str, prepare: Callable[[str], None]) -> None:
        """Make the database `name` by `prepare(dsn)` and close it, to be copied by `create_database(template=name)`.

        A template of that name is used as it is: on a server that outlives the test run, put a fingerprint of what
        `prepare` does into the name. What belongs to a database rather than into it (`grant ... on database`,
        `alter database ... set`) is not copied by Postgres.

        Raises:
            EmbeddedPostgresError: Postgres refused. What `prepare` raises is passed on, and no template is left.
        """
        building = _checked(name + _BUILDING)
        with self._maintenance() as connection:
            connection.execute("select pg_advisory_lock(hashtextextended('spectral template ' || %s, 0))", [name])
            if connection.execute("select 1 from pg_database where datname = %s", [name]).fetchone():
                return
            _drop(connection, building)
            connection.execute(_sql("create database {}", building))
            try:
                prepare(with_database(self.dsn, building))
            except BaseException:
                _drop(connection, building)
                raise
            connection.execute(_sql("alter database {} with is_template true allow_connections false", building))
            _empty(connection, building)
            connection.execute(_sql("alter database {} rename to {}", building, name))

    def create_database(self, name: str | None = None, *, template: str = "template1") -> str:
        """Make a database, by default with a random name, and return its DSN.

        Copied through the log (Postgres's default strategy): as fast as copying files when fsync is off, twice as
        fast when it is on, and without a checkpoint that would hold up everybody else.

        Raises:
            EmbeddedPostgresError: the name is taken, there is no such template, or Postgres refused.
        """
        name = _checked(f"spectral_{secrets.token_hex(8)}" if name is None else name)
        with self._maintenance() as connection:
            connection.execute(_sql("create database {} template {}", name, template))
        return with_database(self.dsn, name)

    def drop_database(self, database: str) -> None:
        """Remove a database, given by name or by the DSN that `create_database` returned; its sessions are ended.

        A database that does not exist is fine.

        Raises:
            EmbeddedPostgresError: Postgres refused.
        """
        with self._maintenance() as connection:
            _drop(connection, database_of(database) if _is_dsn(database) else _checked(database))

    @contextmanager
    def _maintenance(self) -> Generator[Connection[TupleRow]]:
        import psycopg  # noqa: PLC0415  a launcher that only launches does not need a driver

        try:
            with psycopg.connect(self.dsn, autocommit=True, connect_timeout=10) as connection:
                yield connection
        except psycopg.Error as error:
            said = error.diag.message_primary or str(error).strip()
            raise EmbeddedPostgresError(
                f"Postgres said: {said}; check that the server is up, the name is free, the template exists and the "
                "user may create databases"
            ) from error


def with_database(dsn: str, database: str) -> str:
    """The same DSN for another database. A URL stays a URL."""
    if "://" in dsn:
        parts = urlsplit(dsn)
        kept = [(key, value) for key, value in parse_qsl(parts.query) if key != "dbname"]
        query = urlencode(kept, safe="/", quote_via=quote)
        # put together by hand: urlunsplit would drop the empty host that a Unix socket has
        return f"{parts.scheme}://{parts.netloc}/{quote(database, safe='')}" + (f"?{query}" if query else "")
    from psycopg.conninfo import make_conninfo  # noqa: PLC0415  as in _maintenance

    return make_conninfo(dsn, dbname=database)


def database_of(dsn: str) -> str:
    """The database that a DSN names."""
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415  as in _maintenance

    name = conninfo_to_dict(dsn).get("dbname")
    if not name:
        raise EmbeddedPostgresError("the DSN names no database; add one, or give the database's name")
    return str(name)


def _is_dsn(text: str) -> bool:
    return "://" in text or "=" in text


def _checked(name: str) -> str:
    if not name or "\0" in name or _is_dsn(name) or len(name.encode()) > _LONGEST_NAME:
        raise EmbeddedPostgresError(
            f"{name!r} cannot be the name of a database; use at most {_LONGEST_NAME} bytes "
            f"({_LONGEST_NAME - len(_BUILDING)} for a template) without = and ://"
        )
    return name


def _sql(statement: LiteralString, *names: str) -> sql.Composed:
    from psycopg import sql  # noqa: PLC0415  as in _maintenance

    return sql.SQL(statement).format(*map(sql.Identifier, names))


def _drop(connection: Connection[TupleRow], name: str) -> None:
    _empty(connection, name)
    connection.execute(_sql("drop database if exists {} with (force)", name))


def _empty(connection: Connection[TupleRow], name: str) -> None:
    """End the sessions in a database and see them go.

    Postgres would wait for them too, but looks only every 100 ms, and a session that was closed just now is one.
    """
    deadline = time.monotonic() + _EMPTY_SECONDS
    while time.monotonic() < deadline:
        ended = connection.execute(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity where datname = %s", [name]
        ).fetchone()
        if ended is None or ended[0] == 0:
            return
        time.sleep(0.002)
