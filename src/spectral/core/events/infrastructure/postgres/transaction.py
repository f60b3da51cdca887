"""What a handler is given to write with: the connection of its lane, in a transaction that is the worker's to end."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

import psycopg
from psycopg.rows import tuple_row

from spectral.core.events.failure import TransactionMisusedError
from spectral.core.events.infrastructure.postgres.lasting import may_last
from spectral.core.events.infrastructure.postgres.outbox import OutboxPublisher

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spectral.core.events.delivery.publish import Publishing
    from spectral.core.events.envelope import EventEnvelope

_FEW_ROWS: Final = 10
_FEW_BYTES: Final = 10_000


class PostgresTransaction:
    """Implements `Transaction`, on a connection in a transaction.

    It ends with its handler: a task that outlives the handler must not write into the next one's. `is_plain` as long as
    the handler has done nothing that the next one in the transaction might find; on the connection it may do anything.
    `is_brief` as long as it has sent one statement at most, and was answered with little.
    """

    def __init__(self, connection: psycopg.AsyncConnection[Any], publishing: Publishing) -> None:
        self._connection = connection
        self._publishing = publishing
        self._ended = False
        self._statements = 0
        self._loop = asyncio.get_running_loop()
        self.answered_after = 0.0
        self.is_plain = True
        self.is_brief = True

    @property
    def connection(self) -> psycopg.AsyncConnection[Any]:
        """The connection itself; not to be kept."""
        self.is_plain = self.is_brief = False
        return self._open()

    def _open(self) -> psycopg.AsyncConnection[Any]:
        if self._ended:
            raise TransactionMisusedError("the transaction ended with its handler; await everything it starts")
        return self._connection

    def end(self) -> None:
        """Its handler has ended."""
        self._ended = True

    async def execute(
        self, query: str, params: Sequence[object] | Mapping[str, object] | None = None
    ) -> psycopg.AsyncCursor[tuple[Any, ...]]:
        """Run one statement."""
        require_text(query)
        connection = self._open()
        self._statements += 1
        if self.is_plain and not may_last(query):
            cursor = PlainCursor(connection, row_factory=tuple_row)
            asked = time.perf_counter()
            await cursor.execute(query.encode(), params)
            self.answered_after += time.perf_counter() - asked
            self.is_brief = self.is_brief and self._is_brief_with(cursor)
            cursor.hand_over(self)
            return cursor
        self.is_plain = self.is_brief = False
        return await connection.cursor(row_factory=tuple_row).execute(query.encode(), params)

    def _is_brief_with(self, cursor: PlainCursor) -> bool:
        """One statement, of the worker's own loop, and an answer that may be held for many handlers at once."""
        if self._statements > 1 or asyncio.get_running_loop() is not self._loop:
            return False
        result = cursor.pgresult
        if result is None or not result.ntuples:
            return True
        if result.ntuples > _FEW_ROWS:
            return False
        cells = [(row, column) for row in range(result.ntuples) for column in range(result.nfields)]
        return sum(len(result.get_value(row, column) or b"") for row, column in cells) <= _FEW_BYTES

    async def publish(self, envelope: EventEnvelope) -> None:
        """Publish in this transaction."""
        self.is_brief = False
        await OutboxPublisher(self._open(), self._publishing).publish(envelope)


def require_text(query: object) -> None:
    """Statements that were put together by the driver's own tools are for the driver's own connection.

    Raises:
        TypeError: it is no text.
    """
    if not isinstance(query, str):
        raise TypeError(
            f"tx.execute takes the statement as text, not {type(query).__name__}; for psycopg.sql use "
            "tx.connection.execute"
        )


class _Owner(Protocol):
    """A transaction that notes when somebody takes its connection."""

    @property
    def connection(self) -> psycopg.AsyncConnection[Any]: ...


class PlainCursor(psycopg.AsyncCursor[tuple[Any, ...]]):
    """The cursor of a plain statement that has run. Used again, or for its connection, it may do anything."""

    _owner: _Owner | None = None

    def hand_over(self, owner: _Owner) -> None:
        """From now on it is the handler's, who may do more than fetch."""
        self._owner = owner

    def _use(self) -> None:
        if self._owner is not None:
            _ = self._owner.connection  # it is that which is used, and like it not to be kept

    @property
    def connection(self) -> psycopg.AsyncConnection[Any]:
        """See the driver's."""
        self._use()
        return super().connection

    def execute(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401  whatever the driver says
        """See the driver's."""
        self._use()
        return super().execute(*args, **options)

    def executemany(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401  as above
        """See the driver's."""
        self._use()
        return super().executemany(*args, **options)

    def stream(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401  as above
        """See the driver's."""
        self._use()
        return super().stream(*args, **options)

    def copy(self, *args: Any, **options: Any) -> Any:  # noqa: ANN401  as above
        """See the driver's."""
        self._use()
        return super().copy(*args, **options)
