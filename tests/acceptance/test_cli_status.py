"""`spectral status` and `spectral top`: what they show, their exit codes, in real processes and in a real terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import subprocess
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import psycopg
import pytest

from spectral_ops.cli import main
from tests.integration.test_insights import failed, publish, sign_in
from tests.migrations.schema import role

pytestmark = pytest.mark.database

SPECTRAL = str(Path(sys.executable).with_name("spectral"))
DOWN = "postgresql://nobody:canary@127.0.0.1:1/nothing"
COLOUR = re.compile(r"\x1b\[")


class Ran(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def run_process(dsn: str, *arguments: str, **variables: str) -> Ran:
    """The command as a process of its own."""
    environment = {"SPECTRAL_DATABASE_URL": dsn, **variables}
    ran = subprocess.run([SPECTRAL, *arguments], env=environment, capture_output=True, text=True, check=False)
    return Ran(ran.returncode, ran.stdout, ran.stderr)


def spectral(dsn: str, *arguments: str, **variables: str) -> Ran:
    """The same within this process: what it prints and how it ends, without the time a process takes to start."""
    out, err = StringIO(), StringIO()
    environment = {"SPECTRAL_DATABASE_URL": dsn, **variables}
    with (
        patch.dict(os.environ, environment, clear=True),
        patch.object(sys, "argv", ["spectral", *arguments]),
        redirect_stdout(out),
        redirect_stderr(err),
        pytest.raises(SystemExit) as end,
    ):
        main()
    return Ran(int(end.value.code or 0), out.getvalue(), err.getvalue())


def test_a_system_at_rest_is_one_line_and_ok(database: str, connection: psycopg.Connection[Any]) -> None:
    sign_in(connection, "lives")
    ran = spectral(database, "status")
    assert ran.returncode == 0
    assert ran.stdout.splitlines()[0].split("  ", 1) == ["ok", "       Idle: 1 worker of generation 1, nothing waits."]
    assert "by the database's clock" in ran.stderr


def test_what_needs_attention_is_no_failure(database: str, connection: psycopg.Connection[Any]) -> None:
    sign_in(connection, "lives")
    publish(connection, 1, **failed(datetime.now(UTC)))
    ran = spectral(database, "status")
    assert ran.returncode == 0
    assert "1 dead letter, all of them within the last hour." in ran.stdout
    assert "-> spectral dlq groups" in ran.stdout


def test_what_is_not_delivered_exits_with_4_and_says_what_to_run(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    publish(connection, 120)
    ran = run_process(database, "status", COLUMNS="200")
    assert ran.returncode == 4
    assert ran.stdout.startswith("unhealthy  Down: no worker is alive; 120 events wait.\n")
    assert "platform has 120 events waiting, the oldest for 4 min, and no worker of generation 1 is\n" in ran.stdout
    assert "-> SPECTRAL_GENERATION=1 spectral worker <module>:<consumer>\n" in ran.stdout
    table = ran.stdout[ran.stdout.index("context") :].splitlines()
    assert table[1].split() == ["platform", "1", "live", "120", "4", "min", "0"]


@pytest.mark.parametrize("width", [60, 100, 200])
def test_on_any_width_sentences_are_folded_and_commands_are_not(
    database: str, connection: psycopg.Connection[Any], width: int
) -> None:
    publish(connection, 3, channel="outbox_default")
    ran = spectral(database, "status", COLUMNS=str(width))
    sentences = ran.stdout[: ran.stdout.index("\ncontext")].splitlines()
    for line in sentences:
        assert len(line) <= min(width, 100) or "-> " in line
    assert sum("-> psql" in line and line.endswith('event_type"') for line in sentences) == 1
    assert COLOUR.search(ran.stdout) is None


def test_json_is_one_document_with_verdict_and_numbers(database: str, connection: psycopg.Connection[Any]) -> None:
    publish(connection, 2)
    ran = spectral(database, "status", "--json")
    document = json.loads(ran.stdout)
    assert ran.returncode == 4
    assert document["verdict"]["level"] == "unhealthy"
    assert document["verdict"]["sentences"][1]["command"].endswith("spectral worker <module>:<consumer>")
    assert document["snapshot"]["backlogs"][0]["due"] == {"value": 2, "capped": False}
    assert document["snapshot"]["windows"]["backlogs.failed_lately"] == "the last hour"


@pytest.mark.parametrize("command", [("status", "--json"), ("top", "--once"), ("doctor",), ("brake", "status")])
def test_a_database_that_is_down_exits_with_75_and_keeps_the_password(command: tuple[str, ...]) -> None:
    ran = spectral(DOWN, *command)
    assert (ran.returncode, ran.stdout) == (75, "")
    assert ran.stderr.startswith("error: no connection to 127.0.0.1:1/nothing: ")
    assert "canary" not in ran.stderr


def test_an_operators_login_is_enough(database: str, connection: psycopg.Connection[Any]) -> None:
    sign_in(connection, "lives")
    with role(database, groups=("spectral_operator",)) as own:
        assert spectral(own, "status").returncode == 0
        assert spectral(own, "top", "--once", "--interval", "0.1").returncode == 0
    with role(database, groups=("spectral_publisher",)) as own:
        refused = spectral(own, "status")
    assert refused.returncode == 1
    assert refused.stderr.endswith("try: grant spectral_operator to <role>\n")


def test_a_database_without_the_schema_says_what_to_run(empty_database: str) -> None:
    ran = spectral(empty_database, "status")
    assert ran.returncode == 2
    assert ran.stderr.endswith("run: spectral migrate up\n")


def test_top_once_is_one_picture_with_rates(database: str, connection: psycopg.Connection[Any]) -> None:
    publish(connection, 8)
    publish(connection, 2, target="worlds")
    ran = spectral(database, "top", "--once", "--interval", "0.1")
    assert ran.returncode == 0
    assert re.search(r"^published +[\d.]+/s", ran.stdout, re.MULTILINE)
    bars = dict(re.findall(r"^(\w+) +1 live +(█+) ", ran.stdout, re.MULTILINE))
    assert (len(bars["platform"]), len(bars["worlds"])) == (20, 5)


def test_top_json_is_one_document_for_each_look(database: str) -> None:
    ran = spectral(database, "top", "--once", "--json", "--interval", "0.1")
    (line,) = ran.stdout.splitlines()
    document = json.loads(line)
    assert document["rates"]["published"] == 0.0
    assert document["rates"]["span"] >= 0.1


def test_top_goes_on_in_a_terminal_until_q(database: str, connection: psycopg.Connection[Any]) -> None:
    sign_in(connection, "lives")
    terminal, inside = pty.openpty()
    variables = {"SPECTRAL_DATABASE_URL": database, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    running = subprocess.Popen(
        [SPECTRAL, "top", "--interval", "0.2"], stdin=inside, stdout=inside, stderr=inside, env=variables
    )
    os.close(inside)
    try:
        shown = read_until(terminal, "UTC", times=3)  # the time of three looks
        os.write(terminal, b"q")
        assert running.wait(20) == 0
    finally:
        running.kill()
        running.wait()
        os.close(terminal)
    assert "Idle: 1 worker of generation 1, nothing waits." in shown
    assert COLOUR.search(shown)


def read_until(terminal: int, text: str, *, times: int) -> str:
    shown, deadline = "", time.monotonic() + 30
    while shown.count(text) < times:
        ready, _, _ = select.select([terminal], [], [], max(deadline - time.monotonic(), 0))
        assert ready, f"{text!r} was not shown {times} times within 30 s: {shown[-500:]!r}"
        shown += os.read(terminal, 65536).decode(errors="replace")
    return shown
