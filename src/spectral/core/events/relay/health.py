"""How a relay is, in one word and a few numbers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class RelayState(StrEnum):
    """The one word."""

    STARTING = "starting"  # has not looked yet
    STANDING = "standing"  # workers do not take from its broker: it sends nothing
    SENDING = "sending"  # sends whatever falls due
    DEGRADED = "degraded"  # cannot reach its broker, or the database
    STOPPED = "stopped"  # ended in good order
    DEAD = "dead"  # crashed


@dataclass(slots=True)
class Counts:
    """What was sent since the relay started, and how late the last of it was."""

    sent: int = 0
    resent: int = 0
    refused: int = 0
    lag: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayHealth:
    """A relay at this moment. Counts and times only: safe to show to anybody.

    mode: from where workers take their rows, as far as it knows. sent, resent, refused: references since it started.
    lag_seconds: for how long the oldest row of the last that were sent had been due.
    """

    state: RelayState
    relay: str
    broker: str
    mode: str
    connected: bool
    broker_down_seconds: float
    listening: bool
    sent: int
    resent: int
    refused: int
    lag_seconds: float

    @property
    def is_live(self) -> bool:
        """Whether the process should be left alone; if not, restart it."""
        return self.state is not RelayState.DEAD

    @property
    def is_ready(self) -> bool:
        """Whether it does its work, or would if it were asked to."""
        return self.state in (RelayState.STANDING, RelayState.SENDING)
