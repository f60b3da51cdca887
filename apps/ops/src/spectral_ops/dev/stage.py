"""The server of `spectral dev`: embedded, migrated, reached over a Unix socket without a password."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from spectral.core.database import connect
from spectral.core.deployments import Release, Status, allocate, list_deployments, promote
from spectral.core.embedded import FAST_AND_UNSAFE, EmbeddedPostgres, ServerOptions, persistent_directory
from spectral.core.events.failure import ConfigurationError
from spectral.core.migrations import MigrationDriftError, bundled_directory, up

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

KEPT: Final = ".spectral"
_ACTOR: Final = "spectral dev"


@contextmanager
def development_server(project: Path, *, ephemeral: bool) -> Iterator[EmbeddedPostgres]:
    """A server while the block runs. Its data is kept in the project's `.spectral`, unless it is ephemeral.

    Kept data is written as safely as any server's; what is thrown away at the end does not wait for the disk.

    Raises:
        EmbeddedPostgresError: there is none to be had; the message says why.
    """
    if ephemeral:
        options = ServerOptions(tcp=False, settings=FAST_AND_UNSAFE)
    else:
        options = ServerOptions(tcp=False, directory=persistent_directory(project / KEPT / "postgres"))
    with EmbeddedPostgres(options=options) as server:
        _keep_out_of_git(project / KEPT)
        yield server


def prepare(server: EmbeddedPostgres, generation: int, own: Sequence[Path]) -> int:
    """Bring the schema forward, Spectral's and then the project's own, and make the generation the live one.

    Answers how many files were applied.

    Raises:
        ConfigurationError: the data was made by other migrations than those of today.
        MigrationError: one of them cannot be applied.
        RefusedError: the generation cannot be live; the message says why.
    """
    try:
        applied = up(server.dsn, directories=[bundled_directory(), *own]).applied
    except MigrationDriftError as drift:
        raise ConfigurationError(f"{drift}; to begin anew, delete the data: rm -r {server.home}") from None
    asyncio.run(_make_live(server.dsn, generation))
    return len(applied)


async def _make_live(dsn: str, generation: int) -> None:
    async with connect(dsn, "dev") as database:
        found = await list_deployments(database)
        if generation not in {each.generation for each in found if each.status is not Status.UNKNOWN}:
            await allocate(database, Release(generation=generation), by=_ACTOR)
        await promote(database, generation, by=_ACTOR)


def _keep_out_of_git(directory: Path) -> None:
    """The directory says so itself, so nobody has to."""
    ignore = directory / ".gitignore"
    if directory.is_dir() and not ignore.exists():
        ignore.write_text("*\n", encoding="utf-8")
