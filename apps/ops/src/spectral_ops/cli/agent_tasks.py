"""`spectral agent-tasks`: what agents work on, and what they ask. What it does is decided in platform's own room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated
from uuid import UUID

import typer

from spectral_ops.cli.asking import confirm
from spectral_ops.cli.events_options import Cursor, command_line, plain, when
from spectral_ops.cli.options import AsJson, By, DryRun, Limit, Reason, Yes, actor
from spectral_ops.cli.output import emit_json, emit_table, note
from spectral_ops.cli.running import with_database

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from spectral.core.database import Database
    from spectral.platform.agent_tasks.operations import TaskChange, TaskDetail, TaskSummary

agent_tasks = typer.Typer(
    help="Long tasks of agents: look at them, approve, reject, cancel, sweep them.",
    epilog="Example: spectral agent-tasks list --status waiting_for_approval",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_EXAMPLE_ID = "0198c0de-0000-7000-8000-00000000a9e0"
_STATES = "queued, running, waiting_for_approval, succeeded, failed, rejected or cancelled"

TaskId = Annotated[UUID, typer.Argument(metavar="ID", help="The task's id.")]


@agent_tasks.command("list", epilog="Example: spectral agent-tasks list --status waiting_for_approval")
def list_(
    status: Annotated[str | None, typer.Option(metavar="STATE", help=f"{_STATES}.", show_default=False)] = None,
    kind: Annotated[str | None, typer.Option(metavar="NAME", help="Of this kind.", show_default=False)] = None,
    conversation: Annotated[
        UUID | None, typer.Option(metavar="ID", help="Of this conversation.", show_default=False)
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
    as_json: AsJson = False,
) -> None:
    """List tasks, newest first. A running task whose worker shows no sign of life is called stalled."""
    from spectral.core.operations.documents import as_document  # noqa: PLC0415  pydantic; --help must not pay for it
    from spectral.platform.agent_tasks import operations  # noqa: PLC0415  psycopg; as above

    if status is not None and status not in _STATES.replace(" or ", ", ").split(", "):
        raise typer.BadParameter(f"{status!r} is no state of a task; it is {_STATES}")
    wanted = operations.TaskFilter(status=status, kind=kind, conversation_id=conversation)
    page = with_database(
        "agent-tasks list", lambda database: operations.list_tasks(database, wanted, limit=limit, cursor=cursor)
    )
    if as_json:
        emit_json(as_document(page))
    else:
        emit_table(("id", "kind", "state", "attempts", "progress", "created"), [_row(each) for each in page.items])
    if page.next_cursor is None:
        note(f"{len(page.items)} shown, no more" if page.items or cursor else "none")
        return
    options = {"--status": status, "--kind": kind, "--conversation": conversation, "--limit": limit}
    following = command_line("agent-tasks list", {**options, "--cursor": page.next_cursor})
    note(f"{len(page.items)} shown; there may be more\n  try: {following}")


@agent_tasks.command(epilog=f"Example: spectral agent-tasks show {_EXAMPLE_ID}")
def show(task_id: TaskId, as_json: AsJson = False) -> None:
    """Show one task whole: what it was given and has stored, its runs, what it asked and what people said."""
    from spectral.core.operations.documents import as_document  # noqa: PLC0415  pydantic; --help must not pay for it
    from spectral.platform.agent_tasks import operations  # noqa: PLC0415  psycopg; as above

    detail = with_database("agent-tasks show", lambda database: operations.show_task(database, task_id))
    if as_json:
        emit_json(as_document(detail))
        return
    typer.echo("\n".join(_lines(detail)))
    if detail.status == "waiting_for_approval":
        note(f"  approve: spectral agent-tasks approve {task_id}\n  reject:  spectral agent-tasks reject {task_id}")


@agent_tasks.command(epilog=f"Example: spectral agent-tasks approve {_EXAMPLE_ID} --reason 'looks right' --yes")
def approve(
    task_id: TaskId,
    reason: Reason = None,
    by: By = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Let a task that waits for approval go on, from what it stored. Who and why are kept on the task."""
    from spectral.platform.agent_tasks import operations  # noqa: PLC0415  psycopg; --help must not pay for it

    change = _change(
        "approve",
        task_id,
        lambda database: operations.approve(database, task_id, by=actor(by), reason=reason),
        yes=yes,
        dry_run=dry_run,
    )
    _tell(change, "would go on" if dry_run else "goes on", dry_run=dry_run, as_json=as_json)


@agent_tasks.command(epilog=f"Example: spectral agent-tasks reject {_EXAMPLE_ID} --reason 'too dear' --yes")
def reject(
    task_id: TaskId,
    reason: Reason = None,
    by: By = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """End a task that waits for approval. Who and why are kept on the task."""
    from spectral.platform.agent_tasks import operations  # noqa: PLC0415  psycopg; --help must not pay for it

    change = _change(
        "reject",
        task_id,
        lambda database: operations.reject(database, task_id, by=actor(by), reason=reason),
        yes=yes,
        dry_run=dry_run,
    )
    _tell(change, "would be rejected" if dry_run else "rejected", dry_run=dry_run, as_json=as_json)


@agent_tasks.command(epilog=f"Example: spectral agent-tasks cancel {_EXAMPLE_ID} --reason 'not needed' --yes")
def cancel(
    task_id: TaskId,
    reason: Reason = None,
    by: By = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Cancel a task. One that nobody is at ends at once; one that runs is told, and ends when it has obeyed."""
    from spectral.platform.agent_tasks import operations  # noqa: PLC0415  psycopg; --help must not pay for it

    change = _change(
        "cancel",
        task_id,
        lambda database: operations.cancel(database, task_id, by=actor(by), reason=reason),
        yes=yes,
        dry_run=dry_run,
    )
    told = "told to stop" if change.status == "running" else "cancelled"
    _tell(change, f"would be {told}" if dry_run else told, dry_run=dry_run, as_json=as_json)


@agent_tasks.command(epilog="Example: spectral agent-tasks sweep --dry-run")
def sweep(dry_run: DryRun = False, yes: Yes = False, as_json: AsJson = False) -> None:
    """Put away tasks that ended 90 days ago, and delete, for good, those put away 7 days ago.

    A task may say itself how long it is kept. Never what has not ended. It may be stopped and run again at any time. A
    dry run counts 1000 of each at most. The login has to be a member of spectral_retention.
    """
    from spectral.core.operations.documents import as_document  # noqa: PLC0415  pydantic; --help must not pay for it
    from spectral.platform.agent_tasks import operations  # noqa: PLC0415  psycopg; as above

    if not dry_run:
        confirm("put away and delete agent tasks that ended long ago", yes=yes)
    swept = with_database("agent-tasks sweep", lambda database: operations.sweep(database, dry_run=dry_run))
    if as_json:
        emit_json({**as_document(swept), "dry_run": dry_run})
    would = "would be " if dry_run else ""
    note(f"{swept.put_away} {would}put away, {swept.deleted} {would}deleted")


def _change(
    verb: str, task_id: UUID, do: Callable[[Database], Awaitable[TaskChange]], *, yes: bool, dry_run: bool
) -> TaskChange:
    """Look, ask, do."""
    from spectral.platform.agent_tasks import operations  # noqa: PLC0415  psycopg; --help must not pay for it

    async def run(database: Database) -> TaskChange:
        task = await operations.show_task(database, task_id)
        operations.require(verb, task)
        if dry_run:
            return operations.TaskChange(id=task_id, status=task.status)
        if task.question and verb != "cancel":
            note(f"it asks: {plain(task.question)}")
        confirm(f"{verb} {plain(task.kind)} {task_id} ({task.status.replace('_', ' ')})", yes=yes)
        return await do(database)

    return with_database(f"agent-tasks {verb}", run)


def _tell(change: TaskChange, what: str, *, dry_run: bool, as_json: bool) -> None:
    from spectral.core.operations.documents import as_document  # noqa: PLC0415  pydantic; --help must not pay for it

    if as_json:
        emit_json({**as_document(change), "dry_run": dry_run})
    note(f"{change.id}: {what}")


def _state(task: TaskSummary) -> str:
    if task.stalled:
        return "stalled"
    stopping = task.cancel_requested and task.status == "running"
    return "running, told to stop" if stopping else task.status.replace("_", " ")


def _row(task: TaskSummary) -> tuple[str, ...]:
    progress = "" if task.progress is None else f"{task.progress} % {plain(task.progress_note)[:40]}".strip()
    attempts = f"{task.attempts} of {task.max_attempts}"
    return str(task.id), plain(task.kind), _state(task), attempts, progress, when(task.created_at)


def _lines(task: TaskDetail) -> Iterator[str]:
    import json  # noqa: PLC0415  --help must not pay for it

    yield f"{plain(task.kind)}, {_state(task)} (attempt {task.attempts} of {task.max_attempts})"
    facts = {
        "id": task.id,
        "conversation": task.conversation_id,
        "workspace": task.workspace_id,
        "requested": f"{when(task.created_at)} by {plain(task.requested_by)}",
        "dispatched as": task.dispatch_event_id,
        "after a loss": "another run begins" if task.on_loss == "resume" else "it has failed",
        "progress": "" if task.progress is None else f"{task.progress} % {plain(task.progress_note)}",
        "heartbeat": f"{when(task.heartbeat_at)} from {plain(task.run_by)}" if task.heartbeat_at else "",
        "result": plain(task.result_ref),
        "error": plain(task.last_error),
        "cancelled": f"by {plain(task.cancelled_by)}: {plain(task.cancel_reason)}" if task.cancelled_by else "",
        "asks": plain(task.question) if task.status == "waiting_for_approval" else "",
        "ended": when(task.ended_at),
        "put away": when(task.deleted_at),
    }
    yield from (f"  {name:13}  {value}" for name, value in facts.items() if value)
    if task.decisions:
        yield "decisions"
    for each in task.decisions:
        who = f"{plain(each['decided_by'])} (login {plain(each['login'])})"
        yield f"  {plain(each['question'])}: {each['decision']} by {who} {plain(each['reason'])}"
    if task.runs:
        yield "runs"
    for run in task.runs:
        yield f"  {run.fence}  {run.outcome or 'on'}  {plain(run.worker)}  {plain(run.error)}".rstrip()
    for name, value in (("input", task.input), ("checkpoint", task.checkpoint)):
        if value is not None:
            yield name
            yield from map(plain, json.dumps(value, indent=2, ensure_ascii=False).split("\n"))
