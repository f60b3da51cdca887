"""What a handler changes about the session it is lent must not reach those who come after it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.rows import dict_row
from psycopg.types.string import TextLoader

from spectral.core.events import Consumer, Transaction
from spectral.core.events.infrastructure.postgres.watched import WatchedConnection
from spectral.core.events.outcome import Handled
from spectral.core.events.probe import Finished
from tests.integration.delivery.platform_worker import COMPLETED, Bench, Scan, soon, until, write_effect

Change = Callable[[Transaction], Awaitable[object]]
Connect = Callable[..., Awaitable[object]]


async def be_impatient(tx: Transaction) -> None:
    await tx.execute("set statement_timeout = 1")


async def be_impatient_with_locks(tx: Transaction) -> None:
    await tx.execute("set lock_timeout = 1")


async def read_only_from_now_on(tx: Transaction) -> None:
    await tx.execute("set default_transaction_read_only = on")


async def serializable_from_now_on(tx: Transaction) -> None:
    await tx.execute("set default_transaction_isolation = serializable")


async def another_search_path(tx: Transaction) -> None:
    await tx.execute("set search_path = nowhere")


async def another_language(tx: Transaction) -> None:
    await tx.execute("set datestyle = 'SQL, DMY'")
    await tx.execute("set intervalstyle = 'iso_8601'")
    await tx.execute("set timezone = 'Asia/Kathmandu'")


async def forget_prepared_statements(tx: Transaction) -> None:
    await tx.execute("deallocate all")


async def rows_as_dictionaries(tx: Transaction) -> None:
    tx.connection.row_factory = dict_row


async def another_kind_of_cursor(tx: Transaction) -> None:
    tx.connection.cursor_factory = psycopg.AsyncRawCursor


async def ids_as_text(tx: Transaction) -> None:
    tx.connection.adapters.register_loader("uuid", TextLoader)


async def prepare_everything(tx: Transaction) -> None:
    tx.connection.prepare_threshold = 0


async def listen_here(tx: Transaction) -> None:
    await tx.execute("listen outbox_gen_1")


CHANGES: list[Change] = [
    be_impatient,
    be_impatient_with_locks,
    read_only_from_now_on,
    serializable_from_now_on,
    another_search_path,
    another_language,
    forget_prepared_statements,
    rows_as_dictionaries,
    another_kind_of_cursor,
    ids_as_text,
    prepare_everything,
    listen_here,
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
async def test_a_changed_session_does_not_harm_the_rows_after_it(
    bench: Bench, platform: Consumer, change: Change
) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await tx.connection.execute("insert into public.effects (handler, number) values ('project', 0)")
        if scan.number == 1:
            await change(tx)

    async with bench.running(platform, lanes=1):
        await bench.publish(*range(1, 30))
        await until(lambda: _others_are_delivered(bench))
        await bench.publish(*range(31, 60))
        await until(lambda: _others_are_delivered(bench))


async def _others_are_delivered(bench: Bench) -> bool:
    count = "select count(*) from core.outbox where status <> 'delivered' and payload ->> 'number' <> '1'"
    return bool(await bench.value(count) == 0)


@pytest.mark.parametrize(
    "statement",
    [
        "create temp table mine (number integer)",
        "declare mine cursor with hold for select 1",
        "set spectral.mine = '1'",
        "select pg_advisory_lock(8472)",
    ],
)
async def test_what_a_handler_makes_for_its_session_is_not_there_for_the_next_event(
    bench: Bench, platform: Consumer, statement: str
) -> None:
    left_over = (
        "select (select count(*) from pg_class where relname = 'mine') + (select count(*) from pg_cursors)"
        " + (select count(*) from pg_locks where locktype = 'advisory' and objid = 8472)"
        " + (nullif(current_setting('spectral.mine', true), '') is not null)::integer"
    )
    found: list[int] = []

    @platform.on(COMPLETED, concurrency=1)  # each in a transaction of its own
    async def project(scan: Scan, tx: Transaction) -> None:
        row = await (await tx.execute(left_over)).fetchone()
        found.append(row[0] if row else -1)
        await tx.execute(statement)
        await write_effect(tx, "project", scan.number)

    await bench.publish(1, 2, 3)
    await bench.drain(platform, lanes=1)
    assert await bench.all_are("delivered")
    assert found == [0, 0, 0]


async def test_a_handler_that_listens_does_not_have_the_lane_listen_for_ever(bench: Bench, platform: Consumer) -> None:
    heard: list[int] = []

    @platform.on(COMPLETED, concurrency=1)  # each in a transaction of its own
    async def project(scan: Scan, tx: Transaction) -> None:
        row = await (await tx.execute("select count(*) from pg_listening_channels()")).fetchone()
        heard.append(row[0] if row else -1)
        if scan.number == 1:
            await tx.execute("listen outbox_gen_1")

    await bench.publish(1, 2, 3, 4)
    await bench.drain(platform, lanes=1)
    assert await bench.all_are("delivered")
    assert heard == [0, 1, 0, 0]  # what is taken back is so at the next commit


async def test_a_handler_that_reads_ids_as_text_is_told_to_have_handled_its_event(
    bench: Bench, platform: Consumer
) -> None:
    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        await ids_as_text(tx)
        await write_effect(tx, "project", scan.number)

    await bench.publish(1)
    await bench.drain(platform)
    assert [note.outcome for note in bench.notes.of(Finished)] == [Handled()]


async def test_the_transaction_is_refused_to_a_task_that_outlives_its_handler(bench: Bench, platform: Consumer) -> None:
    outcome: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    ended = asyncio.Event()
    background: list[asyncio.Task[None]] = []

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        async def later() -> None:
            await ended.wait()
            try:
                await write_effect(tx, "later", scan.number)
                outcome.set_result(None)
            except Exception as error:  # noqa: BLE001  which, is the question
                outcome.set_result(error)

        background.append(asyncio.create_task(later()))

    async with bench.running(platform):
        await bench.publish(1)
        await until(lambda: bench.all_are("delivered"))
        ended.set()
        assert isinstance(await soon(outcome), Exception)
    assert await bench.effects() == []


@pytest.mark.parametrize("failing", [True, False])
async def test_what_a_task_writes_on_the_connection_after_its_handler_is_not_committed_with_the_next_event(
    bench: Bench, platform: Consumer, *, failing: bool
) -> None:
    ended, wrote = asyncio.Event(), asyncio.Event()
    background: list[asyncio.Task[None]] = []

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        connection = tx.connection

        async def later() -> None:
            await ended.wait()
            with suppress(psycopg.Error):
                await connection.execute("insert into public.effects (handler, number) values ('later', 1)")
                if failing:
                    await connection.execute("select 1 / 0")
            wrote.set()

        if scan.number == 1:
            background.append(asyncio.create_task(later()))
        else:
            await write_effect(tx, "project", scan.number)

    async with bench.running(platform, lanes=1):
        await bench.publish(1)
        await until(lambda: bench.all_are("delivered"))
        ended.set()
        await soon(wrote.wait())
        await bench.publish(2)
        await until(lambda: bench.all_are("delivered"))
    assert await bench.effects() == [("project", 2)]
    assert await bench.value("select max(attempts) from core.outbox") == 1


async def _as_ever(connect: Connect, parameters: str, **given: object) -> object:
    return await connect(parameters, **given)


async def _refuse_options(connect: Connect, parameters: str, **given: object) -> object:
    if conninfo_to_dict(parameters).get("options"):
        raise psycopg.OperationalError("FATAL:  unsupported startup parameter in options: tcp_keepalives_idle")
    return await connect(parameters, **given)


async def _lose_options(connect: Connect, parameters: str, **given: object) -> object:
    return await connect(make_conninfo(parameters, options=""), **given)


KEEPALIVES = "select source from pg_settings where name = 'tcp_keepalives_idle'"


@pytest.mark.parametrize(
    ("pooler", "source"),
    [(_as_ever, "client"), (_refuse_options, "session"), (_lose_options, "session")],
    ids=["none", "refuses", "loses"],
)
async def test_every_handler_is_guarded_whatever_a_pooler_thinks_of_settings_at_the_start(
    bench: Bench, platform: Consumer, monkeypatch: pytest.MonkeyPatch, pooler: Connect, source: str
) -> None:
    connect = WatchedConnection.connect
    monkeypatch.setattr(WatchedConnection, "connect", partial(pooler, connect))
    seen: list[object] = []

    @platform.on(COMPLETED)
    async def project(scan: Scan, tx: Transaction) -> None:
        cursor = await tx.execute(f"select current_setting('spectral.guarded', true), ({KEEPALIVES})")
        seen.append(await cursor.fetchone())
        await tx.execute("set spectral.guarded = off" if scan.number % 2 else "reset all")

    await bench.publish(1, 2, 3, 4)
    await bench.drain(platform, lanes=1)
    assert await bench.all_are("delivered")
    assert seen == [("on", source)] * 4


async def test_the_options_of_the_connection_string_are_kept(bench: Bench, platform: Consumer) -> None:
    seen: list[object] = []

    @platform.on(COMPLETED)
    async def project(_: Scan, tx: Transaction) -> None:
        cursor = await tx.execute("select current_setting('timezone')")
        seen.extend(await cursor.fetchone() or ())

    await bench.publish(1, 2)
    bench.dsn = make_conninfo(bench.dsn, options="-c timezone=Asia/Kathmandu")
    await bench.drain(platform, lanes=1)
    assert seen == ["Asia/Kathmandu"] * 2
