"""A database with agent tasks for each test, copied from a template."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from spectral.core.embedded import PostgresServer, database_of
from spectral.core.migrations import bundled_directory, up
from spectral.platform.agent_tasks.operations import MIGRATIONS
from tests.integration.agent_tasks.desk import Desk
from tests.memory import copy_of


@pytest.fixture(scope="session")
def tasks_template(postgres: PostgresServer, migrated_template: str) -> Iterator[str]:
    dsn = postgres.create_database(template=migrated_template)
    up(dsn, directories=[bundled_directory(), MIGRATIONS])
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("insert into core.deployments (generation, status, promoted_at) values (1, 'live', now())")
    yield database_of(dsn)
    postgres.drop_database(database_of(dsn))


@pytest.fixture
def desk(postgres: PostgresServer, tasks_template: str) -> Iterator[Desk]:
    dsn = copy_of(postgres, tasks_template)
    yield Desk(dsn)
    postgres.drop_database(database_of(dsn))
