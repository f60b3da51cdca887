"""A lane: the connection that handlers write on, guarded so that only a healthy transaction is ever settled.

The session is not in autocommit mode, so that a handler that ends its transaction does not go on writing outside of
one; the savepoint has a name nobody can guess, so that a transaction begun anew does not pass for the old one; and
`spectral.guarded` has the server refuse a commit that leaves a begun row unsettled.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from spectral.core.events.describe import describe
from spectral.core.events.failure import SubstrateLostError, TransactionMisusedError
from spectral.core.events.infrastructure.postgres.conclusions import begin, standing, statements
from spectral.core.events.infrastructure.postgres.outbox import OutboxPublisher
from spectral.core.events.infrastructure.postgres.script import Rows, run_script
from spectral.core.events.infrastructure.postgres.session import Session, is_contention, passes
from spectral.core.events.ports import CommitRefusedError, Gate, GroupVoidError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from spectral.core.events.delivery.publish import Publishing
    from spectral.core.events.envelope import EventEnvelope
    from spectral.core.events.lease import Delivery
    from spectral.core.events.ports import Conclusion
    from spectral.core.events.settings import WorkerSettings

_UNLOCK: Final = sql.SQL("select pg_advisory_unlock_all()")
# Not what was prepared: the driver prepares a handler's statements for all its events.
_RESET: Final = (sql.SQL("reset all"), sql.SQL("close all"), sql.SQL("discard temp"), _UNLOCK)
_SAVEPOINT: Final = sql.SQL("savepoint {}")
_RELEASE: Final = sql.SQL("release savepoint {}")
_ROLL_BACK: Final = sql.SQL("rollback to savepoint {}")
_REQUIRE_ROLE: Final = sql.SQL("select core.require_role({})")
_FAILED_TRANSACTION: Final = "25P02"  # by somebody who has kept the connection
_NO_SAVEPOINT: Final = frozenset({"3B001", "25P01"})


class PostgresTransaction:
    """Implements `Transaction`, on a connection in a transaction.

    It ends with its handler: a task that outlives the handler must not write into the next one's.
    """

    def __init__(self, connection: psycopg.AsyncConnection[Any], publishing: Publishing) -> None:
        self._connection = connection
        self._publishing = publishing
        self._ended = False

    @property
    def connection(self) -> psycopg.AsyncConnection[Any]:
        """The connection itself; not to be kept."""
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
        return await self.connection.cursor(row_factory=tuple_row).execute(query.encode(), params)

    async def publish(self, envelope: EventEnvelope) -> None:
        """Publish in this transaction."""
        await OutboxPublisher(self.connection, self._publishing).publish(envelope)


class PostgresLane:
    """Implements `Lane`."""

    def __init__(self, dsn: str, settings: WorkerSettings, publishing: Publishing) -> None:
        self._publishing = publishing
        self._session = Session(
            dsn,
            f"spectral lane {settings.name}",
            settings.times.answer,
            settings={"spectral.guarded": "on"},
            autocommit=False,
        )
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._transaction: PostgresTransaction | None = None
        self._savepoint = sql.Identifier("none")
        self._is_group_open = False
        self._role = ""

    @property
    def transaction(self) -> PostgresTransaction:
        """See `Lane`."""
        self._transaction = PostgresTransaction(self._open(), self._publishing)
        return self._transaction

    async def begin(self, delivery: Delivery, handler_name: str) -> Gate:
        """See `Lane`."""
        self._savepoint = sql.Identifier(f"spectral_{secrets.token_hex(8)}")

        async def ask(connection: psycopg.AsyncConnection[Any]) -> Gate:
            await self._note_role(connection)
            *_, ((verdict,),) = await run_script(
                connection,
                # Every handler starts from the same settings, whatever the one before it has left in the session.
                *_RESET,
                self._session.apply_settings,
                _SAVEPOINT.format(self._savepoint),
                begin([delivery.lease], [handler_name]),
            )
            return Gate(verdict)

        await self._start_from_idle()

        try:
            return await self._session.call(ask)
        except psycopg.Error as error:
            if passes(error) or error.sqlstate == _FAILED_TRANSACTION:
                raise SubstrateLostError(describe(error)) from None
            if not is_contention(error):
                raise
        await self.undo()
        return Gate.BUSY

    async def accept(self) -> None:
        """See `Lane`."""
        connection = self._open()
        self._end_transaction()
        if connection.closed:
            raise GroupVoidError("the connection was closed while the handler ran")
        status = connection.info.transaction_status
        if status is TransactionStatus.INERROR:
            raise TransactionMisusedError(
                "returned although an SQL statement of its transaction had failed; let the error out, or wrap what may "
                "fail in `async with tx.connection.transaction():`"
            )
        if status is not TransactionStatus.INTRANS or connection.info.pipeline_status is not PipelineStatus.OFF:
            raise GroupVoidError("ended the transaction it was given, or left something running in it")

        try:
            await self._run(_REQUIRE_ROLE.format(self._role), _RELEASE.format(self._savepoint))
        except psycopg.Error as error:
            if error.sqlstate in _NO_SAVEPOINT:
                raise GroupVoidError("ended the transaction it was given and began another") from None
            raise TransactionMisusedError(error.diag.message_primary or type(error).__name__) from None

    async def undo(self) -> None:
        """See `Lane`."""
        connection = self._open()
        self._end_transaction()
        if connection.closed:
            await self.drop()
            raise SubstrateLostError("the connection was lost while the handler ran")
        status = connection.info.transaction_status
        if status not in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            raise GroupVoidError("the transaction has ended")

        try:
            await self._run(_ROLL_BACK.format(self._savepoint), _RELEASE.format(self._savepoint), _UNLOCK)
        except psycopg.Error as error:
            raise GroupVoidError(f"the transaction cannot be taken back ({error.sqlstate})") from None

    async def commit(self, conclusions: Sequence[Conclusion]) -> set[UUID]:
        """See `Lane`."""
        try:
            *answers, _ = await self._run(*statements(conclusions), sql.SQL("commit"))
        except psycopg.Error as error:
            if passes(error):
                raise SubstrateLostError(describe(error)) from None
            raise CommitRefusedError from error
        self._is_group_open = False
        return standing(conclusions, answers)

    async def abandon(self) -> None:
        """See `Lane`."""
        self._is_group_open = False
        if not self._session.is_open:
            return
        try:
            await self._session.call(lambda connection: connection.rollback())
        except (psycopg.Error, SubstrateLostError):
            await self.drop()

    async def drop(self) -> None:
        """See `Lane`."""
        self._end_transaction()
        self._connection = None
        self._is_group_open = False
        await self._session.drop()

    async def _start_from_idle(self) -> None:
        """A transaction that is open before a group is was begun by somebody who has kept the connection."""
        if self._is_group_open:
            self._require_own_connection()
            return
        connection = self._connection
        if connection is not None and connection.info.transaction_status is not TransactionStatus.IDLE:
            await self.drop()
        self._is_group_open = True

    def _require_own_connection(self) -> None:
        """What a group has written is on the connection it began on: another one would settle what it never saw."""
        if self._connection is None or self._connection.closed:
            raise SubstrateLostError("the connection was lost in the middle of a group")

    def _end_transaction(self) -> None:
        if self._transaction is not None:
            self._transaction.end()

    async def _run(self, *script: sql.Composable) -> list[Rows]:
        if self._is_group_open:
            self._require_own_connection()
        return await self._session.call(lambda connection: run_script(connection, *script))

    def _open(self) -> psycopg.AsyncConnection[Any]:
        if self._connection is None:
            raise SubstrateLostError("the lane's connection is gone")
        return self._connection

    async def _note_role(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Of a new connection: as whom it acts."""
        if connection is self._connection:
            return
        cursor = await connection.cursor(row_factory=tuple_row).execute(b"select current_user::text")
        row = await cursor.fetchone()
        self._role = row[0] if row else ""
        self._connection = connection
