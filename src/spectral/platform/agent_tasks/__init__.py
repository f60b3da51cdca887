"""Agent tasks: long work that runs once at a time, shows its progress, can be cancelled, and asks people.

    enqueue              in a business transaction: the task and the outbox row that dispatches it
    handle_agent_tasks   have a consumer of platform run them with an executor
    AgentTask, TaskRun   what the executor is given: the task, and the run to report to
    NeedsApproval        what it raises when a person has to decide first
    sweep_agent_tasks    put away and delete what ended long ago

`operations` is what people do: list, show, decide, cancel.
"""

from spectral.platform.agent_tasks.consumer import TaskOptions, handle_agent_tasks
from spectral.platform.agent_tasks.enqueue import enqueue
from spectral.platform.agent_tasks.failure import (
    AgentTaskError,
    AgentTaskRetryError,
    NeedsApproval,
    RunLostError,
    TaskCancelled,
)
from spectral.platform.agent_tasks.retention import DEFAULT_TASK_POLICY, TaskPolicy, sweep_agent_tasks
from spectral.platform.agent_tasks.run import Executor, TaskRun
from spectral.platform.agent_tasks.values import AgentTask, Decision, Enqueued, NewTask, OnLoss, RunTimes, TaskStatus

__all__ = [
    "DEFAULT_TASK_POLICY",
    "AgentTask",
    "AgentTaskError",
    "AgentTaskRetryError",
    "Decision",
    "Enqueued",
    "Executor",
    "NeedsApproval",
    "NewTask",
    "OnLoss",
    "RunLostError",
    "RunTimes",
    "TaskCancelled",
    "TaskOptions",
    "TaskPolicy",
    "TaskRun",
    "TaskStatus",
    "enqueue",
    "handle_agent_tasks",
    "sweep_agent_tasks",
]
