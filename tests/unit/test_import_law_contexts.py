"""The import law, broken on purpose in a copy of the sources: the linter names every forbidden import.

The grants between contexts that the law of the database forbids are tried on the contexts' own migrations.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from spectral.core.migrations.lint import Rule, lint_files

ROOT: Final = Path(__file__).parents[2]
LINTER: Final = Path(sys.executable).with_name("lint-imports")
SOURCES: Final = ("src/spectral", "apps/workers/src/spectral_workers", "apps/ops/src/spectral_ops")

PLATFORM_EVENTS: Final = "spectral.platform.infrastructure.events"
WORLDS_EVENTS: Final = "spectral.worlds.infrastructure.events"

# A line that is added to a module; and what the linter says of it.
FORBIDDEN: Final = {
    "src/spectral/platform/infrastructure/failures.py": (
        "from spectral.worlds.domain.cards import CardDraft",
        "spectral.platform.infrastructure.failures -> spectral.worlds.domain.cards",
    ),
    "src/spectral/platform/infrastructure/events/world_model_card_published.py": (
        "from spectral.worlds.contracts.events.world_model_card_published import WorldModelCardPublished",
        f"{PLATFORM_EVENTS}.world_model_card_published -> spectral.worlds.contracts.events.world_model_card_published",
    ),
    "src/spectral/worlds/infrastructure/events/failure_cluster_detected.py": (
        "def late():\n    from spectral.platform.contracts.protocols.failure_samples import FailureSamples",
        f"{WORLDS_EVENTS}.failure_cluster_detected -> spectral.platform.contracts.protocols.failure_samples",
    ),
    "src/spectral/worlds/infrastructure/events/scan_completed.py": (
        "from spectral.worlds.contracts.events.scan_completed import ScanCompleted",
        f"{WORLDS_EVENTS}.scan_completed -> spectral.worlds.contracts.events.scan_completed",
    ),
    "src/spectral/worlds/domain/scans.py": (
        "import psycopg\nimport spectral.worlds.infrastructure.scans",
        "spectral.worlds.domain.scans -> spectral.worlds.infrastructure.scans",
    ),
    "src/spectral/worlds/infrastructure/cards.py": (
        "import spectral.core.operations.replay",
        "spectral.worlds.infrastructure.cards -> spectral.core.operations.replay",
    ),
    "src/spectral/core/events/routes.py": (
        "import spectral.platform.domain.failures",
        "spectral.core.events.routes -> spectral.platform.domain.failures",
    ),
    "src/spectral/worlds/infrastructure/rules.py": (
        "import spectral_workers.event_consumers",
        "spectral.worlds.infrastructure.rules -> spectral_workers.event_consumers",
    ),
}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for source in SOURCES:
        shutil.copytree(ROOT / source, tmp_path / source, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".importlinter", tmp_path)
    return tmp_path


def lint(copy: Path) -> tuple[int, str]:
    done = subprocess.run(
        [LINTER, "--config", copy / ".importlinter", "--no-cache"],
        cwd=copy,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join(str((copy / source).parent) for source in SOURCES),
            "COLUMNS": "300",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_every_forbidden_import_is_refused_by_name(copy: Path) -> None:
    for path, (line, _) in FORBIDDEN.items():
        with (copy / path).open("a") as module:
            module.write(f"\n\n{line}\n")
    (copy / "src/spectral/worlds/attic.py").write_text('"""A room that has not declared its layer."""\n')
    code, told = lint(copy)
    assert code == 1
    said = " ".join(told.split())
    assert [expected for _, expected in FORBIDDEN.values() if expected not in said] == []
    assert "spectral.worlds.domain.scans -> psycopg" in said
    assert "attic" in said


def test_the_sources_as_they_are_keep_the_law(copy: Path) -> None:
    code, told = lint(copy)
    assert code == 0, told
    assert "0 broken" in told


@pytest.mark.parametrize(
    ("grant", "rule"),
    [
        ("grant select on worlds.model_cards to platform_app;", Rule.CROSS_CONTEXT_GRANT),
        ("grant usage on schema platform to worlds_app;", Rule.CROSS_CONTEXT_GRANT),
        ("grant worlds_app to platform_app;", Rule.CROSS_CONTEXT_GRANT),
        ("grant select on core.outbox to worlds_app;", Rule.CROSS_CONTEXT_GRANT),
        ("grant select on all tables in schema worlds to worlds_app;", Rule.SCHEMA_WIDE_GRANT),
        (
            "alter table platform.curations add foreign key (rule_id) references worlds.rules (rule_id);",
            Rule.CROSS_CONTEXT_REFERENCE,
        ),
        (
            "create view platform.cards as select world_model_id from worlds.model_cards;",
            Rule.CROSS_CONTEXT_REFERENCE,
        ),
    ],
)
def test_a_grant_or_a_tie_between_the_contexts_is_refused(tmp_path: Path, grant: str, rule: Rule) -> None:
    migrations = [
        path
        for context in ("platform", "worlds")
        for path in (ROOT / f"src/spectral/{context}/migrations").glob("*.sql")
    ]
    assert lint_files(migrations) == []
    added = tmp_path / "20991231000000_forbidden.sql"
    added.write_text(f"{grant}\n")
    (finding,) = [each for each in lint_files([*migrations, added]) if each.path == added][:1]
    assert finding.rule is rule
