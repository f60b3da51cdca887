"""Reads what the doctor judges. Nothing here decides whether anything is wrong."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from spectral.core import migrations
from spectral.core.database import RefusedError
from spectral.core.migrations import DriftKind, MigrationError, UnsupportedServerError
from spectral.core.operations.doctor import reading_sql as statements
from spectral.core.operations.doctor.facts import Access, Blocker, Clock, Latency, Schema, Server

if TYPE_CHECKING:
    from collections.abc import Callable

    from spectral.core.database import Database
    from spectral.core.operations.insights_values import Table

_GROUPS: Final = (
    "spectral_owner",
    "spectral_publisher",
    "spectral_worker",
    "spectral_operator",
    "spectral_retention",
    "spectral_readonly",
)
_BOUNDS: Final = "-c lock_timeout=3s -c statement_timeout=20s"
_A_MOMENT: Final = 1.0
_SAMPLE: Final = 20_000
_MOST_NAMED: Final = 20


def local_clock() -> datetime:
    """This machine's clock, which is only ever compared with the database's."""
    return datetime.now(UTC)


async def read_server(database: Database) -> Server:
    """What the server is, and how it is set up."""
    (server,) = await database.rows(statements.SERVER, into=Server)
    return server


async def read_clock(database: Database, clock: Callable[[], datetime]) -> Clock:
    """How far the server's clock is from this machine's."""
    before = clock()
    now: datetime = await database.value(b"select clock_timestamp()")
    round_trip = clock() - before
    return Clock(now - (before + round_trip / 2), round_trip)


async def has_schema(database: Database) -> bool:
    """Whether there is any of it."""
    return bool(await database.value(statements.HAS_SCHEMA))


async def read_schema(dsn: str, *, pooled: bool) -> Schema:
    """How the schema stands to the files of this installation.

    Raises:
        RefusedError: this login may not read the ledger, or somebody locks what has to be read.
        DatabaseUnavailableError: the server went away.
    """
    # The runner itself waits for ever; a pooler would not take the options that end that.
    bounded = dsn if pooled else make_conninfo(dsn, options=f"{conninfo_to_dict(dsn).get('options') or ''} {_BOUNDS}")
    try:
        found = await asyncio.to_thread(migrations.verify, bounded)
    except (migrations.DatabaseUnavailableError, UnsupportedServerError):
        raise
    except MigrationError as error:
        raise RefusedError(str(error), "spectral migrate verify") from None
    return Schema(
        pending=tuple(each.filename for each in found.pending),
        adoptable=tuple(each.filename for each in found.adoptable),
        drift=tuple(each.filename for each in found.drift if each.kind is not DriftKind.MISSING)[:_MOST_NAMED],
        unknown=tuple(each.filename for each in found.drift if each.kind is DriftKind.MISSING)[:_MOST_NAMED],
        changed=tuple(f"{each.kind} {each.name} was {each.change}" for each in found.objects[:_MOST_NAMED]),
    )


async def read_access(database: Database) -> Access:
    """Groups, their grants, owners, and the trigger that rings."""
    groups: dict[str, bool] = dict(await database.tuples(statements.GROUPS))
    return Access(
        member_of=tuple(sorted(name for name, mine in groups.items() if mine)),
        superuser=bool(await database.value(statements.SUPERUSER)),
        missing_groups=tuple(name for name in _GROUPS if name not in groups),
        missing_grants=tuple(grant for (grant,) in await database.tuples(statements.MISSING_GRANTS)),
        foreign=tuple((name, owner) for name, owner in await database.tuples(statements.FOREIGN)),
        notify_trigger=await database.value(statements.NOTIFY_TRIGGER),
        # A schema that waits for its migrations has none.
        bell=await database.value(statements.BELL) if await database.value(statements.HAS_BELL) else None,
    )


async def read_blockers(database: Database) -> tuple[Blocker, ...]:
    """Who locks the outbox against everybody, and goes on doing so: a migration does it for a moment."""
    first = {each.pid for each in await database.rows(statements.BLOCKERS, into=Blocker)}
    if not first:
        return ()
    await asyncio.sleep(_A_MOMENT)
    return tuple(each for each in await database.rows(statements.BLOCKERS, into=Blocker) if each.pid in first)


async def read_latency(database: Database, outbox: Table | None) -> Latency:
    """How long rows took from due to delivered, by a sample."""
    rows = outbox.rows if outbox is not None else 0
    percent = min(100.0, 100.0 * _SAMPLE / max(rows, 1))
    found: list[tuple[int, timedelta | None, int]] = await database.tuples(statements.LATENCY, {"percent": percent})
    return Latency(*found[0])
