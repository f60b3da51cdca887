"""From a command to the service that does it: one connection, one event loop, and Ctrl-C ends it quietly."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeVar

from spectral_ops.cli.database import environment, resolve_dsn

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from spectral.core.database import Database

T = TypeVar("T")

SERVICE: Final = "spectral-cli"


def with_database(
    purpose: str,
    work: Callable[[Database], Awaitable[T]],
    *,
    statement_timeout: timedelta = timedelta(seconds=10),
) -> T:
    """Run this on a connection of its own; it is called `spectral <purpose>` on the server."""
    import asyncio  # noqa: PLC0415  --help must not pay for it

    from spectral.core.database import connect  # noqa: PLC0415  as above; psycopg comes with it
    from spectral_ops.cli.operator_log import operator_log  # noqa: PLC0415  as above; pydantic comes with it

    variables = environment()
    dsn = resolve_dsn(variables)
    probe = operator_log(SERVICE, variables)

    async def run() -> T:
        async with connect(dsn, purpose, statement_timeout=statement_timeout, probe=probe) as database:
            return await work(database)

    return asyncio.run(run())
