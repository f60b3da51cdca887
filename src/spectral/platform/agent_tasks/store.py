"""The state of one run in the database: short statements on a connection of its own, each fenced by the run's token."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID, uuid4

import psycopg
from psycopg.types.json import Jsonb

from spectral.core.events import SubstrateLostError, TerminalHandlerError
from spectral.core.events.describe import describe
from spectral.core.events.infrastructure.postgres.session import Session, is_contention, passes
from spectral.platform.agent_tasks.failure import RunLostError
from spectral.platform.agent_tasks.values import AgentTask, Decision, TaskStatus

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from typing import LiteralString

_NO_SUCH: Final = "P0002"
_NOT_IN_THAT_STATE: Final = "55000"
_APPLICATION: Final = "spectral agent task"
_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 2.0
_LONGEST_IDLE: Final = timedelta(minutes=10)

_BEGIN: Final = "select status, wait from platform.agent_task_begin(%s, %s, %s, %s, %s)"
_READ: Final = """
select kind, input, conversation_id, workspace_id, requested_by, attempts, max_attempts, fence, checkpoint,
       case when decision = 'approved' then question end, decided_by, decided_at, decision_reason
from platform.agent_tasks
where id = %s and run_token = %s
"""
_BEAT: Final = "select platform.agent_task_beat(%s, %s, %s, %s, %s)"
_SAVE: Final = "select platform.agent_task_save(%s, %s, %s)"
_FINISH: Final = "select platform.agent_task_finish(%s, %s, %s, %s, %s, %s)"


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody else is at it; look again after a while."""

    wait: timedelta


@dataclass(frozen=True, slots=True)
class Over:
    """There is nothing to run."""

    status: TaskStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a run ended, as `platform.agent_task_finish` has it."""

    outcome: str
    detail: str | None = None
    retry: bool = False
    checkpoint: Any = None


class RunStore:
    """One task's state, as one delivery sees it. The token is made here: a lost answer can be asked for again."""

    def __init__(self, dsn: str, task_id: UUID, *, ttl: timedelta, answer: timedelta) -> None:
        self.task_id = task_id
        self.token = uuid4()
        self.ttl = ttl
        self._dsn = dsn
        self._answer = answer
        self._session = Session(dsn, _APPLICATION, answer, settings={})
        self._lock = asyncio.Lock()

    async def begin(self, worker: str, event_id: UUID) -> AgentTask | Busy | Over:
        """Begin a run, unless somebody is at it or there is nothing to run.

        Raises:
            TerminalHandlerError: there is no such task.
            SubstrateLostError: the database cannot be reached.
        """
        try:
            row = await self._ask_again(_BEGIN, self.task_id, self.token, worker, event_id, self.ttl)
        except psycopg.Error as error:
            if error.sqlstate == _NO_SUCH:
                raise TerminalHandlerError(f"there is no agent task {self.task_id}") from None
            raise
        status, wait = row
        if status == "busy":
            return Busy(wait)
        if status != TaskStatus.RUNNING:
            return Over(TaskStatus(status))
        found = await self._ask_again(_READ, self.task_id, self.token)
        return _task(self.task_id, found)

    def renew_token(self) -> None:
        """Forget the run that was lost; the next one is another."""
        self.token = uuid4()

    async def beat(self, progress: int | None = None, note: str | None = None) -> bool:
        """Show life; answers whether somebody wants the task cancelled.

        Raises:
            RunLostError: the run is no longer this worker's.
            SubstrateLostError: the database cannot be reached, so nobody knows.
        """
        (wanted,) = await self._ask(_BEAT, self.task_id, self.token, self.ttl, progress, note)
        if wanted is None:
            raise RunLostError(f"the run of agent task {self.task_id} is over")
        return bool(wanted)

    async def save(self, checkpoint: Any) -> None:  # noqa: ANN401  any JSON
        """Store what a later run begins with. Raises as `beat`."""
        (held,) = await self._ask_again(_SAVE, self.task_id, self.token, Jsonb(checkpoint))
        if not held:
            raise RunLostError(f"the run of agent task {self.task_id} is over")

    async def finish(self, ending: Ending, *, patiently: bool = True) -> TaskStatus:
        """End the run; answers what the task is now. An ending that cannot be stored is a failure. Raises as `beat`."""
        ask = self._ask_again if patiently else self._ask
        checkpoint = None if ending.checkpoint is None else Jsonb(ending.checkpoint)
        arguments = (self.task_id, self.token, ending.outcome, ending.detail, ending.retry, checkpoint)
        try:
            (status,) = await ask(_FINISH, *arguments)
        except (psycopg.DataError, psycopg.IntegrityError, TypeError, ValueError) as error:
            # A result, question or checkpoint that is no text or JSON, or too long: the same again next time.
            (status,) = await ask(_FINISH, self.task_id, self.token, "failed", describe(error), False, None)  # noqa: FBT003  an argument of SQL
        if status is None:
            raise RunLostError(f"the run of agent task {self.task_id} is over")
        return TaskStatus(status)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[psycopg.AsyncConnection[tuple[Any, ...]]]:
        """A transaction that commits only if the run is still this worker's, and keeps it so until then.

        Raises:
            RunLostError: it is not.
            SubstrateLostError: the database cannot be reached.
        """
        # Nobody takes the task over while it is open: a machine that is gone must not hold it for longer than its run.
        idle = max(min(self.ttl, _LONGEST_IDLE) // timedelta(milliseconds=1), 1)  # 0 would be for ever
        settings = {"idle_in_transaction_session_timeout": f"{idle}ms"}
        session = Session(self._dsn, _APPLICATION, self._answer, settings=settings)
        try:
            connection = await session.connection()
            async with connection.transaction():
                try:
                    await connection.execute("select platform.agent_task_hold(%s, %s)", [self.task_id, self.token])
                except psycopg.Error as error:
                    if error.sqlstate == _NOT_IN_THAT_STATE:
                        raise RunLostError(f"the run of agent task {self.task_id} is over") from None
                    raise
                yield connection
        finally:
            await session.drop()

    async def close(self) -> None:
        """Close the connection; hardly waits, whatever the database does."""
        await self._session.drop()

    async def _ask_again(self, query: LiteralString, *parameters: object) -> tuple[Any, ...]:
        """Ask until there is an answer, for as long as the run could still be this worker's."""
        clock = asyncio.get_running_loop().time
        end, pause = clock() + self.ttl.total_seconds(), _PAUSE
        while True:
            try:
                return await self._ask(query, *parameters)
            except SubstrateLostError:
                if clock() + pause > end:
                    raise
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    async def _ask(self, query: LiteralString, *parameters: object) -> tuple[Any, ...]:
        async def one(connection: psycopg.AsyncConnection[Any]) -> tuple[Any, ...] | None:
            return await (await connection.execute(query, parameters)).fetchone()

        async with self._lock:
            try:
                row = await self._session.call(one)
            except psycopg.Error as error:
                if passes(error) or is_contention(error):
                    raise SubstrateLostError(describe(error)) from None
                raise
        if row is None:
            raise RunLostError(f"the run of agent task {self.task_id} is over")
        return row


def _task(task_id: UUID, row: tuple[Any, ...]) -> AgentTask:
    kind, given, conversation, workspace, requested_by, attempts, allowed, fence, checkpoint, question, *decided = row
    approval = None
    if question is not None:
        by, at, reason = decided
        approval = Decision(question=question, decided_by=by, decided_at=at, reason=reason)
    return AgentTask(
        id=task_id,
        kind=kind,
        input=given,
        conversation_id=conversation,
        workspace_id=workspace,
        requested_by=requested_by,
        attempt=attempts,
        max_attempts=allowed,
        fence=fence,
        checkpoint=checkpoint,
        approval=approval,
    )
