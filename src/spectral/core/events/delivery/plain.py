"""Plain handlers: outside any transaction, many at once, each row in a task of its own under a renewed lease."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING

from spectral.core.events.delivery.dispatch import conclude, execute, used_up
from spectral.core.events.outcome import AlreadyHandled, Released
from spectral.core.events.probe import HandlerRanAway

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spectral.core.events.consumer import Handler
    from spectral.core.events.delivery.desk import Desk
    from spectral.core.events.lease import Delivery


class PlainRunner:
    """Starts rows as they come; a slot is free again when the handler has ended, whatever the database does."""

    def __init__(self, desk: Desk, tasks: asyncio.TaskGroup, limits: dict[str, asyncio.Semaphore]) -> None:
        self._desk = desk
        self._tasks = tasks
        self._limits = limits
        self._slots = asyncio.Semaphore(desk.settings.concurrency)
        self._waiting: set[asyncio.Task[None]] = set()
        self._running: set[asyncio.Task[None]] = set()

    def start(self, deliveries: Iterable[Delivery]) -> None:
        """Run these, each as soon as there is a slot."""
        for delivery in deliveries:
            task = self._tasks.create_task(self._one(delivery))
            self._waiting.add(task)
            task.add_done_callback(partial(self._ended, delivery))

    @property
    def is_running(self) -> bool:
        """Whether a handler runs."""
        return bool(self._running)

    def release_waiting(self) -> None:
        """Give back what no handler has begun."""
        for task in self._waiting - self._running:
            task.cancel()

    def cancel(self) -> None:
        """Give back everything."""
        for task in self._waiting:
            task.cancel()

    def _ended(self, delivery: Delivery, task: asyncio.Task[None]) -> None:
        self._waiting.discard(task)
        self._running.discard(task)
        if task.cancelled():  # before its first step, so that it could not give its row back by itself
            self._desk.release([delivery])

    async def _one(self, delivery: Delivery) -> None:
        handlers = self._desk.routes.handlers_for(delivery)
        failures: list[tuple[Handler, BaseException]] = []
        ran: list[str] = []
        try:
            async with AsyncExitStack() as slots:
                for name in sorted(handler.name for handler in handlers if handler.name in self._limits):
                    await slots.enter_async_context(self._limits[name])
                await slots.enter_async_context(self._slots)
                if self._desk.is_lost(delivery):
                    self._desk.lost(delivery)
                    return
                if self._desk.stopping:
                    self._desk.release([delivery])
                    return
                self._begin(delivery)
                for handler in handlers:
                    error = used_up(handler) if handler.is_exhausted(delivery) else await self._run(handler, delivery)
                    ran.append(handler.name)
                    if error is None:
                        self._desk.took_effect(delivery, handler.name)
                    else:
                        failures.append((handler, error))
        except asyncio.CancelledError:
            # The worker stops, or the lease is lost: the settlement, which is fenced, tells which.
            self._desk.conclude(delivery, Released(), ran)
            return
        finally:
            self._running.discard(_this_task())
        outcome = conclude(delivery, failures, self._desk.random) if handlers else AlreadyHandled()
        self._desk.conclude(delivery, outcome, ran)

    def _begin(self, delivery: Delivery) -> None:
        task = _this_task()
        self._running.add(task)
        self._desk.begin(delivery, task.cancel)

    async def _run(self, handler: Handler, delivery: Delivery) -> BaseException | None:
        context = self._desk.context_for(delivery, handler)
        execution = await execute(handler, lambda: handler.call(delivery, context), self._desk.settings.times.patience)
        if execution.ran_away:
            self._desk.probe.tell(HandlerRanAway(delivery, handler.name))
        return execution.error


def _this_task() -> asyncio.Task[None]:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101  it is one
    return task
