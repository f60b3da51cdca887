"""What people do with agent tasks: decide, cancel, look at them, and keep them for as long as they want."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from uuid import uuid4

import pytest
from psycopg import conninfo

from spectral.core.database import NotFoundError, RefusedError
from spectral.platform.agent_tasks import (
    AgentTask,
    NeedsApproval,
    TaskPolicy,
    TaskRun,
    operations,
    sweep_agent_tasks,
)
from tests.integration.agent_tasks.desk import SHORT, Desk, back_date, begin, never, outbox, succeed
from tests.migrations.schema import role


async def test_an_approval_resumes_the_task_with_what_it_stored(desk: Desk) -> None:
    async def careful(task: AgentTask, run: TaskRun) -> str:
        if task.approval is None:
            await run.save({"plan": "delete"})
            raise NeedsApproval("Delete 40 files?")
        assert task.attempt == 1
        return f"{task.checkpoint['plan']} {task.approval.decided_by} {task.approval.reason}"

    found = await desk.enqueue(max_attempts=1)
    (await desk.drain(careful)).assert_all_handled(times=1)
    assert desk.task(found.id, "status, question, decision") == ("waiting_for_approval", "Delete 40 files?", None)
    assert [each["status"] for each in await outbox(desk)] == ["delivered"]

    decided = await desk.operate(lambda database: operations.approve(database, found.id, by="ada", reason="fine"))
    assert decided.status == "queued"
    assert [each["event_type"] for each in await outbox(desk)][1:] == ["platform.agent_task.resumed"]
    (await desk.drain(careful)).assert_all_handled(times=1)
    assert desk.task(found.id, "status, result_ref, decided_by, resume_event_id is null") == (
        ("succeeded", "delete ada fine", "ada", False)
    )
    ((history,),) = desk.rows("select decisions from platform.agent_tasks")
    assert [(each["question"], each["decision"], each["decided_by"]) for each in history] == [
        ("Delete 40 files?", "approved", "ada")
    ]
    with pytest.raises(RefusedError, match="nobody waits for a decision"):
        await desk.operate(lambda database: operations.approve(database, found.id, by="bob", reason="late"))


async def test_whoever_runs_tasks_does_not_decide_and_the_login_that_does_is_kept(desk: Desk) -> None:
    async def ask(task: AgentTask, run: TaskRun) -> NeedsApproval:
        return NeedsApproval(f"Run {run.fence} of {task.kind}?")

    found = await desk.enqueue()
    await desk.drain(ask)
    with role(desk.dsn, groups=("platform_app", "spectral_worker")) as agents, pytest.raises(RefusedError):
        await Desk(agents).operate(lambda database: operations.approve(database, found.id, by="ada", reason=None))
    assert desk.task(found.id, "status, decisions") == ("waiting_for_approval", [])
    with role(desk.dsn, groups=("platform_approver", "spectral_readonly")) as approver:
        await Desk(approver).operate(lambda database: operations.approve(database, found.id, by="ada", reason=None))
        login = conninfo.conninfo_to_dict(approver)["user"]
    ((history,),) = desk.rows("select decisions from platform.agent_tasks")
    assert [(each["decided_by"], each["login"]) for each in history] == [("ada", login)]


async def test_a_second_question_is_asked_afresh(desk: Desk) -> None:
    async def curious(task: AgentTask, run: TaskRun) -> NeedsApproval | str:
        rounds = task.checkpoint or 0
        assert (task.approval is None) is (rounds == 0)
        return "done" if rounds == 2 else NeedsApproval(f"Go on to {rounds + 1}?", checkpoint=run.fence)

    found = await desk.enqueue()
    for asked in (1, 2):
        await desk.drain(curious)
        assert desk.task(found.id, "status, question, decision, decided_by") == (
            ("waiting_for_approval", f"Go on to {asked}?", None, None)
        )
        await desk.operate(lambda database: operations.approve(database, found.id, by="ada", reason=None))
    await desk.drain(curious)
    assert desk.task(found.id, "status, fence, jsonb_array_length(decisions)") == ("succeeded", 3, 2)


async def test_a_rejection_ends_the_task(desk: Desk) -> None:
    async def ask(task: AgentTask, run: TaskRun) -> NeedsApproval:
        return NeedsApproval(f"Run {run.fence} of {task.kind}?")

    found = await desk.enqueue()
    await desk.drain(ask)
    await desk.operate(lambda database: operations.reject(database, found.id, by="ada", reason="too dear"))
    assert desk.task(found.id, "status, decided_by, decision_reason, ended_at is null") == (
        ("rejected", "ada", "too dear", False)
    )
    assert len(await outbox(desk)) == 1


async def test_two_people_decide_at_once_and_one_of_them_does(desk: Desk) -> None:
    async def ask(task: AgentTask, run: TaskRun) -> NeedsApproval:
        return NeedsApproval(f"Run {run.fence} of {task.kind}?")

    found = await desk.enqueue()
    await desk.drain(ask)

    async def decide(by: str) -> None:
        await desk.operate(lambda database: operations.approve(database, found.id, by=by, reason=None))

    answers = await asyncio.gather(*(decide(by) for by in ("ada", "bob", "cy")), return_exceptions=True)
    assert sorted(isinstance(each, RefusedError) for each in answers) == [False, True, True]
    assert len(await outbox(desk)) == 2


async def test_what_is_cancelled_before_it_began_never_runs(desk: Desk) -> None:
    found = await desk.enqueue()
    done = await desk.operate(lambda database: operations.cancel(database, found.id, by="ada", reason="not needed"))
    assert done.status == "cancelled"
    (await desk.drain(never)).assert_all_handled(times=1)
    assert desk.task(found.id, "status, cancelled_by, cancel_reason, fence") == ("cancelled", "ada", "not needed", 0)
    with pytest.raises(RefusedError, match="is cancelled already"):
        await desk.operate(lambda database: operations.cancel(database, found.id, by="ada", reason=None))


async def test_a_running_executor_is_told_of_its_cancellation(desk: Desk) -> None:
    async def patient(task: AgentTask, run: TaskRun) -> str:
        assert not run.cancel_requested
        await run.wait_for_cancel()
        await run.save({"stopped": task.kind})
        run.raise_if_cancelled()
        return "unreachable"

    found = await desk.enqueue()
    async with desk.working(patient):
        await desk.until(found.id, "running")
        asked = await desk.operate(lambda database: operations.cancel(database, found.id, by="ada", reason=None))
        assert asked.status == "running"
        await desk.until(found.id, "cancelled")
    assert desk.task(found.id, "checkpoint, attempts") == ({"stopped": "research"}, 1)
    assert desk.runs(found.id) == ["cancelled"]


async def test_an_executor_that_does_not_listen_is_cancelled_under_itself(desk: Desk) -> None:
    async def deaf(task: AgentTask, run: TaskRun) -> None:
        await run.report(1, task.kind)
        await asyncio.sleep(60)

    found = await desk.enqueue()
    async with desk.working(deaf, replace(SHORT, stop=timedelta(seconds=0.1))):
        await desk.until(found.id, "running")
        await desk.operate(lambda database: operations.cancel(database, found.id, by="ada", reason=None))
        await desk.until(found.id, "cancelled")


async def test_whoever_has_finished_in_spite_of_a_cancellation_has_finished(desk: Desk) -> None:
    async def quick(task: AgentTask, run: TaskRun) -> str:
        await run.wait_for_cancel()
        return task.kind

    found = await desk.enqueue()
    async with desk.working(quick):
        await desk.until(found.id, "running")
        await desk.operate(lambda database: operations.cancel(database, found.id, by="ada", reason=None))
        await desk.until(found.id, "succeeded")


async def test_tasks_that_ended_long_ago_are_put_away_and_then_deleted(desk: Desk) -> None:
    policy = TaskPolicy(active=timedelta(days=30), grace=timedelta(days=7))
    old, kept, shared = await desk.enqueue(), await desk.enqueue(keep_for=timedelta(days=400)), await desk.enqueue()
    open_ = await desk.enqueue(conversation_id=shared.conversation_id)
    for each in (old, kept, shared):
        desk.rows("select platform.agent_task_cancel(%s)", each.id)
    back_date(desk, "ended_at", "31 days")

    dry = await desk.operate(lambda database: sweep_agent_tasks(database, policy, dry_run=True))
    assert (dry.put_away, dry.deleted) == (2, 0)
    done = await desk.operate(lambda database: sweep_agent_tasks(database, policy, batch=1))
    assert (done.put_away, done.deleted) == (2, 0)
    again = await desk.operate(lambda database: sweep_agent_tasks(database, policy))
    assert (again.put_away, again.deleted) == (0, 0)
    back_date(desk, "deleted_at", "8 days")
    done = await desk.operate(lambda database: sweep_agent_tasks(database, policy))
    assert (done.put_away, done.deleted) == (0, 2)
    assert {id_ for (id_,) in desk.rows("select id from platform.agent_tasks")} == {kept.id, open_.id}
    assert {id_ for (id_,) in desk.rows("select id from platform.conversations")} == {
        kept.conversation_id,
        shared.conversation_id,
    }


async def test_people_find_tasks_page_by_page_and_see_one_whole(desk: Desk) -> None:
    made = [(await desk.enqueue(kind="research", input={"topic": f"t{number}"})).id for number in range(5)]
    await desk.enqueue(kind="other")
    await desk.operate(lambda database: operations.cancel(database, made[0], by="ada", reason="no"))
    wanted = operations.TaskFilter(kind="research", status="queued")
    first = await desk.operate(lambda database: operations.list_tasks(database, wanted, limit=3))
    assert [each.id for each in first.items] == made[:1:-1]
    rest = await desk.operate(
        lambda database: operations.list_tasks(database, wanted, limit=3, cursor=first.next_cursor)
    )
    assert ([each.id for each in rest.items], rest.next_cursor) == ([made[1]], None)

    await desk.drain(succeed)
    detail = await desk.operate(lambda database: operations.show_task(database, made[1]))
    assert (detail.status, detail.input, detail.result_ref) == ("succeeded", {"topic": "t1"}, "reports/t1")
    assert [(run.fence, run.outcome) for run in detail.runs] == [(1, "succeeded")]
    with pytest.raises(NotFoundError, match="no agent task"):
        await desk.operate(lambda database: operations.show_task(database, uuid4()))


async def test_a_stalled_task_is_told_from_a_running_one_and_can_be_cancelled_at_once(desk: Desk) -> None:
    found = await desk.enqueue()
    await begin(desk, found.id, uuid4(), "1 microsecond")
    page = await desk.operate(lambda database: operations.list_tasks(database, operations.TaskFilter(), limit=3))
    assert [each.stalled for each in page.items] == [True]
    done = await desk.operate(lambda database: operations.cancel(database, found.id, by="ada", reason="gone"))
    assert done.status == "cancelled"
    assert desk.runs(found.id) == ["lost"]
