"""What a conversion tells while it works, and how it words a lock that was not to be had."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from spectral.core.database import DatabaseTooSlowError, RefusedError
from spectral.core.partitions.values import Progress, Step

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from spectral.core.partitions.values import OnProgress

_STEPS: Final = len(Step)
_BRAKE: Final = "spectral brake on --all --reason partitions --yes; try again; then spectral brake off --all"


class Teller:
    """Passes on where a conversion is, to whoever wants to know."""

    def __init__(self, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress

    def tell(self, step: str, position: int, message: str, attempt: int = 1) -> None:
        """A step begins, or its lock is tried for again."""
        if self._on_progress is not None:
            self._on_progress(Progress(str(step), position, max(_STEPS, position), message, attempt))

    def attempts(self, step: str, position: int, message: str) -> Callable[[int], None]:
        """The same for each try."""

        def tell(attempt: int) -> None:
            self.tell(step, position, message, attempt)

        return tell


@contextmanager
def lockable(table: str) -> Generator[None]:
    """Say what to do about a lock that was not to be had.

    Raises:
        RefusedError: instead of the error that says so.
    """
    try:
        yield
    except DatabaseTooSlowError:
        raise RefusedError(
            f"{table} could not be locked for a moment: transactions on it are open all the time", _BRAKE
        ) from None
