"""From a command to the service that does it: one connection, one event loop, and Ctrl-C ends it quietly."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final, TypeVar

from spectral_ops.cli.database import environment, resolve_dsn
from spectral_ops.cli.events_options import plain
from spectral_ops.cli.output import note

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from uuid import UUID

    from spectral.core.database import Database

T = TypeVar("T")

SERVICE: Final = "spectral-cli"
_NARROW: Final = """
select coalesce(current_setting('spectral.workspace_id', true), '')
from pg_roles as login
where login.rolname = current_user
  and not login.rolsuper
  and not login.rolbypassrls
  and not exists (
    select
    from pg_roles as wide
    where wide.rolname in ('spectral_operator', 'spectral_retention', 'spectral_owner')
      and pg_has_role(login.oid, wide.oid, 'usage')
  )
"""
_ACT_FOR: Final = "select set_config('spectral.workspace_id', %s, false)"


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


def with_events(purpose: str, work: Callable[[Database], Awaitable[T]], *, workspace: UUID | None = None) -> T:
    """The same for what shows events: of a login that sees those of one workspace only, that is said.

    What it cannot see is not there for it, and somebody would take it for lost.
    """

    async def run(database: Database) -> T:
        found = await database.tuples(_NARROW)
        if found and workspace is not None:
            await database.connection.execute(_ACT_FOR, [str(workspace)])
        elif found:
            ((sees,),) = found
            whose = f"of workspace {plain(sees)}" if sees else "that belong to no workspace"
            note(f"this login sees only events {whose}; for others: PGOPTIONS='-c spectral.workspace_id=ID'")
        return await work(database)

    return with_database(purpose, run)
