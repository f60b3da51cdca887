"""`spectral doctor` as a person or a pipeline runs it: findings on stdout, the rest on stderr, stable exit codes."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from tests.acceptance.test_cli_status import spectral
from tests.integration.test_doctor import PLANTED, plant
from tests.migrations.schema import role

pytestmark = pytest.mark.database


@pytest.mark.parametrize("width", [100, 200])
def test_every_finding_says_what_why_and_what_to_run(
    database: str, connection: psycopg.Connection[Any], width: int
) -> None:
    plant(connection)
    ran = spectral(database, "doctor", COLUMNS=str(width))
    assert ran.returncode == 4
    findings = ran.stdout.rstrip().split("\n\n")
    told = [" ".join(finding.split()) for finding in findings]
    for check in PLANTED.keys() - {"pooler"}:
        (_,) = [each for each in told if PLANTED[check] in each]
    for finding in findings:
        *sentences, command = finding.splitlines()
        assert command.strip().startswith("-> ")
        assert all(len(line) <= 100 for line in sentences)
        assert "  " not in " ".join(line[11:] for line in sentences)
    order = [finding.split()[0] for finding in findings]
    assert order == sorted(order, key=["unhealthy", "attention", "notice"].index)
    assert ran.stderr.endswith(f" checks, {len(findings)} findings\n")


def test_json_has_the_same_findings(database: str, connection: psycopg.Connection[Any]) -> None:
    plant(connection)
    ran = spectral(database, "doctor", "--json")
    document = json.loads(ran.stdout)
    assert (ran.returncode, document["level"]) == (4, "unhealthy")
    found = {finding["check"]: finding for finding in document["findings"]}
    assert PLANTED.keys() - found.keys() == {"pooler"}
    assert set(found["brake"]) == {"check", "severity", "what", "why", "fix"}


def test_what_only_needs_attention_exits_with_0(database: str, connection: psycopg.Connection[Any]) -> None:
    connection.execute("select core.brake_pull('platform', 'dana', 'why')")
    ran = spectral(database, "doctor")
    assert ran.returncode == 0
    assert "-> spectral brake off --context platform\n" in ran.stdout


def test_what_a_login_may_not_see_is_said_beside_the_findings(database: str) -> None:
    with role(database, groups=("spectral_operator",)) as own:
        ran = spectral(own, "doctor")
    assert ran.returncode == 0
    assert "not examined: activity: " in ran.stderr
    assert "grant pg_monitor to" in ran.stderr
    assert "not examined" not in ran.stdout


def test_a_direct_address_that_leads_nowhere_exits_with_75(database: str) -> None:
    ran = spectral(database, "doctor", SPECTRAL_DIRECT_URL="postgresql://nobody:canary@127.0.0.1:1/nothing")
    assert (ran.returncode, ran.stdout) == (75, "")
    assert "no connection to 127.0.0.1:1/nothing" in ran.stderr
    assert "canary" not in ran.stderr
