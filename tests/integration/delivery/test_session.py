"""A connection that comes back: whoever is cancelled while waiting for it leaves nothing open."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import psycopg
import pytest

from spectral.core.events.infrastructure.postgres import session as module
from spectral.core.events.infrastructure.postgres.session import Session
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
