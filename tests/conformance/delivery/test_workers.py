"""Workers come, stop, die and share; the brake holds all of them; each event takes effect once all the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from datetime import timedelta

from spectral.core.database import connect
from spectral.core.events import Consumer, RetryPolicy, Transaction
from spectral.core.events.delivery.health import State
from spectral.core.events.probe import LeaseWasLost, Quarantined
from spectral.core.operations.brakes import pull_brake, release_brake
from tests.conformance.delivery.stage import FORGIVING, Stage
from tests.integration.delivery.platform_worker import (
    AT_ONCE,
    COMPLETED,
    STARTED,
    Scan,
    shortened,
    soon,
    until,
    write_effect,
)

SOON_TAKEN_OVER = shortened(grace=0.5, reap=0.1)


async def lose(stage: Stage) -> None:
    """Have a worker claim what there is, and die."""
    claim = "select count(*) > 0 from core.outbox_claim('gone', 'platform', '{1}', '{outbox_gen_1}', null, 1)"
    await until(lambda: stage.value(claim))  # a relay that takes the row in this moment is passed by


async def take_back(stage: Stage) -> None:
    """Have what a dead worker claimed be pending again."""
    reap = "select count(*) > 0 from core.outbox_reap('0 s', '0 s')"
    await until(lambda: stage.value(reap))  # a row that a relay has locked in this moment is passed by


async def test_a_worker_that_stops_finishes_what_runs_and_another_gets_the_rest_unharmed(stage: Stage) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()
    runs: list[tuple[str, int]] = []

    def mailing(name: str) -> Consumer:
        consumer = Consumer("platform", retry=AT_ONCE)

        @consumer.on(COMPLETED, name="platform.mail")
        async def mail(scan: Scan) -> None:
            runs.append((name, scan.number))
            began.set()
            await go_on.wait()

        return consumer

    async with stage.running(mailing("first"), concurrency=1) as first:
        ids = await stage.publish(1, 2)
        await soon(began.wait())
        await until(lambda: first.health().held == 2)
        async with stage.running(mailing("second")):
            first.stop()
            await until(lambda: first.health().state is State.DRAINING)
            await until(lambda: len(runs) == 2)
            go_on.set()
            await until(lambda: stage.all_are("delivered"))
    assert [name for name, _ in runs] == ["first", "second"]
    assert {number for _, number in runs} == {1, 2}
    assert [(await stage.row(each))["attempts"] for each in ids] == [1, 1]


async def test_what_is_not_done_when_the_grace_is_over_is_given_back_without_a_charge(stage: Stage) -> None:
    began, seen = asyncio.Event(), list[int]()
    hanging, quick = Consumer("platform"), Consumer("platform")

    @hanging.on(COMPLETED, name="platform.project")
    async def hang(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "hang", scan.number)
        began.set()
        await asyncio.get_running_loop().create_future()

    @quick.on(COMPLETED, name="platform.project")
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        seen.append(scan.number)

    async with stage.running(hanging) as first:
        (event_id,) = await stage.publish(1)
        await soon(began.wait())
        async with stage.running(quick):
            first.stop(timedelta(seconds=0.1))
            await until(lambda: stage.all_are("delivered"))
    assert await stage.effects() == [("project", 1)]
    assert (await stage.row(event_id))["attempts"] == 1


async def test_what_a_dead_worker_held_is_taken_over_and_takes_effect_once(stage: Stage) -> None:
    began = asyncio.Event()
    hanging, quick = Consumer("platform"), Consumer("platform")

    @hanging.on(COMPLETED, name="platform.project")
    async def hang(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "hang", scan.number)
        began.set()
        await asyncio.get_running_loop().create_future()

    @quick.on(COMPLETED, name="platform.project")
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    async with stage.mortal(hanging, name="mortal") as die:
        (event_id,) = await stage.publish(1)
        await soon(began.wait())
        die()
        assert await stage.statuses() == {"in_flight": 1}
        async with stage.running(quick, times=SOON_TAKEN_OVER):
            await until(lambda: stage.all_are("delivered"))
    row = await stage.row(event_id)
    assert await stage.effects() == [("project", 1)]
    assert (row["attempts"], row["last_error"]) == (2, "WorkerLostError: worker mortal is gone")


async def test_a_run_whose_claim_was_taken_back_counts_for_nothing(stage: Stage, platform: Consumer) -> None:
    ends = [asyncio.Event(), asyncio.Event()]
    runs: list[int] = []

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        turn = len(runs)
        runs.append(scan.number)
        await ends[turn].wait()

    async with stage.running(platform):
        (event_id,) = await stage.publish(1)
        await until(lambda: len(runs) == 1)
        await take_back(stage)
        await stage.execute("select core.outbox_wake('outbox_gen_1', '')")
        await until(lambda: len(runs) == 2)  # under another lease, while the first run goes on
        ends[0].set()
        await until(lambda: stage.notes.of(LeaseWasLost))
        assert (await stage.status(event_id), await stage.keys()) == ("in_flight", [])
        ends[1].set()
        await until(lambda: stage.all_are("delivered"))
    assert await stage.keys() == ["platform.mail"]


async def test_two_workers_share_the_work(stage: Stage) -> None:
    took: dict[str, list[int]] = {"first": [], "second": []}
    both = asyncio.Event()

    def sharing(name: str) -> Consumer:
        consumer = Consumer("platform", retry=AT_ONCE)

        @consumer.on(COMPLETED, name="platform.mail")
        async def mail(scan: Scan) -> None:
            took[name].append(scan.number)
            if all(took.values()):
                both.set()
            await both.wait()

        return consumer

    async with stage.running(sharing("first"), concurrency=2), stage.running(sharing("second"), concurrency=2):
        for start in range(0, 40, 10):
            await stage.publish(*range(start, start + 10))
        await until(lambda: stage.all_are("delivered"))
    assert Counter([*took["first"], *took["second"]]) == Counter(range(40))
    assert both.is_set()


async def test_a_row_whose_workers_were_lost_runs_alone(stage: Stage) -> None:
    platform = Consumer("platform", retry=RetryPolicy(max_retries=5))
    running: set[int] = set()
    beside: dict[int, set[int]] = {}
    go_on = asyncio.Event()

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        running.add(scan.number)
        for each in running:
            beside.setdefault(each, set()).update(running - {each})
        await (asyncio.sleep(0.05) if scan.number == 0 else go_on.wait())
        running.discard(scan.number)

    (pill,) = await stage.publish(0)
    await lose(stage)
    await take_back(stage)
    await lose(stage)
    async with stage.running(platform, times=SOON_TAKEN_OVER, concurrency=5):
        await stage.publish(*range(1, 20))
        await until(lambda: len(running) == 5)
        await until(
            lambda: stage.value("select claimed_by is distinct from 'gone' from core.outbox where id = %s", pill)
        )
        go_on.set()
        await stage.publish(*range(20, 30))
        await until(lambda: stage.all_are("delivered"))
    assert beside[0] == set()
    assert any(beside.values()), "the others ran side by side"
    assert [note.delivery.event_id for note in stage.notes.of(Quarantined)] == [pill]
    assert (await stage.row(pill))["attempts"] == 3


async def test_a_row_that_must_run_alone_is_set_aside_until_its_worker_is_quiet(stage: Stage) -> None:
    platform = Consumer("platform", retry=RetryPolicy(max_retries=5))
    running: set[int] = set()
    beside: set[int] = set()
    go_on = asyncio.Event()

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        if scan.number == 0:
            beside.update(running)
            return
        running.add(scan.number)
        await go_on.wait()
        running.discard(scan.number)

    (pill,) = await stage.publish(0)
    await lose(stage)
    await take_back(stage)
    await lose(stage)
    aside = "select status = 'pending' and attempts = 2 and next_attempt_at > now() from core.outbox where id = %s"
    async with stage.running(platform, times=SOON_TAKEN_OVER, concurrency=5):
        await stage.publish(1, 2, 3)
        await until(lambda: len(running) == 3)
        await until(lambda: stage.value(aside, pill))
        go_on.set()
        await until(lambda: stage.all_are("delivered"))
    assert beside == set()
    assert [note.delivery.event_id for note in stage.notes.of(Quarantined)] == [pill]
    assert (await stage.row(pill))["attempts"] == 3


class Elsewhere:
    """Another context of the same worker: that its event was run shows that everybody has looked meanwhile."""

    def __init__(self) -> None:
        self.consumer = Consumer("worlds")
        self._handled = asyncio.Event()

        @self.consumer.on(STARTED)
        async def note(scan: Scan) -> None:
            assert scan.number == 9
            self._handled.set()

    async def look(self, stage: Stage) -> None:
        """Publish one, and wait for it."""
        await stage.publish(9, event_type=STARTED, source="platform", target="worlds")
        await soon(self._handled.wait())


async def test_nothing_is_run_while_the_brake_is_pulled_and_everything_when_it_is_let_go(
    stage: Stage, platform: Consumer
) -> None:
    seen: Counter[int] = Counter()
    elsewhere = Elsewhere()

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        seen[scan.number] += 1

    async with stage.running(platform, elsewhere.consumer), connect(stage.dsn, "test") as operator:
        await pull_brake(operator, "platform", by="ada", reason="billing is down")
        ids = await stage.publish(*range(5))
        await elsewhere.look(stage)
        assert seen == {}
        assert [(await stage.row(each))["attempts"] for each in ids] == [0] * 5
        await release_brake(operator, "platform", by="ada", reason="billing is back")
        await until(lambda: stage.all_are("delivered"))
    assert seen == Counter(range(5))


async def test_the_brake_lets_what_runs_be_finished_and_holds_what_was_on_its_way(
    stage: Stage, platform: Consumer
) -> None:
    """With a broker: whatever is received meanwhile leads to nothing, and is sent again afterwards."""
    seen: Counter[int] = Counter()
    began, go_on = asyncio.Event(), asyncio.Event()
    elsewhere = Elsewhere()

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        began.set()
        await go_on.wait()
        seen[scan.number] += 1

    async with (
        stage.relaying(FORGIVING),
        stage.running(platform, elsewhere.consumer, concurrency=2) as worker,
        connect(stage.dsn, "test") as operator,
    ):
        await stage.publish(*range(60))
        await soon(began.wait())
        await pull_brake(operator, "platform", by="ada", reason="billing is down")
        go_on.set()
        await until(lambda: worker.health().held == 0)
        finished = len(seen)
        assert 0 < finished < 60
        await elsewhere.look(stage)
        assert len(seen) == finished
        assert await stage.value("select count(*) from core.outbox where status = 'pending'") == 60 - finished
        await release_brake(operator, "platform", by="ada", reason="billing is back")
        await until(lambda: stage.all_are("delivered"))
    assert seen == Counter(range(60))
    assert await stage.value("select max(attempts) from core.outbox") == 1


async def test_who_loses_every_connection_to_the_database_goes_on_where_it_was(
    stage: Stage, platform: Consumer
) -> None:
    """With a broker: the relays do, too, and whatever one of them had in hand is sent again."""
    runs: Counter[int] = Counter()
    go_on = asyncio.Event()

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        runs[scan.number] += 1
        await write_effect(tx, "project", scan.number)
        await go_on.wait()

    async with stage.relaying(FORGIVING), stage.running(platform):
        await stage.publish(*range(5))
        await until(lambda: runs)
        await stage.terminate("%")
        go_on.set()
        await stage.publish(*range(5, 10))
        await until(lambda: stage.all_are("delivered"))
    assert await stage.effects() == [("project", number) for number in range(10)]
