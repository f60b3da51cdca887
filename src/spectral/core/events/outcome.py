"""What became of a delivery, as a closed sum.

Whoever looks at one matches all cases; a new case is a type error everywhere it is not handled.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Handled:
    """Every handler ran and took effect."""


@dataclass(frozen=True, slots=True)
class AlreadyHandled:
    """The dedup gate was closed: an earlier delivery took effect, nothing ran now."""


@dataclass(frozen=True, slots=True)
class Retry:
    """A handler failed in a way that may pass; try again after the delay."""

    error: str
    delay: timedelta


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A handler failed for good, or once too often; the row goes to the DLQ."""

    error: str


@dataclass(frozen=True, slots=True)
class Released:
    """Nothing was decided: the worker stopped before its handlers had ended, or another one has its key; uncharged.

    delay: for so long nobody is to have it, for it must not run beside what is held.
    """

    delay: timedelta = timedelta(0)


Outcome: TypeAlias = Handled | AlreadyHandled | Retry | DeadLetter | Released
