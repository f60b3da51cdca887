"""`TaskRun`: what an executor holds while it works. Everything it writes through it is fenced."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from spectral.platform.agent_tasks.failure import NeedsApproval, TaskCancelled
from spectral.platform.agent_tasks.values import MAX_NOTE, AgentTask

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    import psycopg

    from spectral.core.events import DeliveryContext
    from spectral.platform.agent_tasks.store import RunStore


class TaskRun:
    """One run of one task. The worker shows that it lives by itself; an executor need not report to stay alive."""

    def __init__(self, task: AgentTask, delivery: DeliveryContext, store: RunStore) -> None:
        self.task = task
        self.delivery = delivery
        self._store = store
        self._cancelled = asyncio.Event()

    @property
    def fence(self) -> int:
        """A number that grows with every run, for whatever outside of this database can tell old writers from new."""
        return self.task.fence

    @property
    def cancel_requested(self) -> bool:
        """Whether somebody wants the task cancelled; known since the last heartbeat."""
        return self._cancelled.is_set()

    async def wait_for_cancel(self) -> None:
        """Wait until somebody wants the task cancelled."""
        await self._cancelled.wait()

    def raise_if_cancelled(self) -> None:
        """Stop here if somebody wants the task cancelled.

        Raises:
            TaskCancelled: somebody does; let it pass.
        """
        if self._cancelled.is_set():
            raise TaskCancelled(str(self.task.id))

    async def report(self, progress: int | None = None, note: str | None = None) -> None:
        """Record how far it is, in percent and in words; it is a heartbeat too.

        Raises:
            RunLostError: the run is no longer this worker's; stop.
            SubstrateLostError: the database cannot be reached.
        """
        await self.beat(progress, None if note is None else note[:MAX_NOTE])

    async def save(self, checkpoint: Any) -> None:  # noqa: ANN401  any JSON
        """Store what a later run begins with: after a loss, a retry or an approval. Raises as `report`."""
        await self._store.save(checkpoint)

    def transaction(self) -> AbstractAsyncContextManager[psycopg.AsyncConnection[tuple[Any, ...]]]:
        """A transaction on a connection of its own; what is written in it is kept only if the run is still the task's.

        While it is open, nobody takes the task over; keep it short. One that waits between two statements for longer
        than the run's ttl is ended by the server. Entering it raises `RunLostError` if somebody has taken it over.
        """
        return self._store.transaction()

    async def beat(self, progress: int | None = None, note: str | None = None) -> None:
        """Show life, and learn whether somebody wants the task cancelled. Raises as `report`."""
        if await self._store.beat(progress, note):
            self._cancelled.set()


Executor: TypeAlias = Callable[[AgentTask, TaskRun], Awaitable[str | NeedsApproval | None]]
"""Does the work: answers a reference to its result, if it has one. Raising means failure; see `NeedsApproval`."""
