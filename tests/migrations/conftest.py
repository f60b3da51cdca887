"""For tests of one session: they share a database, and each is rolled back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from spectral.core.embedded import PostgresServer
from tests.migrations.schema import Connection, prepared_database, undone


@pytest.fixture(scope="module")
def shared_database(postgres: PostgresServer, migrated_template: str) -> Iterator[str]:
    """The superuser's DSN of a database like that of `database`, in which nobody commits anything."""
    with prepared_database(postgres, migrated_template) as dsn:
        yield dsn


@pytest.fixture
def session(shared_database: str) -> Iterator[Connection]:
    """A superuser's session that is one transaction, rolled back at the end. Nobody hears its notifications."""
    with undone(shared_database) as opened:
        yield opened
