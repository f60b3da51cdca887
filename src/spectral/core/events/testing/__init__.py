"""What tests of handlers need: a real worker to drain with, a look at what was published, faults, and an oracle.

Nothing is loaded before it is used, so that the pytest plugin beside it costs nobody a driver.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from spectral.core.events.testing.assertions import assert_published, published
    from spectral.core.events.testing.effects import EFFECTS_SCHEMA, EFFECTS_TABLE, effects_schema, record_effect
    from spectral.core.events.testing.evidence import Subscribed, settle_down
    from spectral.core.events.testing.faults import InjectedFaultError, arm, arm_from, disarm, injected
    from spectral.core.events.testing.handling import run_handler
    from spectral.core.events.testing.harness import Drained, drain
    from spectral.core.events.testing.ledger import Attempt, Ledger, Publish
    from spectral.core.events.testing.notes import RecordingProbe
    from spectral.core.events.testing.oracle import check
    from spectral.core.events.testing.verdict import Fault, Problem, Verdict

__all__ = [
    "EFFECTS_SCHEMA",
    "EFFECTS_TABLE",
    "Attempt",
    "Drained",
    "Fault",
    "InjectedFaultError",
    "Ledger",
    "Problem",
    "Publish",
    "RecordingProbe",
    "Subscribed",
    "Verdict",
    "arm",
    "arm_from",
    "assert_published",
    "check",
    "disarm",
    "drain",
    "effects_schema",
    "injected",
    "published",
    "record_effect",
    "run_handler",
    "settle_down",
]

_HOMES: Final = {
    "assertions": ("assert_published", "published"),
    "effects": ("EFFECTS_SCHEMA", "EFFECTS_TABLE", "effects_schema", "record_effect"),
    "evidence": ("Subscribed", "settle_down"),
    "faults": ("InjectedFaultError", "arm", "arm_from", "disarm", "injected"),
    "handling": ("run_handler",),
    "harness": ("Drained", "drain"),
    "ledger": ("Attempt", "Ledger", "Publish"),
    "notes": ("RecordingProbe",),
    "oracle": ("check",),
    "verdict": ("Fault", "Problem", "Verdict"),
}


def __getattr__(name: str) -> Any:  # noqa: ANN401  whatever the name stands for; type checkers read the imports above
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
