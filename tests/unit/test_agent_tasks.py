"""Agent tasks without a database: what their options let through, and what their events look like."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from spectral.core.events import ConfigurationError, Consumer, DatabaseSettings, RetryPolicy
from spectral.platform.agent_tasks import (
    AgentTask,
    RunTimes,
    TaskOptions,
    TaskPolicy,
    TaskRun,
    handle_agent_tasks,
)
from spectral.platform.agent_tasks.consumer import HANDLER_NAME
from spectral.platform.contracts.events import agent_task_dispatched, agent_task_resumed

OPTIONS = TaskOptions(database=DatabaseSettings(dsn="postgresql://me:canary@nowhere/app"))


async def nothing(task: AgentTask, run: TaskRun) -> None:
    assert run.task is task


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"beat": timedelta(0)}, "beat must be a timedelta that is longer than nothing"),
        ({"run": 5}, "run must be a timedelta"),
        ({"beat": timedelta(seconds=40)}, "ttl must leave room for two heartbeats"),
        ({"ttl": timedelta(seconds=26)}, r"more than beat \+ 2 \* answer \+ patience, which is 0:00:26"),
        ({"answer": timedelta(seconds=30)}, "and for the executor to stop"),
    ],
)
def test_times_that_make_no_sense_are_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        RunTimes(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [{"active": timedelta(0)}, {"grace": timedelta(days=-1)}, {"active": timedelta(days=99_999)}, {"active": 30}],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="agent tasks: "):
        TaskPolicy(**wrong)


def test_one_handler_runs_what_is_dispatched_and_what_is_resumed_without_a_transaction() -> None:
    consumer = Consumer("platform")
    handle_agent_tasks(consumer, nothing, OPTIONS)
    assert consumer.event_types == ("agent.task.dispatched", "platform.agent_task.resumed")
    (handler,) = consumer.handlers
    assert (handler.name, handler.transactional, handler.concurrency) == (HANDLER_NAME, False, 10)
    # It may have to wait for the whole of somebody else's run before its own.
    assert handler.timeout > 2 * OPTIONS.times.run
    # How often a task is tried is the task's to say: at most 50 times.
    assert handler.retry.max_attempts >= 2 * 50


def test_a_dispatch_is_never_retried_less_often_than_its_task() -> None:
    consumer = Consumer("platform")
    hasty = RetryPolicy(
        max_retries=1, base=timedelta(seconds=7), cap=timedelta(seconds=9), terminal_errors=(Exception,)
    )
    handle_agent_tasks(consumer, nothing, replace(OPTIONS, retry=hasty))
    (handler,) = consumer.handlers
    assert handler.retry == RetryPolicy(max_retries=99, base=timedelta(seconds=7), cap=timedelta(seconds=9))


def test_tasks_are_platforms_alone_and_handled_once() -> None:
    with pytest.raises(ConfigurationError, match="agent tasks are platform's"):
        handle_agent_tasks(Consumer("worlds"), nothing, OPTIONS)
    consumer = Consumer("platform")
    handle_agent_tasks(consumer, nothing, OPTIONS)
    with pytest.raises(ConfigurationError, match="is taken"):
        handle_agent_tasks(consumer, nothing, OPTIONS)


def test_the_options_do_not_show_the_connection_string() -> None:
    assert "canary" not in repr(OPTIONS)


def test_both_events_carry_the_tasks_id_and_nothing_else() -> None:
    for payload in (agent_task_dispatched.AgentTaskDispatched, agent_task_resumed.AgentTaskResumed):
        assert set(payload.model_json_schema()["properties"]) == {"agent_task_id"}
        assert payload(agent_task_id=uuid4()).model_config["extra"] == "forbid"
