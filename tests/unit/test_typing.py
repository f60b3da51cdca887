"""What type checkers must accept; mypy and this file run together in `make check`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import asyncpg
    import psycopg
    from sqlalchemy import Connection
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
    from sqlalchemy.orm import Session

from spectral.core.events import EventEnvelope, EventPublisher
from spectral.core.events.bootstrap import publisher_for
from spectral.core.events.infrastructure.outbox_publisher import AsyncOutboxPublisher


async def awaited(
    one: psycopg.AsyncConnection[Any],
    two: asyncpg.Connection[Any],
    three: AsyncSession,
    four: AsyncConnection,
    five: asyncpg.pool.PoolConnectionProxy[Any],
    event: EventEnvelope,
) -> None:
    await publisher_for(one).publish(event, on_conflict="ignore")
    await publisher_for(two).publish(event)
    await publisher_for(three).publish(event)
    await publisher_for(four).publish(event)
    await publisher_for(five).publish(event)


def blocking(one: psycopg.Connection[Any], two: Session, three: Connection, event: EventEnvelope) -> int:
    publisher_for(one).publish(event)
    publisher_for(two).publish(event)
    return publisher_for(three).publish_many([event])


def needs_a_publisher(publisher: EventPublisher) -> EventPublisher:
    return publisher


accepted: Callable[[AsyncOutboxPublisher], EventPublisher] = needs_a_publisher


def test_async_publishers_satisfy_the_port_at_run_time_too() -> None:
    assert issubclass(AsyncOutboxPublisher, EventPublisher)
