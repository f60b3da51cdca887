"""A broadcast becomes one event for each subscribed context, and several contexts may run in one worker."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

from psycopg.conninfo import conninfo_to_dict

from spectral.core.events import Consumer, EventEnvelope, TerminalHandlerError, Transaction
from spectral.core.events.probe import EventRef, FannedOut
from tests.integration.delivery.platform_worker import AT_ONCE, COMPLETED, Bench, Scan, until, write_effect


def projecting(context: str) -> Consumer:
    """A consumer whose handler writes its context's name."""
    consumer = Consumer(context, retry=AT_ONCE)

    @consumer.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, context, scan.number)

    return consumer


async def test_a_broadcast_reaches_both_contexts_of_one_worker(bench: Bench) -> None:
    (parent,) = await bench.publish(1, target=None)
    await bench.drain(projecting("platform"), projecting("worlds"))
    assert await bench.effects() == [("platform", 1), ("worlds", 1)]
    assert await bench.statuses() == {"delivered": 3}
    (split,) = bench.notes.of(FannedOut)
    assert split == FannedOut(EventRef(parent, COMPLETED, "worlds", None, None, None), ("platform", "worlds"))


async def test_a_broadcast_reaches_two_workers_of_a_context_each(bench: Bench) -> None:
    async with bench.running(projecting("platform")), bench.running(projecting("worlds")):
        await bench.publish(1, target=None)
        await until(lambda: bench.value("select count(*) = 3 from core.outbox where status = 'delivered'"))
    assert await bench.effects() == [("platform", 1), ("worlds", 1)]


async def test_a_handler_sees_the_id_of_the_broadcast(bench: Bench, platform: Consumer) -> None:
    seen: list[EventEnvelope] = []

    @platform.on(COMPLETED)
    async def project(envelope: EventEnvelope) -> None:
        seen.append(envelope)

    (parent,) = await bench.publish(1, target=None)
    await bench.drain(platform)
    assert [each.event_id for each in seen] == [parent]


async def test_one_contexts_failure_is_its_own(bench: Bench) -> None:
    worlds = Consumer("worlds", retry=AT_ONCE)

    @worlds.on(COMPLETED)
    async def project(scan: Scan) -> None:
        raise TerminalHandlerError(f"not {scan.number}")

    await bench.publish(1, target=None)
    await bench.drain(projecting("platform"), worlds)
    assert await bench.effects() == [("platform", 1)]
    assert await bench.value("select status from core.outbox where target = 'worlds'") == "failed"
    assert await bench.value("select status from core.outbox where target = 'platform'") == "delivered"


async def test_a_broadcast_that_nobody_wants_is_delivered(bench: Bench, platform: Consumer) -> None:
    @platform.on("worlds.scan.failed")
    async def project(scan: Scan) -> None:
        raise AssertionError(scan)

    (parent,) = await bench.publish(1, target=None)
    await bench.drain(platform)
    assert await bench.status(parent) == "delivered"
    assert [note.contexts for note in bench.notes.of(FannedOut)] == [()]


async def test_hundreds_of_broadcasts_are_all_split_before_a_worker_says_it_is_done(bench: Bench) -> None:
    """More than one call splits, none of them for a context of this worker."""
    others = bench.worker(projecting("worlds"))
    await others.run(until="once")
    await bench.publish(*range(250), target=None)
    await bench.drain(projecting("platform"))
    assert await bench.value("select count(*) from core.outbox where target is null and status = 'pending'") == 0
    assert len(await bench.effects()) == 250


async def test_hundreds_of_broadcasts_that_nobody_wants_are_all_delivered(bench: Bench, platform: Consumer) -> None:
    @platform.on("worlds.scan.failed")
    async def project(scan: Scan) -> None:
        raise AssertionError(scan)

    async with bench.running(platform):
        await bench.publish(*range(450), target=None)
        await until(lambda: bench.all_are("delivered"), within=10)


async def test_events_of_one_context_do_not_reach_another(bench: Bench) -> None:
    await bench.publish(1, target="platform")
    await bench.publish(2, target="worlds")
    await bench.publish(3, target="core")
    await bench.drain(projecting("platform"), projecting("worlds"))
    assert await bench.effects() == [("platform", 1), ("worlds", 2)]
    assert await bench.statuses() == {"delivered": 2, "pending": 1}


async def test_plain_and_transactional_contexts_run_in_one_worker(bench: Bench) -> None:
    runs: Counter[int] = Counter()
    worlds = Consumer("worlds", retry=AT_ONCE)

    @worlds.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        runs[scan.number] += 1

    await bench.publish(*range(100), target=None)
    await bench.drain(projecting("platform"), worlds)
    assert runs == Counter(range(100))
    assert await bench.effects() == [("platform", number) for number in range(100)]
    assert await bench.statuses() == {"delivered": 300}


async def test_a_delayed_broadcast_reaches_its_context_on_time(bench: Bench) -> None:
    async with bench.running(projecting("platform")):
        await bench.publish(1, target=None, delay=timedelta(seconds=0.5))
        await until(bench.effects, within=10)


async def test_a_worker_whose_subscriptions_were_lost_with_its_server_makes_them_again(bench: Bench) -> None:
    """As after a crash, or a standby that had not heard of them: its handlers are there, so broadcasts are for them."""
    async with bench.running(projecting("platform")):
        await bench.execute("delete from core.subscriptions")
        await bench.execute("delete from core.deployments where generation = 1 and status <> 'live'")
        await bench.terminate("claim")
        await until(lambda: bench.value("select count(*) = 1 from core.subscriptions"))
        await bench.publish(1, target=None)
        await until(lambda: bench.value("select count(*) = 1 from public.effects"))


async def test_a_subscription_is_on_disk_before_anybody_relies_on_it(bench: Bench) -> None:
    name = conninfo_to_dict(bench.dsn)["dbname"]
    await bench.execute(f"alter database {name} set synchronous_commit = 'local'")
    await bench.execute("create table public.seen (durability text)")
    await bench.execute("grant insert on public.seen to public")
    await bench.execute(
        "create function public.look() returns trigger language plpgsql as $$ begin"
        " insert into public.seen values (current_setting('synchronous_commit')); return null; end $$"
    )
    await bench.execute("create trigger look after insert on core.subscriptions execute function public.look()")
    await bench.drain(projecting("platform"))
    assert await bench.value("select array_agg(distinct durability) from public.seen") == ["local"]
