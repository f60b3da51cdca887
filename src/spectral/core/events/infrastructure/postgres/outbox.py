"""Publish on the caller's own psycopg async connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg

from spectral.core.events.infrastructure.outbox_publisher import AsyncOutboxPublisher
from spectral.core.events.infrastructure.psycopg_statements import (
    bulk,
    counted,
    require_transaction,
    statement_for_one,
)
from spectral.core.events.infrastructure.statements import refuse

if TYPE_CHECKING:
    from spectral.core.events.delivery.publish import Insert, Publishing


class OutboxPublisher(AsyncOutboxPublisher):
    """Publishes on an async connection of psycopg."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], publishing: Publishing) -> None:
        super().__init__(publishing)
        self._connection = connection

    async def _require_transaction(self) -> None:
        require_transaction(self._connection, required=self._publishing.settings.require_transaction)

    async def _insert_one(self, insert: Insert) -> int:
        return await self._execute(statement_for_one(self._connection, insert), insert.single(), insert)

    async def _insert_many(self, insert: Insert) -> int:
        return await self._execute(*bulk(insert), insert)

    async def _execute(self, statement: bytes, parameters: dict[str, Any], insert: Insert) -> int:
        try:
            # A plain cursor, whatever the connection's factory makes: others write parameters differently.
            cursor = await psycopg.AsyncCursor(self._connection).execute(statement, parameters)
        except psycopg.Error as error:
            refuse(error, error.sqlstate, insert)
        return counted(cursor.rowcount, insert)
