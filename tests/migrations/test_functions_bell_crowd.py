"""The bell where a flush takes long: publishers who notify commit one at a time, and never come to be many."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psycopg
import pytest

from spectral.core.embedded import FAST_AND_UNSAFE, PostgresServer, ServerOptions, postgres_from
from spectral.core.events import WorkerSettings
from spectral.core.events.infrastructure.postgres.claims import PostgresClaims
from spectral.core.migrations import up
from tests.memory import running
from tests.migrations.schema import Connection, value
from tests.migrations.sql import publish, waits_for

HOLD = "select core.bell_hold('w', '{outbox_gen_1}', '{platform}', '{null}', '5 s')"


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """Nobody else may have to wait for a standby that does not exist."""
    source = os.environ.get("SPECTRAL_TEST_POSTGRES", "wheel")
    if "=" in source or "://" in source:
        source = "wheel"
    options = ServerOptions(settings={**FAST_AND_UNSAFE, "max_wal_senders": 4, "wal_level": "replica"})
    with running(postgres_from(source, options)) as server:
        yield server


def set_standby(connection: Connection, name: str) -> None:
    """Every commit that is to be durable waits for that standby from now on."""
    connection.execute(f"alter system set synchronous_standby_names = '{name}'".encode())
    connection.execute("select pg_reload_conf()")
    deadline = time.monotonic() + 30
    while value(connection, "select current_setting('synchronous_standby_names')") != name:
        assert time.monotonic() < deadline, "the setting is not in effect"


@contextmanager
def waiting_publishers(dsn: str, watcher: Connection) -> Iterator[None]:
    """One that has notified and cannot end its commit, and one that waits behind it."""
    with (
        ThreadPoolExecutor(2) as pool,
        psycopg.connect(dsn) as first,
        psycopg.connect(dsn) as second,
    ):
        for publisher in (first, second):
            publisher.execute("set synchronous_commit = on")
            publisher.commit()
            publish(publisher)
        set_standby(watcher, "nobody")
        try:
            ends = [pool.submit(first.commit)]
            deadline = time.monotonic() + 30
            asked = "select wait_event from pg_stat_activity where pid = %s"
            while value(watcher, asked, [first.info.backend_pid]) != "SyncRep":
                assert time.monotonic() < deadline, "the commit does not wait"
                if ends[0].done():  # before the server's checkpointer had heard of the standby
                    publish(first)
                    ends = [pool.submit(first.commit)]
            ends.append(pool.submit(second.commit))
            waits_for(watcher, second, first)
            yield
        finally:
            set_standby(watcher, "")
        for end in ends:
            end.result(timeout=30)


def test_few_rows_are_a_stream_if_publishers_wait_for_each_other(own_server: PostgresServer) -> None:
    dsn = own_server.create_database()
    up(dsn)
    with psycopg.connect(dsn, autocommit=True) as watcher, psycopg.connect(dsn) as session:
        for _ in range(10):
            publish(session)
        recent = "update core.outbox set next_attempt_at = clock_timestamp()"
        session.execute(recent)
        assert value(session, HOLD) is False
        with waiting_publishers(dsn, watcher):
            session.execute(recent)
            assert value(session, HOLD) is True
        session.rollback()


def test_a_worker_sees_whether_publishers_wait_for_each_other(own_server: PostgresServer) -> None:
    dsn = own_server.create_database()
    up(dsn)

    async def is_crowded() -> bool:
        claims = PostgresClaims(dsn, WorkerSettings(generation=1, name="w"))
        try:
            return await claims.is_crowded()
        finally:
            await claims.close()

    with psycopg.connect(dsn, autocommit=True) as watcher:
        assert not asyncio.run(is_crowded())
        with waiting_publishers(dsn, watcher):
            assert asyncio.run(is_crowded())
