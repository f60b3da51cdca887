"""The worker process of `spectral dev`.

    runs ── a file changed ──> told to stop: finishes what runs, gives back the rest ──> runs, with the new code
    runs ── cannot start (exit code 2) ──> waits for a change
    runs ── ended otherwise ──> waits for a change, or a moment, longer every time
    told to stop, once ──> as after a change, and that was it; twice: at once

Invariant: whatever happens to this process, its own death by `kill -9` included, no worker outlives it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, Process
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from spectral.core.events.delivery.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from pathlib import Path

    from spectral_ops.dev.watch import Watch

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PROGRAM: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: the kernel kills it when its parent dies
if os.getppid() != int(sys.argv.pop(1)):    # it has died already
    sys.exit()
from spectral_ops.cli import main
main()
"""
_CANNOT_START: Final = 2
_LOOK_SECONDS: Final = 0.25
_FIRST_PAUSE: Final = timedelta(seconds=1)
_LONGEST_PAUSE: Final = timedelta(seconds=30)
_OBEYING_SECONDS: Final = 30.0
"""Beyond the grace. A worker leaves by itself before that; one that is stopped by a debugger does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the worker is started with: the arguments of `spectral worker`, its environment, its grace in seconds."""

    arguments: Sequence[str]
    variables: Mapping[str, str]
    grace: float


class Reloader:
    """Runs one worker at a time until it is told to stop; use it once."""

    def __init__(self, job: Job, watch: Watch, say: Callable[[str], None]) -> None:
        self._job = job
        self._watch = watch
        self._say = say
        self._told = asyncio.Event()
        self._process: Process | None = None
        self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)

    async def run(self) -> None:
        """Until SIGINT, SIGTERM or SIGHUP; leaves no process."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self.stop)
        while not self._told.is_set():
            process = self._process = await self._start()
            try:
                await self._first(process.wait(), self._change(), self._told.wait())
                running = process.returncode is None
                await self._end(process)
            finally:
                with suppress(ProcessLookupError):
                    process.kill()
            if not running and not self._told.is_set():
                await self._wait(process.returncode)

    def stop(self) -> None:
        """Once: in good order. Again: at once."""
        if self._told.is_set() and self._process is not None:
            with suppress(ProcessLookupError):
                self._process.terminate()
        self._told.set()

    async def _start(self) -> Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _PROGRAM, str(os.getpid()), "worker", *self._job.arguments),
            stdin=DEVNULL,
            # A file saved twice within a second would pass for the bytecode of its first version.
            env={**self._job.variables, "PYTHONDONTWRITEBYTECODE": "1"},
            process_group=0,  # a Ctrl-C in the terminal is ours to pass on; twice would mean force
        )

    async def _end(self, process: Process) -> None:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.terminate()
            try:
                await asyncio.wait_for(process.wait(), self._job.grace + _OBEYING_SECONDS)
            except TimeoutError:
                self._say("dev: the worker does not end; killed, its claims are taken back within seconds")
                process.kill()
        await process.wait()

    async def _wait(self, code: int | None) -> None:
        """After a worker that ended by itself."""
        if code == _CANNOT_START:
            self._say("dev: the worker cannot start; waiting for a file to change")
            await self._first(self._change(), self._told.wait())
            return
        pause = self._backoff.next().total_seconds()
        self._say(f"dev: the worker ended with code {code}; again in {pause:g} s, or when a file changes")
        await self._first(self._change(), self._told.wait(), asyncio.sleep(pause))

    async def _change(self) -> None:
        """Until files changed, and have come to rest: an editor writes in several steps."""
        changed: list[Path] = []
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            latest = self._watch.changed()
            changed += latest
            if changed and not latest:
                break
        files = list(dict.fromkeys(changed))
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        self._say(f"dev: {files[0].name}{more} changed; the worker starts again")
        self._backoff.reset()

    async def _first(self, *waits: Coroutine[object, object, object]) -> None:
        tasks = [asyncio.ensure_future(each) for each in waits]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        for task in done:
            task.result()  # an error is nobody else's to see
