"""The gate of agent tasks: one run at a time, whatever is delivered, lost, stopped or written by others."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from spectral.core.events.testing import drain
from spectral.platform.agent_tasks import (
    AgentTask,
    OnLoss,
    RunLostError,
    TaskRun,
    operations,
)
from spectral.platform.agent_tasks.operations import MIGRATIONS
from spectral.platform.agent_tasks.store import Busy, Ending, Over, RunStore
from tests.faults.wire import wired
from tests.integration.agent_tasks.desk import Desk, begin, brief, never, succeed


async def until_begun(heir: RunStore) -> None:
    async with asyncio.timeout(30):
        while isinstance(await heir.begin("heir", uuid4()), Busy):  # noqa: ASYNC110  the database's clock decides
            await asyncio.sleep(0.01)


async def test_two_dispatches_of_one_task_run_it_once(desk: Desk) -> None:
    running = 0

    async def alone(task: AgentTask, run: TaskRun) -> str:
        nonlocal running
        running += 1
        assert running == 1
        await asyncio.sleep(0.3)
        running -= 1
        return f"{task.kind} {run.fence}"

    found = await desk.enqueue()
    desk.rows(
        "select core.outbox_publish('agent.task.dispatched', 'platform', %s, p_target => 'platform')"
        " from generate_series(1, 4)",
        Jsonb({"agent_task_id": str(found.id)}),
    )
    (await desk.drain(alone)).assert_all_handled(times=5)
    assert desk.runs(found.id) == ["succeeded"]


async def test_a_run_outlives_the_loss_of_its_connection(desk: Desk) -> None:
    async def unlucky(task: AgentTask, run: TaskRun) -> str:
        for number in range(3):
            desk.rows(
                "select pg_terminate_backend(pid) from pg_stat_activity"
                " where application_name = 'spectral agent task' and datname = current_database()"
            )
            await asyncio.sleep(0.1)  # two heartbeats
            await run.save({"saved": number})
        return task.kind

    found = await desk.enqueue()
    (await desk.drain(unlucky)).assert_all_handled(times=1)
    assert desk.task(found.id, "status, checkpoint, fence") == ("succeeded", {"saved": 2}, 1)


async def test_a_run_that_is_out_of_sight_for_too_long_gives_itself_up(desk: Desk) -> None:
    times = brief(ttl=1.4, answer=0.5, patience=0.2)

    async def cut_off(task: AgentTask, run: TaskRun) -> str:
        if run.fence == 1:
            wire.freeze(new=True)
            try:
                await asyncio.sleep(60)
            finally:
                wire.heal()
        return task.kind

    found = await desk.enqueue()
    with wired(desk.dsn) as wire:
        await drain(Desk(wire.dsn).consumer(cut_off, times), dsn=desk.dsn)
    assert desk.task(found.id, "status, fence") == ("succeeded", 2)
    assert desk.runs(found.id) == ["lost", "succeeded"]


async def test_an_executor_that_is_out_of_sight_has_ended_before_its_heir_may_begin(desk: Desk) -> None:
    clock = asyncio.get_running_loop().time
    times = brief(ttl=2, answer=0.5, patience=0.8)
    cut, ended_at = asyncio.Event(), list[float]()

    async def cut_off(task: AgentTask, run: TaskRun) -> None:
        assert task is run.task
        wire.freeze(new=True)
        cut.set()
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.3)  # it obeys, but not at once
            ended_at.append(clock())

    found = await desk.enqueue()
    heir = RunStore(desk.dsn, found.id, ttl=timedelta(minutes=1), answer=timedelta(seconds=8))
    with wired(desk.dsn) as wire:
        draining = asyncio.ensure_future(drain(Desk(wire.dsn).consumer(cut_off, times), dsn=desk.dsn))
        await asyncio.wait_for(cut.wait(), 30)
        await until_begun(heir)
        began_at = clock()
        assert ended_at
        assert ended_at[0] < began_at
        assert await heir.finish(Ending(outcome="succeeded")) == "succeeded"
        await heir.close()
        wire.heal()
        await draining
    assert desk.runs(found.id) == ["lost", "succeeded"]
    assert len(ended_at) == 1


async def test_a_run_that_took_too_long_to_begin_is_not_executed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    times = brief(ttl=1.4, answer=0.5, patience=0.2)
    begin_at_once = RunStore.begin

    async def begin_slowly(store: RunStore, worker: str, event_id: UUID) -> AgentTask | Busy | Over:
        begun = await begin_at_once(store, worker, event_id)
        if isinstance(begun, AgentTask) and begun.fence == 1:
            await asyncio.sleep(1.3)
        return begun

    async def tell(task: AgentTask, run: TaskRun) -> str:
        return f"{task.kind} {run.fence}"

    monkeypatch.setattr(RunStore, "begin", begin_slowly)
    found = await desk.enqueue()
    (await desk.drain(tell, times)).assert_all_handled(times=1)
    assert desk.task(found.id, "result_ref") == ("research 2",)


async def test_a_transaction_that_nobody_ends_does_not_hold_the_task_for_ever(desk: Desk) -> None:
    found = await desk.enqueue()
    first = RunStore(desk.dsn, found.id, ttl=timedelta(seconds=0.3), answer=timedelta(seconds=8))
    heir = RunStore(desk.dsn, found.id, ttl=timedelta(minutes=1), answer=timedelta(seconds=8))
    assert isinstance(await first.begin("first", uuid4()), AgentTask)
    with pytest.raises(psycopg.Error):  # noqa: PT012  the transaction is what fails
        async with first.transaction() as connection:
            # A line that is cut is noticed on both sides, as by the worker's own connections.
            assert connection.info.get_parameters()["keepalives_idle"] == "5"
            await until_begun(heir)
            await connection.execute("select 1")
    await asyncio.gather(first.close(), heir.close())
    assert desk.rows("select outcome, worker from platform.agent_task_runs order by fence") == [
        ("lost", "first"),
        (None, "heir"),
    ]


async def test_an_executor_that_nobody_can_watch_any_more_is_stopped(desk: Desk) -> None:
    stopped = asyncio.Event()

    async def unwatched(task: AgentTask, run: TaskRun) -> None:
        assert task is run.task
        desk.rows("drop function platform.agent_task_beat(uuid, uuid, interval, integer, text)")
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    found = await desk.enqueue()
    assert len((await desk.drain(unwatched)).dead_letters) == 1
    assert stopped.is_set()
    assert desk.task(found.id, "status, attempts") == ("queued", 0)


async def test_an_answer_that_was_lost_can_be_asked_for_again(desk: Desk) -> None:
    found, token = await desk.enqueue(), uuid4()
    await begin(desk, found.id, token)
    for _ in range(2):
        assert desk.rows("select platform.agent_task_finish(%s, %s, 'succeeded', 'r')", found.id, token) == [
            ("succeeded",)
        ]
    assert desk.rows("select platform.agent_task_finish(%s, %s, 'failed', 'e')", found.id, token) == [(None,)]


@pytest.mark.parametrize(("on_loss", "after"), [(OnLoss.RESUME, "queued"), (OnLoss.FAIL, "failed")])
async def test_a_worker_that_is_stopped_gives_the_run_back_by_the_tasks_policy(
    desk: Desk, on_loss: OnLoss, after: str
) -> None:
    begun = asyncio.Event()

    async def slow(task: AgentTask, run: TaskRun) -> None:
        await run.save({"at": task.attempt})
        begun.set()
        await asyncio.sleep(60)

    found = await desk.enqueue(on_loss=on_loss)
    async with desk.working(slow):
        await asyncio.wait_for(begun.wait(), 30)
    assert desk.task(found.id, "status, attempts") == (after, int(after == "failed"))
    assert desk.runs(found.id) == ["released"]
    assert desk.rows("select status, attempts from core.outbox") == [("pending", 0)]


@pytest.mark.parametrize(
    ("on_loss", "after", "runs"),
    [(OnLoss.RESUME, "succeeded", ["lost", "succeeded"]), (OnLoss.FAIL, "failed", ["lost"])],
)
async def test_a_run_whose_heart_has_stopped_is_lost_and_what_it_writes_is_refused(
    desk: Desk, on_loss: OnLoss, after: str, runs: list[str]
) -> None:
    found = await desk.enqueue(on_loss=on_loss, input={"topic": "owls"})
    zombie = uuid4()
    assert await begin(desk, found.id, zombie, "0.3 seconds") == "running"
    assert await begin(desk, found.id, zombie, "0.4 seconds") == "running"  # the same run, asked for again
    assert await begin(desk, found.id, uuid4()) == "busy"
    (await desk.drain(succeed)).assert_all_handled(times=1)
    assert desk.task(found.id, "status") == (after,)
    assert desk.runs(found.id) == runs
    assert desk.rows("select platform.agent_task_beat(%s, %s, '1 minute')", found.id, zombie) == [(None,)]
    assert desk.rows("select platform.agent_task_save(%s, %s, '{}')", found.id, zombie) == [(False,)]
    assert desk.rows("select platform.agent_task_finish(%s, %s, 'succeeded')", found.id, zombie) == [(None,)]
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="this run of agent task"):
        desk.rows("select platform.agent_task_hold(%s, %s)", found.id, zombie)


async def test_a_run_that_is_asked_for_again_lives_from_then_on(desk: Desk) -> None:
    found, token = await desk.enqueue(), uuid4()
    for _ in range(2):
        assert await begin(desk, found.id, token, "1 microsecond") == "running"
    assert await begin(desk, found.id, token, "1 hour") == "running"
    assert desk.task(found.id, "run_expires_at > now() + interval '50 minutes', fence") == (True, 1)
    assert await begin(desk, found.id, uuid4()) == "busy"


async def test_while_its_heir_is_at_it_nothing_that_a_lost_run_writes_is_kept(desk: Desk) -> None:
    found, zombie, heir = await desk.enqueue(), uuid4(), uuid4()
    assert await begin(desk, found.id, zombie, "1 microsecond") == "running"
    assert await begin(desk, found.id, heir) == "running"
    before = desk.task(found.id, "to_jsonb(agent_tasks)")
    for call, refused in (
        ("agent_task_beat(%s, %s, '1 hour', 99, 'mine')", None),
        ("agent_task_save(%s, %s, '{\"mine\": 1}')", False),
        ("agent_task_finish(%s, %s, 'succeeded', 'mine')", None),
        ("agent_task_finish(%s, %s, 'released')", None),
    ):
        assert desk.rows(f"select platform.{call}", found.id, zombie) == [(refused,)]
    with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
        desk.rows("select platform.agent_task_hold(%s, %s)", found.id, zombie)
    assert desk.task(found.id, "to_jsonb(agent_tasks)") == before
    assert desk.rows("select platform.agent_task_hold(%s, %s)", found.id, heir) == [(2,)]
    assert desk.rows("select platform.agent_task_beat(%s, %s, '1 hour')", found.id, heir) == [(False,)]


async def test_a_run_that_was_lost_too_often_has_failed(desk: Desk) -> None:
    found = await desk.enqueue(max_attempts=2)
    for _ in range(2):
        assert await begin(desk, found.id, uuid4(), "1 microsecond") == "running"
    (await desk.drain(never)).assert_all_handled(times=1)
    status, error = desk.task(found.id, "status, last_error")
    assert (status, error) == ("failed", "WorkerLostError: zombie was lost in run 2")


async def test_an_open_transaction_of_the_executor_is_not_taken_over(desk: Desk) -> None:
    found = await desk.enqueue()
    token = uuid4()
    await begin(desk, found.id, token, "1 microsecond")
    with psycopg.connect(desk.dsn) as holder:
        holder.execute("select platform.agent_task_hold(%s, %s)", [found.id, token])
        assert await begin(desk, found.id, uuid4()) == "busy"
        holder.commit()
    assert await begin(desk, found.id, uuid4()) == "running"


async def test_an_executor_that_lost_its_run_cannot_write_and_the_task_is_run_again(desk: Desk) -> None:
    desk.rows("create table public.written (fence bigint)")

    async def robbed(task: AgentTask, run: TaskRun) -> str:
        async with run.transaction() as connection:
            await connection.execute("insert into public.written values (%s)", [run.fence])
        if run.fence == 1:
            desk.rows("update platform.agent_tasks set run_expires_at = now() - interval '1 s' where id = %s", task.id)
            assert await begin(desk, task.id, thief, "0.5 seconds") == "running"
            with pytest.raises(RunLostError):
                await run.save({})
            async with run.transaction():
                raise AssertionError("it was let in")
        return "done"

    thief = uuid4()
    found = await desk.enqueue()
    (await desk.drain(robbed)).assert_all_handled(times=1)
    assert desk.rows("select fence from public.written") == [(1,), (3,)]
    assert desk.runs(found.id) == ["lost", "lost", "succeeded"]


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ("status = 'succeeded', ended_at = now()", "is queued, it cannot become succeeded"),
        ("status = 'waiting_for_approval', question = '?', asked_at = now()", "cannot become waiting_for_approval"),
        ("input = '{\"other\": 1}'", "what task .* is about does not change"),
        ("fence = -1", "takes a number of its own"),
        ("status = 'running'", "agent_tasks_run_check"),
        ("deleted_at = now()", "agent_tasks_deleted_check"),
    ],
)
async def test_the_database_holds_to_the_states_for_every_writer(desk: Desk, change: str, refusal: str) -> None:
    await desk.enqueue()
    with pytest.raises(psycopg.Error, match=refusal):
        desk.rows(f"update platform.agent_tasks set {change}")  # noqa: S608  the test's own


async def test_what_has_ended_stays_as_it_is(desk: Desk) -> None:
    found = await desk.enqueue()
    await desk.operate(lambda database: operations.cancel(database, found.id, by="ada", reason=None))
    for change in ("status = 'queued', ended_at = null", "last_error = 'x'", "cancelled_by = 'bob'"):
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState):
            desk.rows(f"update platform.agent_tasks set {change}")  # noqa: S608  the test's own


async def test_roles_have_what_they_need_and_no_more(desk: Desk) -> None:
    found = await desk.enqueue()
    may = {
        "platform_app": ("enqueue", "begin", "beat", "save", "hold", "finish", "cancel"),
        "platform_approver": ("decide",),
        "spectral_operator": ("decide", "cancel"),
        "spectral_retention": ("sweep",),
        "spectral_publisher": (),
        "public": (),
    }
    for role, functions in may.items():
        granted = desk.rows(
            "select replace(proname, 'agent_task_', '') from pg_proc where pronamespace = 'platform'::regnamespace"
            " and proname like 'agent_task%%' and has_function_privilege(%s, oid, 'execute') order by 1",
            role,
        )
        assert {name for (name,) in granted} == set(functions), role
    with psycopg.connect(desk.dsn, autocommit=True) as connection:
        connection.execute("set role platform_app")
        connection.execute("select id from platform.agent_task_enqueue('research')")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("select platform.agent_task_decide(%s, 'approved')", [found.id])
        connection.execute("set role spectral_operator")
        connection.execute("select platform.agent_task_cancel(%s)", [found.id])
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("delete from platform.agent_tasks")
    unsafe = desk.rows(
        "select proname from pg_proc where pronamespace = 'platform'::regnamespace and proname like 'agent_task%%'"
        " and (proowner <> 'platform_owner'::regrole or proconfig <> '{\"search_path=pg_catalog, pg_temp\"}')"
    )
    assert unsafe == []


async def test_the_sql_is_what_the_lint_wants() -> None:
    from spectral.core.migrations.lint import lint_sql  # noqa: PLC0415  needs the parser

    (path,) = MIGRATIONS.glob("2026111511*_agent_tasks.sql")
    assert lint_sql(path.read_text(), path=path) == []
