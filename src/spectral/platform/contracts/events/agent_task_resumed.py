"""An agent task that waited for a person was approved: a worker of platform is to go on with it."""

from __future__ import annotations

from typing import Final
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

AGENT_TASK_RESUMED_TYPE: Final = "platform.agent_task.resumed"
AGENT_TASK_RESUMED_VERSION: Final = 1


class AgentTaskResumed(BaseModel):
    """Which task. The decision stands in its row."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    agent_task_id: UUID = Field(description="The task's id in platform.agent_tasks.")


EXAMPLES: Final = (AgentTaskResumed(agent_task_id=UUID("0198c0de-0000-7000-8000-00000000a9e0")),)
