"""What the command line says to a login that cannot see everything, or cannot write; and to one that cannot spell."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import uuid4

import psycopg
import pytest

from spectral.core.database import Database
from spectral.core.operations.bell import BellState, show_bell
from tests.acceptance.test_cli_status import spectral
from tests.acceptance.worker_process import SPECTRAL
from tests.migrations.schema import role, update
from tests.migrations.sql import fail

pytestmark = pytest.mark.database

Connection = psycopg.Connection[Any]


def test_a_login_of_one_workspace_is_told_that_it_sees_no_more(database: str, connection: Connection) -> None:
    workspace = str(uuid4())
    with connection.transaction():
        connection.execute("set local session_replication_role = replica")  # an event's workspace never changes
        event_id = fail(connection)
        update(connection, event_id, workspace_id=workspace)
    with role(database, groups=("spectral_readonly",)) as narrow:
        for command in (("dlq", "list"), ("dlq", "groups"), ("events", "list")):
            nothing = spectral(narrow, *command)
            assert nothing.returncode == 0
            assert "this login sees only events that belong to no workspace" in nothing.stderr
            assert str(event_id) not in nothing.stdout
            seen = spectral(narrow, *command, "--workspace", workspace)
            assert (str(event_id) in seen.stdout, "this login sees" in seen.stderr) == (True, False)
        missing = spectral(narrow, "events", "show", str(event_id))
        assert missing.returncode == 3
        assert "PGOPTIONS='-c spectral.workspace_id=ID'" in missing.stderr
        own = fail(connection)
        shown = spectral(narrow, "events", "show", str(own))
        assert (shown.returncode, "not visible  to this login" in shown.stdout) == (0, True), shown.stderr
        assert json.loads(spectral(narrow, "events", "show", str(own), "--json").stdout)["handlers"] is None
        options = f"{narrow} options='-c spectral.workspace_id={workspace}'"
        found = spectral(options, "dlq", "list")
        assert (str(event_id) in found.stdout, f"events of workspace {workspace};" in found.stderr) == (True, True)
    with role(database, groups=("spectral_operator",)) as wide:
        assert "this login sees" not in spectral(wide, "dlq", "list").stderr


def test_a_login_that_may_not_write_is_told_so_and_the_doctor_s_remedy_works(
    database: str, connection: Connection
) -> None:
    with role(database, groups=("spectral_operator",)) as own:
        login = psycopg.conninfo.conninfo_to_dict(own)["user"]
        connection.execute(f"alter role {login} set default_transaction_read_only = on".encode())
        refused = spectral(own, "brake", "on", "--context", "platform", "--reason", "r", "--yes")
        assert refused.returncode == 1
        assert "take no writes" in refused.stderr
        assert "try: spectral doctor" in refused.stderr
        found = spectral(own, "doctor").stdout.splitlines()
        (fix,) = [line for line in found if "default_transaction_read_only" in line]
        statement = shlex.split(fix.split("->")[1])[-1]
        with psycopg.connect(own, autocommit=True) as session:
            session.execute(statement.encode())
        assert spectral(own, "brake", "on", "--context", "platform", "--reason", "r", "--yes").returncode == 0


def test_arguments_that_are_no_text_are_a_usage_error(database: str) -> None:
    command = [os.fsencode(SPECTRAL), b"brake", b"on", b"--context", b"platform", b"--reason", b"f\xfcr", b"--yes"]
    environment = {"PATH": "/usr/bin:/bin", "SPECTRAL_DATABASE_URL": database, "LC_ALL": "C.UTF-8"}
    done = subprocess.run(command, env=environment, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"write them in UTF-8" in done.stderr


@dataclass
class Standby:
    """Answers as a server in recovery does, which has no unlogged tables."""

    asked: list[bytes] = field(default_factory=list[bytes])

    async def value(self, query: str) -> bool:
        assert query == "select pg_is_in_recovery()"
        return True

    async def rows(self, query: bytes, *, into: type[BellState]) -> list[BellState]:
        assert b"core.bell_leases" not in query
        return [into(mode="bell", changed_at=cast("Any", None), changed_by="ada", reason=None, queue_usage=0.0)]


async def test_a_standby_is_not_asked_who_is_awake() -> None:
    assert (await show_bell(cast("Database", Standby()))).awake == ()
