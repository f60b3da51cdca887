"""The doctor on real databases: silent on a healthy one, and naming every planted problem with its fix."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
from asyncio.subprocess import PIPE
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from spectral.core.database import DatabaseUnavailableError
from spectral.core.embedded import PostgresServer, ServerOptions, database_of, postgres_from
from spectral.core.events import Consumer, EventEnvelope
from spectral.core.migrations import up
from spectral.core.operations.doctor import Examination, Finding, Level, Limits, examine
from tests.integration.delivery.platform_worker import COMPLETED, open_bench, until
from tests.integration.delivery.test_channel_listener import listening
from tests.integration.test_doctor_pooler import pooled
from tests.integration.test_insights import failed, in_flight, publish, sign_in
from tests.memory import running
from tests.migrations.schema import role

SPECTRAL = str(Path(sys.executable).with_name("spectral"))


@pytest.fixture(scope="module")
def safe_postgres() -> Iterator[PostgresServer]:
    """A server with the settings of a careful person: the tests' own is fast and unsafe, which the doctor would say."""
    source = os.environ.get("SPECTRAL_TEST_POSTGRES", "wheel")
    options = ServerOptions(settings={"max_connections": 50, "max_prepared_transactions": 5})
    with running(postgres_from(source, options)) as server:
        yield server


@pytest.fixture
def fresh(safe_postgres: PostgresServer) -> Iterator[str]:
    """A database right after `spectral migrate up`: no generation, no worker."""
    dsn = safe_postgres.create_database()
    up(dsn)
    yield dsn
    safe_postgres.drop_database(database_of(dsn))


def by_check(found: Examination) -> dict[str, Finding]:
    return {finding.check: finding for finding in found.findings}


def consumer() -> Consumer:
    platform = Consumer("platform")

    @platform.on(COMPLETED)
    async def note() -> None:
        """Nothing to do."""

    return platform


async def test_a_fresh_database_with_its_first_worker_is_met_with_silence(fresh: str) -> None:
    async with open_bench(fresh) as bench, bench.running(consumer()):
        await bench.publish(1)
        await until(lambda: bench.all_are("delivered"))
        found = await examine(fresh, fresh)
        assert (found.findings, found.unseen, found.level) == ((), (), Level.OK)
        ran = await asyncio.create_subprocess_exec(
            SPECTRAL, "doctor", env={"SPECTRAL_DATABASE_URL": fresh}, stdout=PIPE, stderr=PIPE
        )
        out, err = await ran.communicate()
    assert (ran.returncode, out) == (0, b"")
    assert re.fullmatch(r".*: \d+ checks, nothing found\n", err.decode())


# Of the table, or of the first of its partitions.
_AUTOVACUUM_OFF = """
do $$ begin
    execute format('alter table %s set (autovacuum_enabled = off)', coalesce(
        (select min(inhrelid) from pg_inherits where inhparent = 'core.event_handled'::regclass)::regclass,
        'core.event_handled'::regclass
    ));
end $$
"""


def plant(connection: psycopg.Connection[Any]) -> None:
    """Fourteen problems. A worker of the platform lives: what it does not serve is told from what nobody does."""
    for statement in (
        "alter table core.outbox disable trigger outbox_notify",
        "alter table core.audit add column by_hand integer",
        _AUTOVACUUM_OFF,
        "alter table core.sweeper owner to current_user",
        "revoke execute on function core.outbox_settle from spectral_worker",
        "select core.brake_pull('core', 'dana', 'the ledger is being repaired')",
    ):
        connection.execute(statement.encode())
    sign_in(connection, "lives")  # and no handler of it is on record
    publish(connection, 2, generation=0, channel="outbox_gen_0")  # retired
    publish(connection, 3, target="worlds")  # nobody is there for them
    publish(connection, 4, channel="outbox_gen_1_cold")  # the platform's worker does not serve that class
    publish(connection, 5, channel="outbox_default", target="core")
    publish(connection, 1, target=None, generation=2, channel="outbox_gen_2")  # a broadcast that no worker splits
    publish(connection, 6, **failed(datetime.now(UTC)))
    publish(connection, 7, **in_flight("vanished"))


PLANTED = {
    "notify_trigger": "is disabled",
    "schema_drift": "column core.audit.by_hand was added",
    "autovacuum": "core.event_handled",
    "ownership": "table core.sweeper",
    "grants": "core.outbox_settle",
    "brake": "core is braked, by dana",
    "lost_generation": "2 events wait in generation 0, which is retired",
    "no_worker": "worlds has 3 events waiting, the oldest for 4 min",
    "unheard_class": "4 events for platform wait on outbox_gen_1_cold",
    "default_channel": "5 events wait on outbox_default",
    "broadcasts": "1 broadcast of generation 2 not split yet",
    "dead_letters": "6 dead letters, all of them within the last hour",
    "stale_claims": "7 claims are held by workers that show no sign of life",
    "subscriptions": "platform has no subscription in generation 1, though 1 worker is alive for it",
    "pooler": "SPECTRAL_DIRECT_URL leads through a pooler in transaction mode",
}


async def test_fifteen_planted_problems_are_all_named_with_a_fix(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    plant(connection)
    async with pooled(database) as through_the_pooler:
        found = await examine(database, through_the_pooler)
    findings = by_check(found)
    for check, what in PLANTED.items():
        assert what in findings[check].what
        assert findings[check].fix
        assert findings[check].why
    # and nothing else, but for how the tests' server is set up
    assert findings.keys() - PLANTED.keys() <= {"fsync", "synchronous_commit"}
    assert found.level is Level.UNHEALTHY


async def test_what_a_finding_says_to_run_ends_it(database: str, connection: psycopg.Connection[Any]) -> None:
    plant(connection)
    before = by_check(await examine(database))
    for check in ("notify_trigger", "autovacuum", "ownership", "grants", "brake", "lost_generation"):
        run_fix(database, connection, before[check].fix)
    after = by_check(await examine(database))
    assert before.keys() - after.keys() == {
        "notify_trigger",
        "autovacuum",
        "ownership",
        "grants",
        "brake",
        "lost_generation",
    }


def run_fix(dsn: str, connection: psycopg.Connection[Any], fix: str) -> None:
    program, *arguments = shlex.split(fix)
    if program == "psql":  # which need not be installed where the tests run
        for flag, statement in zip(arguments[1::2], arguments[2::2], strict=True):
            assert flag == "-c"
            connection.execute(statement.encode())
    else:
        subprocess.run(
            [SPECTRAL, *arguments, "--yes"], env={"SPECTRAL_DATABASE_URL": dsn}, check=True, capture_output=True
        )


SIGNED_IN = "select count(*) = %s from core.workers where core.worker_lives(name)"


async def test_workers_whose_subscriptions_are_gone_are_named_until_one_starts_anew(database: str) -> None:
    async with open_bench(database) as bench, bench.running(consumer()):
        await until(lambda: bench.value(SIGNED_IN, 1))
        assert "subscriptions" not in by_check(await examine(database))
        await bench.execute("delete from core.subscriptions")
        finding = by_check(await examine(database))["subscriptions"]
        assert finding.what == "platform has no subscription in generation 1, though 1 worker is alive for it"
        assert finding.fix == "SPECTRAL_GENERATION=1 spectral worker <module>:<consumer>"
        async with bench.running(consumer()):
            await until(lambda: bench.value(SIGNED_IN, 2))
            assert "subscriptions" not in by_check(await examine(database))


async def test_who_listens_to_one_channel_is_not_missed_among_the_subscriptions(database: str) -> None:
    """It subscribes to nothing on purpose: what is addressed to its context is all it wants."""

    async def take(envelope: EventEnvelope) -> None:
        raise AssertionError(envelope)

    async with open_bench(database) as bench, listening(bench, take):
        await until(lambda: bench.value(SIGNED_IN, 1))
        assert await bench.value("select count(*) from core.subscriptions") == 0
        assert "subscriptions" not in by_check(await examine(database))


async def test_no_live_generation_is_named(database: str, connection: psycopg.Connection[Any]) -> None:
    connection.execute("update core.deployments set status = 'draining' where generation = 1")
    finding = by_check(await examine(database))["live_generation"]
    assert (finding.severity, finding.fix) == (Level.ATTENTION, "spectral generations promote 2")


async def test_pending_migrations_and_a_missing_schema_are_named(empty_database: str) -> None:
    found = await examine(empty_database)
    finding = by_check(found)["migrations"]
    assert (finding.what, finding.fix) == ("This database has no Spectral schema", "spectral migrate up")
    assert found.unseen == ()


async def test_a_migration_that_is_no_longer_in_the_ledger_is_pending(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    connection.execute(
        "delete from spectral_migrations.history where version = (select max(version) from spectral_migrations.history)"
    )
    finding = by_check(await examine(database))["migrations"]
    assert finding.what.startswith("1 migration is pending: ")
    assert finding.severity is Level.UNHEALTHY


async def test_transactions_that_hold_vacuum_up_are_named(fresh: str, safe_postgres: PostgresServer) -> None:
    with (
        psycopg.connect(fresh, application_name="nightly report") as open_one,
        psycopg.connect(fresh) as prepared,
    ):
        open_one.execute("select txid_current()")
        prepared.execute("create table forgotten ()")
        prepared.execute("prepare transaction 'forgotten'")
        found = await examine(fresh, limits=Limits(transaction=timedelta(0)))
        pid = open_one.info.backend_pid
        prepared.rollback()
        prepared.autocommit = True
        prepared.execute("rollback prepared 'forgotten'")
    held = {finding.fix.split("-c ")[1]: finding.what for finding in found.findings if finding.check == "held_xmin"}
    assert f"Backend {pid}, 'nightly report' of" in held[f"'select pg_terminate_backend({pid})'"]
    assert "Prepared transaction 'forgotten' of" in held["\"rollback prepared 'forgotten'\""]
    assert safe_postgres.dsn  # which outlives this


async def test_whoever_locks_the_outbox_is_named_though_nothing_of_it_can_be_read(database: str) -> None:
    with psycopg.connect(database, application_name="careless") as locking:
        locking.execute("lock table core.outbox in access exclusive mode")
        found = await examine(database)
        locking.rollback()
    finding = by_check(found)["outbox_locked"]
    assert "'careless'" in finding.what
    assert [each.part for each in found.unseen] == ["schema and delivery"]


async def test_a_machine_whose_clock_is_off_is_told(database: str) -> None:
    found = await examine(database, clock=lambda: datetime.now(UTC) + timedelta(minutes=7))
    assert "This machine's clock is 7 min ahead of the database's" in by_check(found)["clock"].what


async def test_an_operators_login_is_told_what_it_cannot_see_and_nothing_is_made_up(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    plant(connection)
    with role(database, groups=("spectral_operator",)) as own:
        found = await examine(own)
    findings = by_check(found)
    unseen = {each.part: each for each in found.unseen}
    assert PLANTED.keys() - findings.keys() <= {"schema_drift", "pooler"}
    assert unseen.keys() <= {"schema", "activity"}
    assert "grant pg_monitor to" in unseen["activity"].fix
    assert ("schema_drift" in findings) is not ("schema" in unseen)


async def test_a_publishers_login_is_told_that_it_may_not_look(database: str) -> None:
    with role(database, groups=("spectral_publisher",)) as own:
        found = await examine(own)
    finding = by_check(found)["login"]
    assert "is a member of spectral_publisher only" in finding.what
    assert "grant spectral_operator to" in finding.fix
    assert "delivery" in {each.part for each in found.unseen}


async def test_a_workers_login_is_told_of_delivery_and_of_what_it_may_not_look_at(database: str) -> None:
    with role(database, groups=("spectral_worker",)) as own:
        found = await examine(own)
    unseen = {each.part: each.fix for each in found.unseen}
    assert by_check(found)["nobody"].what == "Generation 1 is live and has no worker"
    assert "delivery" not in unseen
    assert "grant spectral_operator to" in unseen["latency"]


async def test_a_database_that_is_down_is_an_error_not_a_finding() -> None:
    with pytest.raises(DatabaseUnavailableError):
        await examine("postgresql://nobody@127.0.0.1:1/nothing")


async def test_a_direct_address_that_leads_nowhere_is_an_error_too(database: str) -> None:
    with pytest.raises(DatabaseUnavailableError, match=r"127\.0\.0\.1:1"):
        await examine(database, "postgresql://nobody@127.0.0.1:1/nothing")
