"""The top of the library: reads the environment, and wires publishers and workers to what they need.

`publisher_for` recognises the connection it is given by its type and loads only that driver's adapter.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import socket
from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypedDict, Unpack, overload

from spectral.core.events.broker import BrokerLane
from spectral.core.events.broker_settings import BrokerSettings, RelaySettings
from spectral.core.events.consumer import Consumer
from spectral.core.events.delivery.desk import Desk
from spectral.core.events.delivery.listener import Listener
from spectral.core.events.delivery.publish import Publishing
from spectral.core.events.envelope import EventEnvelope  # noqa: TC001  read from the annotation of a handler
from spectral.core.events.failure import ConfigurationError, TerminalHandlerError
from spectral.core.events.infrastructure.observability.traces import current_traceparent
from spectral.core.events.relay.process import Relay
from spectral.core.events.relay.receive import ReceiveLoop, Source
from spectral.core.events.relay.reception import BrokerReception
from spectral.core.events.relay.sending import Way
from spectral.core.events.routes import Routes
from spectral.core.events.settings import (
    GENERATION_VARIABLE,
    DatabaseSettings,
    Identity,
    PublishSettings,
    WorkerSettings,
    parse_generation,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from spectral.core.events.broker import BrokerReceiver, Reference
    from spectral.core.events.delivery.shift import Connections
    from spectral.core.events.infrastructure.outbox_publisher import AsyncOutboxPublisher, SyncOutboxPublisher
    from spectral.core.events.probe import Probe
    from spectral.core.events.protocols import EventHandler

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


def publishing(
    settings: PublishSettings | None = None, *, environ: Mapping[str, str] | None = None, probe: Probe | None = None
) -> Publishing:
    """What every publisher of a program shares: its settings, and who watches it.

    Without settings they are read from the environment (`SPECTRAL_GENERATION`, `SPECTRAL_CONTEXTS`). Make it when the
    program starts and hand it to `publisher_for`: then a wrong variable refuses the start, not the first request.
    `probe` is told of every publish, instead of the log, OpenTelemetry and Sentry.

    Raises:
        ConfigurationError: a variable is missing or makes no sense; the message says what to set.
    """
    variables = os.environ if environ is None else environ
    if settings is None:
        settings = PublishSettings.from_environ(variables)
    probe = probe or _standard_watch(Identity.from_environ(variables, settings.generation))
    return Publishing(settings, current_traceparent, probe)


def _standard_watch(identity: Identity, worker: str | None = None) -> Probe:
    # structlog comes with it; who brings a probe does without
    standard = import_module(f"{_ROOM}.observability.standard")
    probe: Probe = standard.publishers_watch(identity) if worker is None else standard.standard_watch(identity, worker)
    return probe


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


class WorkerOptions(TypedDict, total=False):
    """What a worker may be given; whatever is left out is read from the environment.

    settings: what it is and how much it takes on.
    database: how to reach the database.
    broker: how to reach the broker from which it takes while the database says so; none: it never does.
    environ: the environment to read instead of the process's own.
    probe: who is told what happens, instead of the log, OpenTelemetry and Sentry.
    """

    settings: WorkerSettings
    database: DatabaseSettings
    broker: BrokerSettings | None
    environ: Mapping[str, str]
    probe: Probe


def worker(*consumers: Consumer, **options: Unpack[WorkerOptions]) -> Listener:
    """A worker that runs the handlers of these consumers. Make it inside a running event loop, and run it once.

    From the environment: `SPECTRAL_DATABASE_URL`, `DATABASE_URL` or the PG* variables name the database,
    `SPECTRAL_DIRECT_URL` another way to it for the connections that must not go through a transaction pooler;
    `SPECTRAL_GENERATION` and the others are those of `WorkerSettings.from_environ`, `SPECTRAL_RELAY` and
    `SPECTRAL_BROKER_URL` those of `BrokerSettings.from_environ`.

    Raises:
        ConfigurationError: a variable is missing or makes no sense, or the consumers do not fit together.
    """
    return _listener(Routes.of(consumers), options)


class ChannelListener:
    """Implements `EventListener`: one handler for every event of its context on one channel. Takes `WorkerOptions`.

    The context is the first part of the handler's name. For a context that has a `Consumer`, register there instead:
    whoever claims a row settles it, so two independent listeners of one context would share its events between them.
    """

    def __init__(self, **options: Unpack[WorkerOptions]) -> None:
        self._options = options

    async def listen(self, *, channel: str, handler_name: str, handler: EventHandler) -> None:
        """Deliver every event addressed to the handler's context on this channel until cancelled.

        Raises:
            ConfigurationError: the channel is not of this worker's generation, or the handler's name is not qualified.
        """

        async def handle(envelope: EventEnvelope) -> None:
            answer: object = handler(envelope)
            if not isawaitable(answer):  # any callable may be given, so it shows only now; again, it would run again
                raise TerminalHandlerError(f"the handler must be an async function: it answered {answer!r:.40}")
            await answer

        settings = self._options.get("settings") or WorkerSettings.from_environ(_environ(self._options))
        consumer = Consumer(handler_name.partition(".")[0])
        routes = Routes.catch_all(consumer.context, consumer.handler(handle, name=handler_name))
        async with _listener(routes, {**self._options, "settings": settings.for_channel(channel)}):
            await asyncio.get_running_loop().create_future()


def _environ(options: WorkerOptions) -> Mapping[str, str]:
    return options.get("environ", os.environ)


def named(settings: WorkerSettings) -> WorkerSettings:
    """The same settings, with a name that no other worker has unless they have one already."""
    if settings.name:
        return settings
    return replace(settings, name=_unique_name())


def _unique_name() -> str:
    return f"{socket.gethostname()[:60]}-{os.getpid()}-{secrets.token_hex(3)}"


def _listener(routes: Routes, options: WorkerOptions) -> Listener:
    settings = named(options.get("settings") or WorkerSettings.from_environ(_environ(options)))
    database = options.get("database") or DatabaseSettings.from_environ(_environ(options))
    identity = Identity.from_environ(_environ(options), settings.generation)
    probe = options.get("probe") or _standard_watch(identity, settings.name)
    # What it consumes for it may publish for, declared or not.
    contexts = settings.contexts | frozenset(routes.contexts)
    shared = publishing(PublishSettings(generation=settings.generation, contexts=contexts), probe=probe)
    direct = database.direct_dsn or database.dsn
    # psycopg and structlog come with these; a publisher on another driver does without
    postgres, logs = import_module(f"{_ROOM}.postgres.worker"), import_module(f"{_ROOM}.observability.logs")
    connections: Connections = postgres.connections(database.dsn, direct, settings, shared, routes.contexts)
    broker = options["broker"] if "broker" in options else BrokerSettings.from_environ(_environ(options))
    if broker is not None:
        reception = _reception(broker, database.dsn, settings, routes, probe)
        connections = replace(connections, claims=reception, reception=reception)
    logger_for = partial(logs.handler_logger, identity=identity, worker=settings.name)
    return Listener(connections, Desk(settings, routes, probe, logger_for, random.random))


def _reception(
    broker: BrokerSettings, dsn: str, settings: WorkerSettings, routes: Routes, probe: Probe
) -> BrokerReception:
    """The claims of a worker that may take from a broker."""
    room = _broker_room(broker, "Receiver")
    lanes = [
        lane
        for generation in settings.generations()
        for channel in settings.claimed_channels()
        for context in routes.contexts
        if (lane := BrokerLane(generation, channel, context)).is_valid
    ]

    def handles(reference: Reference) -> bool:
        return any(
            line.context == reference.lane.context
            and (line.event_types is None or reference.event_type in line.event_types)
            for line in routes.lines
        )

    @cache  # one, which may be opened again: it knows what it was handed before
    def receiver_for(prefix: str) -> BrokerReceiver:
        receiver: BrokerReceiver = room(broker, prefix, settings.name)
        return receiver

    source = Source(receiver_for, broker, lanes, handles)
    claims = import_module(f"{_ROOM}.postgres.relay_claims").PostgresReferencedClaims(dsn, settings)
    return BrokerReception(claims, ReceiveLoop(source, settings.times, probe), broker, probe)


class RelayOptions(TypedDict, total=False):
    """What a relay may be given, as `WorkerOptions`; settings: how it goes about it."""

    settings: RelaySettings
    broker: BrokerSettings
    database: DatabaseSettings
    environ: Mapping[str, str]
    probe: Probe


def relay(**options: Unpack[RelayOptions]) -> Relay:
    """A relay that sends references to rows that are due to a broker. Make it inside a running event loop.

    From the environment: the database as for `worker`, `SPECTRAL_RELAY` and `SPECTRAL_BROKER_URL`.

    Raises:
        ConfigurationError: a variable is missing or makes no sense, or the broker's driver is not installed.
    """
    environ = options.get("environ", os.environ)
    broker = options.get("broker") or BrokerSettings.from_environ(environ)
    if broker is None:
        raise ConfigurationError("no broker is named; set SPECTRAL_RELAY=nats or redis, and SPECTRAL_BROKER_URL")
    settings = options.get("settings") or RelaySettings()
    if not settings.name:
        settings = replace(settings, name=f"relay-{_unique_name()}")
    database = options.get("database") or DatabaseSettings.from_environ(environ)
    generation = parse_generation(environ.get(GENERATION_VARIABLE) or "0")
    probe = options.get("probe") or _standard_watch(
        Identity.from_environ(environ, generation, "spectral-relay"), settings.name
    )
    room = _broker_room(broker, "Sender")
    stores, ears = import_module(f"{_ROOM}.postgres.relay_store"), import_module(f"{_ROOM}.postgres.relay_ear")
    store = stores.PostgresRelayStore(database.dsn, settings.name, settings.answer)
    ear = ears.PostgresRelayEar(database.direct_dsn or database.dsn, settings.name, settings.answer, broker.kind)
    return Relay(Way(store, lambda prefix: room(broker, prefix), broker.kind), ear, settings, probe)


def _broker_room(broker: BrokerSettings, side: str) -> Callable[..., Any]:
    """The adapter's class; its driver is an extra that may not be installed."""
    try:
        module = import_module(f"{_ROOM}.{broker.kind}")
    except ImportError as missing:
        raise ConfigurationError(
            f"the driver of {broker.kind} is not installed; run: pip install 'spectral-events[{broker.kind}]'"
        ) from missing
    adapter: Callable[..., Any] = getattr(module, f"{broker.kind.capitalize()}{side}")
    return adapter
