"""Every call that a worker makes to its database, counted, so that one of them can be failed."""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args

import psycopg
import pytest
from psycopg.pq.abc import PGresult

from spectral.core.events.failure import SubstrateLostError
from spectral.core.events.infrastructure.postgres import session
from spectral.core.events.infrastructure.postgres.errands import PostgresBriefTransaction, PostgresErrands
from spectral.core.events.infrastructure.postgres.script import Statement, run_script
from spectral.core.events.infrastructure.postgres.session import Session

T = TypeVar("T")
Work = Callable[[psycopg.AsyncConnection[Any]], Awaitable[T]]

How = Literal["before", "drop", "after", "refused"]
"""before: it is not sent. drop: the socket is dropped under it. after: it was done, and nobody hears of it.
refused: the server has no room for it, on a connection that lives on."""

HOWS: tuple[How, ...] = get_args(How)
_NO_ROOM = b"do $$ begin raise exception 'no room' using errcode = 'disk_full'; end $$"


@dataclass
class Calls:
    """Counts the calls of each worker, by the name in its connections; fails the nth of those that are told so."""

    how: How = "before"
    doomed: dict[str, int] = field(default_factory=dict)
    made: Counter[str] = field(default_factory=Counter)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Come between the workers of this process and their database."""
        call, open_, script = Session.call, Session._open, Session.script
        send = run_script
        dooms: ContextVar[bool] = ContextVar("dooms", default=False)

        async def counted_call(this: Session, work: Work[T]) -> T:
            return await call(this, self._failing(work) if self._is_doomed(this._application) else work)

        async def counted_script(this: Session, *statements: Statement) -> list[PGresult]:
            token = dooms.set(self._is_doomed(this._application))
            try:
                return await script(this, *statements)
            finally:
                dooms.reset(token)

        async def counted_send(
            connection: psycopg.AsyncConnection[Any], statements: Iterable[Statement], within: float
        ) -> list[PGresult]:
            def work(line: psycopg.AsyncConnection[Any]) -> Awaitable[list[PGresult]]:
                return send(line, statements, within)

            return await (self._failing(work) if dooms.get() else work)(connection)

        async def counted_open(this: Session) -> psycopg.AsyncConnection[Any]:
            if self._is_doomed(this._application):
                raise psycopg.OperationalError("refused on purpose")
            return await open_(this)

        monkeypatch.setattr(Session, "call", counted_call)
        monkeypatch.setattr(Session, "_open", counted_open)
        monkeypatch.setattr(Session, "script", counted_script)
        monkeypatch.setattr(session, "run_script", counted_send)
        self._install_for_errands(monkeypatch)

    def _install_for_errands(self, monkeypatch: pytest.MonkeyPatch) -> None:
        carry_out = PostgresErrands.carry_out

        async def counted_errands(this: PostgresErrands, within: float) -> PostgresBriefTransaction | None:
            if not self._is_doomed(this.connection.info.get_parameters()["application_name"]):
                return await carry_out(this, within)
            first = this.waiting[0].sender
            try:
                return await self._failing(lambda _: carry_out(this, within))(this.connection)
            except psycopg.errors.DiskFull:
                return first  # which is what a refusal comes to
            except psycopg.Error as error:
                raise SubstrateLostError(str(error)) from None

        monkeypatch.setattr(PostgresErrands, "carry_out", counted_errands)

    def _is_doomed(self, application: str) -> bool:
        name = application.rpartition(" ")[2]
        self.made[name] += 1
        return self.made[name] == self.doomed.get(name)

    def _failing(self, work: Work[T]) -> Work[T]:
        async def fail(connection: psycopg.AsyncConnection[Any]) -> T:
            match self.how:
                case "before":
                    raise psycopg.OperationalError("failed on purpose")
                case "drop":
                    _hang_up(connection)
                    return await work(connection)
                case "after":
                    await work(connection)
                    _hang_up(connection)
                    raise psycopg.OperationalError("lost on purpose")
                case "refused":
                    await connection.execute(_NO_ROOM)
                    raise AssertionError("the server had room")

        return fail


def _hang_up(connection: psycopg.AsyncConnection[Any]) -> None:
    """Shut the line down under the connection, which does not know yet."""
    with socket.socket(fileno=os.dup(connection.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)
