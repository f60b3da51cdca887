"""Waiting longer after every failure in a row, up to a cap; a success forgets them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import timedelta


class Backoff:
    """1, 2, 4, ... times the first pause, never more than the cap."""

    def __init__(self, first: timedelta, cap: timedelta) -> None:
        self._first = first
        self._cap = cap
        self._failures = 0

    def next(self) -> timedelta:
        """The pause after one more failure."""
        # 2^32 pauses are past any cap; without the bound the power itself would grow without end
        pause = min(self._first * (1 << min(self._failures, 32)), self._cap)
        self._failures += 1
        return pause

    def reset(self) -> None:
        """It worked: start anew."""
        self._failures = 0
