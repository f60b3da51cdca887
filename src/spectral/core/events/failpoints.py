"""Named places where a test may let the worker fail. Inert unless a test arms them: one comparison each.

Production code calls `reached`; `spectral.core.events.testing` arms. The names are the steps of the protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

Failpoint: TypeAlias = Callable[[str], None]

NAMES: Final = (
    "claim.before",
    "claim.after",
    "handle.before",
    "handle.after",
    "commit.before",
    "commit.after",
    "settle.before",
    "settle.after",
    "release.before",
    "renew.before",
    "reap.before",
    "reap.after",
    "ear.opened",
)
"""Of every worker."""

RELAY_NAMES: Final = (
    "relay.taken",  # rows are stamped, the broker has not heard of them
    "relay.sent",  # the broker has them
    "acknowledge.before",  # rows are claimed, the broker does not know
    "acknowledge.after",
)
"""Of a relay, and of a worker that takes from a broker."""

_armed: Failpoint | None = None


def reached(name: str) -> None:
    """Say that the worker is here."""
    if _armed is not None:
        _armed(name)


def arm(failpoint: Failpoint | None) -> None:
    """Have this called at every named place from now on; none disarms."""
    global _armed  # noqa: PLW0603  one for the process, set by tests alone
    _armed = failpoint
