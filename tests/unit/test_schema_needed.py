"""The functions that a worker looks for when it starts are those that it calls."""

from __future__ import annotations

import re
from pathlib import Path

from spectral.core.events.infrastructure import postgres
from spectral.core.events.infrastructure.postgres.schema import FUNCTIONS

ROOM = Path(postgres.__path__[0])
OF_RELAYS = {"relay_store.py", "relay_ear.py"}
"""What a relay asks for is none of a worker's business."""


def called() -> set[str]:
    sources = [each.read_text() for each in ROOM.glob("*.py") if each.name not in OF_RELAYS]
    names = {name for source in sources for name in re.findall(r"core\.([a-z0-9_%]+)\(", source)}
    return {name.replace("%s", verb) for name in names for verb in ("begin", "deliver")}


def test_a_worker_asks_for_every_function_that_it_calls() -> None:
    assert set(FUNCTIONS) == called()
    assert len(FUNCTIONS) > 30
