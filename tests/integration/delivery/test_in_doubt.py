"""An answer that is lost: the server has done it, the worker does not know.

Nothing is lost, nothing done twice, and what came of it is told once, as if the answer had come.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import ParamSpec, TypeVar
from uuid import UUID

import psycopg
import pytest

from spectral.core.events import Consumer, RetryPolicy, SubstrateLostError, TerminalHandlerError, Transaction
from spectral.core.events.infrastructure.postgres.lane import PostgresLane
from spectral.core.events.infrastructure.postgres.settlements import PostgresSettlements
from spectral.core.events.ports import Conclusion
from spectral.core.events.probe import Finished, HandlerRan, LeaseWasLost
from tests.integration.delivery.platform_worker import (
    COMPLETED,
    NEVER_AGAIN,
    STARTED,
    Bench,
    Scan,
    shortened,
    soon,
    until,
    write_effect,
)
from tests.integration.delivery.trusted import ALL_ENDED, WARM, project_scans, trusting

P = ParamSpec("P")
T = TypeVar("T")


class Line:
    """What is sent arrives; the first answers to it are lost on the way."""

    def __init__(self, times: int = 1) -> None:
        self.lost = 0
        self._times = times

    def losing(self, call: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        async def called(*given: P.args, **options: P.kwargs) -> T:
            answer = await call(*given, **options)
            if self.lost < self._times:
                self.lost += 1
                raise SubstrateLostError("the line went dead")
            return answer

        return called


@pytest.fixture
def line() -> Line:
    """One that loses one answer."""
    return Line()


def told(bench: Bench) -> Counter[tuple[int, str]]:
    """By number: what was told of runs, of rows that were settled, and of leases that were lost."""
    runs = [(note.act.delivery, "failed" if note.failure else "ran") for note in bench.notes.of(HandlerRan)]
    settled = [(note.delivery, type(note.outcome).__name__) for note in bench.notes.of(Finished)]
    lost = [(note.delivery, "lost") for note in bench.notes.of(LeaseWasLost)]
    return Counter((json.loads(delivery.payload)["number"], what) for delivery, what in (*runs, *settled, *lost))


def once(*whats: str, numbers: int = 1) -> Counter[tuple[int, str]]:
    """Each of these told once, of each number."""
    return Counter((number, what) for number in range(numbers) for what in whats)


@pytest.fixture
def runs() -> Counter[int]:
    """How often plain handlers ran, by number."""
    return Counter()


@pytest.fixture
def both(platform: Consumer, runs: Counter[int]) -> Consumer:
    """The platform, with a handler of each kind."""

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)

    @platform.on(STARTED)
    async def mail(scan: Scan) -> None:
        runs[scan.number] += 1

    return platform


async def test_a_commit_whose_answer_is_lost_is_not_done_again(
    bench: Bench, both: Consumer, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresLane, "commit", line.losing(PostgresLane.commit))
    await bench.publish(*range(20))
    async with bench.running(both, lanes=1) as worker:
        await until(lambda: bench.all_are("delivered"))
        await until(lambda: worker.health().held == 0)
    assert line.lost
    assert await bench.effects() == [("project", number) for number in range(20)]
    assert await bench.value("select max(attempts) from core.outbox") == 1
    assert told(bench) == once("ran", "Handled", numbers=20)


@pytest.mark.usefixtures("groups")
async def test_a_commit_of_rows_that_ran_together_whose_answer_is_lost_is_not_done_again(
    bench: Bench, platform: Consumer, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = project_scans(platform)
    async with trusting(bench, platform):
        monkeypatch.setattr(PostgresLane, "commit_together", line.losing(PostgresLane.commit_together))
        await bench.publish(*range(20))
        await until(lambda: bench.value(ALL_ENDED))
        await until(lambda: len(bench.notes.of(Finished)) == 21)
    assert line.lost
    assert max(runs.values()) == 1
    assert told(bench) == once("ran", "Handled", numbers=20) + Counter({(WARM, "ran"): 1, (WARM, "Handled"): 1})


async def test_what_is_told_of_a_handler_that_failed_is_what_stands_although_the_answer_was_lost(
    bench: Bench, platform: Consumer, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: Counter[int] = Counter()

    @platform.on(COMPLETED, retry=RetryPolicy(max_retries=1, base=timedelta(hours=1), cap=timedelta(hours=1)))
    async def project(scan: Scan, tx: Transaction) -> None:
        runs[scan.number] += 1
        await write_effect(tx, "project", scan.number)
        raise TerminalHandlerError("no") if scan.number else RuntimeError("not yet")

    monkeypatch.setattr(PostgresLane, "commit", line.losing(PostgresLane.commit))
    await bench.publish(0, 1)
    async with bench.running(platform, lanes=1) as worker:
        await until(lambda: bench.value("select count(*) = 2 from core.outbox where last_error is not null"))
        await until(lambda: worker.health().held == 0)
    assert line.lost
    assert max(runs.values()) == 1
    assert told(bench) == Counter({(0, "failed"): 1, (0, "Retry"): 1, (1, "failed"): 1, (1, "DeadLetter"): 1})


async def test_a_commit_that_did_not_stand_is_told_when_it_does(
    bench: Bench, platform: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = project_scans(platform)
    commit = PostgresLane.commit
    lost: list[bool] = []

    async def never_sent(self: PostgresLane, conclusions: Sequence[Conclusion]) -> set[UUID]:
        if not lost:
            lost.append(True)
            raise SubstrateLostError("the line went dead")
        return await commit(self, conclusions)

    monkeypatch.setattr(PostgresLane, "commit", never_sent)
    await bench.publish(0)
    async with bench.running(platform, lanes=1) as worker:
        await until(lambda: bench.all_are("delivered"))
        await until(lambda: worker.health().held == 0)
    assert runs == Counter({0: 2})
    assert told(bench) == once("ran", "Handled")


async def test_a_row_in_doubt_that_somebody_else_has_by_now_is_lost(
    bench: Bench, platform: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    project_scans(platform)

    (event_id,) = await bench.publish(0)

    async def taken_away(self: PostgresLane, _: Sequence[Conclusion]) -> set[UUID]:
        await self.drop()
        await bench.take_away(event_id)
        raise SubstrateLostError("the line went dead")

    monkeypatch.setattr(PostgresLane, "commit", taken_away)
    async with bench.running(platform, lanes=1):
        await until(lambda: bench.notes.of(LeaseWasLost))
    assert told(bench) == once("lost")


async def test_of_a_commit_that_was_under_way_when_the_worker_was_stopped_is_told_what_came_of_it(
    bench: Bench, platform: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = project_scans(platform)
    commit, sent = PostgresLane.commit, asyncio.Event()

    async def unanswered(self: PostgresLane, conclusions: Sequence[Conclusion]) -> set[UUID]:
        await commit(self, conclusions)
        sent.set()
        await asyncio.Event().wait()  # until it is cancelled
        raise AssertionError

    monkeypatch.setattr(PostgresLane, "commit", unanswered)
    await bench.publish(0)
    async with bench.running(platform, lanes=1, times=shortened(stop=0.2)):
        await soon(sent.wait())
    assert runs == Counter({0: 1})
    assert told(bench) == once("ran", "Handled")


async def test_a_settlement_whose_answer_is_lost_is_not_done_again(
    bench: Bench, both: Consumer, runs: Counter[int], line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = bench.worker(both)
    monkeypatch.setattr(PostgresSettlements, "settle", line.losing(PostgresSettlements.settle))
    await bench.publish(*range(20), event_type=STARTED)
    async with worker:
        await until(lambda: bench.all_are("delivered"))
        await until(lambda: worker.health().held == 0)
    assert line.lost
    assert runs == Counter(range(20))
    assert told(bench) == once("ran", "Handled", numbers=20)


async def test_a_failure_whose_answer_is_lost_is_recorded_once(
    bench: Bench, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = Consumer("platform", retry=NEVER_AGAIN)

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        raise TerminalHandlerError(str(scan.number))

    worker = bench.worker(platform)
    monkeypatch.setattr(PostgresSettlements, "settle", line.losing(PostgresSettlements.settle))
    (event_id,) = await bench.publish(0)
    async with worker:
        await until(lambda: bench.all_are("failed"))
        await until(lambda: worker.health().held == 0)
    assert line.lost
    assert (await bench.row(event_id))["attempts"] == 1
    assert told(bench) == once("failed", "DeadLetter")


@pytest.mark.parametrize("event_type", [COMPLETED, STARTED])
async def test_rows_of_a_claim_whose_answer_is_lost_are_delivered_long_before_their_lease_runs_out(
    bench: Bench, both: Consumer, event_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = bench.worker(both, times=shortened(answer=0.5))
    claims = worker._connections.claims

    def lose(call: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[T]]:
        async def called(*given: P.args, **options: P.kwargs) -> T:
            answer = await call(*given, **options)
            if await bench.value("select count(*) from core.outbox where status = 'in_flight'") and not lost:
                lost.append(True)
                raise SubstrateLostError("the line went dead")
            return answer

        return called

    lost: list[bool] = []
    monkeypatch.setattr(claims, "claim", lose(claims.claim))
    monkeypatch.setattr(claims, "look_ahead_and_claim", lose(claims.look_ahead_and_claim))
    await bench.publish(1, 2, 3, event_type=event_type)
    async with worker:
        await until(lambda: bench.all_are("delivered"))
    assert lost
    assert await bench.value("select max(attempts) from core.outbox") == 1, "nobody is charged for it"


async def test_a_row_that_the_settler_cannot_lock_for_a_while_is_settled_later_and_holds_up_nobody(
    bench: Bench, platform: Consumer
) -> None:
    began, go_on = asyncio.Event(), asyncio.Event()

    @platform.on(STARTED)
    async def mail(scan: Scan) -> None:
        if scan.number == 1:
            began.set()
            await go_on.wait()

    (first,) = await bench.publish(1, event_type=STARTED)
    async with bench.running(platform) as worker, await psycopg.AsyncConnection.connect(bench.dsn) as somebody:
        await soon(began.wait())
        await somebody.execute("select from core.outbox where id = %s for update", [first])
        go_on.set()
        (second,) = await bench.publish(2, event_type=STARTED)
        await until(lambda: bench.value("select status = 'delivered' from core.outbox where id = %s", second))
        assert await bench.status(first) == "in_flight"
        await somebody.rollback()
        await until(lambda: bench.all_are("delivered"))
        await until(lambda: worker.health().held == 0)
    assert (await bench.row(first))["attempts"] == 1
