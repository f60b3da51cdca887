"""The connections of a worker on Postgres."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
from psycopg import conninfo

from spectral.core.events.delivery.shift import Connections
from spectral.core.events.failure import ConfigurationError
from spectral.core.events.infrastructure.postgres.claims import PostgresClaims
from spectral.core.events.infrastructure.postgres.ear import PostgresEar
from spectral.core.events.infrastructure.postgres.keeper import PostgresKeeper
from spectral.core.events.infrastructure.postgres.lane import PostgresLane
from spectral.core.events.infrastructure.postgres.settlements import PostgresSettlements

if TYPE_CHECKING:
    from collections.abc import Collection

    from spectral.core.events.delivery.publish import Publishing
    from spectral.core.events.settings import WorkerSettings


def connections(
    dsn: str, direct_dsn: str, settings: WorkerSettings, publishing: Publishing, contexts: Collection[str]
) -> Connections:
    """Nothing is opened yet; each connects when it is first needed.

    Raises:
        ConfigurationError: a connection string cannot be read.
    """
    for each in (dsn, direct_dsn):
        _require_readable(each)
    return Connections(
        claims=PostgresClaims(dsn, settings),
        settlements=lambda: PostgresSettlements(dsn, settings),
        ear=PostgresEar(direct_dsn, settings),
        keeper=PostgresKeeper(direct_dsn, settings, contexts),
        lane=lambda: PostgresLane(dsn, settings, publishing),
    )


def _require_readable(dsn: str) -> None:
    try:
        conninfo.conninfo_to_dict(dsn)
    except psycopg.Error:
        # The driver's message quotes the string, password included.
        raise ConfigurationError(
            "the connection string cannot be read; it must look like postgresql://user@host:5432/database"
        ) from None
