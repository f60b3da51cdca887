"""Where the servers of the tests keep their data, and how it is copied: in memory where there is enough of it.

A database of its own for each test is nine hundred files, made and removed. On a disk that costs ten times what
Postgres itself does for it, and nothing that is tested here is about the disk: a killed server or process loses no
more in memory than it does on a disk, for both keep what was written.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypeVar

import psycopg
import pytest
from psycopg import sql

from spectral.core.embedded import PostgresServer, with_database

_MEMORY: Final = Path("/dev/shm")  # noqa: S108  directories of their own are made in it
_DISK: Final = Path("/tmp")  # noqa: S108  likewise
_ROOM: Final = 2 * 2**30  # bytes for each process of the run; a million rows take a third of it
_HAS_STRATEGIES: Final = 15_00_00

Server = TypeVar("Server", bound=PostgresServer)


def place_for_data() -> Path:
    """Memory, if every process of this run can have its part of it."""
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    roomy = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM * processes
    return _MEMORY if roomy else _DISK


def copy_of(server: PostgresServer, template: str) -> str:
    """The DSN of a new database, copied file by file: half the work of copying it through the log.

    It takes a checkpoint, which holds up others on the server; here there are none.
    """
    name = f"spectral_{secrets.token_hex(8)}"
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        how = sql.SQL("strategy file_copy" if connection.info.server_version >= _HAS_STRATEGIES else "")
        statement = sql.SQL("create database {} template {} {}")
        connection.execute(statement.format(sql.Identifier(name), sql.Identifier(template), how))
    return with_database(server.dsn, name)


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """The server, started, with its throw-away data in that place."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(place_for_data()))
        server.start()
    try:
        yield server
    finally:
        server.stop()
