"""Publish on a Django database connection, inside `transaction.atomic()`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from django.db import DEFAULT_DB_ALIAS, DatabaseError, connections

from spectral.core.events.infrastructure.outbox_publisher import SyncOutboxPublisher
from spectral.core.events.infrastructure.statements import insert_many, insert_one, not_in_transaction, refuse
from spectral.core.events.retry import sqlstate_of

if TYPE_CHECKING:
    from spectral.core.events.delivery.publish import Insert, Publishing

_ONE: Final = insert_one("pyformat")
_MANY: Final = {ignore: insert_many("pyformat", ignore_known=ignore) for ignore in (True, False)}


class DjangoOutboxPublisher(SyncOutboxPublisher):
    """Publishes on the connection Django has for this thread and alias."""

    def __init__(self, publishing: Publishing, *, using: str = DEFAULT_DB_ALIAS) -> None:
        super().__init__(publishing)
        self._using = using

    def _require_transaction(self) -> None:
        connection = connections[self._using]
        if connection.needs_rollback:
            raise not_in_transaction("the atomic block has failed and must be left first")
        if self._publishing.settings.require_transaction and connection.get_autocommit():
            raise not_in_transaction("this connection is in autocommit mode; use transaction.atomic()")

    def _insert_one(self, insert: Insert) -> int:
        return self._execute(_ONE, insert.single(), insert)

    def _insert_many(self, insert: Insert) -> int:
        return self._execute(_MANY[insert.ignore_known], insert.columns(), insert)

    def _execute(self, statement: str, parameters: dict[str, Any], insert: Insert) -> int:
        try:
            with connections[self._using].cursor() as cursor:
                cursor.execute(statement, parameters)
                inserted: int = cursor.rowcount
        except DatabaseError as error:
            refuse(error, sqlstate_of(error), insert)
        return inserted
