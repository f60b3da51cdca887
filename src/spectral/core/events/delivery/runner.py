"""Who runs plain handlers: a task, the row it is busy with, and how far it has come."""

from __future__ import annotations

import math
from asyncio import CancelledError
from typing import TYPE_CHECKING, Literal

from spectral.core.events.delivery import runs

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator

    from spectral.core.events.consumer import Handler
    from spectral.core.events.delivery.inline import InContext
    from spectral.core.events.lease import Delivery
    from spectral.core.events.probe import Activity


class Runner:
    """One row at a time. `why` says that its handler was cancelled and what for; `left` that nobody waits for it.

    `rest` has the handlers of its row that have not had their turn; there is none before the first one's. `begun`
    is its handler, if that has to be waited for; `error` what it has raised, if that has to be, though it has ended.
    `ran` names the handlers that have run, `done` those of them that took effect.
    """

    __slots__ = (
        "activity",
        "begun",
        "deadline",
        "delivery",
        "done",
        "error",
        "failures",
        "handler",
        "left",
        "ran",
        "rest",
        "task",
        "why",
    )

    def __init__(self, delivery: Delivery) -> None:
        self.task: asyncio.Task[None] | None = None
        self.delivery: Delivery | None = delivery
        self.rest: Iterator[Handler] | None = None
        self.handler: Handler | None = None
        self.activity: Activity | None = None
        self.deadline = math.inf
        self.why: Literal["timeout", "stop"] | None = None
        self.left = False
        self.begun: InContext | None = None
        self.error: BaseException | None = None
        self.ran: tuple[str, ...] = ()
        self.done: tuple[str, ...] = ()
        self.failures: tuple[tuple[Handler, BaseException], ...] = ()

    def note(self, handler: Handler, error: BaseException | None) -> None:
        """A handler has ended."""
        name = (handler.name,)
        self.ran += name
        if error is None:
            self.done += name
        else:
            self.failures += ((handler, error),)

    def is_called_off(self, error: BaseException | None) -> bool:
        """Whether its handler was cancelled because the worker stops, or has lost the row: nobody is charged for it."""
        return self.why == "stop" and isinstance(error, CancelledError)

    def tell(self, error: BaseException | None) -> None:
        """Its handler has ended, or is left behind."""
        if self.activity is None:
            return
        if self.is_called_off(error):
            runs.undo(self.activity, error)
        else:
            self.activity.end(error)

    @property
    def is_spoilt(self) -> bool:
        """Whether its task was cancelled: by the worker, by its handler, or by whoever knows the task."""
        return self.why is not None or (self.task is not None and self.task.cancelling() > 0)
