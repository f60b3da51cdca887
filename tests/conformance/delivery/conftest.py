"""The six stages on which every promise is kept."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from datetime import timedelta

import psycopg
import pytest

from spectral.core.embedded import PostgresServer, database_of
from spectral.core.events import Consumer
from spectral.core.events.broker_settings import BrokerKind, BrokerSettings
from spectral.core.migrations import up
from tests.conformance.delivery.stage import NEVER, Stage, open_stage
from tests.conftest import TEMPLATE
from tests.integration.delivery.platform_worker import AT_ONCE
from tests.integration.relay.nats_server import nats_server
from tests.integration.relay.redis_stage import redis_server
from tests.layout import partition

__all__ = ["nats_server", "redis_server"]

SUBSTRATES = ("postgres", "nats", "redis")
LAYOUTS: dict[str, tuple[Callable[[str], object], ...]] = {"one": (up,), "months": (up, partition)}
"""How each is made; the names are those of the templates that other tests copy too."""


def _stages() -> list[object]:
    # One process needs one template and one broker for each.
    return [
        pytest.param(
            (substrate, layout), id=f"{substrate}-{label}", marks=pytest.mark.xdist_group(f"{substrate}-{label}")
        )
        for substrate in SUBSTRATES
        for layout, label in (("one", "plain"), ("months", "partitioned"))
    ]


@pytest.fixture(params=_stages())
def substrate_and_layout(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Which stage it is."""
    found: tuple[str, str] = request.param
    return found


@pytest.fixture
def layout(substrate_and_layout: tuple[str, str]) -> str:
    """How the outbox lies in the database."""
    return substrate_and_layout[1]


@pytest.fixture
def broker(request: pytest.FixtureRequest, substrate_and_layout: tuple[str, str]) -> BrokerSettings | None:
    """What carries references, if anything does."""
    substrate, _ = substrate_and_layout
    if substrate == "postgres":
        return None
    server = request.getfixturevalue(f"{substrate}_server")
    return BrokerSettings(
        kind=BrokerKind(substrate),
        url=server.url,
        answer=timedelta(seconds=15),  # on a busy machine; whoever gives a broker up takes another way
        redeliver_after=timedelta(seconds=8),
        late=NEVER,
    )


@pytest.fixture
def laid_out(postgres: PostgresServer, layout: str) -> Iterator[str]:
    """The superuser's DSN of a database on this layout; generation 1 is live, 2 allocated, 0 retired."""

    def prepare(dsn: str) -> None:
        for step in LAYOUTS[layout]:
            step(dsn)

    postgres.create_template(f"{TEMPLATE}_{layout}", prepare)
    dsn = postgres.create_database(template=f"{TEMPLATE}_{layout}")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "insert into core.deployments (generation, status, promoted_at, retired_at) values"
            " (0, 'retired', null, now()), (1, 'live', now(), null), (2, 'allocated', null, null)"
        )
    yield dsn
    postgres.drop_database(database_of(dsn))


@pytest.fixture
async def stage(laid_out: str, broker: BrokerSettings | None) -> AsyncIterator[Stage]:
    """See `Stage`."""
    async with open_stage(laid_out, broker) as opened:
        yield opened


@pytest.fixture
def platform() -> Consumer:
    """The platform's handlers: none yet. They are retried at once, three times."""
    return Consumer("platform", retry=AT_ONCE)
