"""Whether to try again, and when. Pure: the error, the number of attempts and the random number are arguments.

The delay has full jitter: it is drawn evenly between nothing and the ceiling, and the ceiling doubles with every
retry up to the cap. The classifier goes by SQLSTATE where an error has one, otherwise by its type.
"""

from __future__ import annotations

from asyncio import CancelledError
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Final, cast

from spectral.core.events.failure import TerminalHandlerError

if TYPE_CHECKING:
    from collections.abc import Iterator


_MOST_RETRIES: Final = 2**31 - 2
"""With the first execution, what the column for attempts holds."""


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
        if type(self.max_retries) is not int or not 0 <= self.max_retries <= _MOST_RETRIES:
            raise ValueError(f"max_retries must be a whole number from 0 to {_MOST_RETRIES}, not {self.max_retries!r}")
        if not (_is_delay(self.base) and _is_delay(self.cap)):
            raise ValueError(f"base and cap must be timedeltas, not {self.base!r} and {self.cap!r}")
        if self.base < timedelta(0) or self.cap < self.base:
            raise ValueError(f"delays must satisfy 0 <= base <= cap, not base {self.base} and cap {self.cap}")
        if not 1 <= self.multiplier < float("inf"):
            raise ValueError(f"multiplier must be a finite number of at least 1, not {self.multiplier}")
        if not _are_errors(self.terminal_errors):
            raise ValueError(f"terminal_errors must be a tuple of exception types, not {self.terminal_errors!r}")

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
        if not self.base:
            return self.base
        try:
            seconds = self.base.total_seconds() * float(self.multiplier) ** (retry - 1)
        except OverflowError:
            return self.cap
        return self.cap if seconds >= self.cap.total_seconds() else timedelta(seconds=seconds)

    def delay(self, retry: int, random: float) -> timedelta:
        """The delay before this retry, for a random number drawn evenly from [0, 1)."""
        if not 0 <= random <= 1:
            raise ValueError(f"random must be between 0 and 1, not {random}")
        return self.ceiling(retry) * random


# of callers whose types nobody checks


def _is_delay(given: object) -> bool:
    return isinstance(given, timedelta)


def _are_errors(given: object) -> bool:
    return isinstance(given, tuple) and all(
        isinstance(kind, type) and issubclass(kind, BaseException) for kind in cast("tuple[object, ...]", given)
    )


DEFAULT_RETRY_POLICY: Final = RetryPolicy()

_TERMINAL_CLASSES: Final = frozenset({"22", "23", "42"})
"""Bad data, broken constraint, wrong statement: the same again gives the same again.

Every other class may pass: lost connections (08), deadlocks and serialization failures (40), exhausted resources (53),
locks (55), an operator's intervention (57).
"""

_MISSING_PARENT: Final = "23503"
"""The one broken constraint that may mend itself: the row it refers to has not arrived yet."""


def sqlstate_of(error: BaseException) -> str | None:
    """The SQLSTATE an error carries itself or wraps, whatever the driver; none if the server did not speak."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        for attribute in ("sqlstate", "pgcode"):
            state = _attribute(link, attribute)
            if isinstance(state, str) and len(state) == 5:  # noqa: PLR2004  an SQLSTATE has five characters
                return state
        # SQLAlchemy keeps the driver's error in `orig`, Django in the cause.
        wrapped = _attribute(link, "orig")
        link = wrapped if isinstance(wrapped, BaseException) else (link.__cause__ if _is_database_error(link) else None)
    return None


def _attribute(error: BaseException, name: str) -> object:
    """What an error says of itself; an error that cannot be asked says nothing."""
    try:
        return getattr(error, name, None)
    except Exception:  # noqa: BLE001  errors may answer for any attribute, and fail at it
        return None


def classify(error: BaseException, policy: RetryPolicy = DEFAULT_RETRY_POLICY) -> Verdict:
    """What this error means. A group is as bad as its worst member: terminal, then transient, then release."""
    verdicts = {_classify_one(member, policy) for member in _members(error, policy)}
    return next(verdict for verdict in (Verdict.TERMINAL, Verdict.TRANSIENT, Verdict.RELEASE) if verdict in verdicts)


def _members(error: BaseException, policy: RetryPolicy) -> Iterator[BaseException]:
    """The errors in a group of groups, or the error itself; a group that is named terminal is not looked into."""
    waiting = [error]
    seen: set[int] = set()  # groups may share members, level for level
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, BaseExceptionGroup) and not isinstance(each, policy.terminal_errors):
            waiting.extend(cast("BaseExceptionGroup[BaseException]", each).exceptions)
        else:
            yield each


def _classify_one(error: BaseException, policy: RetryPolicy) -> Verdict:
    if isinstance(error, (TerminalHandlerError, *policy.terminal_errors)):
        return Verdict.TERMINAL
    if isinstance(error, CancelledError):
        return Verdict.RELEASE
    state = sqlstate_of(error)
    return _classify_type(error) if state is None else _classify_state(state)


def _classify_type(error: BaseException) -> Verdict:
    if isinstance(error, ConnectionError | TimeoutError):
        return Verdict.TRANSIENT
    # pydantic.ValidationError is a ValueError, and so are our payload errors.
    if isinstance(error, ValueError) or _has_base_named(error, "IntegrityError"):
        return Verdict.TERMINAL
    return Verdict.TRANSIENT


def _classify_state(state: str) -> Verdict:
    if state[:2] in _TERMINAL_CLASSES and state != _MISSING_PARENT:
        return Verdict.TERMINAL
    return Verdict.TRANSIENT


def _has_base_named(error: BaseException, name: str) -> bool:
    """By name, because every driver has a class of its own and the kernel imports none of them."""
    return any(base.__name__ == name for base in type(error).__mro__)


def _is_database_error(error: BaseException) -> bool:
    return _has_base_named(error, "DatabaseError")
