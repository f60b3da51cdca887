"""Plans: what a change would touch, kept until the change is asked for by its token.

A token is good once, for a while, for one action, and for exactly the events that were planned: it is an authentication
code over them, made with a key that only this process has. Nothing here touches the database, and the clock is an
argument.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from spectral.core.database import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

LIFETIME: Final = timedelta(minutes=15)
MOST_EVENTS: Final = 1_000
"""Events that one plan may touch."""

_MOST_PLANS: Final = 100
_MOST_SPENT: Final = 1_000


class Action(StrEnum):
    """What a plan is for."""

    REPLAY = "replay"
    DISCARD = "discard"

    @property
    def planned_by(self) -> str:
        """The tool that makes such plans."""
        return f"plan_{self}"


@dataclass(frozen=True, slots=True)
class PlannedEvent:
    """One event, and the mark of the failure it was planned for: a later failure of it has another."""

    event_id: UUID
    mark: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Exactly what will be done, and to which events."""

    action: Action
    events: tuple[PlannedEvent, ...]
    to_generation: int | None = None

    def only(self, event_id: UUID) -> Plan:
        """The same for one of its events.

        Raises:
            RefusedError: it is not one of them.
        """
        kept = tuple(each for each in self.events if each.event_id == event_id)
        if not kept:
            raise RefusedError(
                f"event {event_id} is not part of this plan", f'{self.action.planned_by}(event_ids=["{event_id}"])'
            )
        return Plan(self.action, kept, self.to_generation)


@dataclass(frozen=True, slots=True)
class _Kept:
    plan: Plan
    code: str
    expires: float


class PlanBook:
    """The plans of one process. Starting it again forgets them all, and nothing was done by those."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, lifetime: timedelta = LIFETIME) -> None:
        self.lifetime = lifetime
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._open: dict[str, _Kept] = {}
        self._spent: dict[str, None] = {}

    def keep(self, plan: Plan) -> str:
        """Keep a plan; its token."""
        name = secrets.token_urlsafe(12)
        code = self._code(name, plan)
        self._open[name] = _Kept(plan, code, self._clock() + self.lifetime.total_seconds())
        _forget_the_oldest(self._open, _MOST_PLANS)
        return f"{name}.{code}"

    def read(self, token: str, action: Action) -> Plan:
        """The plan of a token, which stays good.

        Raises:
            RefusedError: the token is forged, used, too old, or of a plan for something else.
        """
        again = f"{action.planned_by}(...), then use the token that it answers"
        name, _, code = token.partition(".")
        if name in self._spent:
            raise RefusedError("this plan was used already; every token is good once", again)
        kept = self._open.get(name)
        if kept is None or not hmac.compare_digest(kept.code.encode(), code.encode()):
            raise RefusedError("there is no plan with this token", again)
        if self._clock() >= kept.expires:
            minutes = self.lifetime / timedelta(minutes=1)
            raise RefusedError(f"this plan is older than {minutes:g} minutes; things may have changed", again)
        if kept.plan.action is not action:
            raise RefusedError(f"this is a plan to {kept.plan.action}, not to {action}", again)
        return kept.plan

    def spend(self, token: str, action: Action) -> Plan:
        """The plan of a token, which is good no longer, whatever becomes of the plan.

        Raises:
            RefusedError: as above.
        """
        plan = self.read(token, action)
        name, _, _ = token.partition(".")
        del self._open[name]
        self._spent[name] = None
        _forget_the_oldest(self._spent, _MOST_SPENT)
        return plan

    def _code(self, name: str, plan: Plan) -> str:
        content = [
            name,
            plan.action,
            str(plan.to_generation),
            *(f"{each.event_id} {each.mark}" for each in plan.events),
        ]
        return hmac.new(self._key, "\n".join(content).encode(), hashlib.sha256).hexdigest()


def _forget_the_oldest(kept: dict[str, _Kept] | dict[str, None], most: int) -> None:
    while len(kept) > most:
        del kept[next(iter(kept))]
