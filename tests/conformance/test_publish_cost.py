"""What a publish costs, in counts that do not depend on the machine."""

from __future__ import annotations

import time
from typing import Any

import psycopg
import pytest

from spectral.core.embedded import PostgresServer, database_of, with_database
from spectral.core.events import EventEnvelope
from spectral.core.events.bootstrap import publisher_for
from spectral.core.events.delivery.publish import Publishing
from tests.conformance.drivers import DRIVERS
from tests.conformance.wire import counted


def event(number: int = 0) -> EventEnvelope:
    return EventEnvelope(
        event_type="worlds.scan.completed", source="worlds", target="platform", payload={"number": number}
    )


@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_publish_is_one_round_trip_and_ten_thousand_are_two(
    driver: str, postgres: PostgresServer, database: str, publishing: Publishing
) -> None:
    with counted(with_database(postgres.tcp_dsn, database_of(database))) as (wire, dsn):
        async with DRIVERS[driver](dsn, publishing) as desk:
            # Drivers prepare a statement the first time (psycopg: the sixth), which may cost a round trip more.
            await desk.begin()
            for number in range(8):
                await desk.publish(event(number))
            await desk.publish_many([event()])
            before = wire.round_trips
            await desk.publish(event())
            assert wire.round_trips - before == 1
            before = wire.round_trips
            assert await desk.publish_many(event(number) for number in range(10_000)) == 10_000
            assert wire.round_trips - before == 2
            await desk.rollback()


async def test_publishes_in_a_pipeline_share_a_round_trip(
    postgres: PostgresServer, database: str, publishing: Publishing
) -> None:
    with counted(with_database(postgres.tcp_dsn, database_of(database))) as (wire, dsn):
        async with await psycopg.AsyncConnection.connect(dsn) as connection:
            publisher = publisher_for(connection, publishing)
            before = wire.round_trips
            async with connection.pipeline():
                await connection.execute("select 1")
                for number in range(20):
                    await publisher.publish(event(number))
            assert wire.round_trips - before <= 2
            await connection.commit()
    with psycopg.connect(database) as connection_after:
        assert connection_after.execute("select count(*) from core.outbox").fetchone() == (20,)


@pytest.mark.parametrize("factory", [psycopg.ClientCursor, psycopg.RawCursor])
def test_a_connection_with_other_cursors_publishes_too(
    connection: psycopg.Connection[Any],
    database: str,
    publishing: Publishing,
    factory: type[psycopg.Cursor[Any]],
) -> None:
    with psycopg.connect(database, cursor_factory=factory) as caller:
        caller.execute("select 1")
        publisher_for(caller, publishing).publish(event())
        publisher_for(caller, publishing).publish_many([event(), event()])
    assert connection.execute("select count(*) from core.outbox").fetchone() == (3,)


def test_a_known_id_in_a_pipeline_is_an_error_when_the_pipeline_ends(
    connection: psycopg.Connection[Any], database: str, publishing: Publishing
) -> None:
    known = event()
    with psycopg.connect(database) as caller:
        publisher = publisher_for(caller, publishing)
        caller.execute("select 1")
        publisher.publish(known)
        caller.commit()
        with pytest.raises(psycopg.errors.UniqueViolation):
            _publish_in_pipeline(caller, publishing, known)
        caller.rollback()
        with caller.pipeline():
            caller.execute("select 1")
            publisher.publish(known, on_conflict="ignore")
            assert publisher.publish_many([known, event()], on_conflict="ignore") == 2  # sent; the count comes later
        caller.commit()
    assert connection.execute("select count(*) from core.outbox").fetchone() == (2,)


def _publish_in_pipeline(caller: psycopg.Connection[Any], publishing: Publishing, envelope: EventEnvelope) -> None:
    with caller.pipeline():
        caller.execute("select 1")
        publisher_for(caller, publishing).publish(envelope)


def test_a_publish_writes_a_bounded_amount_of_wal(
    connection: psycopg.Connection[Any], database: str, publishing: Publishing
) -> None:
    """One heap row and two index entries; the notification is not logged."""
    with psycopg.connect(database) as caller:
        publisher = publisher_for(caller, publishing)
        caller.execute("select 1")
        publisher.publish_many(event(number) for number in range(100))  # pages exist, full-page images are over
        caller.commit()
        # Only this database works on the server meanwhile, but autovacuum might: take the least of a few rounds.
        written = [_wal_of_hundred(connection, caller, publishing) for _ in range(5)]
    assert min(written) / 100 < 900


def _wal_of_hundred(observer: psycopg.Connection[Any], caller: psycopg.Connection[Any], publishing: Publishing) -> int:
    publisher = publisher_for(caller, publishing)
    before = observer.execute("select pg_current_wal_insert_lsn()").fetchone()
    caller.execute("select 1")
    for number in range(100):
        publisher.publish(event(number))
    caller.commit()
    row = observer.execute("select pg_current_wal_insert_lsn() - %s::pg_lsn", before).fetchone()
    assert row is not None
    return int(row[0])


def test_a_bulk_publish_is_within_a_small_factor_of_the_bare_insert(database: str, publishing: Publishing) -> None:
    """Both in one run, the best of three: a bound so loose that only a change of kind can break it."""
    with psycopg.connect(database) as caller:
        publisher = publisher_for(caller, publishing)
        caller.execute("create temp table source (like core.outbox including defaults)")
        ours, bare = [], []
        for _ in range(3):
            events = [event(number) for number in range(5_000)]
            started = time.perf_counter()
            publisher.publish_many(events)
            ours.append(time.perf_counter() - started)
            caller.execute("truncate source")
            caller.execute("insert into source select * from core.outbox order by created_at desc limit 5000")
            caller.execute("update source set id = core.uuid7(), idempotency_key = core.uuid7()::text")
            started = time.perf_counter()
            caller.execute("insert into core.outbox select * from source")
            bare.append(time.perf_counter() - started)
    assert min(ours) < 6 * min(bare)
