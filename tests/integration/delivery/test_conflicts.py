"""A transaction that cannot stand beside others' is run again: what others did is not charged to the row."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from spectral.core.events import Consumer, Transaction
from spectral.core.events.delivery.desk import CONFLICTS
from spectral.core.events.probe import Conflicted, Finished, LeaseWasLost, Reaped
from tests.integration.delivery.platform_worker import (
    AT_ONCE,
    COMPLETED,
    NEVER_AGAIN,
    Bench,
    Scan,
    shortened,
    until,
    write_effect,
)

REFUSED_AT_FIRST = """
create sequence public.tries;
create function public.refuse() returns trigger language plpgsql as $$
begin
    -- a sequence does not go back when a transaction does
    if nextval('public.tries') <= {times} then
        raise exception 'others were quicker' using errcode = '{sqlstate}';
    end if;
    return null;
end $$;
create constraint trigger refuse after insert on public.effects
deferrable initially {when} for each row execute function public.refuse();
"""


def projecting(runs: Counter[int] | None = None) -> Consumer:
    platform = Consumer("platform", retry=NEVER_AGAIN)

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        if runs is not None:
            runs[scan.number] += 1
        await write_effect(tx, "project", scan.number)

    return platform


async def refuse(bench: Bench, sqlstate: str, times: int, *, at_commit: bool) -> None:
    when = "deferred" if at_commit else "immediate"
    await bench.execute(REFUSED_AT_FIRST.format(times=times, sqlstate=sqlstate, when=when))


@pytest.mark.parametrize("sqlstate", ["40001", "40P01"])
@pytest.mark.parametrize("at_commit", [True, False])
async def test_it_is_run_again_at_once_and_not_charged(bench: Bench, sqlstate: str, at_commit: bool) -> None:  # noqa: FBT001  a case
    await refuse(bench, sqlstate, CONFLICTS, at_commit=at_commit)
    runs: Counter[int] = Counter()
    (event_id,) = await bench.publish(1)
    await bench.drain(projecting(runs))
    row = await bench.row(event_id)
    assert (row["status"], row["attempts"], row["last_error"]) == ("delivered", 1, None)
    assert runs[1] == 1 + CONFLICTS
    assert [note.times for note in bench.notes.of(Conflicted)] == list(range(1, 1 + CONFLICTS))
    assert await bench.effects() == [("project", 1)]
    assert await bench.keys() == ["platform.project"]


@pytest.mark.parametrize("at_commit", [True, False])
async def test_one_that_never_stands_is_its_own_failure(bench: Bench, at_commit: bool) -> None:  # noqa: FBT001  a case
    await refuse(bench, "40001", 1_000, at_commit=at_commit)
    runs: Counter[int] = Counter()
    (event_id,) = await bench.publish(1)
    await bench.drain(projecting(runs))
    row = await bench.row(event_id)
    assert (row["status"], row["attempts"]) == ("failed", 1)
    assert row["last_error"] == "SerializationFailure: platform.project: others were quicker (40001)"
    assert runs[1] == 1 + CONFLICTS
    assert await bench.effects() == []


@pytest.mark.parametrize("at_commit", [True, False])
async def test_one_that_waited_for_a_lock_in_vain_backs_off_like_any_other(
    bench: Bench,
    at_commit: bool,  # noqa: FBT001  a case
) -> None:
    """To come back at once would find the same lock held: that is what a pause between attempts is for."""
    await refuse(bench, "55P03", 1, at_commit=at_commit)
    (event_id,) = await bench.publish(1)
    await bench.drain(projecting())
    row = await bench.row(event_id)
    assert (row["status"], row["attempts"]) == ("failed", 1)


@pytest.mark.parametrize("at_commit", [True, False])
async def test_a_policy_that_rules_it_out_is_followed(bench: Bench, at_commit: bool) -> None:  # noqa: FBT001  a case
    await refuse(bench, "40001", 1, at_commit=at_commit)
    platform = Consumer("platform", retry=replace(AT_ONCE, terminal_errors=(psycopg.errors.SerializationFailure,)))
    runs: Counter[int] = Counter()

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        runs[scan.number] += 1
        await write_effect(tx, "project", scan.number)

    (event_id,) = await bench.publish(1)
    await bench.drain(platform)
    row = await bench.row(event_id)
    assert (row["status"], row["attempts"], runs[1]) == ("failed", 1, 1)


@pytest.mark.parametrize("at_commit", [True, False])
async def test_a_plain_handler_beside_it_runs_once_for_each_attempt(bench: Bench, at_commit: bool) -> None:  # noqa: FBT001  a case
    """What it does outside is not undone with the transaction, whether it did well or not."""
    await refuse(bench, "40001", 3, at_commit=at_commit)
    platform = Consumer("platform", retry=NEVER_AGAIN)
    runs: Counter[str] = Counter()

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        runs["mail"] += scan.number

    @platform.on(COMPLETED)
    async def call(scan: Scan) -> None:
        runs["call"] += scan.number
        raise RuntimeError("nobody answers")

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        runs["project"] += scan.number
        await write_effect(tx, "project", scan.number)

    (event_id,) = await bench.publish(1)
    await bench.drain(platform)
    assert runs == {"mail": 1, "call": 1, "project": 4}
    row = await bench.row(event_id)
    assert (row["status"], row["attempts"]) == ("failed", 1)
    assert row["last_error"] == "RuntimeError: platform.call: nobody answers"
    assert await bench.effects() == [("project", 1)]
    assert await bench.keys() == ["platform.mail", "platform.project"]
    (finished,) = bench.notes.of(Finished)
    assert sorted(finished.handlers) == ["platform.call", "platform.mail", "platform.project"]


async def test_one_that_takes_long_is_not_run_again_when_its_lease_might_run_out(bench: Bench) -> None:
    """Its row is locked while it runs, so nobody renews its lease; in between others would take it for abandoned."""
    await refuse(bench, "40001", 1_000, at_commit=True)
    platform = Consumer("platform", retry=NEVER_AGAIN)
    runs: Counter[int] = Counter()

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        runs[scan.number] += 1
        await tx.execute("select pg_sleep(0.5)")
        await write_effect(tx, "project", scan.number)

    (event_id,) = await bench.publish(1)
    await bench.drain(platform, times=shortened(lease=3.0, grace=0.5, patience=0.1, reap=0.05))
    row = await bench.row(event_id)
    assert (row["status"], row["attempts"]) == ("failed", 1)
    assert 1 < runs[1] < 1 + CONFLICTS
    assert bench.notes.of(LeaseWasLost) == []
    assert bench.notes.of(Reaped) == []


async def test_neighbours_of_one_that_conflicts_keep_what_they_wrote(bench: Bench) -> None:
    await refuse(bench, "40001", 2, at_commit=True)
    ids = await bench.publish(*range(10))
    await bench.drain(projecting(), lanes=1)
    rows = [await bench.row(each) for each in ids]
    assert {(row["status"], row["attempts"]) for row in rows} == {("delivered", 1)}
    assert await bench.effects() == [("project", number) for number in range(10)]


async def test_serializable_handlers_that_contend_are_all_delivered(bench: Bench) -> None:
    """Each adds to a total that all of them read: one after the other, or the total is wrong."""
    await bench.execute("create table public.totals (number integer primary key, total integer not null)")
    await bench.execute("insert into public.totals values (0, 0)")
    await bench.execute(
        f"alter database {conninfo_to_dict(bench.dsn)['dbname']} set default_transaction_isolation = 'serializable'"
    )
    platform = Consumer("platform", retry=AT_ONCE)
    runs: Counter[int] = Counter()

    @platform.on(COMPLETED)
    async def add(scan: Scan, tx: Transaction) -> None:
        runs[scan.number] += 1
        (highest,) = await (await tx.execute("select max(total) from public.totals")).fetchone() or (None,)
        await tx.execute("insert into public.totals values (%s, %s)", [scan.number, highest + 1])

    await bench.publish(*range(1, 61))
    async with bench.running(platform, lanes=3, batch=1):
        await until(lambda: bench.all_are("delivered"))
    assert await bench.value("select array_agg(total order by total) from public.totals") == list(range(61))
    assert runs.total() > 60, "nobody was in anybody's way"
    # the unluckiest may be charged once or twice, of the dozens of conflicts that there were
    assert await bench.value("select sum(attempts - 1) from core.outbox") < (runs.total() - 60) / 4
