"""Names and reasons that others wrote never give a terminal an order, whichever screen they are shown on."""

from __future__ import annotations

import unicodedata
from typing import Any, Final

import psycopg
import pytest

from tests.acceptance.test_cli_status import spectral
from tests.integration.test_insights import publish, sign_in

pytestmark = pytest.mark.database

ORDER: Final = "dana\x1b[2J\x1b]0;title\x07\x9b31m\nok: all is well"
"""Clears the screen, names the window, colours what follows, and begins a line of its own."""


@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        ("top", "--once", "--interval", "0.1"),
        ("brake", "status"),
        ("brake", "on", "--all", "--reason", "me too", "--yes"),
        ("brake", "off", "--all", "--dry-run"),
        ("generations", "list"),
        ("retention", "show"),
        ("retention", "run", "--yes"),
        ("audit",),
        ("doctor",),
    ],
    ids=" ".join,
)
def test_no_control_character_reaches_the_terminal(
    database: str, connection: psycopg.Connection[Any], command: tuple[str, ...]
) -> None:
    sign_in(connection, ORDER)
    sign_in(connection, f"gone {ORDER}", alive=False)
    publish(connection, 1)
    connection.execute("select core.brake_pull('*', %s, %s)", [ORDER, ORDER])
    connection.execute("select core.deployment_allocate(3, %s)", [ORDER])
    connection.execute("select core.sweep_begin(%s)", [ORDER])
    ran = spectral(database, *command)
    shown = ran.stdout + ran.stderr
    assert {letter for letter in shown if unicodedata.category(letter) == "Cc"} <= {"\n"}
    assert not any(line.startswith("ok: all is well") for line in shown.splitlines())
    if command not in {("doctor",), ("brake", "off", "--all", "--dry-run")}:
        assert "dana\N{REPLACEMENT CHARACTER}[2J" in shown
