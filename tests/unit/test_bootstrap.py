"""The top of the library: which publisher a connection gets, and where the settings come from."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import asyncpg
import psycopg
import pytest
from asyncpg.pool import PoolConnectionProxy
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from spectral.core.events.bootstrap import publisher_for, publishing
from spectral.core.events.delivery.publish import Publishing
from spectral.core.events.failure import ConfigurationError
from spectral.core.events.infrastructure.observability.traces import current_traceparent
from spectral.core.events.infrastructure.outbox_publisher import AsyncOutboxPublisher, SyncOutboxPublisher
from spectral.core.events.infrastructure.postgres import OutboxPublisher
from spectral.core.events.infrastructure.publishers.asyncpg import AsyncpgOutboxPublisher
from spectral.core.events.infrastructure.publishers.psycopg_sync import PsycopgSyncOutboxPublisher
from spectral.core.events.infrastructure.publishers.sqlalchemy import (
    SqlAlchemyOutboxPublisher,
    SqlAlchemySyncOutboxPublisher,
)
from spectral.core.events.settings import PublishSettings

if TYPE_CHECKING:
    from spectral.core.events.protocols import EventPublisher

SHARED = Publishing(PublishSettings(generation=1), lambda: None)


class ClosedAsyncpgConnection(asyncpg.Connection):
    """asyncpg's own looks at what it never got when it is deleted."""

    def __del__(self) -> None:
        pass


class OwnConnection(psycopg.Connection[Any]):
    """A project's own subclass, in a module of its own."""


class OwnAsyncConnection(psycopg.AsyncConnection[Any]):
    """A project's own subclass."""


class OwnSession(Session):
    """What SQLModel and many projects do."""


class OwnAsyncSession(AsyncSession):
    """What SQLModel and many projects do."""


@dataclass(frozen=True)
class Case:
    """A kind of connection, never connected, and the publisher it is to get."""

    kind: type
    publisher: type


CASES = [
    Case(psycopg.AsyncConnection, OutboxPublisher),
    Case(OwnAsyncConnection, OutboxPublisher),
    Case(psycopg.Connection, PsycopgSyncOutboxPublisher),
    Case(OwnConnection, PsycopgSyncOutboxPublisher),
    Case(ClosedAsyncpgConnection, AsyncpgOutboxPublisher),
    Case(PoolConnectionProxy, AsyncpgOutboxPublisher),
    Case(AsyncSession, SqlAlchemyOutboxPublisher),
    Case(OwnAsyncSession, SqlAlchemyOutboxPublisher),
    Case(AsyncConnection, SqlAlchemyOutboxPublisher),
    Case(Session, SqlAlchemySyncOutboxPublisher),
    Case(OwnSession, SqlAlchemySyncOutboxPublisher),
    Case(sessionmaker().class_, SqlAlchemySyncOutboxPublisher),
    Case(Connection, SqlAlchemySyncOutboxPublisher),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind.__module__}.{case.kind.__name__}")
def test_a_connection_gets_the_publisher_of_its_driver(case: Case) -> None:
    assert type(publisher_for(object.__new__(case.kind), SHARED)) is case.publisher


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.kind.__module__}.{case.kind.__name__}")
def test_drivers_that_are_awaited_get_publishers_that_are_awaited(case: Case) -> None:
    awaited = (
        "Async" in case.kind.__name__ or case.kind.__module__.startswith("asyncpg") or "asyncpg" in case.kind.__name__
    )
    expected = AsyncOutboxPublisher if awaited else SyncOutboxPublisher
    assert issubclass(case.publisher, expected)


def test_an_awaited_publisher_is_the_port() -> None:
    # Checked by mypy, which knows the publisher by the overloads.
    port: EventPublisher = publisher_for(object.__new__(psycopg.AsyncConnection), SHARED)
    assert isinstance(port, OutboxPublisher)


def test_a_blocking_publisher_is_known_by_its_connection() -> None:
    # Checked by mypy, which knows the publisher by the overloads.
    blocking: SyncOutboxPublisher = publisher_for(object.__new__(psycopg.Connection), SHARED)
    assert isinstance(blocking, PsycopgSyncOutboxPublisher)


def test_what_is_shared_is_used() -> None:
    publisher = publisher_for(object.__new__(psycopg.Connection), SHARED)
    assert publisher._publishing is SHARED


class Stranger:
    """Something that is no connection."""


strangers: list[Any] = [
    None,
    7,
    "postgresql://localhost/app",
    Stranger(),
    Stranger,
    psycopg.Connection,
    SimpleNamespace(),
]


@pytest.mark.parametrize("stranger", strangers, ids=range(len(strangers)))
def test_what_is_no_connection_is_refused_with_what_to_give(stranger: Any) -> None:  # noqa: ANN401  the point
    with pytest.raises(ConfigurationError, match=r"no publisher knows a .*psycopg or asyncpg.*DjangoOutboxPublisher"):
        publisher_for(stranger, SHARED)


def test_a_registry_of_sessions_is_no_session() -> None:
    with pytest.raises(ConfigurationError, match=r"no publisher knows a sqlalchemy\.orm\.scoping\.scoped_session"):
        publisher_for(scoped_session(sessionmaker()), SHARED)


def test_a_class_of_the_same_name_in_another_package_is_refused() -> None:
    lookalike = type("Connection", (), {"__module__": "psycopgish.connection"})
    with pytest.raises(ConfigurationError, match=r"psycopgish\.connection\.Connection"):
        publisher_for(lookalike(), SHARED)


def test_a_connection_string_is_not_repeated_when_it_is_refused() -> None:
    dsn: Any = "postgresql://app:hunter2@localhost/app"
    with pytest.raises(ConfigurationError) as caught:
        publisher_for(dsn, SHARED)
    assert "hunter2" not in str(caught.value)


def test_without_anything_shared_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECTRAL_GENERATION", "12")
    monkeypatch.setenv("SPECTRAL_CONTEXTS", "orders")
    publisher = publisher_for(object.__new__(psycopg.Connection))
    assert publisher._publishing.settings == PublishSettings(generation=12, contexts=frozenset({"orders"}))


def test_an_environment_without_generation_gives_no_publisher(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECTRAL_GENERATION", raising=False)
    with pytest.raises(ConfigurationError, match="SPECTRAL_GENERATION is not set"):
        publisher_for(object.__new__(psycopg.Connection))


def test_what_publishers_share_is_made_of_the_settings_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECTRAL_GENERATION", "not read")
    settings = PublishSettings(generation=5)
    assert publishing(settings) == Publishing(settings, current_traceparent)


def test_an_environment_given_goes_before_the_process_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECTRAL_GENERATION", "1")
    assert publishing(environ={"SPECTRAL_GENERATION": "2"}).settings.generation == 2


def test_an_empty_environment_given_is_not_replaced_by_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECTRAL_GENERATION", "1")
    with pytest.raises(ConfigurationError):
        publishing(environ={})
