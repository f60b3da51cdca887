"""Both reference contexts on one database, each with a login that has its own role and no other."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg

import spectral.platform
import spectral.worlds
from spectral.core.embedded import PostgresServer
from spectral.core.events import Consumer, PublishSettings
from spectral.core.events.bootstrap import publishing
from spectral.core.events.testing import EFFECTS_SCHEMA, Drained, drain
from spectral.core.migrations import bundled_directory, discover, up
from spectral.platform.domain.failures import Cluster
from spectral.platform.infrastructure.decisions import Decisions
from spectral.platform.infrastructure.failures import Failures, PostgresFailureSamples
from spectral.worlds.domain.cards import CardDraft, Evaluation
from spectral.worlds.infrastructure.cards import Cards
from spectral.worlds.infrastructure.scans import Scans
from spectral_workers.event_consumers import build_platform_consumer, build_worlds_consumer
from tests.migrations.schema import prepared_database, role

MIGRATIONS = tuple(
    Path(directory) / "migrations" for package in (spectral.platform, spectral.worlds) for directory in package.__path__
)
DIRECTORIES = (bundled_directory(), *MIGRATIONS)
# Named by what is in it, as every template: a server may outlive the run.
_CHECKSUMS = "".join(migration.checksum for migration in discover(DIRECTORIES))
TEMPLATE = f"spectral_contexts_{sha256(_CHECKSUMS.encode()).hexdigest()[:16]}"
SHARED = publishing(PublishSettings(generation=1))
DRAFT = CardDraft(
    title="Hafen, Nacht: «港»",
    summary='Tides, "fog" and\nmoving cranes \\ 🌫',
    capabilities=("tides up to 4 m", "fog by the hour"),
    limitations=("no ice",),
    evaluations=(Evaluation("drift-100", 0.875), Evaluation("rare", 1e-07), Evaluation("whole", 3.0)),
)


@dataclass(frozen=True)
class Stage:
    """The database as its superuser, platform and worlds see it."""

    dsn: str
    platform_dsn: str
    worlds_dsn: str
    platform: psycopg.AsyncConnection[Any]
    worlds: psycopg.AsyncConnection[Any]

    @property
    def cards(self) -> Cards:
        return Cards(self.worlds, SHARED)

    @property
    def scans(self) -> Scans:
        return Scans(self.worlds, SHARED)

    @property
    def failures(self) -> Failures:
        return Failures(self.platform, SHARED)

    @property
    def decisions(self) -> Decisions:
        return Decisions(self.platform, SHARED)

    async def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        """What a superuser sees."""
        async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
            return await (await connection.execute(query.encode(), parameters)).fetchall()

    async def change(self, statement: str) -> None:
        """What only a superuser may do."""
        async with await psycopg.AsyncConnection.connect(self.dsn, autocommit=True) as connection:
            await connection.execute(statement.encode())

    async def world_model(self, workspace_id: UUID | None = None) -> UUID:
        world_model_id = uuid4()
        await self.cards.create_world_model(world_model_id, "Harbour", workspace_id=workspace_id)
        return world_model_id

    async def cluster(self, world_model_id: UUID, samples: Sequence[str] = ("crane 1", "crane 2")) -> Cluster:
        cluster = Cluster(
            cluster_id=uuid4(),
            world_model_id=world_model_id,
            signature="crane passes through fog bank",
            failures=17,
            samples=tuple(samples),
        )
        await self.failures.detect(cluster)
        return cluster

    def consumers(self) -> tuple[Consumer, Consumer]:
        """New ones of both contexts; worlds asks platform with platform's login."""
        return build_platform_consumer(), build_worlds_consumer(PostgresFailureSamples(lambda: self.platform_dsn))

    async def drain(self, *, platform: Consumer | None = None, worlds: Consumer | None = None) -> Drained:
        """Run a worker for each context, under its own login, in turn, until neither has anything to do."""
        own_platform, own_worlds = self.consumers()
        notes = Drained(())
        while True:
            rounds = [
                await drain(platform or own_platform, dsn=self.platform_dsn),
                await drain(worlds or own_worlds, dsn=self.worlds_dsn),
            ]
            if not any(each.finished for each in rounds):
                return notes
            notes = Drained((*notes.notes, *(note for each in rounds for note in each.notes)))


@asynccontextmanager
async def open_stage(postgres: PostgresServer) -> AsyncIterator[Stage]:
    """A database with the contexts' own migrations on top of the core's, and a login for each context."""
    postgres.create_template(TEMPLATE, _prepare)
    with ExitStack() as given:
        dsn = given.enter_context(prepared_database(postgres, TEMPLATE))
        platform_dsn = given.enter_context(role(dsn, groups=("platform_app",)))
        worlds_dsn = given.enter_context(role(dsn, groups=("worlds_app",)))
        async with (
            await psycopg.AsyncConnection.connect(platform_dsn, autocommit=True) as platform,
            await psycopg.AsyncConnection.connect(worlds_dsn, autocommit=True) as worlds,
        ):
            yield Stage(dsn, platform_dsn, worlds_dsn, platform, worlds)


def _prepare(dsn: str) -> None:
    up(dsn, directories=DIRECTORIES)
    with psycopg.connect(dsn, autocommit=True) as superuser:
        superuser.execute(EFFECTS_SCHEMA.encode())  # the oracle wants it, though the contexts' handlers record nothing
