"""A lane: the connection that handlers write on, guarded so that only a healthy transaction is ever settled.

The session is not in autocommit mode, so that a handler that ends its transaction does not go on writing outside of
one; the savepoints, one of the group and one of each handler, have names nobody can guess, others for every group, so
that a transaction begun anew does not pass for the old one; and `spectral.guarded` has the server refuse a commit that
leaves a begun row unsettled.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql
from psycopg.pq import ConnStatus, PipelineStatus, TransactionStatus

from spectral.core.events.describe import describe
from spectral.core.events.failure import SubstrateLostError, TransactionMisusedError
from spectral.core.events.infrastructure.postgres.conclusions import Together, Writing, begin_one
from spectral.core.events.infrastructure.postgres.doubt import stood
from spectral.core.events.infrastructure.postgres.errands import KNOWS_DRIVER, PostgresErrands, Prepared
from spectral.core.events.infrastructure.postgres.script import Statement, quoted, rows_of
from spectral.core.events.infrastructure.postgres.session import Session, explain, is_contention, passes
from spectral.core.events.infrastructure.postgres.transaction import PostgresTransaction
from spectral.core.events.infrastructure.postgres.watched import WatchedConnection
from spectral.core.events.ports import AcceptRefusedError, CommitRefusedError, Gate, GroupVoidError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from psycopg.pq.abc import PGresult

    from spectral.core.events.consumer import Handler
    from spectral.core.events.delivery.publish import Publishing
    from spectral.core.events.lease import Delivery
    from spectral.core.events.ports import Conclusion
    from spectral.core.events.settings import WorkerSettings

_UNLOCK: Final = b"select pg_advisory_unlock_all()"
# Not what was prepared: the driver prepares a handler's statements for all its events.
_RESET: Final = (b"reset all", b"close all", b"unlisten *", b"discard temp")
_REQUIRE_ROLE: Final = sql.SQL("select core.require_role({})")
_WHO_AND_HOW: Final = (
    b"select current_user::text, current_setting('spectral.guarded', true) is not distinct from 'on'"
    # somebody may have given the role the one setting, but not the others
    b" and exists (select from pg_settings where name = 'tcp_keepalives_idle' and source = 'client')"
)
_NOT_ALLOWED: Final = "42501"
_NO_SAVEPOINT: Final = frozenset({"3B001", "25P01"})
_GATES: Final = {gate.value.encode(): gate for gate in Gate}


class PostgresLane:
    """Implements `Lane`."""

    def __init__(self, dsn: str, settings: WorkerSettings, publishing: Publishing) -> None:
        self._publishing = publishing
        self._session = Session(
            dsn,
            f"spectral lane {settings.name}",
            settings.times.answer,
            settings={"spectral.guarded": "on"},
            for_handlers=True,
        )
        self._worker = settings.name
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._transaction: PostgresTransaction | None = None
        self._group = b""  # the savepoint at the beginning of the group that is open: whose transaction has it is ours
        self._savepoint = b""  # that of each of its handlers
        self._together = Together(())
        self._only_plain = True
        self._prepared = Prepared()  # on this connection
        self._accepted = False  # whether the server has still to say something to the handler that was accepted
        self._is_worn = False  # whether the next group had better have a new connection
        self._require_role = b""
        self._settings = b""

    @property
    def transaction(self) -> PostgresTransaction:
        """See `Lane`."""
        self._only_plain = self._is_only_plain()
        self._transaction = PostgresTransaction(self._open(), self._publishing)
        return self._transaction

    def _is_only_plain(self) -> bool:
        """Whether no handler of the group has had the connection itself, or left anything on it."""
        return self._only_plain and (self._transaction is None or self._transaction.is_plain)

    @property
    def was_plain(self) -> bool:
        """See `Lane`."""
        return self._transaction is not None and self._transaction.is_plain

    @property
    def was_brief(self) -> bool:
        """See `Lane`."""
        return KNOWS_DRIVER and self._transaction is not None and self._transaction.is_brief

    @property
    def answered_after(self) -> float:
        """See `Lane`."""
        return 0.0 if self._transaction is None else self._transaction.answered_after

    def errands(self) -> PostgresErrands:
        """See `Lane`."""
        connection = self._open()
        assert isinstance(connection, WatchedConnection)  # noqa: S101  its session is for handlers
        return PostgresErrands(connection, self._prepared)

    async def begin_together(self, runs: Sequence[tuple[Delivery, Handler]], only: str | None = None) -> bool:
        """See `Lane`."""
        self._together = Together(runs)
        prologue = (*await self._beginning(), *_RESET, self._settings)
        try:
            *_, verdict = await self._session.script(*prologue, self._together.begin(only))
        except psycopg.Error as error:
            if passes(error) or self._session.refused_at < len(prologue):
                raise SubstrateLostError(describe(error)) from None
            if not is_contention(error):
                explain(error)
                raise
            return False
        return verdict.get_value(0, 0) == b"t"

    async def commit_together(self, count: int) -> None:
        """See `Lane`."""
        own = (self._require_role, b"release savepoint " + self._group)
        try:
            await self._run(*own, self._together.deliver(count), b"commit")
        except psycopg.Error as error:
            if passes(error):
                raise SubstrateLostError(describe(error)) from None
            raise CommitRefusedError from error
        self._group = b""
        self._accepted = False

    async def begin(self, delivery: Delivery, handler_name: str) -> Gate:
        """See `Lane`."""
        beginning = self._accepting() if self._group else await self._beginning()
        # Every handler starts from the same settings, whatever the one before it has left in the session.
        prologue = (*beginning, *_RESET, self._settings, b"savepoint " + self._savepoint)
        try:
            *_, verdict = await self._session.script(*prologue, begin_one(delivery.lease, handler_name))
        except psycopg.Error as error:
            is_ready = self._session.refused_at >= len(prologue)
            if passes(error) or (not is_ready and self._transaction is None):
                raise SubstrateLostError(describe(error)) from None
            if not is_ready:
                raise AcceptRefusedError from _misuse(error)
            if not is_contention(error):
                explain(error)
                raise
        else:
            self._accepted = False
            return _GATES[verdict.get_value(0, 0) or b""]
        # Only the gate was refused. What came before the savepoint stands, and must not be said again.
        self._accepted = False
        try:
            await self._run(*_undoing(self._savepoint))
        except psycopg.Error as error:
            raise SubstrateLostError(describe(error)) from None
        return Gate.BUSY

    def accept(self) -> None:
        """See `Lane`."""
        pgconn = self._open().pgconn
        self._end_transaction()
        if pgconn.status == ConnStatus.BAD:
            raise GroupVoidError("the connection was closed while the handler ran")
        status = pgconn.transaction_status
        if status == TransactionStatus.INERROR:
            self._is_worn = True  # nobody was told why it failed: it may be what is remembered here
            raise TransactionMisusedError(
                "returned although an SQL statement of its transaction had failed; let the error out, or wrap what may "
                "fail in `async with tx.connection.transaction():`"
            )
        if status != TransactionStatus.INTRANS or pgconn.pipeline_status != PipelineStatus.OFF:
            raise GroupVoidError("ended the transaction it was given, or left something running in it")
        self._accepted = True

    async def undo_together(self) -> None:
        """See `Lane`."""
        await self._require_transaction()
        await self.abandon()

    async def undo(self) -> None:
        """See `Lane`."""
        await self._require_transaction()
        try:
            await self._run(*_undoing(self._savepoint))
        except psycopg.Error as error:
            raise GroupVoidError(f"the transaction cannot be taken back ({error.sqlstate})") from None

    async def _require_transaction(self) -> None:
        """The handler has ended; there is nothing to undo if it has ended its transaction too."""
        connection = self._open()
        self._end_transaction()
        if connection.closed:
            await self.drop()
            raise SubstrateLostError("the connection was lost while the handler ran")
        status = connection.info.transaction_status
        if status not in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
            raise GroupVoidError("the transaction has ended")

    async def commit(self, conclusions: Sequence[Conclusion]) -> set[UUID]:
        """See `Lane`."""
        if self._group:
            # What was accepted, and that it is still the group's transaction: outside of it there is nothing to commit.
            role = (self._require_role,) if self._accepted else ()
            own = (*role, *self._accepting(), b"release savepoint " + self._group)
        else:
            await self._require_idle()
            own = ()
        writing = Writing(conclusions)
        try:
            *answers, _ = await self._run(*own, *writing.statements, b"commit")
        except psycopg.Error as error:
            if passes(error):
                raise SubstrateLostError(describe(error)) from None
            raise CommitRefusedError from _misuse(error) if self._session.refused_at < len(own) else error
        self._group = b""
        self._accepted = False
        return writing.lost(answers[len(own) :])

    async def stood(self, doubted: Sequence[Conclusion]) -> dict[UUID, Conclusion]:
        """See `Lane`."""
        return await stood(self._session, doubted, self._worker)

    async def abandon(self) -> None:
        """See `Lane`."""
        self._group = b""
        self._accepted = False
        if not self._session.is_open:
            return
        try:
            if self._is_only_plain():
                await self._session.script(b"rollback")
            else:
                # The driver's own: it looks whether a handler has left a nested transaction open.
                await self._session.call(lambda connection: connection.rollback())
        except (psycopg.Error, SubstrateLostError):
            await self.drop()

    async def drop(self) -> None:
        """See `Lane`."""
        self._end_transaction()
        self._connection = None
        self._is_worn = False
        self._group = b""
        self._accepted = False
        await self._session.drop()

    async def _beginning(self) -> tuple[bytes, ...]:
        """What opens a group."""
        await self._require_idle()
        await self._note_role()
        self._transaction = None
        self._only_plain = True
        self._group = b"spectral_" + secrets.token_hex(8).encode()
        self._savepoint = self._group + b"_handler"
        return b"begin", b"savepoint " + self._group

    def _accepting(self) -> tuple[bytes, ...]:
        """What the open group has still to say to the handler before, if it was accepted."""
        self._require_own_connection()
        return (b"release savepoint " + self._savepoint,) if self._accepted else ()

    async def _require_idle(self) -> None:
        """A transaction that is open before a group is was begun by somebody who has kept the connection."""
        connection = self._connection
        if connection is None:
            return
        is_idle = connection.info.transaction_status is TransactionStatus.IDLE
        if self._is_worn or not is_idle or self._session.is_doubtful:
            await self.drop()

    def _require_own_connection(self) -> None:
        """What a group has written is on the connection it began on: another one would settle what it never saw."""
        if self._connection is None or self._connection.closed:
            raise SubstrateLostError("the connection was lost in the middle of a group")

    def _end_transaction(self) -> None:
        if self._transaction is not None:
            self._transaction.end()

    async def _run(self, *script: Statement) -> list[PGresult]:
        if self._group:
            self._require_own_connection()
        return await self._session.script(*script)

    def _open(self) -> psycopg.AsyncConnection[Any]:
        if self._connection is None:
            raise SubstrateLostError("the lane's connection is gone")
        return self._connection

    async def _note_role(self) -> None:
        """Of a new connection: as whom it acts, and whether a reset brings its settings back."""
        connection = await self._session.connection()
        if connection is self._connection:
            return
        _, answer = await self._session.ask_script(b"reset all", _WHO_AND_HOW)
        ((role, kept),) = rows_of(answer)
        self._require_role = quoted(_REQUIRE_ROLE.format(role), connection)
        # In one statement: the server reads and plans each from its text.
        parts = [self._require_role, _UNLOCK.removeprefix(b"select ")]
        if not kept:
            parts.append(quoted(self._session.apply_settings, connection).removeprefix(b"select "))
        self._settings = b", ".join(parts)
        self._prepared = Prepared()
        self._connection = connection


def _undoing(savepoint: bytes) -> tuple[bytes, ...]:
    return b"rollback to savepoint " + savepoint, b"release savepoint " + savepoint, _UNLOCK


def _misuse(error: psycopg.Error) -> TransactionMisusedError:
    """What a handler did to its transaction, and why it cannot be committed."""
    if error.sqlstate in _NO_SAVEPOINT:
        return TransactionMisusedError("ended the transaction it was given and began another")
    if error.sqlstate == _NOT_ALLOWED:  # what it acts as by then may not even ask
        return TransactionMisusedError(
            "left its connection acting as another role, one without rights on schema core: change back with SET ROLE "
            "before the handler returns (SET LOCAL ROLE does not end with a nested transaction, unless that is rolled "
            "back)"
        )
    return TransactionMisusedError(error.diag.message_primary or type(error).__name__)
