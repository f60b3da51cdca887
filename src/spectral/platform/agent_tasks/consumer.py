"""Agent tasks as events: the handler that a consumer of platform runs them with.

The handler takes no transaction: it may run for hours, under a lease that is renewed. The task's state is written in
short transactions on a connection of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final
from uuid import UUID

from pydantic import BaseModel

from spectral.core.events import ConfigurationError, DatabaseSettings, DeliveryContext, RetryPolicy
from spectral.platform.agent_tasks.store import RunStore
from spectral.platform.agent_tasks.supervise import carry_out
from spectral.platform.agent_tasks.values import RunTimes
from spectral.platform.contracts.events.agent_task_dispatched import AGENT_TASK_DISPATCHED_TYPE
from spectral.platform.contracts.events.agent_task_resumed import AGENT_TASK_RESUMED_TYPE

if TYPE_CHECKING:
    from datetime import timedelta

    from spectral.core.events import Consumer
    from spectral.platform.agent_tasks.run import Executor

HANDLER_NAME: Final = "platform.run_agent_task"

RETRY: Final = RetryPolicy(max_retries=99)
"""More patient than any task: how often a task is tried is the task's to say, not the dispatch's."""


class AgentTaskEvent(BaseModel):
    """A task that is to be looked at, whatever the reason."""

    agent_task_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """How tasks are run.

    database: where their state is; the login is a member of `platform_app`.
    concurrency: how many at once in one process, each with a connection of its own.
    times: how long what may take.
    retry: the pauses between attempts. How many there are, each task says itself: a dispatch is retried as often as any
        task may want, whatever this says, and more often if it says so.
    """

    database: DatabaseSettings
    concurrency: int = 10
    times: RunTimes = field(default_factory=RunTimes)
    retry: RetryPolicy = RETRY

    @property
    def timeout(self) -> timedelta:
        """How long the handler may take: somebody else's run, whose end it may have to wait for, and its own."""
        return 2 * (self.times.run + self.times.ttl + self.times.patience)


def handle_agent_tasks(consumer: Consumer, executor: Executor, options: TaskOptions) -> None:
    """Have this consumer run agent tasks with this executor.

    Raises:
        ConfigurationError: it is not the consumer of platform, or handles them already.
    """
    if consumer.context != "platform":
        raise ConfigurationError(f"agent tasks are platform's: give it Consumer('platform'), not {consumer!r}")

    @consumer.on(
        AGENT_TASK_DISPATCHED_TYPE,
        AGENT_TASK_RESUMED_TYPE,
        name=HANDLER_NAME,
        retry=_patient(options.retry),
        timeout=options.timeout,
        concurrency=options.concurrency,
    )
    async def run_agent_task(event: AgentTaskEvent, delivery: DeliveryContext) -> None:
        times = options.times
        store = RunStore(options.database.dsn, event.agent_task_id, ttl=times.ttl, answer=times.answer)
        try:
            await carry_out(store, executor, delivery, times)
        finally:
            await store.close()


def _patient(given: RetryPolicy) -> RetryPolicy:
    """Its pauses. A dispatch that gave up before its task does would leave the task queued, with nobody to run it."""
    return replace(given, max_retries=max(given.max_retries, RETRY.max_retries), terminal_errors=())
