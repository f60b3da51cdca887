"""Locks that everybody else stands behind are asked for briefly, and again after a while; and who may do what."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

import psycopg

from spectral.core.database import DatabaseTooSlowError, RefusedError, explained

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence
    from datetime import timedelta
    from typing import LiteralString

    from spectral.core.database import Database

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 5.0
_TRY_LOCK: Final = "select pg_try_advisory_lock(core.partitions_lock_key())"
_UNLOCK: Final = b"select pg_advisory_unlock(core.partitions_lock_key())"
_OWNER: Final = "select quote_ident(current_user), pg_has_role(current_user, 'spectral_owner', 'usage')"


async def patiently(
    database: Database,
    query: LiteralString,
    parameters: Sequence[object],
    give_up_after: timedelta,
    on_attempt: Callable[[int], None] | None = None,
) -> Any:  # noqa: ANN401  whatever the column holds
    """The value of a call that takes its lock for a moment, tried until it gets it. It may run for as long as it needs.

    Raises:
        DatabaseTooSlowError: it was not to be had in that time.
    """
    deadline, pause, attempt = time.monotonic() + give_up_after.total_seconds(), _FIRST_PAUSE, 1
    while True:
        if on_attempt is not None:
            on_attempt(attempt)
        try:
            return await without_limit(database, query, parameters)
        except DatabaseTooSlowError:
            if time.monotonic() + pause > deadline:
                raise
        # Not in step with whatever comes at regular times.
        await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311  no secret
        pause, attempt = min(pause * 1.5, _LONGEST_PAUSE), attempt + 1


async def without_limit(database: Database, query: LiteralString, parameters: Sequence[object] = ()) -> Any:  # noqa: ANN401
    """The value of a call that may read a whole table: no statement timeout, and what it locks it bounds by itself."""
    async with database.transaction():
        await database.connection.execute(b"set local statement_timeout = 0")
        try:
            cursor = await database.connection.execute(query, parameters)
        except psycopg.errors.DeadlockDetected as error:  # as good as a lock that was not to be had
            raise DatabaseTooSlowError(str(error.diag.message_primary)) from None
        found = await cursor.fetchone()
    return None if found is None else found[0]


async def outside_transactions(database: Database, statement: bytes) -> None:
    """Run what cannot run in a transaction, for as long as it takes."""
    with explained(database.connection):
        await database.connection.execute(b"set statement_timeout = 0")
        try:
            await database.connection.execute(b"set lock_timeout = 0")
            await database.connection.execute(statement)
        finally:
            if not (database.connection.closed or database.connection.broken):
                await database.connection.execute(b"reset statement_timeout")
                await database.connection.execute(b"reset lock_timeout")


async def require_owner(database: Database) -> None:
    """This login may build indexes.

    Raises:
        RefusedError: it may not.
    """
    ((role, owns),) = await database.tuples(_OWNER)
    if not owns:
        raise RefusedError(
            f"the login {role} may not build indexes on core.outbox: use the login of spectral migrate",
            f"grant spectral_owner to {role}",
        )


@asynccontextmanager
async def alone(database: Database) -> AsyncGenerator[None]:
    """Nobody else changes the layout meanwhile; held by the connection, so it ends with it.

    Raises:
        RefusedError: somebody else does.
    """
    if not await database.value(_TRY_LOCK):
        raise RefusedError("somebody else is changing the partitions", "spectral partitions status")
    try:
        yield
    finally:
        connection = database.connection
        if not (connection.closed or connection.broken):
            with explained(connection):
                await connection.execute(_UNLOCK)
