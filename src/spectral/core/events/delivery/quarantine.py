"""Quarantine: who waits, and for how long, until a row that may kill its process can run alone.

met by a worker that     given back, for one that holds nothing may be there; who met it claims nothing for a moment, in
holds something          which what it holds may end
met again                one worker of the context sets the row aside and claims nothing until it holds nothing, or for
                         thirty seconds; then it runs the row. All others set it aside for some seconds, and go on
met again and again      it runs beside what is held
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from spectral.core.events.failure import SubstrateLostError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from spectral.core.events.delivery.desk import Desk
    from spectral.core.events.lease import Delivery
    from spectral.core.events.ports import Claims
    from spectral.core.events.routes import Line

_LONGEST: Final = 30.0
"""Seconds: what kills its process does so soon, and nobody should wait for a task of hours to show that it does not."""

_OFFERED: Final = 0.5  # seconds
_ASIDE: Final = timedelta(seconds=5)
_MARGIN: Final = 1.25  # times the longest wait: then the row is anybody's, for whoever set it aside may be dead
_TURNS: Final = 4
"""Times the longest wait: so long may others that must run alone keep a row waiting for its turn."""

_MOST_MET: Final = 1_000


_LONGEST_GAP: Final = _MARGIN * _LONGEST + _ASIDE.total_seconds()
"""Seconds between two meetings that count as waiting: whoever is not met for longer is held up by something else, as by
the brake, or is somewhere else."""


class _Life(NamedTuple):
    """Of a row, between two executions."""

    row_id: UUID
    replays: int
    attempts: int


class _Waiting(NamedTuple):
    """When a row was last met, and how long it has waited for its turn by then."""

    met_at: float
    seconds: float


class Quarantine:
    """Of one worker.

    `offered` is where a row was given back a moment ago, `aside` a row that was set aside by this worker, which waits
    for its quiet. Either way nothing else is claimed before `may_begin`.
    """

    def __init__(self, claims: Claims, desk: Desk) -> None:
        self._claims = claims
        self._desk = desk
        self._clock = asyncio.get_running_loop().time
        self._met: dict[_Life, _Waiting] = {}
        self._taken_until = 0.0  # another worker waits with a row of its own
        self.offered: Line | None = None
        self.aside: tuple[Line, Delivery] | None = None
        self.until = 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether this worker waits for its quiet."""
        return self.offered is not None or self.aside is not None

    def may_begin(self) -> bool:
        """Whether nothing is held any more, or it has waited for long enough."""
        return not self._desk.held() or self._clock() >= self.until

    def deadline(self) -> float:
        """Until when a row that runs alone is waited for, if it begins now."""
        return self._clock() + _LONGEST

    async def put_off(self, dangerous: Iterable[tuple[Line, Delivery]]) -> list[tuple[Line, Delivery]]:
        """Have these run later, for this worker holds others; answers those that have waited for long enough."""
        overdue: list[tuple[Line, Delivery]] = []
        waiting = deque(dangerous)
        try:
            while waiting:
                line, delivery = waiting[0]
                if await self._is_overdue(line, delivery):
                    overdue.append((line, delivery))
                waiting.popleft()
        except BaseException:
            # The worker is being stopped, or has no database: nobody will run them.
            self._desk.release([delivery for _, delivery in (*overdue, *waiting)])
            raise
        return overdue

    async def _is_overdue(self, line: Line, delivery: Delivery) -> bool:
        """Whether it has waited for long enough; if not, it is given back, for now or for a while."""
        now = self._clock()
        waited = self._meet(delivery, now)
        if waited is not None and waited >= _TURNS * _LONGEST:
            return True
        # Nothing is offered by who waits with another one: it would wait for no longer than that takes.
        if waited is None and now >= self._taken_until and self.aside is None:
            self._desk.release([delivery])
            self.offered, self.until = line, now + min(_OFFERED, _LONGEST)
        elif await self._enter(line.context):
            self._desk.release([delivery], timedelta(seconds=_MARGIN * _LONGEST))
            self.offered, self.aside, self.until = None, (line, delivery), now + _LONGEST
        else:
            self._desk.release([delivery], _ASIDE)
            self._taken_until = now + _ASIDE.total_seconds()
        return False

    def begin(self) -> tuple[Line, Delivery] | None:
        """Take the row that was set aside, if there is one: it is to be claimed and run now."""
        aside, self.aside = self.aside, None
        return aside

    def _meet(self, delivery: Delivery, now: float) -> float | None:
        """For how many seconds it has waited since it was last run; none: it is met for the first time since."""
        life = _Life(delivery.lease.row_id, delivery.replays, delivery.attempts)
        known = self._met.get(life)
        if known is None and len(self._met) >= _MOST_MET:
            del self._met[next(iter(self._met))]
        waited = None if known is None else known.seconds + min(now - known.met_at, _LONGEST_GAP)
        self._met[life] = _Waiting(now, waited or 0.0)
        return waited

    async def _enter(self, context: str) -> bool:
        """Whether this is the worker that waits; without a database nobody does."""
        if self.aside is None:
            with suppress(SubstrateLostError):
                return await self._claims.enter_quarantine(context)
        return False
