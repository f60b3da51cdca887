"""What SQLAlchemy's connections and sessions may be set to, or be in, when something is published through them."""

from __future__ import annotations

import pytest
import sqlalchemy
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from spectral.core.events import EventEnvelope, NotInTransactionError
from spectral.core.events.bootstrap import publisher_for
from spectral.core.events.delivery.publish import Publishing
from tests.conformance.drivers import url_of

COUNT = sqlalchemy.text("select count(*) from core.outbox")
NUMBERS = sqlalchemy.text("select n from generate_series(1, 5) as n")


def event() -> EventEnvelope:
    return EventEnvelope(event_type="worlds.scan.completed", source="worlds", target="platform")


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_a_connection_that_streams_its_rows_can_publish_for_each(
    database: str, publishing: Publishing, driver: str
) -> None:
    engine = sqlalchemy.create_engine(url_of(database, driver))
    with engine.connect().execution_options(yield_per=2) as connection, connection.begin():
        publisher = publisher_for(connection, publishing)
        for _ in connection.execute(NUMBERS):
            publisher.publish(event())
        assert publisher.publish_many([event(), event()]) == 2
        assert connection.execute(COUNT).scalar() == 7
    engine.dispose()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_an_async_connection_that_streams_its_rows_can_publish_for_each(
    database: str, publishing: Publishing, driver: str
) -> None:
    engine = create_async_engine(url_of(database, driver))
    async with engine.connect() as plain, plain.begin():
        connection = await plain.execution_options(stream_results=True)
        publisher = publisher_for(connection, publishing)
        async for _ in await connection.stream(NUMBERS):
            await publisher.publish(event())
        twice = event()
        await publisher.publish(twice)
        assert await publisher.publish_many([twice, event()], on_conflict="ignore") == 1
        assert await connection.scalar(COUNT, execution_options={"stream_results": False}) == 7
    await engine.dispose()


def test_a_session_whose_flush_has_failed_is_refused_with_a_reason(database: str, publishing: Publishing) -> None:
    engine = sqlalchemy.create_engine(url_of(database, "psycopg"))
    with Session(engine) as session:
        fail_a_flush(session)
        with pytest.raises(NotInTransactionError, match="rolled back first"):
            publisher_for(session, publishing).publish(event())
        session.rollback()
        with session.begin():
            publisher_for(session, publishing).publish(event())
    with engine.connect() as connection:
        assert connection.execute(COUNT).scalar() == 1
    engine.dispose()


async def test_an_async_session_whose_flush_has_failed_is_refused_with_a_reason(
    database: str, publishing: Publishing
) -> None:
    engine = create_async_engine(url_of(database, "psycopg"))
    async with AsyncSession(engine) as session:
        await session.run_sync(fail_a_flush)
        with pytest.raises(NotInTransactionError, match="rolled back first"):
            await publisher_for(session, publishing).publish(event())
    await engine.dispose()


def fail_a_flush(session: Session) -> None:
    """Leave it in the state in which it wants to be rolled back."""
    registry = sqlalchemy.orm.registry()
    table = sqlalchemy.Table("things", registry.metadata, sqlalchemy.Column("id", sqlalchemy.Integer, primary_key=True))
    thing = type("Thing", (), {})
    registry.map_imperatively(thing, table)
    session.execute(sqlalchemy.text("create table things (id integer primary key)"))
    session.execute(sqlalchemy.text("insert into things values (1)"))
    session.commit()
    session.begin()
    one = thing()
    one.id = 1
    session.add(one)
    with pytest.raises(IntegrityError):
        session.flush()
