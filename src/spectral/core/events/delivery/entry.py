"""An entry of the desk: one row that a worker holds, and what it has to remember of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from spectral.core.events.consumer import Handler
    from spectral.core.events.delivery.runs import Run
    from spectral.core.events.lease import Delivery
    from spectral.core.events.ports import Conclusion
    from spectral.core.events.probe import Activity
    from spectral.core.events.routes import Line


class Entry:
    """One row that is held. Most rows never differ from what stands in the class: only what does is their own."""

    started: float | None = None
    seconds: float | None = None  # for which its handlers have run
    outside: float | None = None  # of these, handlers outside of its transaction: they are not run again with that
    running = False
    cancel: Callable[[Delivery], object] | None = None
    alone = False
    lost = False
    disconnections = 0
    conflicts = 0
    conflicting_since = 0.0
    refusals = 0
    renewed = False
    done: tuple[str, ...] = ()
    failed: tuple[tuple[Handler, BaseException], ...] = ()
    activity: Activity | None = None  # of the handler that ran last
    runs: tuple[Run, ...] = ()  # of which nobody has been told
    doubts: tuple[Conclusion, ...] = ()  # sent and not answered; until they are dispelled, nobody is told of its runs
    doubted_runs: tuple[Run, ...] = ()  # as they were when the first of these was sent, which alone can have kept them

    def __init__(self, delivery: Delivery, line: Line, since: float) -> None:
        self.delivery = delivery
        self.line = line
        self.since = since

    def taken_runs(self) -> tuple[Run, ...]:
        """Its runs, of which somebody will be told now."""
        taken, self.runs = self.runs, ()
        return taken
