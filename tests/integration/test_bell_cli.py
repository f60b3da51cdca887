"""`spectral bell`: what it says, what it asks, and how it ends."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from tests.acceptance.test_cli_status import spectral

pytestmark = pytest.mark.database

SET = ("bell", "set", "off", "--reason", "the queue is full", "--by", "dana")


def test_the_way_to_poll_only_and_back(database: str, connection: psycopg.Connection[Any]) -> None:
    off = spectral(database, *SET, "--yes")
    assert (off.returncode, off.stdout) == (0, "")
    assert off.stderr == (
        "off: publishers never notify: workers find every event by polling\n  take it back: spectral bell set bell\n"
    )
    again = spectral(database, *SET, "--yes")
    assert (again.returncode, again.stderr) == (0, "off already, by dana: the queue is full\n")
    shown = json.loads(spectral(database, "bell", "show", "--json").stdout)
    assert (shown["mode"], shown["changed_by"], shown["awake"]) == ("off", "dana", [])
    connection.execute("select core.bell_awake('w', '{outbox_gen_1}', '{platform}', '{null}', '9 s')")
    back = spectral(database, "bell", "set", "bell", "--reason", "empty", "--yes", "--json")
    assert (back.returncode, json.loads(back.stdout)["changed"]) == (0, True)
    connection.execute("select core.bell_awake('w', '{outbox_gen_1}', '{platform}', '{null}', '9 s')")
    table = spectral(database, "bell", "show").stdout.splitlines()
    assert table[0].split() == ["mode", "since", "by", "reason", "queue", "awake"]
    assert table[1].split()[-2:] == ["0%", "1"]


def test_nothing_is_done_unasked_without_a_reason_or_on_a_dry_run(database: str) -> None:
    assert spectral(database, *SET).returncode == 5
    assert spectral(database, "bell", "set", "off", "--yes").returncode == 2
    assert spectral(database, "bell", "set", "loud", "--reason", "r", "--yes").returncode == 2
    dry = spectral(database, *SET, "--dry-run")
    assert (dry.returncode, dry.stderr) == (0, "off: would be set\n")
    assert json.loads(spectral(database, "bell", "show", "--json").stdout)["mode"] == "bell"


def test_a_bell_that_is_gone_is_told_with_its_remedy(database: str, connection: psycopg.Connection[Any]) -> None:
    connection.execute("delete from core.bell")
    shown = spectral(database, "bell", "show")
    assert shown.returncode == 3
    assert "core.bell is empty" in shown.stderr
