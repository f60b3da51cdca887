"""How fast: what two looks at the same counters amount to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from datetime import timedelta

    from spectral.core.operations.insights_values import Snapshot

_OUTBOX: Final = "core.outbox"
_HANDLED: Final = "core.event_handled"


@dataclass(frozen=True, slots=True)
class Rates:
    """Rows a second over `span`; none while it cannot be known (no time has passed, or the counters were reset).

    published: rows inserted into the outbox, a broadcast's shares included. handled: dedup records written, one for
    each handler and event. The server's counters lag by up to a second.
    """

    span: timedelta
    published: float | None
    handled: float | None


def rates(before: Snapshot, after: Snapshot) -> Rates:
    """What happened between two looks."""
    span = after.taken_at - before.taken_at
    return Rates(span, _rate(before, after, _OUTBOX), _rate(before, after, _HANDLED))


def _rate(before: Snapshot, after: Snapshot, name: str) -> float | None:
    earlier, later = before.table(name), after.table(name)
    seconds = (after.taken_at - before.taken_at).total_seconds()
    if earlier is None or later is None or seconds <= 0 or later.inserted < earlier.inserted:
        return None
    return (later.inserted - earlier.inserted) / seconds
