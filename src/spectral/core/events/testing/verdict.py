"""The verdict of the oracle: what was counted, and what must not have happened."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final, NamedTuple

_SHOWN: Final = 20


class Fault(StrEnum):
    """What must never happen."""

    LOST = "lost"  # published, but neither handled nor in the DLQ
    PHANTOM = "phantom"  # an effect of an event that nobody tried to publish
    GHOST = "ghost"  # an effect, or a row, of a publish that was rolled back
    DUPLICATED = "duplicated"  # a transactional effect of one handler and key, more than once
    STUCK = "stuck"  # neither delivered nor in the DLQ when the time was up
    FALSE_DEAD_LETTER = "false_dead_letters"  # in the DLQ although every handler took effect
    WRONG_GENERATION = "wrong_generation"  # an effect by a worker of a generation that the event was not of
    WRONG_CONTEXT = "wrong_context"  # an effect by a context that the event was not for


class Problem(NamedTuple):
    """One thing that must not have happened, and to whom."""

    fault: Fault
    subject: str
    detail: str

    def __str__(self) -> str:
        return f"{self.fault}: {self.subject} {self.detail}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of everything that was published. All faults must be 0; the other numbers are for the record.

    published: events whose commit is certain, from the ledger or because their row is there.
    delivered, dead_lettered: rows of those events that are delivered, or in the DLQ; of a broadcast, its shares.
    replayed: rows that were replayed at least once.
    handled: pairs of handler and idempotency key that took effect.
    external_duplicates: effects outside the database that were repeated, which is allowed.
    """

    published: int
    delivered: int
    handled: int
    dead_lettered: int
    replayed: int
    external_duplicates: int
    lost: int
    phantom: int
    ghost: int
    duplicated: int
    stuck: int
    false_dead_letters: int
    wrong_generation: int
    wrong_context: int
    found: tuple[Problem, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether nothing happened that must not."""
        return not any(getattr(self, fault.value) for fault in Fault)

    def problems(self) -> list[str]:
        """Everything that must not have happened, in words, each with the ids it happened to."""
        return [str(problem) for problem in self.found]

    def as_dict(self) -> dict[str, int]:
        """The numbers by name."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "found"}

    def assert_clean(self, at_least: int = 1) -> None:
        """Raise an `AssertionError` that names the problems, if there are any or too little was published to tell."""
        if not self.clean:
            shown = "\n  ".join(self.problems()[:_SHOWN])
            more = f"\n  and {len(self.found) - _SHOWN} more" if len(self.found) > _SHOWN else ""
            raise AssertionError(f"the delivery was not clean: {self.as_dict()}\n  {shown}{more}")
        if self.published < at_least:
            raise AssertionError(f"only {self.published} events were published: this shows nothing")


def counted(found: list[Problem]) -> dict[str, int]:
    """How often each fault was found."""
    counts = Counter(problem.fault for problem in found)
    return {fault.value: counts[fault] for fault in Fault}
