"""How a worker is, in one word and a few numbers: what the health endpoints and operators are told."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class State(StrEnum):
    """The one word."""

    STARTING = "starting"  # has not subscribed yet
    IDLE = "idle"  # listens, nothing to do
    BUSY = "busy"  # holds rows
    DEGRADED = "degraded"  # for too long without its ear or its broker, or without the means to keep its leases
    DRAINING = "draining"  # claims no more, finishes what it holds
    STOPPED = "stopped"  # ended in good order
    DEAD = "dead"  # crashed, or its loop has not moved for longer than any handler may take


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """A worker at this moment. Counts and times only: safe to show to anybody.

    takes_from: where its rows come from, postgres or the broker that names them.
    has_fallen_back: they should come from a broker, and for now they do not.
    """

    state: State
    worker: str
    generation: int
    contexts: tuple[str, ...]
    listening: bool
    ear_down_seconds: float
    seen_alive: bool
    held: int
    running: int
    loop_blocked_seconds: float
    takes_from: str = "postgres"
    has_fallen_back: bool = False

    @property
    def is_live(self) -> bool:
        """Whether the process should be left alone; if not, restart it."""
        return self.state is not State.DEAD

    @property
    def is_ready(self) -> bool:
        """Whether it takes on work."""
        return self.state in (State.IDLE, State.BUSY, State.DEGRADED)
