"""Agent tasks on a real worker and a real Postgres: from being enqueued to one of their ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.types.json import Jsonb

from spectral.core.events import (
    NotInTransactionError,
    TerminalHandlerError,
)
from spectral.platform.agent_tasks import (
    AgentTask,
    NeedsApproval,
    NewTask,
    TaskRun,
    enqueue,
)
from tests.integration.agent_tasks.desk import SHORT, Desk, never, succeed


async def test_a_task_is_dispatched_by_its_transaction_and_run_to_its_result(desk: Desk) -> None:
    found = await desk.enqueue(input={"topic": "owls"}, requested_by="ada")
    ((event_type, payload, content_class),) = desk.rows("select event_type, payload, content_class from core.outbox")
    assert (event_type, content_class) == ("agent.task.dispatched", "agent_task")
    assert payload == {"agent_task_id": str(found.id)}
    assert desk.rows("select id, trigger_event_id from platform.conversations") == [
        (found.conversation_id, found.event_id)
    ]
    (await desk.drain(succeed)).assert_all_handled(times=1)
    assert desk.task(found.id, "status, result_ref, progress, progress_note, attempts, fence, requested_by") == (
        ("succeeded", "reports/owls", 100, "half way", 1, 1, "ada")
    )
    assert desk.runs(found.id) == ["succeeded"]


async def test_a_transaction_that_rolls_back_leaves_neither_a_task_nor_an_event(desk: Desk) -> None:
    async with await psycopg.AsyncConnection.connect(desk.dsn) as connection:
        await enqueue(connection, NewTask(kind="research"))
        await connection.rollback()
    assert desk.rows("select 1 from core.outbox union all select 1 from platform.agent_tasks") == []


async def test_a_task_is_not_enqueued_outside_of_a_transaction(desk: Desk) -> None:
    async with await psycopg.AsyncConnection.connect(desk.dsn, autocommit=True) as connection:
        with pytest.raises(NotInTransactionError, match="in no transaction"):
            await enqueue(connection, NewTask(kind="research"))
        async with connection.transaction():
            await enqueue(connection, NewTask(kind="research"))
    assert desk.rows("select count(*) from core.outbox") == [(1,)]


async def test_tasks_share_a_conversation_that_is_named(desk: Desk) -> None:
    first = await desk.enqueue()
    second = await desk.enqueue(conversation_id=first.conversation_id)
    assert second.conversation_id == first.conversation_id
    with pytest.raises(psycopg.errors.NoDataFound, match="no conversation"):
        await desk.enqueue(conversation_id=uuid4())


async def test_what_an_error_quotes_of_the_tasks_input_is_not_kept(desk: Desk) -> None:
    async def quoting(task: AgentTask, run: TaskRun) -> None:
        assert run.fence == 1
        raise TerminalHandlerError(f"no report about {task.input['topic']} in {task.input}")

    found = await desk.enqueue(input={"topic": "canary8472"})
    await desk.drain(quoting)
    assert desk.task(found.id, "status, last_error") == (
        ("failed", "TerminalHandlerError: no report about [payload] in {'[payload]'}")
    )


async def test_a_failure_that_may_pass_is_tried_again_and_seen_on_the_task(desk: Desk) -> None:
    seen: list[tuple[int, Any, str | None]] = []

    async def flaky(task: AgentTask, run: TaskRun) -> None:
        seen.append((task.attempt, task.checkpoint, desk.task(task.id, "last_error")[0]))
        if task.attempt < 3:
            await run.save({"done": task.attempt})
            raise ConnectionError("password=hunter2 refused")

    found = await desk.enqueue()
    drained = await desk.drain(flaky)
    error = "ConnectionError: password=*** refused"
    assert seen == [(1, None, None), (2, {"done": 1}, error), (3, {"done": 2}, error)]
    assert desk.task(found.id, "status, attempts, last_error") == ("succeeded", 3, error)
    assert desk.runs(found.id) == ["failed", "failed", "succeeded"]
    assert (len(drained.retries), len(drained.handled)) == (2, 1)


@pytest.mark.parametrize(
    ("error", "attempts"), [(ConnectionError("away"), 2), (ValueError("never"), 1)], ids=["passing", "final"]
)
async def test_a_task_that_has_failed_for_good_is_failed_and_its_dispatch_is_delivered(
    desk: Desk, error: Exception, attempts: int
) -> None:
    async def fail(task: AgentTask, run: TaskRun) -> None:
        assert (task.id, run.task) == (run.task.id, task)
        raise error

    found = await desk.enqueue(max_attempts=2)
    await desk.drain(fail)
    assert desk.task(found.id, "status, attempts, last_error") == (
        ("failed", attempts, f"{type(error).__name__}: {error}")
    )
    assert desk.rows("select status, last_error is null from core.outbox") == [("delivered", attempts == 1)]


@pytest.mark.parametrize("wrong", [42, "", "x" * 2001, "a\0b", NeedsApproval(""), NeedsApproval("?", checkpoint=b"")])
async def test_an_ending_that_cannot_be_stored_is_a_failure(desk: Desk, wrong: Any) -> None:  # noqa: ANN401  on purpose
    async def nonsense(task: AgentTask, run: TaskRun) -> Any:  # noqa: ANN401  on purpose
        assert task is run.task
        return wrong

    found = await desk.enqueue()
    await desk.drain(nonsense)
    assert desk.task(found.id, "status, attempts") == ("failed", 1)


async def test_a_run_that_takes_too_long_is_a_failure_and_one_that_does_not_obey_is_final(desk: Desk) -> None:
    async def stubborn(task: AgentTask, run: TaskRun) -> None:
        if task.kind == "obedient":
            await run.wait_for_cancel()
        while True:
            try:
                await asyncio.sleep(1.5)
            except asyncio.CancelledError:
                continue
            return

    obedient = await desk.enqueue(kind="obedient", max_attempts=2)
    other = await desk.enqueue(kind="stubborn", max_attempts=2)
    await desk.drain(stubborn, replace(SHORT, run=timedelta(seconds=0.2)))
    assert desk.task(obedient.id, "status, attempts, last_error") == (
        ("failed", 2, "HandlerTimeoutError: did not return within 0.2 s")
    )
    assert desk.task(other.id, "status, attempts, last_error") == (
        ("failed", 1, "HandlerTimeoutError: the executor did not obey its cancellation")
    )


async def test_a_dispatch_of_a_task_that_does_not_exist_goes_to_the_dlq(desk: Desk) -> None:
    desk.rows(
        "select core.outbox_publish('agent.task.dispatched', 'platform', %s, p_target => 'platform')",
        Jsonb({"agent_task_id": str(uuid4())}),
    )
    assert len((await desk.drain(never)).dead_letters) == 1
