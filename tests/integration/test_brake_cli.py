"""`spectral brake`: what it says, what it asks, and how it ends."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from tests.acceptance.test_cli_status import spectral
from tests.integration.test_insights import publish, sign_in

pytestmark = pytest.mark.database


def test_the_way_from_free_to_pulled_and_back(database: str, connection: psycopg.Connection[Any]) -> None:
    connection.execute(
        "select core.outbox_subscribe(1, '{platform}', '{worlds.scan.completed}', '{platform.note}', '{6}')"
    )
    sign_in(connection, "lives")
    publish(connection, 3)
    on = spectral(database, "brake", "on", "--context", "platform", "--reason", "billing is down", "--by", "dana", "-y")
    assert (on.returncode, on.stdout) == (0, "")
    assert (
        on.stderr
        == "platform: braked; 3 events wait, 0 in flight\n  let it go: spectral brake off --context platform\n"
    )
    again = spectral(database, "brake", "on", "--context", "platform", "--reason", "me too", "--yes")
    assert (again.returncode, again.stderr) == (0, "platform: braked already, by dana: billing is down\n")

    shown = spectral(database, "brake", "status")
    assert shown.stdout.splitlines()[1].split()[:1] == ["platform"]
    assert "billing is down" in shown.stdout
    (brake,) = json.loads(spectral(database, "brake", "status", "--json").stdout)["brakes"]
    assert (brake["context"], brake["pulled_by"], brake["reason"]) == ("platform", "dana", "billing is down")
    assert "Braked: 1 worker" in spectral(database, "status").stdout

    off = spectral(database, "brake", "off", "--context", "platform", "--yes", "--json")
    assert (off.returncode, json.loads(off.stdout)["changed"]) == (0, True)
    assert "claiming goes on; 3 events wait" in off.stderr
    free = spectral(database, "brake", "off", "--context", "platform", "--yes")
    assert (free.returncode, free.stderr) == (0, "platform: no brake was pulled\n")
    assert spectral(database, "brake", "status").stderr == "no brake is pulled\n"


def test_a_brake_that_somebody_else_lets_go_meanwhile_is_told_as_that(
    database: str, connection: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    spectral(database, "brake", "on", "--all", "--reason", "why", "--yes")

    def hesitate(_what: str, *, yes: bool) -> None:
        assert yes
        connection.execute("delete from core.brakes")

    monkeypatch.setattr("spectral_ops.cli.brake.confirm", hesitate)
    off = spectral(database, "brake", "off", "--all", "--yes")
    assert (off.returncode, off.stderr) == (
        0,
        "all contexts: claiming goes on; somebody else has let the brake go meanwhile\n",
    )


def test_nothing_is_done_unasked_or_on_a_dry_run(database: str) -> None:
    arguments = ("brake", "on", "--all", "--reason", "why")
    assert spectral(database, *arguments).returncode == 5
    dry = spectral(database, *arguments, "--dry-run")
    assert (dry.returncode, dry.stderr) == (0, "all contexts: would be braked; nothing waits, 0 in flight\n")
    assert json.loads(spectral(database, "brake", "status", "--json").stdout) == {"brakes": []}


@pytest.mark.parametrize(
    "arguments",
    [
        ("on", "--reason", "why"),
        ("on", "--all", "--context", "platform", "--reason", "why"),
        ("on", "--all"),
        ("on", "--all", "--reason", " "),
        ("off",),
    ],
)
def test_which_and_why_have_to_be_said(arguments: tuple[str, ...]) -> None:
    assert spectral("postgresql://nobody@127.0.0.1:1/nothing", "brake", *arguments).returncode == 2


def test_a_typing_error_is_questioned_and_another_brake_is_not_forgotten(database: str) -> None:
    typo = spectral(database, "brake", "on", "--context", "platfrom", "--reason", "why", "--yes")
    assert typo.stderr.startswith("warning: no worker has ever subscribed for 'platfrom'")
    spectral(database, "brake", "on", "--all", "--reason", "why", "--yes")
    off = spectral(database, "brake", "off", "--context", "platfrom", "--yes")
    assert off.stderr.endswith("still braked: all contexts\n  let it go: spectral brake off --all\n")
