"""The top of the library: reads the environment once, and wires publishers to what they need.

`publisher_for` recognises the connection it is given by its type and loads only that driver's adapter.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, overload

from spectral.core.events.delivery.publish import Publishing
from spectral.core.events.failure import ConfigurationError
from spectral.core.events.infrastructure.observability.traces import current_traceparent
from spectral.core.events.settings import PublishSettings

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psycopg

    from spectral.core.events.infrastructure.outbox_publisher import AsyncOutboxPublisher, BlockingOutboxPublisher
    from spectral.core.events.infrastructure.postgres import OutboxPublisher
    from spectral.core.events.infrastructure.publishers.psycopg_sync import SyncOutboxPublisher

_ROOM: Final = "spectral.core.events.infrastructure"
_ADAPTERS: Final = {
    "psycopg.AsyncConnection": (f"{_ROOM}.postgres.outbox", "OutboxPublisher"),
    "psycopg.Connection": (f"{_ROOM}.publishers.psycopg_sync", "SyncOutboxPublisher"),
    "asyncpg.Connection": (f"{_ROOM}.publishers.asyncpg", "AsyncpgOutboxPublisher"),
    "asyncpg.PoolConnectionProxy": (f"{_ROOM}.publishers.asyncpg", "AsyncpgOutboxPublisher"),
    "sqlalchemy.AsyncSession": (f"{_ROOM}.publishers.sqlalchemy", "SqlAlchemyOutboxPublisher"),
    "sqlalchemy.AsyncConnection": (f"{_ROOM}.publishers.sqlalchemy", "SqlAlchemyOutboxPublisher"),
    "sqlalchemy.Session": (f"{_ROOM}.publishers.sqlalchemy", "SqlAlchemySyncOutboxPublisher"),
    "sqlalchemy.Connection": (f"{_ROOM}.publishers.sqlalchemy", "SqlAlchemySyncOutboxPublisher"),
}


def publishing(settings: PublishSettings | None = None, *, environ: Mapping[str, str] | None = None) -> Publishing:
    """What every publisher of a program shares: its settings, and where traces come from.

    Without settings they are read from the environment (`SPECTRAL_GENERATION`, `SPECTRAL_CONTEXTS`).

    Raises:
        ConfigurationError: a variable is missing or makes no sense; the message says what to set.
    """
    if settings is None:
        settings = PublishSettings.from_environ(os.environ if environ is None else environ)
    return Publishing(settings, current_traceparent)


@overload
def publisher_for(connection: psycopg.AsyncConnection[Any], shared: Publishing | None = None) -> OutboxPublisher: ...
@overload
def publisher_for(connection: psycopg.Connection[Any], shared: Publishing | None = None) -> SyncOutboxPublisher: ...
@overload
def publisher_for(
    connection: object, shared: Publishing | None = None
) -> AsyncOutboxPublisher | BlockingOutboxPublisher: ...
def publisher_for(
    connection: object, shared: Publishing | None = None
) -> AsyncOutboxPublisher | BlockingOutboxPublisher:
    """The publisher for a connection or session of psycopg, asyncpg or SQLAlchemy.

    For Django, whose connections belong to threads, use `DjangoOutboxPublisher`.

    Raises:
        ConfigurationError: no adapter knows this type, or the environment lacks the generation.
    """
    for base in type(connection).__mro__:
        known = _ADAPTERS.get(f"{base.__module__.partition('.')[0]}.{base.__name__}")
        if known is not None:
            module, name = known
            adapter = getattr(import_module(module), name)
            publisher: AsyncOutboxPublisher | BlockingOutboxPublisher = adapter(connection, shared or publishing())
            return publisher
    raise ConfigurationError(
        f"no publisher knows a {type(connection).__module__}.{type(connection).__qualname__}; give it a connection of "
        "psycopg or asyncpg, or a SQLAlchemy session or connection (for Django use DjangoOutboxPublisher)"
    )
