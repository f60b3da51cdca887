"""Sweeps while publishers publish and a worker works: nothing that is owed is ever swept, and nothing happens twice.

Time is made to pass by hand: whatever has ended grows old at once, so that a row may be delivered, put away and deleted
within the test. What has not ended grows old too, and has to stay.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Final

import psycopg
import pytest

from spectral.core.database import connect
from spectral.core.events import (
    Consumer,
    DatabaseSettings,
    DeliveryContext,
    EventEnvelope,
    RetryPolicy,
    TerminalHandlerError,
    Transaction,
    WorkerSettings,
)
from spectral.core.events.bootstrap import publisher_for, worker
from spectral.core.events.delivery.publish import Publishing
from spectral.core.events.testing import (
    EFFECTS_SCHEMA,
    Ledger,
    RecordingProbe,
    check,
    drain,
    record_effect,
    settle_down,
)
from spectral.core.retention import Ended, SweepOptions, SweepReport, sweep
from tests.integration.delivery.platform_worker import until
from tests.migrations.schema import role

PUBLISHED: Final = 240
COMPLETED: Final = "worlds.scan.completed"
STARTED: Final = "worlds.scan.started"

# Past the triggers, which know that none of this can happen.
AGE: Final = """
    set session_replication_role = replica;
    update core.outbox set created_at = created_at - interval '200 d', occurred_at = occurred_at - interval '200 d',
        delivered_at = delivered_at - interval '50 d', deleted_at = deleted_at - interval '10 d',
        first_failed_at = first_failed_at - interval '50 d'
    where id in (
        select id from core.outbox where created_at > now() - interval '100 d' or deleted_at > now() - interval '1 d'
        or delivered_at > now() - interval '1 d' for update skip locked
    );
    update core.event_handled
    set handled_at = handled_at - interval '100 d', deleted_at = deleted_at - interval '10 d'
    where handled_at > now() - interval '1 d' or deleted_at > now() - interval '1 d';
"""
# What was deleted, as a witness saw it.
WITNESS: Final = """
    create table public.gone (id uuid, status text, put_away boolean);
    create function public.see() returns trigger language plpgsql security definer as $$
    begin
        insert into public.gone values (old.id, old.status, old.deleted_at is not null);
        return null;
    end $$;
    create trigger z_see after delete on core.outbox for each row execute function public.see();
"""


@pytest.fixture
def login(database: str) -> Iterator[str]:
    """The DSN of a login that may sweep, and nothing else."""
    with role(database, groups=("spectral_retention",)) as dsn:
        yield dsn


class World:
    """A context with handlers that keep count, and a switch that heals the one that fails."""

    def __init__(self) -> None:
        self.healed = False
        self.platform = Consumer("platform", retry=RetryPolicy(max_retries=2, base=timedelta(0)))
        self.worlds = Consumer("worlds")
        self.platform.on(COMPLETED)(self.project)
        self.platform.on(STARTED)(self.first)
        self.platform.on(STARTED)(self.second)
        self.worlds.on(COMPLETED)(self.archive)

    async def project(self, envelope: EventEnvelope, tx: Transaction, delivery: DeliveryContext) -> None:
        await record_effect(tx, delivery, envelope.idempotency_key)

    async def archive(self, envelope: EventEnvelope, tx: Transaction, delivery: DeliveryContext) -> None:
        await record_effect(tx, delivery, envelope.idempotency_key)

    async def first(self, envelope: EventEnvelope, tx: Transaction, delivery: DeliveryContext) -> None:
        await record_effect(tx, delivery, envelope.idempotency_key)

    async def second(self, envelope: EventEnvelope, tx: Transaction, delivery: DeliveryContext) -> None:
        if not self.healed:
            raise TerminalHandlerError("not yet")
        await record_effect(tx, delivery, envelope.idempotency_key)


async def publish_on(dsn: str, shared: Publishing, ledger: Ledger, seed: int) -> None:
    """Publish single events, broadcasts, some that fail, and pairs with one key, the second of which comes later."""
    dice = random.Random(seed)  # noqa: S311  dice, not secrets
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        publisher = publisher_for(connection, shared)
        for number in range(PUBLISHED // 2):
            kind, target = dice.choice([(COMPLETED, "platform"), (COMPLETED, None), (STARTED, "platform")])
            twice = number % 10 == 0
            key = {"idempotency_key": f"{seed} {number}"} if twice else {}
            envelopes = [
                EventEnvelope(event_type=kind, source="worlds", target=target, **key) for _ in range(1 + twice)
            ]
            attempts = [ledger.attempt_of(envelope, generation=1) for envelope in envelopes]
            async with connection.transaction():
                for nth, envelope in enumerate(envelopes):
                    await publisher.publish(envelope, delay=timedelta(seconds=nth))
            for attempt in attempts:
                attempt.ok()


async def sweep_on(dsn: str, ended: asyncio.Event) -> list[SweepReport]:
    """Sweep again and again, in small steps."""
    reports: list[SweepReport] = []
    async with connect(dsn, "test") as database:
        while not ended.is_set():
            reports.append(await sweep(database, options=SweepOptions(batch=7, blocks=3)))
    return reports


@asynccontextmanager
async def time_passing(dsn: str) -> AsyncIterator[None]:
    """Whatever is written grows old at once."""
    ended = asyncio.Event()

    async def pass_on() -> None:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            while not ended.is_set():
                await connection.execute(AGE.encode())
                await asyncio.sleep(0.02)  # a pace, not a wait: others need the processor

    passing = asyncio.create_task(pass_on())
    try:
        yield
    finally:
        ended.set()
        await passing


def statuses(connection: psycopg.Connection[Any]) -> Counter[tuple[str, bool]]:
    rows = connection.execute("select status, deleted_at is not null, count(*) from core.outbox group by 1, 2")
    return Counter({(status, put_away): count for status, put_away, count in rows})


@pytest.mark.timeout(180)
async def test_sweeping_twice_at_once_under_load_loses_nothing_and_repeats_nothing(
    database: str, login: str, publishing: Publishing, connection: psycopg.Connection[Any]
) -> None:
    world, ledger, ended = World(), Ledger(), asyncio.Event()
    connection.execute(EFFECTS_SCHEMA.encode())
    connection.execute(WITNESS.encode())
    working = worker(
        world.platform,
        world.worlds,
        settings=WorkerSettings(generation=1),
        database=DatabaseSettings(dsn=database),
        probe=RecordingProbe(),
    )
    async with time_passing(database), working as listener:
        await listener.started()
        sweeping = [asyncio.create_task(sweep_on(login, ended)) for _ in range(2)]
        await asyncio.gather(*(publish_on(database, publishing, ledger, seed) for seed in (1, 2)))
        assert await settle_down(database, timedelta(seconds=60))
        # All that is left is what waits for a person.
        await until(lambda: statuses(connection).keys() == {("failed", False)}, within=60)
        ended.set()
        reports = [report for each in sweeping for report in await each]

    ends = Counter(report.ended for report in reports)
    assert ends.keys() == {Ended.COMPLETE, Ended.BUSY}
    gone = connection.execute("select count(*), count(distinct id) from public.gone").fetchone()
    assert gone is not None
    assert gone[0] == gone[1] == sum(report.outbox.deleted for report in reports) > PUBLISHED / 2
    assert connection.execute("select distinct status, put_away from public.gone").fetchall() == [("delivered", True)]
    (await check(database, ledger)).assert_clean()

    # What failed long ago can be replayed: the handler that had succeeded does not run again.
    world.healed = True
    connection.execute(
        "select core.outbox_replay_many(array(select id from core.outbox where status = 'failed'), 1, 'anna', 'healed')"
    )
    await drain(world.platform, world.worlds, dsn=database)
    assert statuses(connection).keys() == {("delivered", False)}
    (await check(database, ledger)).assert_clean()
