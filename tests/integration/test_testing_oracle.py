"""The oracle on a real database: clean after real deliveries, and not after each kind of tampering."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from spectral.core.events import (
    ConfigurationError,
    Consumer,
    DeliveryContext,
    EventEnvelope,
    RetryPolicy,
    Transaction,
    WorkerSettings,
)
from spectral.core.events.bootstrap import publisher_for
from spectral.core.events.delivery.publish import Publishing
from spectral.core.events.testing import (
    EFFECTS_SCHEMA,
    Fault,
    Ledger,
    Subscribed,
    Verdict,
    check,
    drain,
    effects_schema,
    record_effect,
    settle_down,
)

SQL = psycopg.Connection[Any]
ONCE = RetryPolicy(max_retries=0)
MINUTE = timedelta(minutes=1)


def recording(dsn: str, context: str) -> Consumer:
    """A consumer with one transactional and one plain handler that record what they do, and fail if told."""
    consumer = Consumer(context, retry=ONCE)

    @consumer.on("worlds.scan.completed")
    async def project(envelope: EventEnvelope, tx: Transaction, delivery: DeliveryContext) -> None:
        await record_effect(tx, delivery, envelope.idempotency_key, value=envelope.payload.get("number"))
        if envelope.payload.get("fail"):
            raise ConnectionError("as told")

    @consumer.on("worlds.scan.started")
    async def announce(envelope: EventEnvelope, delivery: DeliveryContext) -> None:
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            await record_effect(connection, delivery, envelope.idempotency_key, external=True)

    return consumer


def scan(verb: str = "completed", target: str | None = "platform", **payload: object) -> EventEnvelope:
    return EventEnvelope(event_type=f"worlds.scan.{verb}", source="worlds", target=target, payload=payload)


def publish(connection: SQL, publishing: Publishing, ledger: Ledger, *envelopes: EventEnvelope) -> None:
    for envelope in envelopes:
        with ledger.attempt_of(envelope, generation=1), connection.transaction():
            publisher_for(connection, publishing).publish(envelope)


@pytest.fixture
def effects(connection: SQL) -> SQL:
    connection.execute(EFFECTS_SCHEMA)
    return connection


def found(verdict: Verdict) -> dict[str, int]:
    return {fault.value: count for fault in Fault if (count := verdict.as_dict()[fault.value])}


async def test_real_deliveries_are_clean(database: str, effects: SQL, publishing: Publishing) -> None:
    ledger = Ledger()
    events = [scan(number=1), scan("started"), scan(target=None), scan(fail=True)]
    publish(effects, publishing, ledger, *events)
    rolled_back = scan(number=2)
    attempt = ledger.attempt_of(rolled_back)
    with effects.transaction(force_rollback=True):
        publisher_for(effects, publishing).publish(rolled_back)
    attempt.failed()
    await drain(recording(database, "platform"), recording(database, "worlds"), dsn=database)
    assert await settle_down(database, MINUTE)
    verdict = await check(database, ledger)
    verdict.assert_clean(at_least=4)
    counts = verdict.as_dict()
    assert {name: counts[name] for name in ("published", "delivered", "handled", "dead_lettered", "replayed")} == {
        "published": 4,
        "delivered": 4,
        "handled": 4,
        "dead_lettered": 1,
        "replayed": 0,
    }


async def test_a_replay_into_another_generation_is_clean(database: str, effects: SQL, publishing: Publishing) -> None:
    ledger = Ledger()
    event = scan(fail=True)
    publish(effects, publishing, ledger, event)
    await drain(recording(database, "platform"), dsn=database)
    effects.execute("select core.outbox_replay(%s, 2)", [event.event_id])
    mended = Consumer("platform")

    @mended.on("worlds.scan.completed")
    async def project(envelope: EventEnvelope, tx: Transaction, delivery: DeliveryContext) -> None:
        await record_effect(tx, delivery, envelope.idempotency_key)

    (await drain(mended, dsn=database, generation=2)).assert_all_handled(times=1)
    verdict = await check(database, ledger)
    verdict.assert_clean()
    assert (verdict.replayed, verdict.delivered) == (1, 1)


TAMPERINGS: dict[str, Callable[[SQL], object]] = {
    "lost": lambda sql: sql.execute("delete from public.spectral_effects"),
    "phantom": lambda sql: sql.execute(
        "insert into public.spectral_effects (handler, key, event_id, worker, generation, context, attempt)"
        " values ('platform.project', 'x', gen_random_uuid(), 'w', 1, 'platform', 1)"
    ),
    "duplicated": lambda sql: sql.execute(
        "insert into public.spectral_effects (handler, key, event_id, worker, generation, context, attempt)"
        " select handler, key, event_id, worker, generation, context, 2 from public.spectral_effects"
    ),
    "stuck": lambda sql: sql.execute(
        "insert into core.outbox (event_type, source, target, generation, channel, idempotency_key)"
        " values ('worlds.scan.completed', 'worlds', 'platform', 1, 'outbox_gen_1', 'x')"
    ),
    "false_dead_letters": lambda sql: sql.execute(
        "update core.outbox set status = 'failed', delivered_at = null, last_error = 'E: x', first_failed_at = now()"
    ),
    "wrong_generation": lambda sql: sql.execute("update public.spectral_effects set generation = 2"),
    "wrong_context": lambda sql: sql.execute(
        "insert into public.spectral_effects (handler, key, event_id, worker, generation, context, attempt)"
        " select 'worlds.project', key, event_id, worker, generation, 'worlds', 1 from public.spectral_effects"
    ),
}


@pytest.mark.parametrize("fault", TAMPERINGS)
async def test_finds_what_was_tampered_with(fault: str, database: str, effects: SQL, publishing: Publishing) -> None:
    ledger = Ledger()
    publish(effects, publishing, ledger, scan(number=1))
    await drain(recording(database, "platform"), dsn=database)
    (await check(database, ledger)).assert_clean()
    with effects.transaction():
        effects.execute("set local session_replication_role = replica")  # what triggers would refuse
        TAMPERINGS[fault](effects)
    assert found(await check(database, ledger)) == {fault: 1}


async def test_finds_the_ghost_of_a_publish_that_was_said_to_be_rolled_back(
    database: str, effects: SQL, publishing: Publishing
) -> None:
    ledger = Ledger()
    event = scan(number=1)
    attempt = ledger.attempt_of(event)
    with effects.transaction():
        publisher_for(effects, publishing).publish(event)
    attempt.failed()
    await drain(recording(database, "platform"), dsn=database)
    assert found(await check(database, ledger)) == {"ghost": 1}


async def test_counts_external_effects_that_were_repeated(database: str, effects: SQL, publishing: Publishing) -> None:
    ledger = Ledger()
    publish(effects, publishing, ledger, scan("started"))
    await drain(recording(database, "platform"), dsn=database)
    effects.execute(
        "insert into public.spectral_effects (handler, key, event_id, worker, generation, context, attempt, external)"
        " select handler, key, event_id, worker, generation, context, 2, external from public.spectral_effects"
    )
    verdict = await check(database, ledger)
    assert (verdict.clean, verdict.external_duplicates) == (True, 1)


async def test_a_worker_of_another_generation_has_to_be_allowed_for(
    database: str, effects: SQL, publishing: Publishing
) -> None:
    ledger = Ledger()
    publish(effects, publishing, ledger, scan(number=1))
    legacy = WorkerSettings(generation=2, accept_generations=frozenset({1}))
    (await drain(recording(database, "platform"), dsn=database, settings=legacy)).assert_all_handled(times=1)
    assert found(await check(database, ledger)) == {"wrong_generation": 1}
    (await check(database, ledger, accept={2: {1}})).assert_clean()


async def test_expectations_can_be_given_by_hand(database: str, effects: SQL, publishing: Publishing) -> None:
    ledger = Ledger()
    publish(effects, publishing, ledger, scan(number=1))
    await drain(recording(database, "platform"), dsn=database)
    wanted = [Subscribed(1, "platform", "worlds.scan.completed", "platform.index")]
    verdict = await check(database, ledger, subscriptions=wanted)
    assert verdict.lost == 1
    assert "platform.index did not handle it" in verdict.problems()[0]


async def test_effects_may_be_kept_in_another_table(database: str, connection: SQL, publishing: Publishing) -> None:
    connection.execute(effects_schema("core.proofs"))
    platform = Consumer("platform")

    @platform.on("worlds.scan.completed")
    async def project(envelope: EventEnvelope, tx: Transaction, delivery: DeliveryContext) -> None:
        await record_effect(tx, delivery, envelope.idempotency_key, table="core.proofs")

    ledger = Ledger()
    publish(connection, publishing, ledger, scan(number=1))
    await drain(platform, dsn=database)
    (await check(database, ledger, table="core.proofs")).assert_clean()
    with pytest.raises(ConfigurationError, match=r"there is no table public\.spectral_effects; create it with"):
        await check(database, ledger)
    with pytest.raises(ConfigurationError, match="is no name for a table"):
        await check(database, ledger, table="proofs; drop table x")


async def test_an_operator_may_check(database: str, effects: SQL, publishing: Publishing) -> None:
    ledger = Ledger()
    publish(effects, publishing, ledger, scan(number=1))
    await drain(recording(database, "platform"), dsn=database)
    effects.execute("grant select on public.spectral_effects to spectral_operator")
    as_operator = psycopg.conninfo.make_conninfo(database, options="-c role=spectral_operator")
    (await check(as_operator, ledger)).assert_clean()


async def test_waits_until_everything_has_settled(database: str, effects: SQL, publishing: Publishing) -> None:
    ledger = Ledger()
    publish(effects, publishing, ledger, scan(number=1))
    assert not await settle_down(database, timedelta(0))
    waiting = asyncio.ensure_future(settle_down(database, MINUTE))
    await drain(recording(database, "platform"), dsn=database)
    assert await waiting


async def test_goes_on_waiting_when_its_connection_is_cut(database: str, effects: SQL, publishing: Publishing) -> None:
    publish(effects, publishing, Ledger(), scan(number=1))
    waiting = asyncio.ensure_future(settle_down(database, MINUTE))
    cut = 0
    while not cut:
        await asyncio.sleep(0.01)
        cut = len(
            effects.execute(
                "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'spectral oracle'"
                " and datname = current_database()"
            ).fetchall()
        )
    await drain(recording(database, "platform"), dsn=database)
    assert await waiting
