"""An agent task was enqueued: a worker of platform is to look at it and, if nobody is at it, to run it."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

AGENT_TASK_DISPATCHED_TYPE: Final = "agent.task.dispatched"
AGENT_TASK_DISPATCHED_VERSION: Final = 1


class AgentTaskDispatched(BaseModel):
    """Which task. What it is about stands in its row, so that it is read as it is when the worker comes to it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    agent_task_id: UUID = Field(description="The task's id in platform.agent_tasks.")


EXAMPLES: Final = (AgentTaskDispatched(agent_task_id=UUID("0198c0de-0000-7000-8000-00000000a9e0")),)
