"""Doubt that lasts: another answer is lost, others have had the row meanwhile, nobody can say, or the worker ends.

What is told of a run is what became of it, as far as anybody can know; and delivery goes on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import psycopg
import pytest
from psycopg.adapt import AdaptersMap
from psycopg.types.json import JsonbDumper

from spectral.core.events import Consumer, RetryPolicy, SubstrateLostError, TerminalHandlerError, Transaction
from spectral.core.events.infrastructure.postgres.lane import PostgresLane
from spectral.core.events.infrastructure.postgres.settlements import PostgresSettlements
from spectral.core.events.outcome import Released, Retry
from spectral.core.events.ports import Conclusion
from spectral.core.events.probe import Finished, LeaseWasLost, LeftInDoubt, TimedActivity
from tests.integration.delivery.platform_worker import (
    AT_ONCE,
    COMPLETED,
    STARTED,
    Bench,
    Scan,
    shortened,
    soon,
    until,
)
from tests.integration.delivery.test_in_doubt import Line, once, told
from tests.integration.delivery.trusted import project_scans

AWAY = SubstrateLostError("the line went dead")


@pytest.fixture
def line() -> Line:
    """One that loses one answer."""
    return Line()


class Undone:
    """Counts the runs that are told to be undone, by the class of their error."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.errors: list[str | None] = []

        def undo(_: TimedActivity, error: BaseException | None = None) -> None:
            self.errors.append(None if error is None else type(error).__name__)

        monkeypatch.setattr(TimedActivity, "undo", undo)


@pytest.fixture
def undone(monkeypatch: pytest.MonkeyPatch) -> Undone:
    """From now on."""
    return Undone(monkeypatch)


def unanswered(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Commits are neither sent nor answered; set when the first of them waits."""
    waits = asyncio.Event()

    async def commit(_: PostgresLane, __: Sequence[Conclusion]) -> set[UUID]:
        waits.set()
        await asyncio.Event().wait()  # until it is cancelled
        raise AssertionError

    monkeypatch.setattr(PostgresLane, "commit", commit)
    return waits


async def test_a_release_that_stands_at_the_second_try_says_nothing_of_the_commit_before(
    bench: Bench, platform: Consumer, undone: Undone, monkeypatch: pytest.MonkeyPatch
) -> None:
    project_scans(platform)
    waits = unanswered(monkeypatch)
    settle = PostgresSettlements.settle
    tries = 0

    async def away_at_first(self: PostgresSettlements, conclusions: Sequence[Conclusion]) -> set[UUID]:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise AWAY
        return await settle(self, conclusions)

    monkeypatch.setattr(PostgresSettlements, "settle", away_at_first)
    (event_id,) = await bench.publish(0)
    async with bench.running(platform, lanes=1, times=shortened(stop=0.2)):
        await soon(waits.wait())
    row = await bench.row(event_id)
    assert (row["status"], row["attempts"]) == ("pending", 0)
    assert await bench.effects() == []
    assert told(bench) == once("Released")
    assert undone.errors == [None]


async def test_a_row_that_is_given_back_because_its_commit_is_still_under_way_was_not_handled(
    bench: Bench, platform: Consumer, undone: Undone, monkeypatch: pytest.MonkeyPatch
) -> None:
    project_scans(platform)
    commit = PostgresLane.commit
    sent: list[list[type]] = []
    beside: list[psycopg.AsyncConnection[object]] = []

    async def commit_or_not(self: PostgresLane, conclusions: Sequence[Conclusion]) -> set[UUID]:
        sent.append([type(each.outcome) for each in conclusions])
        if len(sent) == 1:  # its server process never hears of it, and keeps the row
            connection = self._session._connection
            assert connection is not None
            beside.append(connection)
            self._session._connection = None
            raise AWAY
        await beside[0].close()
        await bench.execute("select core.brake_pull('platform', 'ada', 'so that nobody has it again')")
        await commit(self, conclusions)
        raise AWAY

    monkeypatch.setattr(PostgresLane, "commit", commit_or_not)
    await bench.publish(0)
    async with bench.running(platform, lanes=1):
        await until(lambda: bench.notes.of(Finished))
    assert sent[1] == [Released]
    assert await bench.effects() == []
    assert told(bench) == once("Released")
    assert undone.errors == [None]


async def test_a_failure_that_stood_is_told_although_somebody_else_has_delivered_the_row_since(
    bench: Bench, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = Consumer("platform", retry=AT_ONCE)

    @platform.on(COMPLETED)
    async def project(_: Scan, __: Transaction) -> None:
        raise RuntimeError("not yet")

    (event_id,) = await bench.publish(0)
    commit = PostgresLane.commit

    async def answered_late(self: PostgresLane, conclusions: Sequence[Conclusion]) -> set[UUID]:
        assert not line.lost
        await bench.execute("select core.brake_pull('platform', 'ada', 'so that this worker has it no more')")
        await commit(self, conclusions)
        line.lost += 1
        async with bench.connection.transaction():
            await bench.execute("set local session_replication_role = replica")  # the rules of claims aside
            await bench.execute(
                "update core.outbox set status = 'delivered', attempts = 2, claimed_by = 'another',"
                " delivered_at = clock_timestamp() where id = %s",
                event_id,
            )
        raise AWAY

    monkeypatch.setattr(PostgresLane, "commit", answered_late)
    async with bench.running(platform, lanes=1):
        await until(lambda: bench.notes.of(Finished))
    assert told(bench) == once("failed", "Retry")


async def test_a_release_that_stood_is_told_although_somebody_else_has_the_row_by_now(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = Consumer("platform")
    began, release = asyncio.Event(), asyncio.Event()

    @platform.on(STARTED)
    async def mail(_: Scan) -> None:
        began.set()
        await release.wait()

    settle = PostgresSettlements.settle

    async def answered_late(self: PostgresSettlements, conclusions: Sequence[Conclusion]) -> set[UUID]:
        answer = await settle(self, conclusions)
        if not answer and isinstance(conclusions[0].outcome, Released) and not release.is_set():
            release.set()
            await until(lambda: bench.all_are("delivered"))  # by the other worker
            raise AWAY
        return answer

    monkeypatch.setattr(PostgresSettlements, "settle", answered_late)
    await bench.publish(0, event_type=STARTED)
    async with bench.running(platform, name="one", times=shortened(stop=0.2)):
        await soon(began.wait())
        other = asyncio.create_task(deliver(bench, platform))
    await other
    assert told(bench) == once("Released", "ran", "Handled")


async def test_a_retry_that_was_never_sent_is_not_told_because_somebody_else_failed_in_the_same_words(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = Consumer("platform", retry=AT_ONCE)

    @platform.on(COMPLETED)
    async def project(_: Scan, __: Transaction) -> None:
        raise RuntimeError("not yet")

    (event_id,) = await bench.publish(0)

    async def taken_over(self: PostgresLane, conclusions: Sequence[Conclusion]) -> set[UUID]:
        (conclusion,) = conclusions
        assert isinstance(conclusion.outcome, Retry)
        await self.drop()
        await bench.execute(
            "update core.outbox set status = 'pending', claim_token = null, claimed_by = null, attempts = 2,"
            " last_error = %s, next_attempt_at = clock_timestamp() + interval '1 day' where id = %s",
            conclusion.outcome.error,
            event_id,
        )
        raise AWAY

    monkeypatch.setattr(PostgresLane, "commit", taken_over)
    async with bench.running(platform, lanes=1):
        await until(lambda: bench.notes.of(LeaseWasLost))
    assert told(bench) == once("lost")


async def test_what_was_answered_is_told_although_a_row_beside_it_is_in_doubt(
    bench: Bench, platform: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = asyncio.Barrier(3)

    @platform.on(STARTED)
    async def mail(_: Scan) -> None:
        await began.wait()  # so that both are settled together

    settle, asked = PostgresSettlements.settle, asyncio.Event()
    event_id, _ = await bench.publish(0, 1, event_type=STARTED)
    tries = 0

    async def away_at_first(self: PostgresSettlements, conclusions: Sequence[Conclusion]) -> set[UUID]:
        nonlocal tries
        tries += 1
        assert len(conclusions) == 2
        if tries == 1:
            await bench.take_away(event_id)
            raise AWAY
        return await settle(self, conclusions)

    async def unanswered(_: PostgresSettlements, __: Sequence[Conclusion]) -> dict[UUID, Conclusion]:
        asked.set()
        raise AWAY

    monkeypatch.setattr(PostgresSettlements, "settle", away_at_first)
    monkeypatch.setattr(PostgresSettlements, "stood", unanswered)
    async with bench.running(platform, times=shortened(stop=0.2)):
        await soon(began.wait())
        await soon(asked.wait())
        assert Counter(told(bench)) == Counter({(1, "Handled"): 1, **{(each, "ran"): 1 for each in (0, 1)}})
    assert [note.delivery.event_id for note in bench.notes.of(LeftInDoubt)] == [event_id]


async def test_a_settlement_that_the_end_of_the_worker_cuts_off_is_left_in_doubt(
    bench: Bench, platform: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    @platform.on(STARTED)
    async def mail(_: Scan) -> None: ...

    settle, sent = PostgresSettlements.settle, asyncio.Event()

    async def unanswered(self: PostgresSettlements, conclusions: Sequence[Conclusion]) -> set[UUID]:
        await settle(self, conclusions)
        sent.set()
        await asyncio.Event().wait()  # until it is cancelled
        raise AssertionError

    monkeypatch.setattr(PostgresSettlements, "settle", unanswered)
    (event_id,) = await bench.publish(0, event_type=STARTED)
    async with bench.running(platform, times=shortened(stop=0.2)):
        await soon(sent.wait())
    assert await bench.all_are("delivered")
    assert told(bench) == once("ran")
    assert [note.delivery.event_id for note in bench.notes.of(LeftInDoubt)] == [event_id]


@pytest.mark.parametrize("whose", ["the connection's", "the project's"])
async def test_what_a_project_teaches_the_driver_about_lists_is_none_of_our_business(
    bench: Bench, platform: Consumer, line: Line, whose: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever keeps lists as JSON may tell the driver so; we send lists of ids."""
    taught = AdaptersMap(psycopg.adapters)
    monkeypatch.setattr(psycopg.postgres, "adapters", taught)

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        (tx.connection.adapters if whose == "the connection's" else taught).register_dumper(list, JsonbDumper)
        await tx.execute("select %s::jsonb", [[scan.number]])
        if scan.number == 0:
            raise TerminalHandlerError("no")

    commit = PostgresLane.commit

    async def answered_late(self: PostgresLane, conclusions: Sequence[Conclusion]) -> set[UUID]:
        answer = await commit(self, conclusions)
        if not line.lost:
            line.lost += 1
            raise AWAY
        return answer

    monkeypatch.setattr(PostgresLane, "commit", answered_late)
    await bench.publish(0)
    async with bench.running(platform, lanes=1, name="one"):
        await until(lambda: bench.notes.of(Finished))
        await bench.publish(1)
        await until(lambda: len(bench.notes.of(Finished)) == 2)
    async with bench.running(platform, lanes=1, name="another"):  # which begins with what it was taught
        await bench.publish(2)
        await until(lambda: len(bench.notes.of(Finished)) == 3)
    failed = Counter({(0, "failed"): 1, (0, "DeadLetter"): 1})
    assert told(bench) == failed + Counter({(each, what): 1 for each in (1, 2) for what in ("ran", "Handled")})


async def deliver(bench: Bench, platform: Consumer) -> None:
    """By another worker."""
    async with bench.running(platform, name="another", times=shortened(poll=0.05)):
        await until(lambda: bench.all_are("delivered"))


async def test_a_run_in_doubt_is_undone_when_the_worker_ends_without_an_answer(
    bench: Bench, platform: Consumer, undone: Undone, monkeypatch: pytest.MonkeyPatch
) -> None:
    project_scans(platform)
    waits = unanswered(monkeypatch)

    async def away(_: PostgresSettlements, __: Sequence[Conclusion]) -> set[UUID]:
        raise AWAY

    monkeypatch.setattr(PostgresSettlements, "settle", away)
    (event_id,) = await bench.publish(0)
    async with bench.running(platform, lanes=1, times=shortened(stop=0.2)):
        await soon(waits.wait())
    assert told(bench) == Counter()
    assert undone.errors == [None]
    assert [note.delivery.event_id for note in bench.notes.of(LeftInDoubt)] == [event_id], "nobody else will tell"


@pytest.mark.parametrize("event_type", [COMPLETED, STARTED])
async def test_a_run_that_the_end_of_its_worker_cuts_short_has_not_failed(
    bench: Bench, undone: Undone, event_type: str
) -> None:
    platform = Consumer("platform")
    began = asyncio.Event()

    @platform.on(COMPLETED)
    async def project(_: Scan, __: Transaction) -> None:
        began.set()
        await asyncio.Event().wait()

    @platform.on(STARTED)
    async def mail(_: Scan) -> None:
        began.set()
        await asyncio.Event().wait()

    (event_id,) = await bench.publish(0, event_type=event_type)
    async with bench.running(platform, lanes=1, times=shortened(stop=0.2)):
        await soon(began.wait())
    assert (await bench.row(event_id))["attempts"] == 0
    assert told(bench) == once("Released")
    assert undone.errors == ["CancelledError"]


@pytest.mark.parametrize("event_type", [COMPLETED, STARTED])
async def test_a_database_that_does_not_say_what_became_of_rows_ends_no_worker(
    bench: Bench, line: Line, event_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = Consumer("platform", retry=RetryPolicy(max_retries=0, base=timedelta(0)))
    project_scans(platform)

    @platform.on(STARTED)
    async def mail(_: Scan) -> None: ...

    monkeypatch.setattr(PostgresLane, "commit", line.losing(PostgresLane.commit))
    monkeypatch.setattr(PostgresSettlements, "settle", line.losing(PostgresSettlements.settle))
    await bench.execute(
        "create or replace function core.outbox_became(p_ids uuid[]) returns table ("
        " id uuid, status text, attempts integer, claimed_by text, last_error text) language plpgsql"
        " as $$ begin raise exception 'cannot read block 7' using errcode = 'XX001'; end $$"
    )
    async with bench.running(platform, lanes=1) as worker:
        await bench.publish(0, event_type=event_type)
        await until(lambda: line.lost and worker.health().held == 0)
        await bench.publish(1, event_type=event_type)
        await until(lambda: bench.all_are("delivered"))
        await until(lambda: worker.health().held == 0)
    assert told(bench)[0, "lost"] == 1
    assert told(bench)[1, "Handled"] == 1
