"""Whether to try again, and when. Pure: the error, the number of attempts and the random number are arguments.

The delay has full jitter: it is drawn evenly between nothing and the ceiling, and the ceiling doubles with every
retry up to the cap. The classifier goes by SQLSTATE where an error has one, otherwise by its type.
"""

from __future__ import annotations

from asyncio import CancelledError
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final, cast

from spectral.core.events.failure import TerminalHandlerError


class Verdict(StrEnum):
    """What an error means for the delivery."""

    TRANSIENT = "transient"  # may pass: retry
    TERMINAL = "terminal"  # will not pass: dead letter at once
    RELEASE = "release"  # no failure at all: the worker is being stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how patiently a handler is retried.

    `max_retries` counts what follows the first execution: 5 retries are 6 executions. `terminal_errors` adds
    exception types that are never retried.
    """

    max_retries: int = 5
    base: timedelta = timedelta(seconds=1)
    multiplier: float = 2.0
    cap: timedelta = timedelta(seconds=300)
    terminal_errors: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            raise ValueError(f"max_retries must not be negative, not {self.max_retries}")
        if self.base < timedelta(0) or self.cap < self.base:
            raise ValueError(f"delays must satisfy 0 <= base <= cap, not base {self.base} and cap {self.cap}")
        if not 1 <= self.multiplier < float("inf"):
            raise ValueError(f"multiplier must be a finite number of at least 1, not {self.multiplier}")

    @property
    def max_attempts(self) -> int:
        """Executions in all, the first one included."""
        return self.max_retries + 1

    def allows_another(self, attempts: int) -> bool:
        """Whether a row that was tried this often may be tried again."""
        return attempts < self.max_attempts

    def ceiling(self, retry: int) -> timedelta:
        """The longest delay before this retry; retries count from 1."""
        if retry < 1:
            raise ValueError(f"retries count from 1, not {retry}")
        try:
            seconds = self.base.total_seconds() * self.multiplier ** (retry - 1)
        except OverflowError:
            return self.cap
        return min(timedelta(seconds=min(seconds, self.cap.total_seconds())), self.cap)

    def delay(self, retry: int, random: float) -> timedelta:
        """The delay before this retry, for a random number drawn evenly from [0, 1)."""
        if not 0 <= random <= 1:
            raise ValueError(f"random must be between 0 and 1, not {random}")
        return self.ceiling(retry) * random


DEFAULT_RETRY_POLICY: Final = RetryPolicy()

_TRANSIENT_STATES: Final = frozenset({"23503", "55P03"})
"""A parent row that has not arrived yet; a lock that was not to be had."""

_TRANSIENT_CLASSES: Final = frozenset({"08", "40", "53", "57"})
"""Connection, transaction rollback (deadlock, serialization), out of resources, operator intervention."""

_TERMINAL_CLASSES: Final = frozenset({"22", "23", "42"})
"""Bad data, broken constraint, wrong statement: the same again gives the same again."""


def sqlstate_of(error: BaseException) -> str | None:
    """The SQLSTATE an error carries itself or wraps, whatever the driver; none if the server did not speak."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        for attribute in ("sqlstate", "pgcode"):
            state = getattr(link, attribute, None)
            if isinstance(state, str) and len(state) == 5:  # noqa: PLR2004  an SQLSTATE has five characters
                return state
        # SQLAlchemy keeps the driver's error in `orig`, Django in the cause.
        wrapped = getattr(link, "orig", None)
        link = wrapped if isinstance(wrapped, BaseException) else (link.__cause__ if _is_database_error(link) else None)
    return None


def classify(error: BaseException, policy: RetryPolicy = DEFAULT_RETRY_POLICY) -> Verdict:
    """What this error means. A group is as bad as its worst member: terminal, then transient, then release."""
    if policy.terminal_errors and isinstance(error, policy.terminal_errors):
        return Verdict.TERMINAL
    if isinstance(error, BaseExceptionGroup):
        members = cast("BaseExceptionGroup[BaseException]", error).exceptions
        verdicts = {classify(member, policy) for member in members}
        return next(
            verdict for verdict in (Verdict.TERMINAL, Verdict.TRANSIENT, Verdict.RELEASE) if verdict in verdicts
        )
    if isinstance(error, CancelledError):
        return Verdict.RELEASE
    state = sqlstate_of(error)
    return _classify_type(error) if state is None else _classify_state(state)


def _classify_type(error: BaseException) -> Verdict:
    if isinstance(error, ConnectionError | TimeoutError):
        return Verdict.TRANSIENT
    # pydantic.ValidationError is a ValueError, and so are our payload errors.
    if isinstance(error, TerminalHandlerError | ValueError) or _has_base_named(error, "IntegrityError"):
        return Verdict.TERMINAL
    return Verdict.TRANSIENT


def _classify_state(state: str) -> Verdict:
    if state in _TRANSIENT_STATES or state[:2] in _TRANSIENT_CLASSES:
        return Verdict.TRANSIENT
    return Verdict.TERMINAL if state[:2] in _TERMINAL_CLASSES else Verdict.TRANSIENT


def _has_base_named(error: BaseException, name: str) -> bool:
    """By name, because every driver has a class of its own and the kernel imports none of them."""
    return any(base.__name__ == name for base in type(error).__mro__)


def _is_database_error(error: BaseException) -> bool:
    return _has_base_named(error, "DatabaseError")
