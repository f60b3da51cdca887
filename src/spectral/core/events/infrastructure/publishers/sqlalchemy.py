"""Publish through the caller's own SQLAlchemy 2 session or connection, async or sync, whatever driver is below."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID

from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError, PendingRollbackError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from spectral.core.events.infrastructure.outbox_publisher import AsyncOutboxPublisher, SyncOutboxPublisher
from spectral.core.events.infrastructure.statements import insert_many, insert_one, not_in_transaction, refuse
from spectral.core.events.retry import sqlstate_of

if TYPE_CHECKING:
    from collections.abc import Generator

    from sqlalchemy import TextClause

    from spectral.core.events.delivery.publish import Insert, Publishing

_ONE: Final = text(insert_one("named"))
_WHOLE: Final = {"stream_results": False, "yield_per": None}
"""An insert has nothing to stream, whatever the connection is set to: in a server-side cursor it would be refused, or
done without a count."""
_MANY: Final = {ignore: text(insert_many("named", ignore_known=ignore)) for ignore in (True, False)}


class SqlAlchemySyncOutboxPublisher(SyncOutboxPublisher):
    """Publishes through a `Session` or `Connection`, in the transaction that is open on it."""

    def __init__(self, bind: Session | Connection, publishing: Publishing) -> None:
        super().__init__(publishing)
        self._bind = bind

    def _require_transaction(self) -> None:
        _require_begun(self._bind, self._publishing)
        _refuse_autocommit(self._connection(), self._publishing)

    def _insert_one(self, insert: Insert) -> int:
        return _execute(self._connection(), _ONE, insert.single(), insert)

    def _insert_many(self, insert: Insert) -> int:
        return _execute(self._connection(), _MANY[insert.ignore_known], insert.columns(), insert)

    def _connection(self) -> Connection:
        with _explained():
            return self._bind.connection() if isinstance(self._bind, Session) else self._bind


class SqlAlchemyOutboxPublisher(AsyncOutboxPublisher):
    """Publishes through an `AsyncSession` or `AsyncConnection`, in the transaction that is open on it."""

    def __init__(self, bind: AsyncSession | AsyncConnection, publishing: Publishing) -> None:
        super().__init__(publishing)
        self._bind = bind

    async def _require_transaction(self) -> None:
        _require_begun(self._bind, self._publishing)
        connection = await self._connection()
        await connection.run_sync(_refuse_autocommit, self._publishing)

    async def _insert_one(self, insert: Insert) -> int:
        connection = await self._connection()
        return await connection.run_sync(_execute, _ONE, insert.single(), insert)

    async def _insert_many(self, insert: Insert) -> int:
        connection = await self._connection()
        return await connection.run_sync(_execute, _MANY[insert.ignore_known], insert.columns(), insert)

    async def _connection(self) -> AsyncConnection:
        with _explained():
            return await self._bind.connection() if isinstance(self._bind, AsyncSession) else self._bind


@contextmanager
def _explained() -> Generator[None]:
    try:
        yield
    except PendingRollbackError:
        raise not_in_transaction("the session's transaction has failed and must be rolled back first") from None


def _require_begun(bind: Session | Connection | AsyncSession | AsyncConnection, publishing: Publishing) -> None:
    if publishing.settings.require_transaction and not bind.in_transaction():
        raise not_in_transaction("this session or connection has not begun a transaction")


def _refuse_autocommit(connection: Connection, publishing: Publishing) -> None:
    """SQLAlchemy says it is in a transaction even where the driver commits every statement by itself."""
    if publishing.settings.require_transaction and getattr(connection.connection.dbapi_connection, "autocommit", False):
        raise not_in_transaction("this connection has isolation level AUTOCOMMIT")


def _execute(connection: Connection, statement: TextClause, parameters: dict[str, Any], insert: Insert) -> int:
    try:
        values = {name: _plain(value) for name, value in parameters.items()}
        return connection.execute(statement, values, execution_options=_WHOLE).rowcount
    except DBAPIError as error:
        refuse(error, sqlstate_of(error), insert)


def _plain(value: object) -> object:
    """UUIDs as text, singly and in lists: not every driver below SQLAlchemy knows the type unless told."""
    if isinstance(value, list):
        return [_plain(item) for item in cast("list[object]", value)]
    return str(value) if isinstance(value, UUID) else value
