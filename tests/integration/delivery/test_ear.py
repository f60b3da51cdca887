"""The ear: how a worker hears that there is something to do, and what happens while it does not."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from spectral.core.events import Consumer, SubstrateLostError, Transaction, WorkerSettings, WorkerTimes
from spectral.core.events.delivery.health import State
from spectral.core.events.delivery.shift import Shift
from spectral.core.events.infrastructure.postgres.ear import PostgresEar
from spectral.core.events.probe import EarLost, EarOpened
from tests.integration.delivery.platform_worker import (
    COMPLETED,
    STARTED,
    Bench,
    Scan,
    shortened,
    until,
    write_effect,
)


@pytest.fixture
def projecting(platform: Consumer) -> Consumer:
    """The platform, with a handler of each kind."""

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    @platform.on(STARTED)
    async def mail(scan: Scan) -> None:
        assert scan.number >= 0

    return platform


@pytest.fixture
def statements(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many statements were sent by async cursors from now on, by the application that sent them."""
    sent: Counter[str] = Counter()
    execute = psycopg.AsyncCursor.execute

    async def counted(self: Any, *given: Any, **options: Any) -> Any:  # noqa: ANN401  as the driver has it
        name = self.connection.info.get_parameters().get("application_name", "")
        sent[" ".join(name.split(" ")[:2])] += 1
        return await execute(self, *given, **options)

    monkeypatch.setattr(psycopg.AsyncCursor, "execute", counted)
    return sent


async def test_after_its_backend_was_terminated_it_listens_again_and_drains(bench: Bench, projecting: Consumer) -> None:
    async with bench.running(projecting) as worker:
        (before,) = await bench.backends("ear")
        await bench.terminate("ear")
        await until(lambda: bench.notes.of(EarLost))
        await until(lambda: worker.health().listening)
        assert await bench.backends("ear") != [before]
        await bench.publish(1)
        await until(lambda: bench.all_are("delivered"), within=10)
    assert len(bench.notes.of(EarOpened)) == 2


async def test_what_was_published_while_it_was_deaf_is_drained_when_it_listens_again(
    bench: Bench, projecting: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with bench.running(projecting, times=shortened(poll_deaf=60)) as worker:
        ear = worker._connections.ear
        reopen, may_open = ear.open, threading.Event()
        waiting: list[int] = []

        async def open_later() -> None:  # runs in the thread beside
            waiting.append(1)
            await asyncio.to_thread(may_open.wait, 30)
            await reopen()

        monkeypatch.setattr(ear, "open", open_later)
        await bench.terminate("ear")
        await until(lambda: waiting)
        await bench.publish(1)
        may_open.set()
        await until(lambda: bench.all_are("delivered"), within=10)


async def test_while_it_is_deaf_the_worker_polls(bench: Bench, projecting: Consumer) -> None:
    times = shortened(poll_deaf=0.3, degraded_after=0.5, reconnect=60, reconnect_cap=60)
    async with bench.running(projecting, times=times) as worker:
        await bench.terminate("ear")
        await until(lambda: not worker.health().listening)
        await bench.publish(1)
        await until(lambda: bench.all_are("delivered"), within=10)
        await until(lambda: worker.health().state is State.DEGRADED)
        health = worker.health()
        assert (health.is_live, health.is_ready, health.ear_down_seconds > 0.4) == (True, True, True)


async def test_a_swallowed_notification_costs_no_more_than_the_poll(bench: Bench, projecting: Consumer) -> None:
    await bench.execute("alter table core.outbox disable trigger outbox_notify")
    async with bench.running(projecting, times=shortened(poll=0.5)):
        await bench.publish(1)
        await until(lambda: bench.all_are("delivered"), within=10)


async def test_it_asks_its_own_session_whether_it_lives(bench: Bench, projecting: Consumer) -> None:
    async with bench.running(projecting, times=shortened(heartbeat=0.2)):
        query = "select state_change from pg_stat_activity where application_name like 'spectral ear %%'"
        seen: set[object] = set()
        for _ in range(4):
            seen.add(await bench.value(query))
            await until(lambda: _is_new(bench, query, seen))
    assert len(seen) == 4


async def _is_new(bench: Bench, query: str, seen: set[object]) -> bool:
    return await bench.value(query) not in seen


async def test_what_comes_along_with_the_answer_to_a_heartbeat_is_heard(bench: Bench) -> None:
    ear = PostgresEar(bench.dsn, WorkerSettings(generation=1))
    await ear.open()
    try:
        assert not await ear.hear(timedelta(0))
        for _ in range(20):
            await bench.connection.execute("notify outbox_gen_1")
            # No time at all to listen: what is heard is heard by the heartbeat, or in the moment before it.
            assert await ear.hear(timedelta(0)) or await ear.hear(timedelta(seconds=10))
            assert not await ear.hear(timedelta(0))
    finally:
        await ear.close()


async def test_it_does_nothing_but_listen(bench: Bench, projecting: Consumer) -> None:
    async with bench.running(projecting):
        await bench.publish(1, 2, 3)
        await until(lambda: bench.all_are("delivered"))
        queries = "select array_agg(query) from pg_stat_activity where application_name like 'spectral ear %%'"
        ((query,),) = [await bench.value(queries)]
    assert "listen" in query.lower() or query == "select 1"


async def test_a_hundred_thousand_notifications_cost_few_claims(
    bench: Bench, projecting: Consumer, statements: Counter[str]
) -> None:
    async with bench.running(projecting) as worker:
        statements.clear()
        await bench.execute(
            "select pg_notify('outbox_gen_1', number::text) from generate_series(1, 100000) as all_of (number)"
        )
        await bench.publish(1)
        await until(lambda: bench.all_are("delivered"))
        assert worker.health().listening
    assert statements["spectral claim"] < 1_000


@pytest.mark.parametrize(
    "payload",
    ["", "not an id", "'; drop table core.outbox; --", "\U0001f4a9" * 1_000, "00000000-0000-0000-0000-000000000000"],
)
async def test_forged_notifications_are_harmless(bench: Bench, projecting: Consumer, payload: str) -> None:
    async with bench.running(projecting):
        for _ in range(10):
            await bench.execute("select pg_notify('outbox_gen_1', %s)", payload)
        await bench.publish(1)
        await until(lambda: bench.all_are("delivered"), within=10)
    assert await bench.effects() == [("project", 1)]


async def test_an_idle_worker_sends_less_than_a_statement_per_second(
    bench: Bench, projecting: Consumer, statements: Counter[str]
) -> None:
    async with bench.running(projecting, times=WorkerTimes()) as worker:
        await until(lambda: worker.health().seen_alive)
        await asyncio.sleep(1)  # whatever the start has set in motion
        statements.clear()
        began = time.monotonic()
        await asyncio.sleep(10)  # the question is what happens when nothing does
        seconds = time.monotonic() - began
    sent = sum(count for name, count in statements.items() if name.startswith("spectral"))
    assert sent / seconds < 1, statements


async def test_a_worker_claims_only_while_somebody_can_see_that_it_lives(
    bench: Bench, projecting: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise every claim of it would be taken for a dead worker's."""
    monkeypatch.setattr(Shift, "_is_alive", lambda _: False)
    await bench.publish(1)
    async with bench.worker(projecting) as worker:
        await until(lambda: worker.health().listening and worker.health().seen_alive)
        await asyncio.sleep(0.3)  # what must not happen has no signal
        assert await bench.statuses() == {"pending": 1}


async def test_a_worker_whose_keeper_is_away_is_degraded_and_goes_on(
    bench: Bench, projecting: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse() -> None:
        raise SubstrateLostError("away")

    async with bench.running(projecting, times=shortened(degraded_after=0.3)) as worker:
        monkeypatch.setattr(worker._connections.keeper, "open", refuse)
        await bench.terminate("keep")
        await until(lambda: worker.health().state is State.DEGRADED)
        await bench.publish(1)
        await until(lambda: bench.all_are("delivered"))
