"""One face for every driver a publisher works on, so that one suite can say what all of them must do.

A `Desk` is a caller at work: it begins, writes its business row, publishes, commits or rolls back, with its driver's
own means. Blocking drivers block; nothing else happens in a test meanwhile.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias, TypeVar, Unpack
from urllib.parse import parse_qs, urlsplit

import asyncpg
import django
import psycopg
import sqlalchemy
from django.conf import settings as django_settings
from opentelemetry import context
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from spectral.core.events import EventEnvelope
from spectral.core.events.bootstrap import publisher_for
from spectral.core.events.delivery.publish import Publishing, PublishOptions
from spectral.core.events.infrastructure.outbox_publisher import AsyncOutboxPublisher, SyncOutboxPublisher

_T = TypeVar("_T")
Publisher: TypeAlias = AsyncOutboxPublisher | SyncOutboxPublisher


class Desk(ABC):
    """A caller with a connection of its own."""

    publisher: Publisher

    async def publish(self, envelope: EventEnvelope, **options: Unpack[PublishOptions]) -> None:
        if isinstance(self.publisher, AsyncOutboxPublisher):
            await self.publisher.publish(envelope, **options)
        else:
            self.publisher.publish(envelope, **options)

    async def publish_many(self, envelopes: Iterable[EventEnvelope], **options: Unpack[PublishOptions]) -> int:
        if isinstance(self.publisher, AsyncOutboxPublisher):
            return await self.publisher.publish_many(envelopes, **options)
        return self.publisher.publish_many(envelopes, **options)

    @abstractmethod
    async def begin(self) -> None: ...
    @abstractmethod
    async def commit(self) -> None: ...
    @abstractmethod
    async def rollback(self) -> None: ...
    @abstractmethod
    async def execute(self, statement: str) -> None: ...

    async def savepoint(self) -> None:
        await self.execute("savepoint here")

    async def rollback_to_savepoint(self) -> None:
        await self.execute("rollback to savepoint here")


DeskMaker: TypeAlias = Callable[[str, Publishing], AbstractAsyncContextManager[Desk]]


class PsycopgAsync(Desk):
    def __init__(self, connection: psycopg.AsyncConnection[Any], publishing: Publishing) -> None:
        self.connection, self.publisher = connection, publisher_for(connection, publishing)

    async def begin(self) -> None:
        await self.connection.execute("select 1")  # psycopg begins with the first statement

    async def commit(self) -> None:
        await self.connection.commit()

    async def rollback(self) -> None:
        await self.connection.rollback()

    async def execute(self, statement: str) -> None:
        await self.connection.execute(statement.encode())


class PsycopgSync(Desk):
    def __init__(self, connection: psycopg.Connection[Any], publishing: Publishing) -> None:
        self.connection, self.publisher = connection, publisher_for(connection, publishing)

    async def begin(self) -> None:
        self.connection.execute("select 1")

    async def commit(self) -> None:
        self.connection.commit()

    async def rollback(self) -> None:
        self.connection.rollback()

    async def execute(self, statement: str) -> None:
        self.connection.execute(statement.encode())


class Asyncpg(Desk):
    def __init__(
        self, connection: asyncpg.Connection[Any] | asyncpg.pool.PoolConnectionProxy[Any], p: Publishing
    ) -> None:
        self.connection, self.publisher = connection, publisher_for(connection, p)

    async def begin(self) -> None:
        self.transaction = self.connection.transaction()
        await self.transaction.start()

    async def commit(self) -> None:
        await self.transaction.commit()

    async def rollback(self) -> None:
        await self.transaction.rollback()

    async def execute(self, statement: str) -> None:
        await self.connection.execute(statement)


class SqlAlchemyAsync(Desk):
    def __init__(self, bind: AsyncSession | AsyncConnection, publishing: Publishing) -> None:
        self.bind, self.publisher = bind, publisher_for(bind, publishing)

    async def begin(self) -> None:
        await self.bind.begin()

    async def commit(self) -> None:
        await self.bind.commit()

    async def rollback(self) -> None:
        await self.bind.rollback()

    async def execute(self, statement: str) -> None:
        await self.bind.execute(text(statement))


class SqlAlchemySync(Desk):
    def __init__(self, bind: Session | sqlalchemy.Connection, publishing: Publishing) -> None:
        self.bind, self.publisher = bind, publisher_for(bind, publishing)

    async def begin(self) -> None:
        self.bind.begin()

    async def commit(self) -> None:
        self.bind.commit()

    async def rollback(self) -> None:
        self.bind.rollback()

    async def execute(self, statement: str) -> None:
        self.bind.execute(text(statement))


class Django(Desk):
    """Django keeps a connection for each thread, so this caller has one; `self.connection` is resolved in there."""

    def __init__(self, publishing: Publishing) -> None:
        from django.db import connection  # noqa: PLC0415  Django has to be configured first

        from spectral.core.events.infrastructure.publishers.django import DjangoOutboxPublisher  # noqa: PLC0415

        self.connection = connection
        self.django_publisher = DjangoOutboxPublisher(publishing)
        self.thread = ThreadPoolExecutor(max_workers=1)

    async def _in_thread(self, work: Callable[[], _T]) -> _T:
        # The trace goes along; the rest of the context does not, for Django keeps connections in it.
        trace = context.get_current()

        def run() -> _T:
            token = context.attach(trace)
            try:
                return work()
            finally:
                context.detach(token)

        return await asyncio.get_running_loop().run_in_executor(self.thread, run)

    async def publish(self, envelope: EventEnvelope, **options: Unpack[PublishOptions]) -> None:
        await self._in_thread(lambda: self.django_publisher.publish(envelope, **options))

    async def publish_many(self, envelopes: Iterable[EventEnvelope], **options: Unpack[PublishOptions]) -> int:
        return await self._in_thread(lambda: self.django_publisher.publish_many(envelopes, **options))

    async def begin(self) -> None:
        await self._in_thread(lambda: self.connection.set_autocommit(autocommit=False))

    async def commit(self) -> None:
        await self._in_thread(lambda: self.connection.commit())
        await self._in_thread(lambda: self.connection.set_autocommit(autocommit=True))

    async def rollback(self) -> None:
        await self._in_thread(lambda: self.connection.rollback())
        await self._in_thread(lambda: self.connection.set_autocommit(autocommit=True))

    async def execute(self, statement: str) -> None:
        def run() -> None:
            with self.connection.cursor() as cursor:
                cursor.execute(statement)

        await self._in_thread(run)

    async def close(self) -> None:
        await self._in_thread(lambda: self.connection.close())
        self.thread.shutdown()


@asynccontextmanager
async def psycopg_async(dsn: str, publishing: Publishing) -> AsyncIterator[Desk]:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        yield PsycopgAsync(connection, publishing)


@asynccontextmanager
async def psycopg_sync(dsn: str, publishing: Publishing) -> AsyncIterator[Desk]:
    with psycopg.connect(dsn) as connection:
        yield PsycopgSync(connection, publishing)


@asynccontextmanager
async def asyncpg_connection(dsn: str, publishing: Publishing) -> AsyncIterator[Desk]:
    connection = await asyncpg.connect(dsn)
    try:
        yield Asyncpg(connection, publishing)
    finally:
        await connection.close()


@asynccontextmanager
async def asyncpg_pooled(dsn: str, publishing: Publishing) -> AsyncIterator[Desk]:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        yield Asyncpg(connection, publishing)


def url_of(dsn: str, driver: str) -> str:
    """The same database for SQLAlchemy."""
    return dsn.replace("postgresql://", f"postgresql+{driver}://", 1)


@asynccontextmanager
async def sqlalchemy_async_session(dsn: str, publishing: Publishing) -> AsyncIterator[Desk]:
    engine = create_async_engine(url_of(dsn, "psycopg"))
    async with AsyncSession(engine) as session:
        yield SqlAlchemyAsync(session, publishing)
    await engine.dispose()


@asynccontextmanager
async def sqlalchemy_asyncpg_connection(dsn: str, publishing: Publishing) -> AsyncIterator[Desk]:
    engine = create_async_engine(url_of(dsn, "asyncpg"))
    async with engine.connect() as connection:
        yield SqlAlchemyAsync(connection, publishing)
    await engine.dispose()


@asynccontextmanager
async def sqlalchemy_sync_session(dsn: str, publishing: Publishing) -> AsyncIterator[Desk]:
    engine = sqlalchemy.create_engine(url_of(dsn, "psycopg"))
    with Session(engine) as session:
        yield SqlAlchemySync(session, publishing)
    engine.dispose()


@asynccontextmanager
async def sqlalchemy_psycopg2_connection(dsn: str, publishing: Publishing) -> AsyncIterator[Desk]:
    engine = sqlalchemy.create_engine(url_of(dsn, "psycopg2"))
    with engine.connect() as connection:
        yield SqlAlchemySync(connection, publishing)
    engine.dispose()


def configure_django(dsn: str) -> None:
    parts = urlsplit(dsn)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()}
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path.lstrip("/"),
        "USER": parts.username or "postgres",
        "PASSWORD": parts.password or "",
        "HOST": query.get("host", parts.hostname or ""),
        "PORT": query.get("port", str(parts.port or "")),
    }
    if not django_settings.configured:
        django_settings.configure(DATABASES={"default": database}, USE_TZ=True)
        django.setup()
    from django.db import connections  # noqa: PLC0415  Django has to be configured first

    connections.settings["default"].update(database)


@asynccontextmanager
async def django_connection(dsn: str, publishing: Publishing) -> AsyncIterator[Desk]:
    configure_django(dsn)
    desk = Django(publishing)
    try:
        yield desk
    finally:
        await desk.close()


DRIVERS: dict[str, DeskMaker] = {
    "psycopg-async": psycopg_async,
    "psycopg-sync": psycopg_sync,
    "asyncpg": asyncpg_connection,
    "asyncpg-pool": asyncpg_pooled,
    "sqlalchemy-async-session": sqlalchemy_async_session,
    "sqlalchemy-asyncpg-connection": sqlalchemy_asyncpg_connection,
    "sqlalchemy-sync-session": sqlalchemy_sync_session,
    "sqlalchemy-psycopg2-connection": sqlalchemy_psycopg2_connection,
    "django": django_connection,
}
