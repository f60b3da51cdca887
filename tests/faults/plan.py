"""What a worker process of a fault test is told: plain values, so that they can travel to another process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final, Literal

Action = Literal["kill", "raise", "lose", "stop", "hold"]
"""What happens at a failpoint.

kill: the process is gone at once, as by kill -9. raise: an error that is nobody's event. lose: the database seems lost.
stop: the whole process stands still until SIGCONT. hold: whoever reached it stands still until told to go on.
"""

SHORT_TIMES: Final[Mapping[str, float]] = {
    "poll": 2.0,
    "poll_deaf": 0.3,
    "heartbeat": 0.5,
    "answer": 3.0,
    "reconnect": 0.1,
    "reconnect_cap": 0.5,
    "lease": 6.0,
    "grace": 0.6,
    "reap": 0.2,
    "stop": 5.0,
    "patience": 0.5,
}
"""Everything happens soon, and nothing so soon that a slow machine makes a difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trap:
    """The fault that waits at a failpoint, from the nth time on that it is reached, once."""

    at: str
    action: Action
    nth: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One worker process."""

    dsn: str
    name: str
    generation: int = 1
    direct_dsn: str = ""
    effects_dsn: str = ""
    contexts: tuple[str, ...] = ("platform",)
    times: Mapping[str, float] = field(default_factory=lambda: dict(SHORT_TIMES))
    lanes: int = 2
    batch: int = 10
    concurrency: int = 50
    max_retries: int = 5
    timeout: float = (
        30.0  # of handlers; those that may outlast their lease never share a transaction without savepoints
    )
    trap: Trap | None = None
    clock_offset: float = 0.0

    def dumps(self) -> str:
        """The plan as one line of text."""
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Plan:
        """The plan from its line."""
        values = json.loads(text)
        trap = values.pop("trap")
        contexts = tuple(values.pop("contexts"))
        return cls(**values, contexts=contexts, trap=Trap(**trap) if trap else None)
