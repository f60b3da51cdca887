"""Aside: a thread with a loop of its own for what must go on whatever handlers do: the ear, the leases, the watch.

If a part of it dies of an error that is not the database's, `failed` says so, and the worker goes down with it.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

from spectral.core.events.probe import LoopBlocked

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from spectral.core.events.probe import Probe

_BEAT: Final = 0.5
_TELL_AFTER: Final = 5.0
_END_WITHIN: Final = 15.0


class Aside:
    """Runs `loops` in a thread and watches whether the worker's own loop still moves."""

    def __init__(self, loops: Callable[[], list[Coroutine[None, None, None]]], probe: Probe) -> None:
        self._loops = loops
        self._probe = probe
        self._thread = threading.Thread(target=self._main, name="spectral-aside", daemon=True)
        self._home = asyncio.get_running_loop()
        self._stop: Callable[[], object] | None = None
        self._started = threading.Event()
        self._beaten_at = time.monotonic()
        self.failed: asyncio.Future[None] = self._home.create_future()
        self._ended = asyncio.Event()

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    async def run(self) -> None:
        """Beat, and raise what kills the thread; until cancelled."""
        self.start()
        try:
            while not self.failed.done():
                self._beaten_at = time.monotonic()
                await asyncio.wait({self.failed}, timeout=_BEAT)
            self.failed.result()
        finally:
            await self._join()

    def blocked_for(self) -> float:
        """For how many seconds the worker's loop has not moved."""
        return max(0.0, time.monotonic() - self._beaten_at - 2 * _BEAT)

    async def _join(self) -> None:
        self._started.wait(timeout=5)
        if self._stop is not None:
            with suppress(RuntimeError):  # its loop has ended before
                self._stop()
        # Not joined in the executor, which handlers may have filled. The thread is a daemon: one that does not end in
        # time does not keep the process.
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_WITHIN):
                await self._ended.wait()

    def _main(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._supervise())
        except BaseException as error:  # noqa: BLE001  whatever it is, the worker has to know
            self._tell_home(partial(self._fail, error))
        finally:
            self._tell_home(self._ended.set)

    def _fail(self, error: BaseException) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    def _tell_home(self, what: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the worker's loop has ended before
            self._home.call_soon_threadsafe(what)

    async def _supervise(self) -> None:
        loop = asyncio.get_running_loop()
        stopped = asyncio.Event()
        self._stop = lambda: loop.call_soon_threadsafe(stopped.set)
        self._started.set()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(each) for each in (*self._loops(), self._watch())]
            await stopped.wait()
            for task in tasks:
                task.cancel()

    async def _watch(self) -> None:
        told = False
        while True:
            await asyncio.sleep(_BEAT)
            blocked = self.blocked_for()
            if blocked >= _TELL_AFTER and not told:
                self._probe.tell(LoopBlocked(blocked))
            told = blocked >= _TELL_AFTER
