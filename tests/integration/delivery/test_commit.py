"""What a handler leaves to be checked at the commit, and what becomes of the others that share it."""

from __future__ import annotations

from collections import Counter

import pytest

from spectral.core.events import Consumer, Transaction
from tests.integration.delivery.platform_worker import AT_ONCE, COMPLETED, NEVER_AGAIN, Bench, Scan, until, write_effect


@pytest.fixture
async def deferred(bench: Bench) -> None:
    """A constraint on effects that is checked at the commit: no number twice."""
    await bench.execute("alter table public.effects add constraint once unique (number) deferrable initially deferred")


async def trip_at_commit(bench: Bench, body: str) -> None:
    """Have a deferred trigger do this when the effect of number 2 is committed."""
    await bench.execute(
        "create function public.trip() returns trigger language plpgsql as"
        f" $$ begin if new.number = 2 then {body} end if; return null; end $$"
    )
    await bench.execute(
        "create constraint trigger trip after insert on public.effects deferrable initially deferred"
        " for each row execute function public.trip()"
    )


def projecting(runs: Counter[int] | None = None) -> Consumer:
    """A consumer whose handler writes its number."""
    consumer = Consumer("platform", retry=AT_ONCE)

    @consumer.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        if runs is not None:
            runs[scan.number] += 1
        await write_effect(tx, "project", scan.number)

    return consumer


@pytest.mark.usefixtures("deferred")
async def test_a_constraint_that_is_broken_at_the_commit_fails_the_guilty_row_alone(bench: Bench) -> None:
    platform = Consumer("platform", retry=AT_ONCE)

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        if scan.number == 2:
            await write_effect(tx, "again", scan.number)

    ids = await bench.publish(1, 2, 3, 4)
    await bench.drain(platform, lanes=1)
    assert await bench.effects() == [("project", 1), ("project", 3), ("project", 4)]
    rows = [await bench.row(each) for each in ids]
    assert [(row["status"], row["attempts"]) for row in rows] == [
        ("delivered", 1),
        ("failed", 1),
        ("delivered", 1),
        ("delivered", 1),
    ]
    assert rows[1]["last_error"] == (
        'UniqueViolation: platform.project: duplicate key value violates unique constraint "once" (23505)'
    )


@pytest.mark.parametrize("sqlstate", ["42501", "42P01", "42883", "3F000", "28000", "3D000", "25006", "XX000"])
async def test_whatever_a_trigger_raises_at_the_commit_is_its_rows_failure_and_not_the_workers(
    bench: Bench, sqlstate: str
) -> None:
    await trip_at_commit(bench, f"raise exception 'tripped' using errcode = '{sqlstate}';")
    ids = await bench.publish(1, 2, 3)
    async with bench.running(projecting(), lanes=1):
        await until(lambda: bench.value("select bool_and(status in ('delivered', 'failed')) from core.outbox"))
    assert [await bench.status(each) for each in ids] == ["delivered", "failed", "delivered"]
    assert "tripped" in (await bench.row(ids[1]))["last_error"]
    assert await bench.effects() == [("project", 1), ("project", 3)]


@pytest.mark.parametrize("sqlstate", ["57014", "53200", "55P03", "40001", "40P01", "08006"])
async def test_contention_and_want_at_the_commit_pass(bench: Bench, sqlstate: str) -> None:
    await bench.execute("create sequence public.tries")
    await trip_at_commit(
        bench,
        f"if nextval('public.tries') < 3 then raise exception 'tripped' using errcode = '{sqlstate}'; end if;",
    )
    await bench.publish(1, 2, 3)
    async with bench.running(projecting(), lanes=1):
        await until(lambda: bench.all_are("delivered"))
    assert await bench.effects() == [("project", 1), ("project", 2), ("project", 3)]


@pytest.mark.parametrize("sqlstate", ["57014", "53200", "55P03", "40001", "08006"])
async def test_what_never_passes_at_the_commit_ends_in_the_dlq_and_holds_up_nobody(bench: Bench, sqlstate: str) -> None:
    await trip_at_commit(bench, f"raise exception 'tripped' using errcode = '{sqlstate}';")
    ids = await bench.publish(1, 2, 3)
    async with bench.running(projecting(), lanes=1):
        await until(lambda: bench.value("select bool_and(status in ('delivered', 'failed')) from core.outbox"))
    assert [await bench.status(each) for each in ids] == ["delivered", "failed", "delivered"]


async def test_an_event_whose_commit_kills_its_connection_ends_in_the_dlq_and_holds_up_nobody(bench: Bench) -> None:
    await trip_at_commit(bench, "perform pg_terminate_backend(pg_backend_pid());")
    ids = await bench.publish(1, 2, 3)
    async with bench.running(projecting(), lanes=1):
        await until(lambda: bench.value("select bool_and(status in ('delivered', 'failed')) from core.outbox"))
    assert [await bench.status(each) for each in ids] == ["delivered", "failed", "delivered"]
    assert await bench.effects() == [("project", 1), ("project", 3)]


@pytest.mark.usefixtures("deferred")
async def test_a_refused_commit_names_the_transactional_handler_whatever_was_registered_last(bench: Bench) -> None:
    platform = Consumer("platform", retry=NEVER_AGAIN)
    runs: Counter[str] = Counter()

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        await write_effect(tx, "again", scan.number)

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        runs["mail"] += scan.number

    (event_id,) = await bench.publish(1)
    await bench.drain(platform)
    row = await bench.row(event_id)
    assert (row["status"], row["last_error"].split(": ")[:2]) == ("failed", ["UniqueViolation", "platform.project"])
    assert runs == {"mail": 1}
    assert await bench.keys() == ["platform.mail"], "what the plain handler did is not undone by the refusal"


async def test_a_lane_that_loses_its_connection_between_events_goes_on_without_a_charge(bench: Bench) -> None:
    async with bench.running(projecting(), lanes=1):
        await bench.publish(1)
        await until(lambda: bench.all_are("delivered"))
        await bench.terminate("lane")
        (event_id,) = await bench.publish(2)
        await until(lambda: bench.all_are("delivered"))
    assert (await bench.row(event_id))["attempts"] == 1
    assert await bench.effects() == [("project", 1), ("project", 2)]


async def test_a_connection_that_is_lost_while_its_handler_runs_is_not_the_handlers_failure(bench: Bench) -> None:
    """The server was restarted, say: the row must not go to the DLQ for it, however impatient its policy is."""
    platform = Consumer("platform", retry=NEVER_AGAIN)
    runs: Counter[int] = Counter()

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        runs[scan.number] += 1
        await write_effect(tx, "project", scan.number)
        if runs[scan.number] == 1:
            await bench.terminate("lane")
        await write_effect(tx, "project", scan.number)

    await bench.publish(1)
    async with bench.running(platform):
        await until(lambda: bench.value("select status in ('delivered', 'failed') from core.outbox"))
    assert await bench.statuses() == {"delivered": 1}
    assert await bench.effects() == [("project", 1), ("project", 1)]
