"""What a replay comes to, with a worker: one delivery, no second effect, and nobody waits for a poll."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from uuid import UUID

import psycopg
import pytest

from spectral.core.database import connect
from spectral.core.events import Consumer, EventEnvelope, TerminalHandlerError, Transaction
from spectral.core.operations.replay import replay
from tests.integration.delivery.platform_worker import (
    COMPLETED,
    Bench,
    Scan,
    open_bench,
    soon,
    until,
    write_effect,
)


@pytest.fixture
async def bench(database: str) -> AsyncIterator[Bench]:
    async with open_bench(database) as opened:
        yield opened


class Trouble:
    """A handler that fails until the trouble is over."""

    def __init__(self) -> None:
        self.over = False
        self.runs = 0
        self.consumer = Consumer("platform")
        self.handled = asyncio.Event()

        @self.consumer.on(COMPLETED)
        async def index(scan: Scan, tx: Transaction) -> None:
            self.runs += 1
            if not self.over:
                raise TerminalHandlerError("not yet")
            await write_effect(tx, "index", scan.number)
            self.handled.set()


async def dead_letter(bench: Bench, number: int = 1) -> UUID:
    (event_id,) = await bench.publish(number)
    await until(lambda: bench.all_are("failed"))
    return event_id


async def test_a_replayed_event_is_handled_within_a_second_of_the_command_and_not_by_a_poll(bench: Bench) -> None:
    trouble = Trouble()
    # The worker polls once a minute.
    async with bench.running(trouble.consumer), connect(bench.dsn, "test") as operator:
        event_id = await dead_letter(bench)
        trouble.over = True
        began = time.monotonic()
        await replay(operator, [event_id], by="ada", reason="fixed")
        await soon(trouble.handled.wait())
        took = time.monotonic() - began
        await until(lambda: bench.all_are("delivered"))
    # It is some hundredths of a second; a busy machine may take longer, but not until the next poll.
    assert took < 5
    assert await bench.effects() == [("index", 1)]


async def test_two_operators_at_once_make_one_history_entry_and_one_delivery(bench: Bench) -> None:
    trouble = Trouble()
    async with (
        bench.running(trouble.consumer),
        connect(bench.dsn, "one") as one,
        connect(bench.dsn, "two") as two,
    ):
        event_id = await dead_letter(bench)
        trouble.over = True
        answers = await asyncio.gather(
            replay(one, [event_id], by="ada"),
            replay(two, [event_id], by="bob"),
        )
        await until(lambda: bench.all_are("delivered"))
    assert sum(each.refusal is None for (each,) in answers) == 1
    assert trouble.runs == 2  # the one that failed, and the one after the replay
    assert await bench.effects() == [("index", 1)]
    assert len((await bench.row(event_id))["failure_history"]) == 1


async def has_looked(bench: Bench, since: object) -> object:
    """Whether the worker has asked for rows since then."""
    return await bench.value(
        "select bool_or(state = 'idle' and query_start > %s) from pg_stat_activity"
        " where datname = current_database() and application_name like 'spectral claim%%'",
        since,
    )


async def test_whoever_comes_second_and_holds_the_row_meanwhile_wakes_the_worker_again(bench: Bench) -> None:
    """The first one's wake-up comes while the second has the row locked: the worker passes it by."""
    trouble = Trouble()
    replay_it = "select refusal from core.outbox_replay_many(array[%s::uuid], 1)"
    async with (
        bench.running(trouble.consumer),
        await psycopg.AsyncConnection.connect(bench.dsn) as blocker,
        await psycopg.AsyncConnection.connect(bench.dsn) as first,
        await psycopg.AsyncConnection.connect(bench.dsn) as second,
    ):
        event_id = await dead_letter(bench)
        trouble.over = True
        await blocker.execute("select from core.outbox where id = %s for update", [event_id])
        answers: list[asyncio.Task[psycopg.AsyncCursor[tuple[str | None]]]] = []
        for operator in (first, second):
            answers.append(asyncio.create_task(operator.execute(replay_it, [event_id])))
            pid = operator.info.backend_pid
            await until(lambda pid=pid: bench.value("select cardinality(pg_blocking_pids(%s)) > 0", pid))  # type: ignore[misc]
        await blocker.rollback()
        assert await (await soon(answers[0])).fetchone() == (None,)
        before = await bench.value("select clock_timestamp()")
        await first.commit()
        refusal = await (await soon(answers[1])).fetchone()
        # Now and then the worker is quicker than the second operator, and there is nothing to make up for.
        assert refusal in {("pending",), ("in_flight",), ("delivered",)}
        await until(lambda: has_looked(bench, before))
        await second.commit()
        await until(lambda: bench.all_are("delivered"))


async def test_replaying_what_was_handled_already_delivers_it_without_a_second_effect(bench: Bench) -> None:
    consumer, ran = Consumer("platform"), []
    trouble = asyncio.Event()

    @consumer.on(COMPLETED, name="platform.index")
    async def index(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "index", scan.number)

    @consumer.on(COMPLETED, name="platform.notify")
    async def notify(event: EventEnvelope) -> None:
        ran.append(event.event_id)
        if not trouble.is_set():
            raise TerminalHandlerError("not yet")

    async with bench.running(consumer), connect(bench.dsn, "test") as operator:
        event_id = await dead_letter(bench, 7)
        assert await bench.effects() == [("index", 7)]  # one of the two had taken effect
        trouble.set()
        await replay(operator, [event_id], by="ada")
        await until(lambda: bench.all_are("delivered"))
    assert await bench.effects() == [("index", 7)]
    assert len(ran) == 2


async def test_replaying_what_every_handler_has_handled_runs_none_of_them(bench: Bench) -> None:
    trouble = Trouble()
    async with bench.running(trouble.consumer), connect(bench.dsn, "test") as operator:
        event_id = await dead_letter(bench)
        # Somebody has handled it by hand, and said so.
        await bench.execute(
            "insert into core.event_handled (handler_name, idempotency_key, event_id)"
            " values ('platform.index', %s, %s)",
            str(event_id),
            event_id,
        )
        await replay(operator, [event_id], by="ada")
        await until(lambda: bench.all_are("delivered"))
    assert trouble.runs == 1
    assert await bench.effects() == []
