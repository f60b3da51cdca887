"""From plain to partitioned and back: step by step, broken off anywhere, under load."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from spectral.core.database import Database, DatabaseUnavailableError, RefusedError, connect
from spectral.core.events import Consumer, DeliveryContext, EventEnvelope, PublishSettings, Transaction
from spectral.core.events.bootstrap import publisher_for
from spectral.core.events.bootstrap import publishing as publishing_with
from spectral.core.events.testing import EFFECTS_SCHEMA, Ledger, check, record_effect, settle_down
from spectral.core.partitions import EnableOptions, Layout, Progress, Step, disable, enable, partition_status
from tests.integration.delivery.platform_worker import open_bench
from tests.integration.partitions.rows import write

IMPATIENT = EnableOptions(give_up_after=timedelta(seconds=1))
STEPS = [Step.PREPARE, Step.INDEX, Step.BOUND, Step.SWITCH]
FACTS = """
    select string_agg(line, E'\\n' order by line) from (
        select 'shape ' || core.partition_shape('core.outbox') as line
        union all
        select format('index %%s %%s', relname, pg_get_indexdef(oid)) from pg_class
        where oid in (select indexrelid from pg_index where indrelid = 'core.outbox'::regclass)
        union all
        select format('constraint %%s %%s', conname, pg_get_constraintdef(oid)) from pg_constraint
        where conrelid = 'core.outbox'::regclass
        union all
        select format('table %%s %%s %%s', relname, relkind, relowner::regrole) from pg_class
        where relnamespace = 'core'::regnamespace and relkind in ('r', 'p', 'v')
        union all
        select 'comment ' || obj_description('core.outbox'::regclass)
    ) as fact
"""


def publish_many(dsn: str, count: int) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "select core.outbox_publish('worlds.scan.completed', 'worlds', p_target => 'platform')"
            " from generate_series(1, %s)",
            [count],
        )


def terminate_all(dsn: str) -> None:
    """What a crash of the server leaves of everybody's transactions: nothing."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and application_name like 'spectral %'"
        )


async def test_the_table_becomes_the_first_partition_and_the_months_ahead_are_there(
    plain: str, owner: Database
) -> None:
    publish_many(plain, 200)
    told: list[Progress] = []
    status = await enable(owner, by="ann", reason="it grows", on_progress=told.append)
    assert (status.layout, status.dedup, status.next_step) == (Layout.PARTITIONED, Layout.PLAIN, None)
    assert [each.kind for each in status.partitions] == ["before", "month", "month", "month", "default"]
    assert status.boundary is not None
    assert status.boundary > datetime.now(UTC) + timedelta(days=6)
    assert status.reversible
    assert status.bound_until is None
    assert list(dict.fromkeys(each.step for each in told)) == STEPS
    assert await owner.value("select count(*) from core.outbox") == 200
    assert await owner.value("select count(distinct tableoid) from core.outbox") == 1
    assert await owner.value(
        "select array_agg(attname::text) from pg_index"
        " join pg_attribute on attrelid = indrelid and attnum = any (indkey)"
        " where indrelid = 'core.outbox'::regclass and indisprimary"
    ) == ["id", "created_at"]
    assert await owner.tuples("select detail ->> 'step', actor from core.audit order by id") == [
        ("prepare", "ann"),
        ("switch", "ann"),
    ]


async def test_enabling_twice_changes_nothing(owner: Database) -> None:
    first = await enable(owner, by="ann")
    again = await enable(owner, by="ann")
    assert [each.name for each in first.partitions] == [each.name for each in again.partitions]
    assert await owner.value("select count(*) from core.audit") == 2


async def test_a_dry_run_changes_nothing(owner: Database) -> None:
    facts = await owner.value(FACTS)
    status = await enable(owner, by="ann", dry_run=True)
    assert (status.layout, status.done, status.next_step) == (Layout.PLAIN, (), Step.PREPARE)
    assert await owner.value(FACTS) == facts


@pytest.mark.parametrize("step", STEPS)
async def test_broken_off_before_any_step_it_is_taken_up_again(plain: str, step: Step) -> None:
    publish_many(plain, 50)

    def crash(progress: Progress) -> None:
        if progress.step == step:
            terminate_all(plain)

    async with connect(plain, "doomed") as database:
        with pytest.raises(DatabaseUnavailableError):
            await enable(database, by="ann", on_progress=crash)
    publish_many(plain, 50)
    async with connect(plain, "tests") as database:
        status = await partition_status(database)
        assert status.layout is Layout.PLAIN
        assert (status.bound_until is not None) == (step is Step.SWITCH)
        assert (await enable(database, by="ann")).layout is Layout.PARTITIONED
        assert await database.value("select count(*) from core.outbox") == 100


@pytest.mark.parametrize("step", [*STEPS, None])
async def test_from_any_step_there_is_a_way_back_to_what_was(plain: str, owner: Database, step: Step | None) -> None:
    publish_many(plain, 50)
    facts = await owner.value(FACTS)

    def stop(progress: Progress) -> None:
        if progress.step == step:
            raise KeyboardInterrupt

    if step is None:
        await enable(owner, by="ann")
    else:
        with pytest.raises(KeyboardInterrupt):
            await enable(owner, by="ann", on_progress=stop)
        assert (await partition_status(owner)).bound_until is None, "whoever gives up takes the promise back"
    publish_many(plain, 50)
    status = await disable(owner, by="ann")
    assert (status.layout, status.done, status.partitions) == (Layout.PLAIN, (), ())
    assert await owner.value(FACTS) == facts
    assert await owner.value("select count(*) from core.outbox") == 100
    assert (await enable(owner, by="ann")).layout is Layout.PARTITIONED, "and from there the way is open again"


async def test_there_is_no_way_back_once_a_month_has_an_event(plain: str, owner: Database) -> None:
    status = await enable(owner, by="ann")
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(
            "insert into core.outbox (event_type, source, target, generation, channel, idempotency_key, created_at)"
            " values ('worlds.scan.completed', 'worlds', 'platform', 1, 'outbox_gen_1', 'k', %s)",
            [status.boundary],
        )
    assert not (await partition_status(owner)).reversible
    with pytest.raises(RefusedError, match="no way back"):
        await disable(owner, by="ann")


async def test_a_shell_that_the_table_has_outgrown_is_built_anew(plain: str, owner: Database) -> None:
    def stop(progress: Progress) -> None:
        if progress.step == Step.INDEX:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await enable(owner, by="ann", on_progress=stop)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute("alter table core.outbox add column note text; grant select (note) on core.outbox to public")
    status = await enable(owner, by="ann")
    assert status.layout is Layout.PARTITIONED
    assert await owner.value("select count(note) from core.outbox") == 0


async def test_an_index_that_was_interrupted_is_built_anew(plain: str, owner: Database) -> None:
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute("create unique index outbox_before_pkey on core.outbox (id, created_at)")
        connection.execute(
            "update pg_index set indisvalid = false where indexrelid = 'core.outbox_before_pkey'::regclass"
        )
    assert (await enable(owner, by="ann")).layout is Layout.PARTITIONED


@pytest.mark.parametrize(
    ("obstacle", "named"),
    [
        ("create table public.mine (event uuid references core.outbox (id))", "foreign key mine_event_fkey"),
        ("create view public.mine as select id from core.outbox", "view public.mine"),
        ("create publication mine for table core.outbox", "publication mine"),
        (
            "create function public.mine() returns setof core.outbox language sql as 'select * from core.outbox'",
            "function public.mine",
        ),
    ],
)
async def test_what_holds_the_table_by_its_identity_is_named(
    plain: str, owner: Database, obstacle: str, named: str
) -> None:
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(obstacle.encode())
    with pytest.raises(RefusedError, match=named):
        await enable(owner, by="ann")


async def test_who_may_not_build_indexes_is_told_which_login_may(owner: Database) -> None:
    await owner.connection.execute("create role operating login in role spectral_operator")
    try:
        await owner.connection.execute("set role operating")
        with pytest.raises(RefusedError, match="spectral migrate") as refused:
            await enable(owner, by="ann")
        assert refused.value.remedy == "grant spectral_owner to operating"
    finally:
        await owner.connection.execute("reset role")
        await owner.connection.execute("drop role operating")


async def test_a_member_of_the_owner_converts_an_operator_goes_back_and_a_reader_looks(owner: Database) -> None:
    await owner.connection.execute("create role converting login in role spectral_owner")
    try:
        await owner.connection.execute("set role converting")
        assert (await enable(owner, by="ann", options=EnableOptions(dedup=True))).layout is Layout.PARTITIONED
        await owner.connection.execute("set role spectral_readonly")
        assert (await partition_status(owner)).reversible
        await owner.connection.execute("set role spectral_operator")
        assert (await disable(owner, by="ann")).layout is Layout.PLAIN
        with pytest.raises(RefusedError, match="permission denied"):
            await owner.value("select core.partitions_bind()")
    finally:
        await owner.connection.execute("reset role")
        await owner.connection.execute("drop role converting")


async def test_two_at_once_do_not_meet(plain: str, owner: Database) -> None:
    refused: list[str] = []

    async def second() -> None:
        async with connect(plain, "second") as database:
            with pytest.raises(RefusedError) as error:
                await enable(database, by="bob")
            refused.append(str(error.value))

    def at_the_index(progress: Progress) -> None:
        if progress.step == Step.INDEX and not refused:  # the first one stands still until the second was answered
            other.submit(asyncio.run, second()).result()

    with ThreadPoolExecutor(1) as other:
        await enable(owner, by="ann", on_progress=at_the_index)
    assert refused == ["somebody else is changing the partitions"]


async def test_a_table_that_is_never_free_is_left_alone_and_nobody_waits_long(plain: str, owner: Database) -> None:
    """A handler's transaction holds it: we step back after a third of a second each time, and say what helps."""
    async with await psycopg.AsyncConnection.connect(plain) as handler:
        await handler.execute("select from core.outbox for update")
        attempts: list[Progress] = []
        with pytest.raises(RefusedError, match="locked") as refused:
            await enable(owner, by="ann", options=IMPATIENT, on_progress=attempts.append)
        assert "brake" in str(refused.value.remedy)
        assert max(each.attempt for each in attempts) > 1
        await asyncio.to_thread(publish_many, plain, 1)
    assert (await partition_status(owner)).bound_until is None
    assert (await enable(owner, by="ann")).layout is Layout.PARTITIONED


async def test_events_of_a_time_to_come_are_found_before_anything_is_promised(plain: str, owner: Database) -> None:
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(
            "insert into core.outbox (event_type, source, target, generation, channel, idempotency_key, created_at)"
            " values ('worlds.scan.completed', 'worlds', 'platform', 1, 'outbox_gen_1', 'k', now() + interval '1 year')"
        )
    with pytest.raises(RefusedError, match="still to come"):
        await enable(owner, by="ann")
    assert (await partition_status(owner)).bound_until is None


class Load:
    """Publishers that write one event after another, and how long the longest of them took."""

    def __init__(self, dsn: str) -> None:
        self.dsn, self.ledger, self.slowest, self.count = dsn, Ledger(), 0.0, 0
        self.publishing = publishing_with(PublishSettings(generation=1))
        self._stopped = False
        self._wanted, self._reached = 0, asyncio.Event()

    def stop(self) -> None:
        self._stopped = True

    async def run(self) -> None:
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            while not self._stopped:
                target = None if self.count % 10 == 0 else "platform"
                event = EventEnvelope(event_type="worlds.scan.completed", source="worlds", target=target)
                self.count += 1
                began = time.monotonic()
                with self.ledger.attempt_of(event, generation=1):
                    async with connection.transaction():
                        await publisher_for(connection, self.publishing).publish(event)
                self.slowest = max(self.slowest, time.monotonic() - began)
                if self.count >= self._wanted:
                    self._reached.set()
                await asyncio.sleep(0.001)

    async def more(self, count: int) -> None:
        """Until so many more events are published."""
        self._wanted = self.count + count
        self._reached.clear()
        await self._reached.wait()


def recording() -> Consumer:
    consumer = Consumer("platform")

    @consumer.on("worlds.scan.completed")
    async def project(envelope: EventEnvelope, tx: Transaction, delivery: DeliveryContext) -> None:
        await record_effect(tx, delivery, envelope.idempotency_key)

    return consumer


async def test_under_load_no_publish_fails_nothing_is_lost_and_nothing_takes_effect_twice(
    plain: str, owner: Database
) -> None:
    load = Load(plain)
    await owner.connection.execute(EFFECTS_SCHEMA)
    async with open_bench(plain) as bench, bench.running(recording()):
        publishers = [asyncio.create_task(load.run()) for _ in range(3)]
        await load.more(100)
        assert (await enable(owner, by="ann", options=EnableOptions(dedup=True))).dedup is Layout.PARTITIONED
        await load.more(100)
        assert (await disable(owner, by="ann")).layout is Layout.PLAIN
        await load.more(100)
        assert (await enable(owner, by="ann")).layout is Layout.PARTITIONED
        await load.more(100)
        load.stop()
        await asyncio.gather(*publishers)
        assert await settle_down(plain, timedelta(minutes=1))
    # Three times a third of a second of lock waiting, a loaded machine besides: far from a publish that hangs.
    assert load.slowest < 5
    verdict = await check(plain, load.ledger)
    assert verdict.clean, str(verdict)
    assert await owner.value("select count(*) from core.outbox where status <> 'delivered'") == 0


async def test_the_dedup_log_is_exact_while_it_is_being_copied(plain: str, owner: Database) -> None:
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(
            "insert into core.event_handled (handler_name, idempotency_key, event_id)"
            " select 'platform.project', i::text, gen_random_uuid() from generate_series(1, 3000) as i"
        )

        def meanwhile(progress: Progress) -> None:
            if "copied" in progress.message:
                connection.execute(
                    "insert into core.event_handled (handler_name, idempotency_key, event_id)"
                    " select 'platform.project', 'late ' || nextval('late'), gen_random_uuid()"
                )
                connection.execute("update core.event_handled set deleted_at = now() where idempotency_key = '7'")
                connection.execute("delete from core.event_handled where idempotency_key = '8'")

        connection.execute("create sequence late")
        options = EnableOptions(dedup=True, copy_at_once=5)
        await enable(owner, by="ann", options=options, on_progress=meanwhile)
        late = await owner.value("select last_value from late")
        assert late > 3
        found: Any = connection.execute("select count(*), count(deleted_at) from core.event_handled").fetchone()
        assert found == (2999 + late, 1)
        with pytest.raises(psycopg.errors.UniqueViolation):
            connection.execute(
                "insert into core.event_handled (handler_name, idempotency_key, event_id)"
                " values ('platform.project', '9', gen_random_uuid())"
            )
        assert (
            await owner.value("select count(*) from pg_inherits where inhparent = 'core.event_handled'::regclass") == 8
        )


async def test_a_copy_of_the_dedup_log_that_was_broken_off_is_taken_up_again(plain: str) -> None:
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(
            "insert into core.event_handled (handler_name, idempotency_key, event_id)"
            " select 'platform.project', i::text, gen_random_uuid() from generate_series(1, 2000) as i"
        )

    def crash(progress: Progress) -> None:
        if "copied" in progress.message:
            terminate_all(plain)

    options = EnableOptions(dedup=True, copy_at_once=5)
    async with connect(plain, "doomed") as database:
        with pytest.raises(DatabaseUnavailableError):
            await enable(database, by="ann", options=options, on_progress=crash)
    async with connect(plain, "tests") as database:
        assert (await partition_status(database)).dedup is Layout.PLAIN
        await database.connection.execute("delete from core.event_handled where idempotency_key = '1999'")
        assert (await enable(database, by="ann", options=options)).dedup is Layout.PARTITIONED
        assert await database.value("select count(*) from core.event_handled") == 1999
        assert await database.value("select to_regclass('core.event_handled_hashed')") is None


async def test_records_that_move_behind_the_copy_are_copied_all_the_same(plain: str, owner: Database) -> None:
    """A sweep writes a new version of what it puts away, at the end of the table."""
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(
            "insert into core.event_handled (handler_name, idempotency_key, event_id)"
            " select 'platform.project', i::text, gen_random_uuid() from generate_series(1, 2000) as i"
        )

        def put_away(progress: Progress) -> None:
            if "copied" in progress.message:
                connection.execute("update core.event_handled set deleted_at = now() where deleted_at is null")

        await enable(owner, by="ann", options=EnableOptions(dedup=True, copy_at_once=2), on_progress=put_away)
    assert await owner.tuples("select count(*), count(deleted_at) from core.event_handled") == [(2000, 2000)]


async def break_off_the_copy(dsn: str) -> None:
    def stop(progress: Progress) -> None:
        if "copied" in progress.message:
            raise KeyboardInterrupt

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "insert into core.event_handled (handler_name, idempotency_key, event_id)"
            " values ('platform.project', 'k', gen_random_uuid())"
        )
    async with connect(dsn, "doomed") as database:
        with pytest.raises(KeyboardInterrupt):
            await enable(database, by="ann", options=EnableOptions(dedup=True), on_progress=stop)


async def test_a_copy_of_the_dedup_log_is_taken_back_though_the_outbox_stays_in_months(
    plain: str, owner: Database
) -> None:
    status = await enable(owner, by="ann")
    with psycopg.connect(plain, autocommit=True) as connection:
        write(connection, status.boundary or status.now)
    await break_off_the_copy(plain)
    status = await disable(owner, by="ann")
    assert (status.layout, status.dedup, status.reversible) == (Layout.PARTITIONED, Layout.PLAIN, False)
    assert await owner.value("select to_regclass('core.event_handled_hashed')") is None
    with pytest.raises(RefusedError, match="no way back"):
        await disable(owner, by="ann")


async def test_a_copy_of_a_dedup_log_that_has_changed_since_is_begun_anew(plain: str, owner: Database) -> None:
    await break_off_the_copy(plain)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute("alter table core.event_handled add column note text")
    assert (await enable(owner, by="ann", options=EnableOptions(dedup=True))).dedup is Layout.PARTITIONED
    assert await owner.value("select count(*) from core.event_handled") == 1


async def test_a_promise_that_is_past_refuses_nothing_as_soon_as_the_conversion_goes_on(
    plain: str, owner: Database
) -> None:
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute("set timezone = 'UTC'")
        connection.execute(
            "alter table core.outbox add constraint outbox_before_boundary check (created_at < '2026-01-01')"
        )
        with pytest.raises(psycopg.errors.CheckViolation):
            publish_many(plain, 1)
    assert (await partition_status(owner)).under_way

    def publish(progress: Progress) -> None:
        if progress.step == Step.INDEX:
            publish_many(plain, 1)

    assert (await enable(owner, by="ann", on_progress=publish)).layout is Layout.PARTITIONED
    assert await owner.value("select count(*) from core.outbox") == 2
