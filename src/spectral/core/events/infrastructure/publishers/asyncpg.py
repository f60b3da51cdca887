"""Publish on the caller's own asyncpg connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from asyncpg import PostgresError

from spectral.core.events.infrastructure.outbox_publisher import AsyncOutboxPublisher
from spectral.core.events.infrastructure.statements import (
    insert_many,
    insert_one,
    not_in_transaction,
    positional,
    refuse,
)

if TYPE_CHECKING:
    from asyncpg import Connection
    from asyncpg.pool import PoolConnectionProxy

    from spectral.core.events.delivery.publish import Insert, Publishing

_ONE: Final = insert_one("dollar")
_MANY: Final = {ignore: insert_many("dollar", ignore_known=ignore) for ignore in (True, False)}


class AsyncpgOutboxPublisher(AsyncOutboxPublisher):
    """Publishes on a connection of asyncpg, or one acquired from its pool."""

    def __init__(self, connection: Connection[Any] | PoolConnectionProxy[Any], publishing: Publishing) -> None:
        super().__init__(publishing)
        self._connection = connection

    async def _require_transaction(self) -> None:
        if self._publishing.settings.require_transaction and not self._connection.is_in_transaction():
            raise not_in_transaction("this connection is in no transaction")

    async def _insert_one(self, insert: Insert) -> int:
        return await self._execute(_ONE, insert.single(), insert)

    async def _insert_many(self, insert: Insert) -> int:
        return await self._execute(_MANY[insert.ignore_known], insert.columns(), insert)

    async def _execute(self, statement: str, parameters: dict[str, Any], insert: Insert) -> int:
        try:
            tag = await self._connection.execute(statement, *positional(parameters))
        except PostgresError as error:
            refuse(error, error.sqlstate, insert)
        # The command tag: "INSERT 0 <rows>".
        return int(tag.rpartition(" ")[2])
