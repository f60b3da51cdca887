"""How far the relay is with a lane: where the next take starts, what is taken for lost, and what the broker may get.

Rows that were sent stay pending until somebody has claimed them, and are walked over meanwhile. So a take starts where
the one before it ended; what fell due or was committed behind that is found from the beginning, which is looked at
whenever there is time, and while there is none for a share of it.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from datetime import datetime

    from spectral.core.events.broker_settings import RelaySettings
    from spectral.core.events.relay.ports import Taken

_SLACK: Final = timedelta(milliseconds=100)
"""Publishers do not commit in the order of their clocks."""

_EVERY: Final = 0.5  # seconds
_SHARE: Final = 20
_COUNTED_FOR: Final = 0.1  # seconds
_REFUSED_FOR: Final = 1.0


class Progress:
    """Of one lane."""

    def __init__(self, settings: RelaySettings) -> None:
        self._settings = settings
        self._at: datetime | None = None
        self._began_at = -_EVERY
        self._cost = 0.0
        self._is_look = False
        self._waiting = 0
        self._counted_at = -_COUNTED_FOR
        self._refused_at = -_REFUSED_FOR

    def must_count(self, now: float) -> bool:
        """Whether the broker has to be asked how much waits."""
        return now >= self._counted_at + _COUNTED_FOR

    def counted(self, waiting: int, now: float) -> None:
        """So many messages of this lane wait at the broker."""
        self._waiting, self._counted_at = waiting, now

    def room(self, now: float) -> int:
        """How many rows may be sent now."""
        if now < self._refused_at + _REFUSED_FOR:
            return 0
        return max(0, min(self._settings.batch, self._settings.most_waiting - self._waiting))

    def refused(self, now: float) -> None:
        """The broker had no room, whatever waits in this lane: to ask again at once costs the database a lot."""
        self._refused_at = now

    def begin_anew(self) -> None:
        """Look from the beginning the next time."""
        self._at = None

    def start(self, now: float, *, is_busy: bool) -> datetime | None:
        """Where the next take starts; none: at the beginning."""
        may_look = not is_busy or now >= self._began_at + max(_EVERY, _SHARE * self._cost)
        self._is_look = self._at is None or may_look
        if self._is_look:
            self._began_at = now
            return None
        return None if self._at is None else self._at - _SLACK

    def lost(self) -> timedelta:
        """How long ago something was sent that is taken for lost: not long, if nothing waits at the broker."""
        return self._settings.lost if self._waiting else self._settings.grace

    def took(self, taken: Taken, sent: int, seconds: float) -> None:
        """What a take brought, and how many of it the broker has; it lasted so long."""
        self._waiting += sent
        self._at = taken.reached or taken.stamp
        if self._is_look:
            self._cost = seconds
