"""Waiting longer after every failure in a row, up to a cap; a success forgets them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import timedelta


class Backoff:
    """The first pause, then twice as long each time, never more than the cap."""

    def __init__(self, first: timedelta, cap: timedelta) -> None:
        self._first = min(first, cap)
        self._cap = cap
        self._pause = self._first

    def next(self) -> timedelta:
        """The pause after one more failure."""
        pause = self._pause
        self._pause = self._cap if pause >= self._cap / 2 else pause * 2
        return pause

    def reset(self) -> None:
        """It worked: start anew."""
        self._pause = self._first
