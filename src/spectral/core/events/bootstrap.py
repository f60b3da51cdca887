"""The top of the library: reads the environment, and wires publishers to what they need.

`publisher_for` recognises the connection it is given by its type and loads only that driver's adapter.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol, overload

from spectral.core.events.delivery.publish import Publishing
from spectral.core.events.failure import ConfigurationError
from spectral.core.events.infrastructure.observability.traces import current_traceparent
from spectral.core.events.settings import PublishSettings

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping

    from spectral.core.events.infrastructure.outbox_publisher import AsyncOutboxPublisher, SyncOutboxPublisher

_ROOM: Final = "spectral.core.events.infrastructure"
_ADAPTERS: Final = {
    "psycopg.AsyncConnection": (f"{_ROOM}.postgres.outbox", "OutboxPublisher"),
    "psycopg.Connection": (f"{_ROOM}.publishers.psycopg_sync", "PsycopgSyncOutboxPublisher"),
    "asyncpg.Connection": (f"{_ROOM}.publishers.asyncpg", "AsyncpgOutboxPublisher"),
    "asyncpg.PoolConnectionProxy": (f"{_ROOM}.publishers.asyncpg", "AsyncpgOutboxPublisher"),
    "sqlalchemy.AsyncSession": (f"{_ROOM}.publishers.sqlalchemy", "SqlAlchemyOutboxPublisher"),
    "sqlalchemy.AsyncConnection": (f"{_ROOM}.publishers.sqlalchemy", "SqlAlchemyOutboxPublisher"),
    "sqlalchemy.Session": (f"{_ROOM}.publishers.sqlalchemy", "SqlAlchemySyncOutboxPublisher"),
    "sqlalchemy.Connection": (f"{_ROOM}.publishers.sqlalchemy", "SqlAlchemySyncOutboxPublisher"),
}


def publishing(settings: PublishSettings | None = None, *, environ: Mapping[str, str] | None = None) -> Publishing:
    """What every publisher of a program shares: its settings, and where traces come from.

    Without settings they are read from the environment (`SPECTRAL_GENERATION`, `SPECTRAL_CONTEXTS`). Make it when the
    program starts and hand it to `publisher_for`: then a wrong variable refuses the start, not the first request.

    Raises:
        ConfigurationError: a variable is missing or makes no sense; the message says what to set.
    """
    if settings is None:
        settings = PublishSettings.from_environ(os.environ if environ is None else environ)
    return Publishing(settings, current_traceparent)


class AsyncConnectionLike(Protocol):
    """What tells a connection that is awaited from one that blocks, for a type checker that may not know the driver."""

    def close(self) -> Coroutine[Any, Any, None]:
        """Close it."""
        ...


class SyncConnectionLike(Protocol):
    """See `AsyncConnectionLike`."""

    def close(self) -> None:
        """Close it."""
        ...


@overload
def publisher_for(connection: AsyncConnectionLike, shared: Publishing | None = None) -> AsyncOutboxPublisher: ...
@overload
def publisher_for(connection: SyncConnectionLike, shared: Publishing | None = None) -> SyncOutboxPublisher: ...
def publisher_for(
    connection: AsyncConnectionLike | SyncConnectionLike, shared: Publishing | None = None
) -> AsyncOutboxPublisher | SyncOutboxPublisher:
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
            publisher: AsyncOutboxPublisher | SyncOutboxPublisher = adapter(connection, shared or publishing())
            return publisher
    raise ConfigurationError(
        f"no publisher knows a {type(connection).__module__}.{type(connection).__qualname__}; give it a connection of "
        "psycopg or asyncpg, or a SQLAlchemy session or connection (call a scoped_session to get its session; "
        "for Django use DjangoOutboxPublisher)"
    )
