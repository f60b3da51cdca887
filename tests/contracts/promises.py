"""What the contexts of this repository promise: their contracts, who counts on them, and what was promised before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from spectral.core.contracts import Contracts, ContractSnapshot, Snapshot, discover, parse_snapshot, review, tell_change
from spectral.core.events import Consumer
from spectral_workers.event_consumers import build_declared_consumers

PACKAGES: Final = ("spectral.platform", "spectral.worlds")
CONSUMERS: Final[Sequence[Consumer]] = build_declared_consumers()
SNAPSHOTS: Final = Path(__file__).parent / "snapshots"


def contracts() -> Contracts:
    """All contracts of both contexts."""
    return discover(PACKAGES)


def kept() -> Snapshot:
    """What was promised when the snapshots were last accepted, a file for each type."""
    found: Snapshot = {}
    for path in sorted(SNAPSHOTS.glob("*.json")):
        found.update(parse_snapshot(path.read_text(), source=str(path)))
    return found


def broken(old: dict[str, ContractSnapshot], new: dict[str, ContractSnapshot]) -> list[str]:
    """What of the old promises the new ones break, in words that name the handlers."""
    changes = review(old, new, consumers=CONSUMERS).changes
    return [tell_change(each) for each in changes if each.change.kind.value == "breaking"]
