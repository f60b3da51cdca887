"""A part that dies takes the worker down, loudly; what it holds is bounded; what it says of itself is true."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from spectral.core.events import ConfigurationError, Consumer, Transaction, failpoints
from spectral.core.events.delivery.health import State
from spectral.core.events.delivery.listener import Listener
from spectral.core.events.probe import Crashed
from tests.integration.delivery.platform_worker import (
    COMPLETED,
    STARTED,
    Bench,
    Scan,
    shortened,
    soon,
    until,
    write_effect,
)


class Broken(RuntimeError):  # noqa: N818  it is what is broken
    """Nobody's event."""


@pytest.fixture
def both(platform: Consumer) -> Consumer:
    """The platform, with a handler of each kind."""

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    @platform.on(STARTED)
    async def mail(scan: Scan) -> None:
        if scan.number == 0:
            await asyncio.get_running_loop().create_future()

    return platform


@pytest.fixture
def fault() -> Iterator[dict[str, int]]:
    """Failpoints by name that raise, each after so many times."""
    armed: dict[str, int] = {}

    def reached(name: str) -> None:
        if name in armed:
            armed[name] -= 1
            if armed[name] < 0:
                raise Broken(name)

    failpoints.arm(reached)
    yield armed
    failpoints.arm(None)


PARTS = ["claim.before", "claim.after", "commit.before", "commit.after", "settle.before", "settle.after", "reap.before"]


@pytest.mark.parametrize("part", [*PARTS, "renew.before", "ear.opened"])
async def test_a_part_that_dies_takes_the_worker_down_with_its_error(
    bench: Bench, both: Consumer, fault: dict[str, int], part: str
) -> None:
    fault[part] = 0
    await bench.publish(1)
    await bench.publish(0, 1, event_type=STARTED)
    worker = bench.worker(both, times=shortened(lease=0.5))
    with pytest.RaisesGroup(Broken, flatten_subgroups=True):
        await soon(worker.run())
    assert worker.health().state is State.DEAD
    assert not worker.health().is_live
    (crashed,) = bench.notes.of(Crashed)
    assert part in crashed.error
    await until(bench.is_left_alone)


async def test_what_a_dead_worker_held_is_taken_over_and_delivered_once(
    bench: Bench, both: Consumer, fault: dict[str, int]
) -> None:
    fault["commit.after"] = 1
    await bench.publish(*range(50))
    with pytest.raises(ExceptionGroup) as died:  # several lanes may reach the failpoint in the same instant
        await soon(bench.worker(both).run())
    assert died.group_contains(Broken)
    fault.clear()
    async with bench.running(both, times=shortened(grace=0.3)):
        await until(lambda: bench.all_are("delivered"))
    assert await bench.effects() == [("project", number) for number in range(50)]


async def test_if_the_worker_dies_the_block_it_serves_is_cancelled_and_its_error_raised(
    bench: Bench, both: Consumer, fault: dict[str, int]
) -> None:
    cancelled = False
    with pytest.RaisesGroup(Broken, flatten_subgroups=True):
        async with bench.running(both):
            fault["claim.before"] = 0
            try:
                await bench.publish(1)
                await soon(asyncio.get_running_loop().create_future())
            except asyncio.CancelledError:
                cancelled = True
                raise
    assert cancelled


async def fail_when_started(worker: Listener) -> None:
    await worker.started()
    raise Broken("the block's own")


async def test_a_block_that_fails_stops_the_worker_in_good_order_and_raises_its_own_error(
    bench: Bench, both: Consumer
) -> None:
    worker = bench.worker(both)
    with pytest.raises(Broken, match="the block's own"):
        async with worker:
            await fail_when_started(worker)
    assert worker.health().state is State.STOPPED


async def test_a_cancelled_block_stops_the_worker_in_good_order(bench: Bench, both: Consumer) -> None:
    worker = bench.worker(both)
    inside = asyncio.Event()

    async def serve() -> None:
        async with worker:
            inside.set()
            await asyncio.get_running_loop().create_future()

    task = asyncio.create_task(serve())
    await soon(inside.wait())
    await until(lambda: worker.health().listening)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(task)
    assert worker.health().state is State.STOPPED


async def test_if_the_worker_dies_the_server_it_lives_in_is_told_to_stop(
    bench: Bench, both: Consumer, fault: dict[str, int]
) -> None:
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    try:
        with pytest.RaisesGroup(Broken, flatten_subgroups=True):
            async with bench.worker(both).lifespan(object()):
                fault["claim.before"] = 0
                await soon(asyncio.get_running_loop().create_future())
        await soon(told.wait())
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)


async def test_a_server_that_ends_stops_its_worker_and_nobody_is_told(bench: Bench, both: Consumer) -> None:
    told: list[int] = []
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: told.append(os.getpid()))
    worker = bench.worker(both)
    try:
        async with worker.lifespan():
            await worker.started()
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
    assert (worker.health().state, told) == (State.STOPPED, [])


async def test_errors_of_the_application_s_own_are_not_taken_for_the_worker_s_death(
    bench: Bench, both: Consumer
) -> None:
    told: list[int] = []
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: told.append(os.getpid()))
    worker = bench.worker(both)
    try:
        with pytest.RaisesGroup(ZeroDivisionError):
            async with worker.lifespan():
                await worker.started()
                raise ExceptionGroup("of the application", [ZeroDivisionError()])
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)
    assert (worker.health().state, told) == (State.STOPPED, [])


async def test_a_worker_cannot_run_until_something_it_does_not_know(bench: Bench, both: Consumer) -> None:
    with pytest.raises(ConfigurationError, match=r"until one of .*'drained'.* not until 'drain'"):
        await bench.worker(both).run(until=cast("Any", "drain"))


async def test_started_says_that_the_first_claim_was_made(bench: Bench, both: Consumer) -> None:
    await bench.publish(1)
    async with bench.worker(both) as worker:
        await soon(worker.started())
        assert await bench.statuses() != {"pending": 1}


# how much it takes on


def bound(lanes: int, batch: int, concurrency: int) -> int:
    """Twice what can run at once."""
    return 2 * lanes * batch + 2 * concurrency


async def held_at_most(worker: Listener, until_what: Callable[[], object]) -> int:
    """The most rows it was seen to hold until then."""
    most = 0

    def looked() -> object:
        nonlocal most
        most = max(most, worker.health().held)
        return until_what()

    await until(looked, within=80)
    return most


async def test_with_thousands_of_pending_rows_it_holds_twice_what_can_run_and_more_only_of_quick_ones(
    bench: Bench, platform: Consumer
) -> None:
    go_on = asyncio.Event()
    running = {"project": 0, "mail": 0}

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        running["project"] += 1
        await go_on.wait()
        await write_effect(tx, "project", scan.number)

    @platform.on(STARTED)
    async def mail(scan: Scan) -> None:
        assert scan.number >= 0
        running["mail"] += 1
        await go_on.wait()

    await bench.publish(*range(2_500))
    await bench.publish(*range(2_500), event_type=STARTED)
    async with bench.running(platform, lanes=2, batch=5, concurrency=10) as worker:
        most = await held_at_most(worker, lambda: running == {"project": 2, "mail": 10})
        assert 12 <= most <= bound(2, 5, 10)
        for _ in range(20):
            await bench.execute("notify outbox_gen_1")
        await asyncio.sleep(0.3)  # what must not happen has no signal
        in_flight = await bench.value("select count(*) from core.outbox where status = 'in_flight'")
        assert in_flight == worker.health().held <= bound(2, 5, 10)
        go_on.set()
        most = await held_at_most(worker, lambda: bench.all_are("delivered"))
    assert most <= 2_000  # what gets done in a moment, and never more than a thousand of a kind


async def test_many_contexts_in_one_worker_do_not_hold_more_than_its_bound(bench: Bench) -> None:
    go_on = asyncio.Event()
    contexts = [f"context_{number}" for number in range(8)]

    def waiting(context: str) -> Consumer:
        consumer = Consumer(context)

        @consumer.on(COMPLETED, name=f"{context}.mail")
        async def mail(scan: Scan) -> None:
            assert scan.number >= 0
            await go_on.wait()

        return consumer

    for context in contexts:
        for number in range(5):
            await bench.insert(target=context, payload=f'{{"number": {number}}}')
    async with bench.running(*map(waiting, contexts), concurrency=1) as worker:
        await until(lambda: worker.health().running)
        await asyncio.sleep(0.3)  # what must not happen has no signal
        held = worker.health().held
        go_on.set()
        await until(lambda: bench.all_are("delivered"))
    assert held <= bound(0, 0, 1)


async def test_a_backlog_of_one_kind_does_not_take_the_room_of_the_other(bench: Bench, platform: Consumer) -> None:
    go_on = asyncio.Event()

    @platform.on(STARTED)
    async def mail(scan: Scan) -> None:
        assert scan.number >= 0
        await go_on.wait()

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    await bench.publish(*range(500), event_type=STARTED)
    async with bench.running(platform, concurrency=5) as worker:
        await until(lambda: worker.health().running == 5)
        await bench.publish(*range(100))
        await until(lambda: _effects(bench, 100))
        go_on.set()


async def _effects(bench: Bench, count: int) -> bool:
    return len(await bench.effects()) == count


async def test_a_busy_worker_says_so_and_how_much(bench: Bench, platform: Consumer) -> None:
    go_on = asyncio.Event()

    @platform.on(STARTED)
    async def mail(scan: Scan) -> None:
        assert scan.number >= 0
        await go_on.wait()

    async with bench.running(platform, name="worker-a") as worker:
        assert (worker.health().state, worker.health().held) == (State.IDLE, 0)
        await bench.publish(1, 2, event_type=STARTED)
        await until(lambda: worker.health().running == 2)
        health = worker.health()
        assert (health.state, health.held, health.worker, health.generation, health.contexts, health.seen_alive) == (
            State.BUSY,
            2,
            "worker-a",
            1,
            ("platform",),
            True,
        )
        go_on.set()
        await until(lambda: worker.health().state is State.IDLE)
