"""The command line in the hands of somebody at a desk: in this process, for a process costs half a second.

And a database with something of everything, for them to look at and to change.
"""

from __future__ import annotations

import functools
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
import pytest
import typer.main
from psycopg.types.json import Jsonb

from spectral.core.embedded import PostgresServer, database_of
from spectral_ops import cli
from spectral_ops.cli.app import app
from tests.acceptance.worker_process import PATIENCE, SPECTRAL
from tests.memory import copy_of
from tests.migrations.schema import Connection, outbox_row

PASSWORD: Final = "canary-password"
"""In the connection string. Nothing may ever show it."""

PAYLOAD: Final = "canary-payload"
"""In every payload. Only `show` may show it."""

_CONTENTS: Final = psycopg.sql.SQL("select count(*), md5(string_agg(t::text, '' order by t::text)) from {} as t")


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


@functools.cache
def _tree() -> Callable[..., object]:
    """The commands, built once: that is most of what a short command costs, and typer does it for each."""
    return typer.main.get_command(app)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@dataclass(frozen=True)
class Desk:
    """Somebody in a directory, with a database and a shell."""

    dsn: str
    directory: Path
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        found = {"PATH": f"{Path(SPECTRAL).parent}:/usr/bin:/bin", "SPECTRAL_DATABASE_URL": self.dsn}
        return {**found, "SPECTRAL_GENERATION": "1", **self.variables}

    def spectral(self, *arguments: str, terminal: bool = False) -> Ran:
        """What `spectral` with these arguments does, through its own `main`."""
        out, err = (Terminal() if terminal else io.StringIO()), io.StringIO()
        code: object = 0
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
            for name in os.environ:
                patch.delenv(name)
            for name, value in self.environment.items():
                patch.setenv(name, value)
            patch.setattr(cli, "app", _tree())
            patch.setattr(sys, "argv", ["spectral", *arguments])
            patch.setattr(sys, "stdin", io.StringIO())
            patch.setattr(sys, "path", [*sys.path])
            patch.chdir(self.directory)
            try:
                cli.main()
            except SystemExit as end:
                code = end.code
            finally:
                self._forget_imports()
        assert isinstance(code, int | None)
        return Ran(code or 0, out.getvalue(), err.getvalue())

    def _forget_imports(self) -> None:
        """What came from this directory: another test's modules may have the same names."""
        here = str(self.directory.resolve())
        for name, module in list(sys.modules.items()):
            spec = getattr(module, "__spec__", None)
            places = [spec.origin, *(spec.submodule_search_locations or ())] if spec is not None else []
            if any(str(place).startswith(here) for place in places):
                del sys.modules[name]

    def shell(self, line: str) -> Ran:
        """The same as a process, from a shell."""
        ran = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    def fingerprint(self) -> dict[str, object]:
        """All that is in the tables."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            tables = connection.execute(
                "select schemaname, tablename from pg_tables where schemaname in ('core', 'platform')"
            ).fetchall()
            return {
                name: connection.execute(_CONTENTS.format(psycopg.sql.Identifier(schema, name))).fetchone()
                for schema, name in tables
            }


def prepare(connection: Connection) -> None:
    """Something of everything: generations, rows of every state, failures of several kinds, audit, dedup records."""
    connection.execute(
        "insert into core.deployments (generation, status, promoted_at, retired_at) values"
        " (0, 'retired', null, now()), (1, 'live', now(), null), (2, 'allocated', null, null);"
        " select core.outbox_subscribe(1, '{platform}', '{worlds.scan.completed}', '{platform.index_scan}', '{6}');"
        " select core.outbox_subscribe(2, '{platform}', '{worlds.scan.completed}', '{platform.index_scan}', '{6}');"
    )
    common: dict[str, Any] = {"payload": {"note": PAYLOAD}}
    for _ in range(3):
        outbox_row(connection, "pending", **common)
        outbox_row(connection, "delivered", delivered_at="now", **common)
    outbox_row(connection, "pending", channel="outbox_default", **common)
    outbox_row(connection, "pending", target=None, **common)
    outbox_row(connection, "in_flight", **common)
    for error in (
        "ValueError: platform.index_scan: no",
        "ValueError: platform.index_scan: never",
        "ValueError: platform.index_scan: not that",
        "TimeoutError: slow",
    ):
        outbox_row(connection, "failed", last_error=error, **common)
    discarded, replayed = (outbox_row(connection, "failed", **common) for _ in range(2))
    connection.execute("select core.outbox_discard(%s, 'ada', 'stale')", [[discarded]])
    connection.execute("select core.outbox_replay(%s, 1, 'ada')", [replayed])
    connection.execute(
        "insert into core.event_handled (handler_name, idempotency_key, event_id) values ('platform.a', 'k', %s)",
        [uuid4()],
    )


def ask_for_approval(connection: Connection, task: UUID) -> None:
    """An agent task of this id, at the point where a person has to decide; needs the tables of agent tasks."""
    if connection.execute("select 1 from platform.agent_tasks where id = %s", [task]).fetchone():
        return
    parameters = {"id": task, "token": uuid4(), "event": uuid4(), "input": Jsonb({"note": PAYLOAD})}
    for step in (
        "select platform.agent_task_enqueue('research', %(input)s, 'ada', p_id => %(id)s)",
        "select platform.agent_task_begin(%(id)s, %(token)s, 'worker-1', %(event)s, '1 minute')",
        "select platform.agent_task_finish(%(id)s, %(token)s, 'waiting_for_approval', 'Delete 40 files?')",
    ):
        connection.execute(step, parameters)


@contextmanager
def prepared(postgres: PostgresServer, template: str) -> Iterator[str]:
    """The name of such a database, to be copied for each test."""
    dsn = postgres.create_database(template=template)
    with psycopg.connect(dsn, autocommit=True) as connection:
        prepare(connection)
    yield database_of(dsn)
    postgres.drop_database(dsn)


@contextmanager
def copied(postgres: PostgresServer, template: str) -> Iterator[str]:
    """The DSN of a copy that is gone afterwards."""
    dsn = copy_of(postgres, template)
    try:
        yield dsn.replace("postgres@", f"postgres:{PASSWORD}@")
    finally:
        postgres.drop_database(dsn)
