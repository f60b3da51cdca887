"""A worker process that runs agent tasks step by step, and leaves a trace of each step."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

import psycopg

from spectral.core.events import Consumer, DatabaseSettings, WorkerSettings, WorkerTimes
from spectral.core.events.bootstrap import worker
from spectral.core.events.testing import RecordingProbe, record_effect
from spectral.platform.agent_tasks import (
    AgentTask,
    RunLostError,
    RunTimes,
    TaskOptions,
    TaskRun,
    handle_agent_tasks,
)
from tests.faults.plan import SHORT_TIMES

LEASE: Final = 1.0
RUN_TIMES: Final = RunTimes(
    beat=timedelta(seconds=0.2),
    ttl=timedelta(seconds=2.5),
    patience=timedelta(seconds=0.5),
    answer=timedelta(seconds=0.8),
)
STEP: Final = 0.05

SCHEMA: Final = """
create table public.steps (
    task_id uuid        not null,
    fence   bigint      not null,
    step    integer     not null,
    worker  text        not null,
    at      timestamptz not null default clock_timestamp()
)
"""


def say(text: str) -> None:
    """Tell the test; one line."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Steps:
    """Executes a task: `steps` steps, each written under the fence; stands still before step `stop_at`, in run 1."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    async def __call__(self, task: AgentTask, run: TaskRun) -> str:
        """Implements `Executor`."""
        async with await psycopg.AsyncConnection.connect(self._dsn, autocommit=True) as effects:
            await record_effect(effects, run.delivery, str(run.delivery.event_id), external=True)
        for step in range(task.checkpoint or 0, task.input["steps"]):
            if run.fence == 1 and step == task.input.get("stop_at"):
                say("stopping")
                os.kill(os.getpid(), signal.SIGSTOP)
                await self._insist(step, run)
            await self._take(step, run)
            await asyncio.sleep(STEP)
        return f"done by {run.delivery.worker}"

    async def _insist(self, step: int, run: TaskRun) -> None:
        """Write after all, whoever says that it is over; only the database can keep it from that."""
        writing = asyncio.ensure_future(self._take(step, run))
        while not writing.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({writing})
        if isinstance(writing.exception(), RunLostError):
            say("refused")

    async def _take(self, step: int, run: TaskRun) -> None:
        written = [run.task.id, run.fence, step, run.delivery.worker]
        async with run.transaction() as connection:
            await connection.execute(
                "insert into public.steps (task_id, fence, step, worker) values (%s, %s, %s, %s)", written
            )
        await run.save(step + 1)


async def main(dsn: str, name: str) -> None:
    """Run until told to stop."""
    consumer = Consumer("platform")
    database = DatabaseSettings(dsn=dsn)
    handle_agent_tasks(consumer, Steps(dsn), TaskOptions(database=database, times=RUN_TIMES))
    seconds: dict[str, Any] = {**SHORT_TIMES, "lease": LEASE}
    times = WorkerTimes(**{key: timedelta(seconds=value) for key, value in seconds.items()})
    settings = WorkerSettings(generation=1, name=name, times=times)
    listener = worker(consumer, settings=settings, database=database, probe=RecordingProbe())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, listener.stop)
    say("starting")
    await listener.run()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
