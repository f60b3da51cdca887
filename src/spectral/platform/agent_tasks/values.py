"""A task as programs see it: what is asked for, what an executor is given, and the words for its states."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from spectral.core.events import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from uuid import UUID

MAX_QUESTION: Final = 4000
MAX_NOTE: Final = 500


class TaskStatus(StrEnum):
    """How far a task is."""

    QUEUED = "queued"
    RUNNING = "running"
    WAITING_FOR_APPROVAL = "waiting_for_approval"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    REJECTED = "rejected"
    CANCELLED = "cancelled"


class OnLoss(StrEnum):
    """What becomes of a task whose worker was lost in the middle of it."""

    RESUME = "resume"  # another worker begins a run, with the checkpoint of the last one
    FAIL = "fail"  # it must not be begun twice: a person has to look


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTask:
    """What is to be done.

    kind: which executor, or which part of it, this is for.
    input: what it is given; JSON, at most 256 KiB.
    requested_by: who wants it; the database's login unless told.
    conversation_id: what it belongs to; a new conversation unless told.
    on_loss: what becomes of it when its worker is lost.
    max_attempts: runs that may fail or be lost before it has failed.
    keep_for: how long it is kept after its end, instead of what the policy says.
    processing_class: the class of workers it is for (`spectral worker --class`).
    delay: not before this.
    """

    kind: str
    input: Mapping[str, object] = field(default_factory=dict[str, object])
    requested_by: str | None = None
    conversation_id: UUID | None = None
    workspace_id: UUID | None = None
    on_loss: OnLoss = OnLoss.RESUME
    max_attempts: int = 5
    keep_for: timedelta | None = None
    processing_class: str | None = None
    delay: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Enqueued:
    """A task that is on its way; `event_id` is the outbox row that dispatches it."""

    id: UUID
    conversation_id: UUID
    event_id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What a person said to a task's question."""

    question: str
    decided_by: str
    decided_at: datetime
    reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentTask:
    """What an executor is given.

    attempt counts from 1, and from 1 again after an approval. checkpoint is what an earlier run stored. approval is the
    last one that was given.
    """

    id: UUID
    kind: str
    input: Mapping[str, Any]
    conversation_id: UUID
    workspace_id: UUID | None
    requested_by: str
    attempt: int
    max_attempts: int
    fence: int
    checkpoint: Any
    approval: Decision | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimes:
    """How long what may take.

    beat: how often a run shows that it lives; ttl: for how long it need not before it counts as lost. An executor whose
        run cannot show it is stopped `patience` before that, so that it has ended when another one may begin.
    run: the longest run. stop: how long an executor that was told of a cancellation may take before its task is
        cancelled under it; patience: how long it may take to obey that.
    answer: how long the database may take for a statement.
    """

    beat: timedelta = timedelta(seconds=5)
    ttl: timedelta = timedelta(seconds=60)
    run: timedelta = timedelta(hours=6)
    stop: timedelta = timedelta(seconds=30)
    patience: timedelta = timedelta(seconds=5)
    answer: timedelta = timedelta(seconds=8)

    def __post_init__(self) -> None:
        for name in self.__slots__:
            given: object = getattr(self, name)
            if not isinstance(given, timedelta) or given <= timedelta(0):
                raise ConfigurationError(f"{name} must be a timedelta that is longer than nothing, not {given!r}")
        if self.ttl < 2 * self.beat:
            raise ConfigurationError(
                f"ttl must leave room for two heartbeats: set it to {2 * self.beat} or more, or beat more often"
            )
        least = self.beat + 2 * self.answer + self.patience
        if self.ttl <= least:
            raise ConfigurationError(
                "ttl must leave room for a heartbeat on a new connection, and for the executor to stop: set it to more"
                f" than beat + 2 * answer + patience, which is {least}"
            )
