"""Somebody with a database who enqueues agent tasks, has them run by a real worker, and looks at them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg

from spectral.core.database import connect
from spectral.core.events import (
    Consumer,
    DatabaseSettings,
    RetryPolicy,
    WorkerSettings,
    WorkerTimes,
)
from spectral.core.events.bootstrap import worker
from spectral.core.events.testing import Drained, RecordingProbe, drain
from spectral.platform.agent_tasks import (
    AgentTask,
    Enqueued,
    Executor,
    NewTask,
    RunTimes,
    TaskOptions,
    TaskRun,
    enqueue,
    handle_agent_tasks,
)

AT_ONCE: Final = RetryPolicy(max_retries=0, base=timedelta(0), cap=timedelta(0))
SHORT: Final = RunTimes(
    beat=timedelta(seconds=0.05),
    ttl=timedelta(seconds=4),
    stop=timedelta(seconds=30),
    patience=timedelta(seconds=0.5),
    answer=timedelta(seconds=1.5),
)


def brief(*, ttl: float, answer: float, patience: float) -> RunTimes:
    """Times of a run that is soon lost, in seconds."""
    seconds = {"beat": 0.1, "ttl": ttl, "answer": answer, "patience": patience}
    return replace(SHORT, **{name: timedelta(seconds=given) for name, given in seconds.items()})


class Desk:
    """Somebody who enqueues tasks, has them run, and looks at them."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    async def enqueue(self, **task: Any) -> Enqueued:  # noqa: ANN401  fields of NewTask
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            return await enqueue(connection, NewTask(**{"kind": "research", **task}))

    def consumer(self, executor: Executor, times: RunTimes = SHORT) -> Consumer:
        consumer = Consumer("platform")
        options = TaskOptions(database=DatabaseSettings(dsn=self.dsn), times=times, retry=AT_ONCE)
        handle_agent_tasks(consumer, executor, options)
        return consumer

    async def drain(self, executor: Executor, times: RunTimes = SHORT) -> Drained:
        return await drain(self.consumer(executor, times), dsn=self.dsn)

    @asynccontextmanager
    async def working(self, executor: Executor, times: RunTimes = SHORT) -> AsyncIterator[RecordingProbe]:
        probe = RecordingProbe()
        settings = WorkerSettings(generation=1, times=WorkerTimes(stop=timedelta(0), patience=timedelta(seconds=1)))
        database = DatabaseSettings(dsn=self.dsn)
        async with worker(self.consumer(executor, times), settings=settings, database=database, probe=probe):
            yield probe

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            cursor = connection.execute(query.encode(), parameters)
            return cursor.fetchall() if cursor.description else []

    def task(self, task_id: UUID, columns: str) -> tuple[Any, ...]:
        (found,) = self.rows(f"select {columns} from platform.agent_tasks where id = %s", task_id)  # noqa: S608  ours
        return found

    def runs(self, task_id: UUID) -> list[str]:
        found = self.rows("select outcome from platform.agent_task_runs where task_id = %s order by fence", task_id)
        return [outcome for (outcome,) in found]

    async def until(self, task_id: UUID, status: str) -> None:
        async with asyncio.timeout(30):
            while self.task(task_id, "status") != (status,):  # noqa: ASYNC110  another connection changes it
                await asyncio.sleep(0.02)

    async def operate(self, work: Callable[[Any], Awaitable[Any]]) -> Any:  # noqa: ANN401  whatever it answers
        async with connect(self.dsn, "test") as database:
            return await work(database)


async def succeed(task: AgentTask, run: TaskRun) -> str:
    await run.report(50, "half way")
    return f"reports/{task.input['topic']}"


async def never(task: AgentTask, run: TaskRun) -> None:
    raise AssertionError(f"task {task.id} must not run (fence {run.fence})")


async def outbox(desk: Desk) -> list[dict[str, Any]]:
    return [row for (row,) in desk.rows("select to_jsonb(outbox) from core.outbox order by created_at, id")]


async def begin(desk: Desk, task_id: UUID, token: UUID, ttl: str = "1 minute") -> str:
    query = "select status from platform.agent_task_begin(%s, %s, 'zombie', %s, %s)"
    ((status,),) = desk.rows(query, task_id, token, uuid4(), ttl)
    return str(status)


def back_date(desk: Desk, column: str, by: str) -> None:
    with psycopg.connect(desk.dsn) as connection:
        connection.execute("set session_replication_role = replica")  # past the guard: time itself is moved
        connection.execute(
            psycopg.sql.SQL("update platform.agent_tasks set {0} = {0} - {1}::interval where {0} is not null").format(
                psycopg.sql.Identifier(column), by
            )
        )
