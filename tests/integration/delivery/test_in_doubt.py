"""An answer that is lost: the server has done it, the worker does not know. Nothing is lost, nothing done twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

import psycopg
import pytest

from spectral.core.events import Consumer, SubstrateLostError, TerminalHandlerError, Transaction
from spectral.core.events.infrastructure.postgres.lane import PostgresLane
from spectral.core.events.infrastructure.postgres.settlements import PostgresSettlements
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

P = ParamSpec("P")
T = TypeVar("T")


def losing_its_answer(call: Callable[P, Awaitable[T]], times: int = 1) -> Callable[P, Awaitable[T]]:
    """The same, but the first answers are lost on the way."""
    lost = 0

    async def called(*given: P.args, **options: P.kwargs) -> T:
        nonlocal lost
        answer = await call(*given, **options)
        if lost < times and answer:
            lost += 1
            raise SubstrateLostError("the line went dead")
        return answer

    return called


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
    bench: Bench, both: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PostgresLane, "commit", losing_its_answer(PostgresLane.commit))
    await bench.publish(*range(20))
    async with bench.running(both, lanes=1) as worker:
        await until(lambda: bench.all_are("delivered"))
        await until(lambda: worker.health().held == 0)
    assert await bench.effects() == [("project", number) for number in range(20)]
    assert await bench.value("select max(attempts) from core.outbox") == 1


async def test_a_settlement_whose_answer_is_lost_is_not_done_again(
    bench: Bench, both: Consumer, runs: Counter[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = bench.worker(both)
    monkeypatch.setattr(PostgresSettlements, "settle", losing_its_answer(PostgresSettlements.settle))
    await bench.publish(*range(20), event_type=STARTED)
    async with worker:
        await until(lambda: bench.all_are("delivered"))
        await until(lambda: worker.health().held == 0)
    assert runs == Counter(range(20))


async def test_a_failure_whose_answer_is_lost_is_recorded_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    platform = Consumer("platform", retry=NEVER_AGAIN)

    @platform.on(COMPLETED)
    async def mail(scan: Scan) -> None:
        raise TerminalHandlerError(str(scan.number))

    worker = bench.worker(platform)
    monkeypatch.setattr(PostgresSettlements, "settle", losing_its_answer(PostgresSettlements.settle))
    (event_id,) = await bench.publish(1)
    async with worker:
        await until(lambda: bench.all_are("failed"))
        await until(lambda: worker.health().held == 0)
    assert (await bench.row(event_id))["attempts"] == 1


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
