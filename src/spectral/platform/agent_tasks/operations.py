"""What people do with tasks: find them, look at one, approve, reject, cancel, sweep.

Who decided or cancelled, when and why, is kept on the task itself (`decisions`, `decided_by`, `cancelled_by`): the
audit of the substrate is written by the substrate alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from psycopg import sql

from spectral.core.database import NotFoundError, RefusedError
from spectral.core.events import ConfigurationError
from spectral.platform.agent_tasks.retention import TasksSwept, sweep_agent_tasks

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from typing import LiteralString

    from spectral.core.database import Database

MIGRATIONS: Final = Path(__file__).resolve().parents[1] / "migrations"
"""The tables of platform, which every database does not have."""

_SUMMARY: Final = """
    task.id, task.kind, task.status, task.attempts, task.max_attempts, task.progress, task.progress_note,
    task.run_by, task.heartbeat_at, coalesce(task.run_expires_at < clock_timestamp(), false) as stalled,
    task.cancel_requested_at is not null as cancel_requested, task.question, task.conversation_id, task.created_at,
    task.ended_at
"""
_LIST: Final = f"""
select {_SUMMARY}
from platform.agent_tasks as task
where {{conditions}}
order by task.id desc
limit %(limit)s
"""  # noqa: S608  constants of this module
_SHOW: Final = f"""
select {_SUMMARY},
    task.input, task.requested_by, task.workspace_id, task.on_loss, task.fence, task.checkpoint, task.result_ref,
    task.last_error, task.asked_at, task.decision, task.decided_by, task.decided_at, task.decision_reason,
    task.decisions, task.cancelled_by, task.cancel_reason, task.cancel_requested_at, task.dispatch_event_id,
    task.resume_event_id, task.deleted_at
from platform.agent_tasks as task
where task.id = %s
"""  # noqa: S608  constants of this module
_RUNS: Final = """
select run.fence, run.worker, run.event_id, run.attempt, run.began_at, run.ended_at, run.outcome, run.error
from platform.agent_task_runs as run
where run.task_id = %s
order by run.fence desc
limit 100
"""
_CONDITIONS: Final[dict[str, LiteralString]] = {
    "status": "task.status = %(status)s",
    "kind": "task.kind = %(kind)s",
    "conversation_id": "task.conversation_id = %(conversation_id)s",
    "cursor": "task.id < %(cursor)s",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Which tasks; those that were put away are not listed."""

    status: str | None = None
    kind: str | None = None
    conversation_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSummary:
    """A task in a list. Stalled: it counts as running, but its worker shows no sign of life."""

    id: UUID
    kind: str
    status: str
    attempts: int
    max_attempts: int
    progress: int | None
    progress_note: str | None
    run_by: str | None
    heartbeat_at: datetime | None
    stalled: bool
    cancel_requested: bool
    question: str | None
    conversation_id: UUID
    created_at: datetime
    ended_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPage:
    """Tasks, newest first; `next_cursor` is where the next page begins, if there may be one."""

    items: list[TaskSummary]
    next_cursor: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run there was, or is."""

    fence: int
    worker: str
    event_id: UUID
    attempt: int
    began_at: datetime
    ended_at: datetime | None
    outcome: str | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDetail(TaskSummary):
    """A task whole; the last hundred of its runs."""

    input: Mapping[str, Any]
    requested_by: str
    workspace_id: UUID | None
    on_loss: str
    fence: int
    checkpoint: Any
    result_ref: str | None
    last_error: str | None
    asked_at: datetime | None
    decision: str | None
    decided_by: str | None
    decided_at: datetime | None
    decision_reason: str | None
    decisions: list[dict[str, Any]]
    cancelled_by: str | None
    cancel_reason: str | None
    cancel_requested_at: datetime | None
    dispatch_event_id: UUID
    resume_event_id: UUID | None
    deleted_at: datetime | None
    runs: tuple[RunRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskChange:
    """What the task is after what was done to it; `event_id` is the outbox row that resumes it, if one does."""

    id: UUID
    status: str
    event_id: UUID | None = None


async def list_tasks(database: Database, wanted: TaskFilter, *, limit: int, cursor: str | None = None) -> TaskPage:
    """One page, newest first.

    Raises:
        ConfigurationError: the database has no agent tasks; the message says what to run.
        RefusedError: the cursor is none.
    """
    await _require_tables(database)
    given: dict[str, object] = {
        "status": wanted.status,
        "kind": wanted.kind,
        "conversation_id": wanted.conversation_id,
        "cursor": None if cursor is None else _cursor(cursor),
    }
    conditions = [sql.SQL("task.deleted_at is null")]
    conditions += [sql.SQL(text) for name, text in _CONDITIONS.items() if given[name] is not None]
    query = sql.SQL(_LIST).format(conditions=sql.SQL(" and ").join(conditions))
    items = await database.rows(query, {**given, "limit": limit}, into=TaskSummary)
    return TaskPage(items=items, next_cursor=str(items[-1].id) if len(items) == limit else None)


async def show_task(database: Database, task_id: UUID) -> TaskDetail:
    """One task whole, with what it was given and what it stored.

    Raises:
        NotFoundError: there is no such task.
        ConfigurationError: as `list_tasks`.
    """
    await _require_tables(database)
    found = await database.rows(_SHOW, [task_id], into=TaskDetail)
    if not found:
        raise NotFoundError(f"there is no agent task {task_id}", "spectral agent-tasks list")
    runs = await database.rows(_RUNS, [task_id], into=RunRecord)
    return replace(found[0], runs=tuple(reversed(runs)))


def require(verb: str, task: TaskSummary) -> None:
    """Whether this can be done to the task as it stands; the database says so again when it is done.

    Raises:
        RefusedError: it cannot.
    """
    show = f"spectral agent-tasks show {task.id}"
    if verb == "cancel" and task.ended_at is not None:
        raise RefusedError(f"agent task {task.id} is {task.status} already", show)
    if verb != "cancel" and task.status != "waiting_for_approval":
        raise RefusedError(f"agent task {task.id} is {task.status}, nobody waits for a decision", show)


async def approve(
    database: Database, task_id: UUID, *, by: str, reason: str | None, generation: int | None = None
) -> TaskChange:
    """Let a task that waits go on, in the live generation unless told.

    Raises:
        NotFoundError: there is no such task.
        RefusedError: nobody waits for a decision.
    """
    return await _decide(database, task_id, ["approved", by, reason, generation], "queued")


async def reject(database: Database, task_id: UUID, *, by: str, reason: str | None) -> TaskChange:
    """End a task that waits for approval. Raises as `approve`."""
    return await _decide(database, task_id, ["rejected", by, reason, None], "rejected")


async def cancel(database: Database, task_id: UUID, *, by: str, reason: str | None) -> TaskChange:
    """Cancel a task; one that runs is told, and stays `running` until it has obeyed.

    Raises:
        NotFoundError: there is no such task.
        RefusedError: it has ended.
    """
    await _require_tables(database)
    status = await database.value("select platform.agent_task_cancel(%s, %s, %s)", [task_id, by, reason])
    return TaskChange(id=task_id, status=status)


async def sweep(database: Database, *, dry_run: bool) -> TasksSwept:
    """Put away and delete what ended long enough ago; a dry run counts one batch of each at most.

    Raises:
        RefusedError: this login may not sweep.
    """
    await _require_tables(database, "select count(*) from core.sweeper")  # what a login that only sweeps may read
    return await sweep_agent_tasks(database, dry_run=dry_run)


async def _decide(database: Database, task_id: UUID, arguments: list[object], status: str) -> TaskChange:
    await _require_tables(database)
    event_id = await database.value("select platform.agent_task_decide(%s, %s, %s, %s, %s)", [task_id, *arguments])
    return TaskChange(id=task_id, status=status, event_id=event_id)


async def _require_tables(
    database: Database, substrate: LiteralString = "select generation from core.live_generation"
) -> None:
    """The substrate may well be there without platform; say which of the two is missing."""
    await database.value(substrate)
    if await database.value("select to_regclass('platform.agent_tasks')::oid") is None:
        raise ConfigurationError(f"this database has no agent tasks; run: spectral migrate up --directory {MIGRATIONS}")


def _cursor(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise RefusedError(f"{text[:80]!r} is no cursor", "leave out --cursor to begin with the first page") from None
