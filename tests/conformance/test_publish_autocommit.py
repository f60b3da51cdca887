"""Autocommit in each of its disguises is no transaction to publish in."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine

from spectral.core.events import EventEnvelope, NotInTransactionError
from spectral.core.events.bootstrap import publisher_for
from spectral.core.events.delivery.publish import Publishing

EVENT = EventEnvelope(event_type="worlds.scan.completed", source="worlds", target="platform")


def test_a_psycopg_connection_in_autocommit_mode_is_refused_until_a_transaction_is_open(
    connection: psycopg.Connection[Any], publishing: Publishing
) -> None:
    publisher = publisher_for(connection, publishing)
    with pytest.raises(NotInTransactionError):
        publisher.publish(EVENT)
    with connection.transaction():
        publisher.publish(EVENT)
    assert connection.execute("select count(*) from core.outbox").fetchone() == (1,)


def test_a_failed_transaction_is_refused_with_a_reason(database: str, publishing: Publishing) -> None:
    with psycopg.connect(database) as connection:
        with pytest.raises(psycopg.errors.DivisionByZero):
            connection.execute("select 1 / 0")
        with pytest.raises(NotInTransactionError, match="rolled back first"):
            publisher_for(connection, publishing).publish(EVENT)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_sqlalchemys_isolation_level_autocommit_is_refused(database: str, publishing: Publishing, driver: str) -> None:
    url = database.replace("postgresql://", f"postgresql+{driver}://", 1)
    engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, connection.begin():
        publisher = publisher_for(connection, publishing)
        with pytest.raises(NotInTransactionError, match="AUTOCOMMIT"):
            publisher.publish(EVENT)
    engine.dispose()


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
async def test_sqlalchemys_async_isolation_level_autocommit_is_refused(
    database: str, publishing: Publishing, driver: str
) -> None:
    url = database.replace("postgresql://", f"postgresql+{driver}://", 1)
    engine = create_async_engine(url, isolation_level="AUTOCOMMIT")
    async with engine.connect() as connection, connection.begin():
        with pytest.raises(NotInTransactionError, match="AUTOCOMMIT"):
            await publisher_for(connection, publishing).publish(EVENT)
    await engine.dispose()
