"""Closing a connection that may be in use, or dead: nobody waits for a goodbye, and nothing is left open."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from typing import Any, Final, cast

import psycopg
from psycopg.pq import TransactionStatus

from spectral.core.events.infrastructure.postgres.watched import WatchedConnection

_PATIENCE: Final = 2.0
_DRIVERS_PATIENCE: Final = 12.0
"""A statement that is cancelled takes the driver up to ten seconds to give up."""


async def close(connection: psycopg.AsyncConnection[Any] | None, task: asyncio.Future[Any] | None) -> None:
    """End what runs on the connection (or is still opening it: none), then close it."""
    try:
        if connection is None:
            connection = await _late(task)
            return
        if connection.info.transaction_status is TransactionStatus.ACTIVE:
            # Its locks would stand for as long as the statement takes: the server does not look at the line meanwhile.
            with suppress(Exception):
                await connection.cancel_safe(timeout=_PATIENCE)
        _hang_up(connection)
        if task is not None:
            await _end(task)
        elif connection.lock.locked():
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE), connection.lock:
                    pass
    finally:
        if connection is not None:
            finish(connection)


def finish(connection: psycopg.AsyncConnection[Any]) -> None:
    """Close its socket, which nobody watches any more."""
    if isinstance(connection, WatchedConnection):
        connection.rest()
    connection.pgconn.finish()


async def _late(task: asyncio.Future[Any] | None) -> psycopg.AsyncConnection[Any] | None:
    """Give up opening; a connection that came all the same is to be closed."""
    if task is None:
        return None
    task.cancel()
    with suppress(BaseException):
        return cast("psycopg.AsyncConnection[Any]", await task)
    return None


async def _end(task: asyncio.Future[Any]) -> None:
    await asyncio.wait({task}, timeout=_PATIENCE)
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=_DRIVERS_PATIENCE)
    if task.done() and not task.cancelled():
        task.exception()  # seen: the caller was told that the connection is lost


def _hang_up(connection: psycopg.AsyncConnection[Any]) -> None:
    """Shut the socket down, so that whoever waits on it finds it ended.

    Not closed: its number could be given to the next socket while the event loop still knows it as the old one's.
    """
    with suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.pgconn.socket)) as line:
        line.shutdown(socket.SHUT_RDWR)
