"""What a verdict or a finding tells a person to run can be run: every command is one that the command line takes."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime, timedelta

import pytest
from typer.core import TyperGroup
from typer.main import get_command

from spectral.core.operations import verdict_words as words
from spectral.core.operations.doctor import Limits, diagnose
from spectral.core.operations.insights import Amount, Backlog, Brake, Deployment, Lane, Snapshot
from spectral.core.operations.verdict_rules import delivery_findings
from spectral_ops.cli.app import app
from tests.unit.test_doctor_checks import TROUBLES
from tests.unit.test_doctor_growth import GROWTH_TROUBLES

NOW = datetime(2026, 3, 1, tzinfo=UTC)
LATE = timedelta(hours=1)

# Every rule of delivery has something to say of these.
TROUBLED = [
    Snapshot(
        taken_at=NOW,
        login="ops",
        activity_visible=True,
        live_generation=live,
        deployments=(Deployment(8, "allocated", None, None, None),),
        backlogs=(
            Backlog("platform", 7, "live", due=Amount(1), oldest_due=LATE, stale=Amount(1), failed=Amount(1)),
            Backlog("worlds", 6, "draining", due=Amount(1), oldest_due=LATE),
            Backlog("worlds", 5, "retired", due=Amount(1), oldest_due=LATE),
            Backlog(None, 7, "live", due=Amount(1), oldest_due=LATE),
        ),
        lanes=(Lane(7, "live", "outbox_default", "platform", Amount(1), Amount(), LATE, None),),
        brakes=(Brake("core", NOW, "dana", "why"),),
    )
    for live in (7, None)
]


def named_commands() -> set[str]:
    found = {
        finding.fix for facts, *_ in (TROUBLES | GROWTH_TROUBLES).values() for finding in diagnose(facts, Limits())
    }
    found |= {finding.fix for each in TROUBLED for finding in delivery_findings(each, Limits())}
    found |= {words.release("*"), words.retire(6), words.DOCTOR, words.DEAD_LETTERS, words.SWEEP}
    return {command for command in found if "spectral " in command and not command.startswith("psql")}


@pytest.mark.parametrize("command", sorted(named_commands()))
def test_the_command_exists_and_takes_these_arguments(command: str) -> None:
    _, *arguments = shlex.split(command[command.index("spectral ") :])
    found = get_command(app)
    while isinstance(found, TyperGroup):
        name, *arguments = arguments
        found = found.commands[name]
    assert found.make_context(found.name, arguments).params.keys() >= {"as_json"} or found.name in {"worker", "run"}
