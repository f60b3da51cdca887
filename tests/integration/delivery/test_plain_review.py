"""Plain handlers that share a row or a worker with one that is cancelled: what is recorded of them, and their end."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta

import pytest

from spectral.core.events import Consumer, failpoints
from tests.integration.delivery.platform_worker import COMPLETED, NEVER_AGAIN, Bench, Scan, shortened, soon, until

SHORT = timedelta(seconds=0.1)


async def test_a_handler_is_recorded_once_though_its_neighbour_times_out_every_time(
    bench: Bench, platform: Consumer
) -> None:
    runs: Counter[str] = Counter()

    @platform.on(COMPLETED, timeout=SHORT)
    async def call(scan: Scan) -> None:
        runs["call"] += scan.number
        await asyncio.get_running_loop().create_future()

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        runs["mail"] += scan.number
        await asyncio.sleep(0)

    (event_id,) = await bench.publish(1)
    await bench.drain(platform)
    row = await bench.row(event_id)
    assert runs == {"call": 4, "mail": 1}
    assert await bench.keys() == ["platform.mail"]
    assert (row["status"], row["attempts"]) == ("failed", 4)
    assert "platform.mail" not in row["last_error"]


async def test_a_worker_that_stops_gives_back_the_handlers_of_a_row_that_it_has_not_begun(
    bench: Bench, platform: Consumer
) -> None:
    runs: list[str] = []

    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def call(scan: Scan) -> None:
        runs.append(f"call {scan.number}")
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            runs.append("finished all the same")

    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def mail(scan: Scan) -> None:
        runs.append(f"mail {scan.number}")

    (event_id,) = await bench.publish(1)
    async with bench.running(platform, times=shortened(stop=0)):
        await until(lambda: runs)
    row = await bench.row(event_id)
    assert runs == ["call 1", "finished all the same"]
    assert (row["status"], row["attempts"], await bench.keys()) == ("pending", 0, ["platform.call"])


@pytest.fixture
def broken() -> Iterator[asyncio.Event]:
    """Once it is set, claiming fails as no database can make it fail."""
    now = asyncio.Event()

    def reached(name: str) -> None:
        if name == "claim.before" and now.is_set():
            raise ZeroDivisionError("a bug of ours")

    failpoints.arm(reached)
    yield now
    failpoints.arm(None)


async def test_no_handler_runs_on_when_the_worker_has_died(
    bench: Bench, platform: Consumer, broken: asyncio.Event
) -> None:
    said: list[str] = []

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        said.append(f"begun {scan.number}")
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            said.append(f"ended {scan.number}")

    await bench.publish(1)
    run = asyncio.create_task(bench.worker(platform).run())
    await until(lambda: said)
    broken.set()
    await bench.publish(2)
    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True):
        await soon(run)
    # The second one too, if it was claimed before the worker broke.
    assert "ended 1" in said
    assert {each.removeprefix("begun ") for each in said if "begun" in each} == {
        each.removeprefix("ended ") for each in said if "ended" in each
    }
