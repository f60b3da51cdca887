"""The bell: publishers stay silent while a worker is awake, and nothing that nobody rang for goes unseen.

The safety poll of these workers is a minute: whatever is delivered sooner was rung for, polled for or timed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Self

import psycopg
import pytest

from spectral.core.events import Consumer
from spectral.core.events.delivery.listener import Listener
from spectral.core.events.delivery.wakefulness import Wakefulness
from tests.integration.delivery.platform_worker import COMPLETED, STARTED, Bench, Scan, shortened, until

PUBLISH = (
    "select core.outbox_publish(p_event_type => 'worlds.scan.completed', p_source => 'worlds', p_target => 'platform',"
    " p_payload => '{\"number\": 0}', p_generation => 1)"
)
PROMPTLY = 10.0
"""Seconds: it takes milliseconds, and a poll would take a minute."""


@pytest.fixture
def projecting(platform: Consumer) -> Consumer:
    @platform.on(COMPLETED)
    async def project(scan: Scan) -> None:
        assert scan.number >= 0

    return platform


@pytest.fixture
async def ear(bench: Bench) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Somebody who only listens."""
    async with await psycopg.AsyncConnection.connect(bench.dsn, autocommit=True) as connection:
        await connection.execute("listen outbox_gen_1")
        yield connection


@pytest.fixture
async def publisher(bench: Bench) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Whose transaction stays open."""
    async with await psycopg.AsyncConnection.connect(bench.dsn) as connection:
        yield connection


async def heard(ear: psycopg.AsyncConnection[Any]) -> list[str]:
    """The rows that were rung for by now."""
    return [row_id for row_id in await all_heard(ear) if row_id]


async def all_heard(ear: psycopg.AsyncConnection[Any]) -> list[str]:
    """The same, and nothing for every ring that a worker sent to the others."""
    await ear.execute("notify outbox_gen_1, 'now'")
    rung: list[str] = []
    async for each in ear.notifies(timeout=PROMPTLY):
        if each.payload == "now":
            return rung
        rung.append(each.payload)
    pytest.fail("the ear is deaf")


def wakefulness(worker: Listener) -> Wakefulness:
    shift = worker._shift
    assert shift is not None
    return shift._claim._wakefulness


async def is_trusted(bench: Bench) -> bool:
    return bool(await bench.value("select exists (select from core.bell_leases where awake_until > clock_timestamp())"))


async def has_leases(bench: Bench) -> bool:
    return bool(await bench.value("select exists (select from core.bell_leases)"))


_IS_SAFE = (
    "exists (select from core.bell_leases where channel = 'outbox_gen_1' and context = 'platform'"
    " and awake_until > statement_timestamp() + interval '0.5 s')"
)


class Stream:
    """Events that come in all the time, so that the worker does not fall asleep."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._flows = True
        self.trusting: set[str] = set()
        """What was published while the lease had a while to run."""

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._flow())
        await until(lambda: is_trusted(self._bench))
        return self

    async def __aexit__(self, *_: object) -> None:
        self._flows = False
        await self._task

    async def _flow(self) -> None:
        async with await psycopg.AsyncConnection.connect(self._bench.dsn, autocommit=True) as connection:
            while self._flows:
                # In one statement, so that there are moments in which no publisher is open.
                cursor = await connection.execute(f"{PUBLISH}, {_IS_SAFE} from generate_series(1, 50)".encode())
                self.trusting |= {str(row_id) for row_id, is_safe in await cursor.fetchall() if is_safe}
                await asyncio.sleep(0.01)


async def test_publishers_are_silent_while_a_worker_is_awake_and_every_event_is_delivered(
    bench: Bench, projecting: Consumer, ear: psycopg.AsyncConnection[Any]
) -> None:
    async with bench.running(projecting):
        async with Stream(bench) as stream:
            await until(lambda: _has(len(stream.trusting) >= 400))
            rung = await heard(ear)
        await until(lambda: bench.all_are("delivered"), within=PROMPTLY)
        await until(lambda: _is_not(has_leases, bench), within=PROMPTLY)
        assert not stream.trusting & set(rung)


async def _has(answer: bool) -> bool:  # noqa: FBT001  the answer to a question
    return answer


async def _is_not(condition: Any, bench: Bench) -> bool:  # noqa: ANN401  a question to the bench
    return not await condition(bench)


async def test_an_event_now_and_then_wakes_nobody_and_is_rung_for(
    bench: Bench, projecting: Consumer, ear: psycopg.AsyncConnection[Any]
) -> None:
    async with bench.running(projecting) as worker:
        for number in range(20):
            (event_id,) = await bench.publish(number)
            await until(lambda: bench.all_are("delivered"), within=PROMPTLY)
            assert str(event_id) in await heard(ear)
        assert not wakefulness(worker).is_awake
    assert not await has_leases(bench)


async def test_one_heap_of_events_is_no_reason_to_stay_awake(bench: Bench, projecting: Consumer) -> None:
    async with bench.running(projecting) as worker:
        await bench.publish(*range(2_000))
        await until(lambda: bench.all_are("delivered"))
        await until(lambda: not wakefulness(worker).is_awake, within=PROMPTLY)
        await until(lambda: _is_not(has_leases, bench), within=PROMPTLY)


async def _is_published_in_trust(publisher: psycopg.AsyncConnection[Any]) -> bool:
    """Publish, if the lease has a while to run; on a machine that stands still it may run out, and then it rings."""
    cursor = await publisher.execute(f"{PUBLISH}, {_IS_SAFE}".encode())
    row = await cursor.fetchone()
    if row is None or not row[1]:
        await publisher.rollback()
        return False
    return True


async def test_an_open_silent_publisher_is_waited_for_and_its_event_delivered_promptly(
    bench: Bench, projecting: Consumer, publisher: psycopg.AsyncConnection[Any], ear: psycopg.AsyncConnection[Any]
) -> None:
    async with bench.running(projecting) as worker:
        async with Stream(bench):
            await until(lambda: _is_published_in_trust(publisher))
        await until(lambda: _is_not(is_trusted, bench), within=PROMPTLY)
        await until(lambda: not wakefulness(worker).is_awake, within=PROMPTLY)
        await until(lambda: bench.all_are("delivered"), within=PROMPTLY)
        assert await has_leases(bench)  # withdrawn, but not forgotten
        await heard(ear)
        await publisher.commit()
        await until(lambda: _all_delivered(bench), within=PROMPTLY)
        assert await heard(ear) == []
        await until(lambda: _is_not(has_leases, bench), within=PROMPTLY)
        # From here on it is rung for again.
        (event_id,) = await bench.publish(1)
        await until(lambda: bench.all_are("delivered"), within=PROMPTLY)
        assert await heard(ear) == [str(event_id)]


async def _all_delivered(bench: Bench) -> bool:
    return bool(await bench.value("select count(*) = 0 from core.outbox where status <> 'delivered'"))


async def test_what_a_dead_worker_promised_to_see_is_seen_by_another(
    bench: Bench, projecting: Consumer, publisher: psycopg.AsyncConnection[Any]
) -> None:
    async with bench.running(projecting):
        await bench.execute(
            "select core.bell_awake('dead', '{outbox_gen_1}', '{platform}', %s::text[], '1 s')", [COMPLETED]
        )
        await bench.publish(1)  # nobody rings
        await publisher.execute(PUBLISH.encode())  # nor here, and it stays open
        await until(lambda: _is_not(is_trusted, bench), within=PROMPTLY)
        await publisher.commit()
        await until(lambda: bench.all_are("delivered"), within=PROMPTLY)
        await until(lambda: _is_not(has_leases, bench), within=PROMPTLY)


async def test_a_worker_that_stops_leaves_no_promise_behind(bench: Bench, projecting: Consumer) -> None:
    leaving = bench.worker(projecting)
    running = asyncio.create_task(leaving.run())
    await leaving.started()
    async with Stream(bench), bench.running(projecting):
        leaving.stop()
        await running
        # Whoever mends the bell has to come while no publisher is open: on a busy machine that is seldom so.
        await until(lambda: _has_no_lease(bench, leaving.health().worker), within=3 * PROMPTLY)
    await bench.drain(projecting)
    assert await bench.all_are("delivered")


async def _has_no_lease(bench: Bench, worker: str) -> bool:
    return not await bench.value("select exists (select from core.bell_leases where worker = %s)", worker)


async def test_the_brake_puts_a_worker_to_sleep(bench: Bench, projecting: Consumer) -> None:
    async with bench.running(projecting) as worker:
        async with Stream(bench):
            await bench.execute("select core.brake_pull('platform', 'ada', 'r')")
            await until(lambda: not wakefulness(worker).is_awake, within=PROMPTLY)
            await until(lambda: _is_not(is_trusted, bench), within=PROMPTLY)
        await bench.execute("select core.brake_release('platform')")
        await until(lambda: bench.all_are("delivered"))


async def test_a_worker_that_loses_its_database_does_not_sleep_on_a_promise(bench: Bench, projecting: Consumer) -> None:
    async with bench.running(projecting) as worker:
        async with Stream(bench):
            await bench.terminate("claim")
        await until(lambda: bench.all_are("delivered"), within=PROMPTLY)
        await until(lambda: not wakefulness(worker).is_awake, within=PROMPTLY)
        await until(lambda: _is_not(has_leases, bench), within=PROMPTLY)


async def test_of_workers_with_different_types_nobody_is_trusted_for_all(
    bench: Bench, projecting: Consumer, ear: psycopg.AsyncConnection[Any]
) -> None:
    other = Consumer("platform")

    @other.on(STARTED)
    async def begin(scan: Scan) -> None:
        assert scan.number >= 0

    async with bench.running(projecting), bench.running(other):
        await bench.publish(*range(1_500))
        (event_id,) = await bench.publish(1, event_type=STARTED)
        assert str(event_id) in await heard(ear)
        await until(lambda: bench.all_are("delivered"))


@pytest.mark.parametrize("mode", ["always", "off"])
async def test_in_every_mode_everything_is_delivered(
    bench: Bench, projecting: Consumer, ear: psycopg.AsyncConnection[Any], mode: str
) -> None:
    await bench.execute("select core.bell_set(%s, 'ada', 'r')", mode)
    async with bench.running(projecting, times=shortened(poll=0.5)):
        events = await bench.publish(*range(50))
        await until(lambda: bench.all_are("delivered"), within=PROMPTLY)
        assert len(await heard(ear)) == (len(events) if mode == "always" else 0)


async def test_while_a_worker_has_no_room_for_what_comes_publishers_are_silent_and_it_rings_for_the_others(
    bench: Bench, platform: Consumer, ear: psycopg.AsyncConnection[Any]
) -> None:
    over = asyncio.Event()

    @platform.on(COMPLETED)
    async def wait(_: Scan) -> None:
        await over.wait()

    async with bench.running(platform, concurrency=5) as worker:
        async with Stream(bench) as stream:
            await until(lambda: _has(len(stream.trusting) >= 1_000))
            rung = await all_heard(ear)
            assert worker.health().held
        assert not stream.trusting & set(rung)
        assert "" in rung
        await until(lambda: _is_not(has_leases, bench), within=PROMPTLY)
        over.set()
        await until(lambda: bench.all_are("delivered"), within=PROMPTLY)
