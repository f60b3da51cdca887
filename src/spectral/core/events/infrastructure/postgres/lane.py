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
from spectral.core.events.infrastructure.postgres.conclusions import begin_one, standing, statements
from spectral.core.events.infrastructure.postgres.outbox import OutboxPublisher
from spectral.core.events.infrastructure.postgres.script import Statement, text_of
from spectral.core.events.infrastructure.postgres.session import Session, is_contention, passes
from spectral.core.events.ports import AcceptRefusedError, CommitRefusedError, Gate, GroupVoidError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from psycopg.pq.abc import PGresult

    from spectral.core.events.delivery.publish import Publishing
    from spectral.core.events.envelope import EventEnvelope
    from spectral.core.events.lease import Delivery
    from spectral.core.events.ports import Conclusion
    from spectral.core.events.settings import WorkerSettings

_UNLOCK: Final = b"select pg_advisory_unlock_all()"
# Not what was prepared: the driver prepares a handler's statements for all its events.
_RESET: Final = (b"reset all", b"close all", b"discard temp")
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
        self._savepoint = b"none"
        self._accepting: tuple[bytes, ...] = ()  # what the server has still to say to the handler that was accepted
        self._is_group_open = False
        self._require_role = b""
        self._settings = b""

    @property
    def transaction(self) -> PostgresTransaction:
        """See `Lane`."""
        self._transaction = PostgresTransaction(self._open(), self._publishing)
        return self._transaction

    async def begin(self, delivery: Delivery, handler_name: str) -> Gate:
        """See `Lane`."""
        savepoint = f"spectral_{secrets.token_hex(8)}".encode()
        await self._start_from_idle()
        await self._note_role()
        try:
            *_, verdict = await self._session.script(
                *self._beginning(),
                *self._accepting,
                # Every handler starts from the same settings, whatever the one before it has left in the session.
                *_RESET,
                self._settings,
                b"savepoint " + savepoint,
                begin_one(delivery.lease, handler_name),
            )
        except psycopg.Error as error:
            if passes(error) or error.sqlstate == _FAILED_TRANSACTION:
                raise SubstrateLostError(describe(error)) from None
            if self._is_misuse(error):
                raise AcceptRefusedError from None
            if not is_contention(error):
                raise
        else:
            self._savepoint, self._accepting = savepoint, ()
            return Gate(text_of(verdict))
        # The whole script is undone with the savepoint it sets, so what came before it has to be said again.
        await self._run(*_undoing(savepoint))
        return Gate.BUSY

    def accept(self) -> None:
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
        self._accepting = (self._require_role, b"release savepoint " + self._savepoint)

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
            await self._run(*_undoing(self._savepoint))
        except psycopg.Error as error:
            raise GroupVoidError(f"the transaction cannot be taken back ({error.sqlstate})") from None

    async def commit(self, conclusions: Sequence[Conclusion]) -> set[UUID]:
        """See `Lane`."""
        try:
            accepted = len(self._accepting)
            *answers, _ = await self._run(*self._accepting, *statements(conclusions), b"commit")
        except psycopg.Error as error:
            if passes(error):
                raise SubstrateLostError(describe(error)) from None
            raise CommitRefusedError from _misuse(error) if self._is_misuse(error) else error
        self._is_group_open = False
        self._accepting = ()
        return standing(conclusions, answers[accepted:])

    async def abandon(self) -> None:
        """See `Lane`."""
        self._is_group_open = False
        self._accepting = ()
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
        self._accepting = ()
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

    def _beginning(self) -> tuple[bytes, ...]:
        """The driver begins a transaction with a handler's first statement; ours come before that."""
        connection = self._connection
        idle = connection is not None and connection.info.transaction_status is TransactionStatus.IDLE
        return (b"begin",) if idle else ()

    def _is_misuse(self, error: psycopg.Error) -> bool:
        """Whether it is the handler accepted last that is refused: with what it left, nothing can be asked any more."""
        return bool(self._accepting) and not passes(error) and self._session.refused_at < len(self._accepting)

    def _require_own_connection(self) -> None:
        """What a group has written is on the connection it began on: another one would settle what it never saw."""
        if self._connection is None or self._connection.closed:
            raise SubstrateLostError("the connection was lost in the middle of a group")

    def _end_transaction(self) -> None:
        if self._transaction is not None:
            self._transaction.end()

    async def _run(self, *script: Statement) -> list[PGresult]:
        if self._is_group_open:
            self._require_own_connection()
        return await self._session.script(*script)

    def _open(self) -> psycopg.AsyncConnection[Any]:
        if self._connection is None:
            raise SubstrateLostError("the lane's connection is gone")
        return self._connection

    async def _note_role(self) -> None:
        """Of a new connection: as whom it acts."""
        connection = await self._session.connection()
        if connection is self._connection:
            return
        (role,) = await self._session.ask_script(b"select current_user::text")
        self._require_role = _REQUIRE_ROLE.format(text_of(role)).as_bytes(connection)
        self._settings = _UNLOCK + b", " + self._session.apply_settings.as_bytes(connection).removeprefix(b"select ")
        self._connection = connection


def _undoing(savepoint: bytes) -> tuple[bytes, ...]:
    return b"rollback to savepoint " + savepoint, b"release savepoint " + savepoint, _UNLOCK


def _misuse(error: psycopg.Error) -> TransactionMisusedError:
    """What a handler did to its transaction, and why it cannot be committed."""
    if error.sqlstate in _NO_SAVEPOINT:
        return TransactionMisusedError("ended the transaction it was given and began another")
    return TransactionMisusedError(error.diag.message_primary or type(error).__name__)
