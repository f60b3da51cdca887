"""The emergency brake with real workers: nothing is claimed, what runs is finished, and letting go wakes at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from spectral.core.database import Database, RefusedError, connect
from spectral.core.events import Consumer
from spectral.core.operations.brakes import EVERY_CONTEXT, list_brakes, look, pull_brake, release_brake
from spectral.core.operations.insights import Amount
from tests.integration.delivery.platform_worker import COMPLETED, STARTED, Bench, Scan, open_bench, soon, until
from tests.migrations.schema import role


@pytest.fixture
async def bench(database: str) -> AsyncIterator[Bench]:
    async with open_bench(database) as opened:
        yield opened


@pytest.fixture
async def operator(database: str) -> AsyncIterator[Database]:
    """An operator with no more than the rights of one."""
    with role(database, groups=("spectral_operator",)) as own:
        async with connect(own, "test") as opened:
            yield opened


class Handled:
    """Two contexts in one worker, and what each has handled. A number in `gates` is not finished before its gate is."""

    def __init__(self) -> None:
        self.platform = Consumer("platform")
        self.worlds = Consumer("worlds")
        self.begun: asyncio.Queue[int] = asyncio.Queue()
        self.done: asyncio.Queue[int] = asyncio.Queue()
        self.elsewhere: asyncio.Queue[int] = asyncio.Queue()
        self.gates: dict[int, asyncio.Event] = {}

        @self.platform.on(COMPLETED)
        async def handle(scan: Scan) -> None:
            await self.begun.put(scan.number)
            if scan.number in self.gates:
                await self.gates[scan.number].wait()
            await self.done.put(scan.number)

        @self.worlds.on(STARTED)
        async def note(scan: Scan) -> None:
            await self.elsewhere.put(scan.number)


async def test_nothing_is_claimed_while_it_is_pulled_and_letting_go_wakes_at_once(
    bench: Bench, operator: Database
) -> None:
    handled = Handled()
    async with bench.running(handled.platform, handled.worlds):
        assert await pull_brake(operator, "platform", by="dana", reason="billing is down")
        (braked,) = await bench.publish(1)
        # The worker was woken for both; that it has run the one shows that it has looked for the other.
        await bench.publish(2, event_type=STARTED, target="worlds", source="platform")
        assert await soon(handled.elsewhere.get()) == 2
        assert (await bench.row(braked))["attempts"] == 0
        assert handled.begun.empty()
        assert (await look(operator, "platform")).due == Amount(1)

        assert await release_brake(operator, "platform", by="dana", reason="billing is back")
        # The tests' workers poll once a minute, and `soon` is half of that: nothing but the wake-up brings it.
        assert await soon(handled.done.get()) == 1
        await until(lambda: bench.all_are("delivered"))


async def test_a_worker_that_drains_ends_with_the_braked_rows_untouched(bench: Bench, operator: Database) -> None:
    handled = Handled()
    await pull_brake(operator, "platform", by="dana", reason="why")
    (event,) = await bench.publish(1)
    await bench.drain(handled.platform)
    row = await bench.row(event)
    assert (row["status"], row["attempts"], handled.begun.empty()) == ("pending", 0, True)


async def test_what_is_being_handled_is_finished(bench: Bench, operator: Database) -> None:
    handled = Handled()
    handled.gates[1] = asyncio.Event()
    async with bench.running(handled.platform):
        (running,) = await bench.publish(1)
        assert await soon(handled.begun.get()) == 1
        await pull_brake(operator, "platform", by="dana", reason="why")
        assert (await look(operator, "platform")).in_flight == Amount(1)
        handled.gates[1].set()

        async def is_delivered() -> bool:
            return await bench.status(running) == "delivered"

        await until(is_delivered)
        assert [brake.context for brake in await list_brakes(operator)] == ["platform"]


async def test_the_brake_for_all_holds_every_context_and_broadcasts_unsplit(bench: Bench, operator: Database) -> None:
    handled = Handled()
    await bench.drain(handled.platform, handled.worlds)  # so that they are subscribed
    await pull_brake(operator, EVERY_CONTEXT, by="dana", reason="why")
    await bench.publish(1, 2)
    await bench.publish(3, target=None)
    await bench.drain(handled.platform, handled.worlds)
    assert await bench.statuses() == {"pending": 3}
    assert (await look(operator, EVERY_CONTEXT)).due == Amount(3)

    await release_brake(operator, EVERY_CONTEXT, by="dana")
    await bench.drain(handled.platform, handled.worlds)
    assert await bench.all_are("delivered")
    assert handled.done.qsize() == 3


async def test_who_pulled_it_and_why_is_kept_and_both_ways_are_audited(bench: Bench, operator: Database) -> None:
    assert await pull_brake(operator, "platform", by="dana", reason="billing is down")
    assert not await pull_brake(operator, "platform", by="kim", reason="me too")
    (brake,) = await list_brakes(operator)
    assert (brake.context, brake.pulled_by, brake.reason) == ("platform", "dana", "billing is down")
    assert await release_brake(operator, "platform", by="kim", reason="it is back")
    assert not await release_brake(operator, "platform", by="kim")
    entries = await operator.tuples(b"select action, actor, reason from core.audit order by id")
    assert entries == [("brake", "dana", "billing is down"), ("release_brake", "kim", "it is back")]
    assert await bench.value("select count(*) from core.brakes") == 0


async def test_it_is_not_pulled_without_a_reason_nor_for_what_is_no_context(operator: Database) -> None:
    with pytest.raises(RefusedError, match="without a reason"):
        await pull_brake(operator, "platform", by="dana", reason="")
    with pytest.raises(RefusedError):
        await pull_brake(operator, "No Such", by="dana", reason="why")
    assert await list_brakes(operator) == []


async def test_a_name_that_nobody_subscribes_for_is_questioned(bench: Bench, operator: Database) -> None:
    await bench.drain(Handled().platform)
    assert (await look(operator, "platform")).warnings == ()
    assert (await look(operator, "platfrom")).warnings == (
        "no worker has ever subscribed for 'platfrom': is the name right?",
    )


async def test_the_brake_that_still_holds_a_context_is_named(operator: Database) -> None:
    await pull_brake(operator, EVERY_CONTEXT, by="dana", reason="why")
    await pull_brake(operator, "platform", by="dana", reason="why")
    assert (await look(operator, "platform")).still_braked == (EVERY_CONTEXT,)
    assert (await look(operator, EVERY_CONTEXT)).still_braked == ("platform",)
