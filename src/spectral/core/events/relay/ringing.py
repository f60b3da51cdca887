"""Ring for workers without a broker: what the relay has stamped they may have passed over, or were never told of.

While the relay is awake publishers stay silent; and a worker that is woken together with the relay finds its rows
locked by the stamping. So whatever was sent is followed by a ring, a few times a second at most.
"""

from __future__ import annotations

import math
from typing import Final

_EVERY: Final = 0.25  # seconds


class Ringing:
    """Channels on which rows were sent, and nobody has been told yet."""

    def __init__(self) -> None:
        self._owed: set[str] = set()
        self._rang_at = -math.inf

    def owe(self, channel: str) -> None:
        """Rows of this channel were stamped, and that is committed."""
        self._owed.add(channel)

    def due(self, now: float) -> frozenset[str]:
        """Which channels to ring now; say so by `rang`."""
        return frozenset(self._owed) if now >= self._rang_at + _EVERY else frozenset()

    def due_in(self, now: float) -> float:
        """How many seconds until something has to be rung."""
        return max(0.0, self._rang_at + _EVERY - now) if self._owed else math.inf

    def rang(self, channels: frozenset[str], now: float) -> None:
        """These were rung."""
        if channels:
            self._owed -= channels
            self._rang_at = now
