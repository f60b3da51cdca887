"""What a handler must not do with the transaction it is given: never delivered, nothing kept, nobody else harmed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from spectral.core.events import Consumer, Transaction
from tests.integration.delivery.platform_worker import COMPLETED, NEVER_AGAIN, Bench, Scan, until, write_effect

Misuse = Callable[[Transaction], Awaitable[object]]
SOMEBODY = "do $$ begin create role nobody_at_all; exception when duplicate_object then null; end $$"


async def swallow_a_failed_statement(tx: Transaction) -> None:
    with suppress(psycopg.Error):
        await tx.execute("select 1 / 0")


async def commit(tx: Transaction) -> None:
    await tx.connection.commit()


async def commit_and_swallow_the_refusal(tx: Transaction) -> None:
    with suppress(psycopg.Error):
        await tx.connection.commit()


async def commit_and_write_on(tx: Transaction) -> None:
    with suppress(psycopg.Error):
        await tx.connection.commit()
    await write_effect(tx, "after the commit", 2)


async def commit_by_statement(tx: Transaction) -> None:
    with suppress(psycopg.Error):
        await tx.execute("commit")


async def commit_and_begin(tx: Transaction) -> None:
    with suppress(psycopg.Error):
        await tx.execute("commit")
    await tx.execute("begin")
    await write_effect(tx, "in another transaction", 2)


async def commit_and_chain(tx: Transaction) -> None:
    with suppress(psycopg.Error):
        await tx.execute("commit and chain")


async def prepare_transaction(tx: Transaction) -> None:
    with suppress(psycopg.Error):
        await tx.execute("prepare transaction 'mine'")


async def roll_back(tx: Transaction) -> None:
    await tx.connection.rollback()


async def roll_back_and_write_on(tx: Transaction) -> None:
    await tx.connection.rollback()
    await write_effect(tx, "after the rollback", 2)


async def roll_back_by_statement_and_begin(tx: Transaction) -> None:
    await tx.execute("rollback")
    await tx.execute("begin")
    await write_effect(tx, "in another transaction", 2)


async def close_the_connection(tx: Transaction) -> None:
    await tx.connection.close()


async def close_the_driver_s_handle(tx: Transaction) -> None:
    tx.connection.pgconn.finish()


async def change_the_role(tx: Transaction) -> None:
    await tx.execute("set role spectral_publisher")


async def change_the_role_to_one_that_may_do_nothing(tx: Transaction) -> None:
    await tx.execute("set local role nobody_at_all")


async def change_the_session_s_user(tx: Transaction) -> None:
    await tx.execute("set session authorization nobody_at_all")


async def leave_a_pipeline_open(tx: Transaction) -> None:
    await tx.connection.pipeline().__aenter__()


async def leave_a_pipeline_open_with_a_statement_in_it(tx: Transaction) -> None:
    await tx.connection.pipeline().__aenter__()
    await tx.execute("select 1")


async def leave_a_pipeline_open_and_raise(tx: Transaction) -> None:
    await tx.connection.pipeline().__aenter__()
    raise RuntimeError("out of the pipeline")


async def leave_a_copy_open(tx: Transaction) -> None:
    await tx.connection.cursor().copy("copy public.effects from stdin").__aenter__()


async def leave_a_stream_open(tx: Transaction) -> None:
    rows = tx.connection.cursor().stream("select generate_series(1, 100000)")
    await anext(rows)
    _left_open.append(rows)


async def leave_a_statement_running(tx: Transaction) -> None:
    running = asyncio.ensure_future(tx.execute("select pg_sleep(60)"))
    running.add_done_callback(lambda ended: ended.exception())
    await until(lambda: tx.connection.info.transaction_status is TransactionStatus.ACTIVE)


async def kill_its_own_backend(tx: Transaction) -> None:
    await tx.execute("select pg_terminate_backend(pg_backend_pid())")


async def kill_its_own_backend_and_swallow_the_error(tx: Transaction) -> None:
    with suppress(psycopg.Error):
        await tx.execute("select pg_terminate_backend(pg_backend_pid())")


async def give_up_the_settlement_s_constraint(tx: Transaction) -> None:
    await tx.execute("set constraints all immediate")


_left_open: list[object] = []

MISUSES: list[Misuse] = [
    swallow_a_failed_statement,
    commit,
    commit_and_swallow_the_refusal,
    commit_and_write_on,
    commit_by_statement,
    commit_and_begin,
    commit_and_chain,
    prepare_transaction,
    roll_back,
    roll_back_and_write_on,
    roll_back_by_statement_and_begin,
    close_the_connection,
    close_the_driver_s_handle,
    change_the_role,
    change_the_role_to_one_that_may_do_nothing,
    change_the_session_s_user,
    leave_a_pipeline_open,
    leave_a_pipeline_open_with_a_statement_in_it,
    leave_a_pipeline_open_and_raise,
    leave_a_copy_open,
    leave_a_stream_open,
    leave_a_statement_running,
    kill_its_own_backend,
    kill_its_own_backend_and_swallow_the_error,
    give_up_the_settlement_s_constraint,
]


@pytest.fixture(params=MISUSES, ids=lambda way: way.__name__)
async def misuse(request: pytest.FixtureRequest, bench: Bench) -> Misuse:
    """One way to misuse the transaction."""
    await bench.execute(SOMEBODY)
    chosen: Misuse = request.param
    return chosen


async def test_a_misused_transaction_is_never_delivered_and_harms_nobody(
    bench: Bench, platform: Consumer, misuse: Misuse
) -> None:
    attempts: list[int] = []

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        if scan.number == 2:
            attempts.append(scan.number)
            await misuse(tx)

    ids = await bench.publish(1, 2, 3)
    await bench.drain(platform, lanes=1)
    assert await bench.effects() == [("project", 1), ("project", 3)]
    assert await bench.keys() == ["platform.project"] * 2
    rows = [await bench.row(each) for each in ids]
    assert [row["status"] for row in rows] == ["delivered", "failed", "delivered"]
    assert rows[1]["last_error"].partition(": ")[2].startswith("platform.project: ")
    assert [row["attempts"] for row in rows] == [1, 4, 1], "the guilty row alone is charged"


async def test_after_a_misuse_the_worker_goes_on(bench: Bench, platform: Consumer, misuse: Misuse) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        if scan.number == 2:
            await misuse(tx)

    async with bench.running(platform, lanes=1):
        (guilty,) = await bench.publish(2)
        await until(lambda: _is(bench, guilty, "failed"))
        (innocent,) = await bench.publish(4)
        await until(lambda: _is(bench, innocent, "delivered"))
    assert await bench.effects() == [("project", 4)]


async def _is(bench: Bench, event_id: object, status: str) -> bool:
    return bool(await bench.value("select status = %s from core.outbox where id = %s", status, event_id))


@pytest.mark.parametrize(
    ("misuse", "complaint"),
    [
        (
            swallow_a_failed_statement,
            "returned although an SQL statement of its transaction had failed; let the error out",
        ),
        (roll_back, "ended the transaction it was given"),
        (roll_back_and_write_on, "ended the transaction it was given"),
        (close_the_connection, "the connection was closed while the handler ran"),
        (change_the_role, "acting as role spectral_publisher instead of "),
        (change_the_role_to_one_that_may_do_nothing, "left its connection acting as another role, one without rights"),
    ],
    ids=lambda given: getattr(given, "__name__", None),
)
async def test_the_error_says_what_the_handler_did(
    bench: Bench, platform: Consumer, misuse: Misuse, complaint: str
) -> None:
    @platform.on(COMPLETED, retry=NEVER_AGAIN)
    async def project(scan: Scan, tx: Transaction) -> None:
        await write_effect(tx, "project", scan.number)
        await misuse(tx)

    await bench.execute(SOMEBODY)
    (event_id,) = await bench.publish(1)
    await bench.drain(platform)
    error = (await bench.row(event_id))["last_error"]
    assert error.startswith("TransactionMisusedError: platform.project: ")
    assert complaint in error
