"""A database whose outbox is one table, whatever the layout of the other tests, and the owner's connection to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest

from spectral.core.database import Database, connect
from spectral.core.embedded import PostgresServer, database_of
from spectral.core.migrations import up
from tests.conftest import TEMPLATE
from tests.layout import partition


@pytest.fixture
def plain(postgres: PostgresServer) -> Iterator[str]:
    """The superuser's DSN of a database on the plain layout, generation 1 live."""

    def migrate(dsn: str) -> None:
        up(dsn)

    postgres.create_template(f"{TEMPLATE}_one", migrate)
    dsn = postgres.create_database(template=f"{TEMPLATE}_one")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("insert into core.deployments (generation, status, promoted_at) values (1, 'live', now())")
    yield dsn
    postgres.drop_database(database_of(dsn))


@pytest.fixture
def months(postgres: PostgresServer) -> Iterator[str]:
    """The superuser's DSN of a database that has been partitioned for a while: three months past, three ahead."""

    def migrate(dsn: str) -> None:
        up(dsn)
        partition(dsn)

    postgres.create_template(f"{TEMPLATE}_months", migrate)
    dsn = postgres.create_database(template=f"{TEMPLATE}_months")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("insert into core.deployments (generation, status, promoted_at) values (1, 'live', now())")
    yield dsn
    postgres.drop_database(database_of(dsn))


@pytest.fixture
async def owner(plain: str) -> AsyncIterator[Database]:
    """The connection of somebody who may do everything."""
    async with connect(plain, "tests") as database:
        yield database
