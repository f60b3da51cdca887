"""A connection that comes back: whoever is cancelled while waiting for it leaves nothing open."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, cast

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from spectral.core.events.infrastructure.postgres import session as module
from spectral.core.events.infrastructure.postgres.session import Session
from spectral.core.events.infrastructure.postgres.watched import WatchedConnection
from tests.integration.delivery.platform_worker import Bench, soon, until


async def test_whoever_is_cancelled_during_the_second_look_leaves_no_connection_behind(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_SECOND_LOOK", 30.0)
    session = Session(bench.dsn, "spectral test of a session", timedelta(seconds=0.2), settings={})
    await session.connection()
    started = asyncio.Event()

    async def sleep(connection: psycopg.AsyncConnection[object]) -> object:
        started.set()
        return await connection.execute("select pg_sleep(60)")

    call = asyncio.create_task(session.call(sleep))
    await soon(started.wait())
    # Well beyond the time of an answer: it looks a second time.
    await until(
        lambda: bench.value(
            "select clock_timestamp() > max(query_start) + interval '1 s' from pg_stat_activity"
            " where application_name = 'spectral test of a session'"
        )
    )
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not session.is_open
    await session.drop()
    await until(
        lambda: bench.value(
            "select not exists (select from pg_stat_activity where application_name = 'spectral test of a session')"
        )
    )


@pytest.mark.parametrize("refusals", [1, 2])
async def test_settings_that_were_refused_once_are_tried_again_and_no_more_after_that(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, refusals: int
) -> None:
    connect = WatchedConnection.connect
    refused = 0

    async def starting_up(parameters: str, **given: object) -> object:
        nonlocal refused
        if conninfo_to_dict(parameters).get("options") and refused < refusals:
            refused += 1
            raise psycopg.OperationalError("FATAL:  the database system is starting up")
        return await cast("Any", connect)(parameters, **given)

    monkeypatch.setattr(WatchedConnection, "connect", starting_up)
    session = Session(bench.dsn, "spectral", timedelta(seconds=10), settings={}, for_handlers=True)
    stays: list[object] = []  # whether a reset brings the settings back
    for _ in range(3):
        connection = await session.connection()
        await connection.execute("reset all")
        cursor = await connection.execute(
            "select source = 'client' from pg_settings where name = 'tcp_keepalives_idle'"
        )
        stays += await cursor.fetchone() or ()
        await session.drop()
    assert stays == ([False, True, True] if refusals == 1 else [False, False, False])
