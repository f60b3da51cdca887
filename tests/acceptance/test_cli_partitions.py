"""`spectral partitions`: the way there and back, what it says on the way, and what the doctor makes of it."""

from __future__ import annotations

import json
from typing import Any, Final

import psycopg
import pytest

from tests.acceptance.test_cli_status import spectral
from tests.integration.test_insights import publish
from tests.migrations.schema import role

pytestmark = pytest.mark.database

ENABLE: Final = ("partitions", "enable", "--reason", "large", "--by", "dana")
STATUS: Final = ("partitions", "status", "--json")


def status_of(database: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(spectral(database, *STATUS).stdout)
    return found


def checks(database: str) -> set[str]:
    found = json.loads(spectral(database, "doctor", "--json").stdout)["findings"]
    return {each["check"] for each in found if "partition" in each["check"]}


def test_the_way_to_months_and_back(database: str, connection: psycopg.Connection[Any]) -> None:
    publish(connection, 3)
    plain = spectral(database, "partitions", "status")
    assert (plain.returncode, plain.stdout) == (0, "")
    assert plain.stderr == "core.outbox is one table\n  try: spectral partitions enable --dry-run\n"
    dry = spectral(database, *ENABLE, "--dry-run")
    assert dry.returncode == 0
    assert dry.stderr.startswith("would take these steps: prepare, index, bound, switch\n")
    assert status_of(database)["layout"] == "plain"

    done = spectral(database, *ENABLE, "--yes")
    assert (done.returncode, done.stdout) == (0, "")
    steps = [line.split()[:2] for line in done.stderr.splitlines() if line[:1].isdigit()]
    assert [steps[0], steps[-1]] == [["1/4", "prepare:"], ["4/4", "switch:"]]
    found = status_of(database)
    assert (found["layout"], found["reversible"]) == ("partitioned", True)
    assert f"core.outbox is in months; {found['months_ahead']} to come have their partition" in done.stderr
    assert checks(database) == set()
    table = spectral(database, "partitions", "status").stdout.splitlines()
    assert table[0].split()[:3] == ["partition", "from", "to"]
    assert "no: its time is over on " in table[1]

    again = spectral(database, *ENABLE, "--yes")
    assert again.returncode == 0
    assert "nothing to do: it is partitioned already" in again.stderr
    back = spectral(database, "partitions", "disable", "--reason", "a rehearsal", "--yes", "--json")
    assert (back.returncode, json.loads(back.stdout)["layout"]) == (0, "plain")
    assert connection.execute("select count(*) from core.outbox").fetchone() == (3,)


def test_nothing_is_done_unasked(database: str) -> None:
    assert spectral(database, *ENABLE).returncode == 5
    assert status_of(database)["done"] == []
    nothing = spectral(database, "partitions", "disable")
    assert (nothing.returncode, nothing.stderr.splitlines()[0]) == (0, "core.outbox is one table")


def test_maintain_needs_months_and_says_how_to_get_them(database: str) -> None:
    refused = spectral(database, "partitions", "maintain", "--yes")
    assert refused.returncode == 1
    assert refused.stderr.endswith("  try: spectral partitions enable\n")


def test_the_doctor_finds_what_maintain_mends(database: str, connection: psycopg.Connection[Any]) -> None:
    assert spectral(database, *ENABLE, "--yes").returncode == 0
    months = connection.execute(
        "select name from core.outbox_partitions() where kind = 'month' order by upper_bound"
    ).fetchall()
    for (name,) in months:
        connection.execute(psycopg.sql.SQL("drop table core.{}").format(psycopg.sql.Identifier(name)))
    assert checks(database) == {"partitions_ahead"}
    dry = spectral(database, "partitions", "maintain", "--dry-run")
    assert dry.returncode == 0
    assert dry.stdout.splitlines()[1].split() == [months[0][0], "would", "be", "made"]
    assert dry.stderr.endswith("nothing was changed\n")
    done = json.loads(spectral(database, "partitions", "maintain", "--yes", "--json").stdout)
    assert months[0][0] in done["created"]
    assert checks(database) == set()
    publish(connection, created_at="2099-01-01", next_attempt_at="2099-01-01")
    assert checks(database) == {"default_partition"}
    told = spectral(database, "partitions", "status").stderr
    assert "1 rows fit no month\n  try: spectral partitions maintain" in told


def test_a_conversion_that_was_interrupted_goes_on(database: str, connection: psycopg.Connection[Any]) -> None:
    connection.execute(
        "create unique index outbox_before_pkey on core.outbox (id, created_at);"
        " create unique index outbox_before_id_key on core.outbox (id)"
    )
    told = spectral(database, "partitions", "status")
    assert told.stderr.startswith("core.outbox is one table, on its way to months (index done)\n")
    assert checks(database) == {"partitions_unfinished"}
    dry = spectral(database, *ENABLE, "--dry-run")
    assert dry.stderr.startswith("would take these steps: prepare, bound, switch\n")
    assert spectral(database, *ENABLE, "--yes").returncode == 0
    assert status_of(database)["layout"] == "partitioned"


def test_a_login_that_may_not_is_told_what_it_lacks(database: str) -> None:
    with role(database, groups=("spectral_operator",)) as dsn:
        assert spectral(dsn, *STATUS).returncode == 0
        refused = spectral(dsn, *ENABLE, "--dry-run")
    assert refused.returncode == 1
    assert "  try: grant spectral_owner to " in refused.stderr


def test_partitions_are_no_change_by_hand_and_one_is_still_seen(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    connection.execute("create unique index outbox_before_pkey on core.outbox (id, created_at)")
    assert spectral(database, "migrate", "verify").returncode == 0
    assert spectral(database, *ENABLE, "--dedup", "--yes").returncode == 0
    assert spectral(database, "migrate", "verify").returncode == 0
    connection.execute("alter table core.outbox disable trigger outbox_notify")
    by_hand = spectral(database, "migrate", "verify")
    assert (by_hand.returncode, by_hand.stdout.count("by hand")) == (4, 1)
    assert "trigger outbox_notify on core.outbox was changed by hand" in by_hand.stdout
    connection.execute("alter table core.outbox enable trigger outbox_notify")
    assert spectral(database, "partitions", "disable", "--yes").returncode == 0
    verified = spectral(database, "migrate", "verify")
    assert verified.returncode == 0, verified.stdout
