"""Worker processes, as anybody would start them: `spectral worker`, with a generation and a database.

Invariant: whatever happens to the demo, its own death by `kill -9` included, no worker outlives it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, STDOUT, Process
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Self

from spectral_ops.demo.patience import DemoFailedError, until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_PROGRAM: Final = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: the kernel kills it when the demo dies
if os.getppid() != int(sys.argv.pop(1)):    # it has died already
    sys.exit()
from spectral_ops.cli import main
main()
"""
_CONSUMERS: Final = ("spectral_ops.demo.business:platform", "spectral_ops.demo.business:worlds")
_FOREIGN: Final = ("SPECTRAL_", "PG")
"""Variables that would lead a worker elsewhere."""


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker process that runs, or has run; `identity` is what rows say of who claimed them."""

    label: str
    generation: int
    process: Process
    log: Path
    identity: str = ""

    def logged(self, event: str) -> Iterator[dict[str, Any]]:
        """Its log lines of this event so far."""
        for line in self.log.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(ValueError):  # its last line may be half written
                document = json.loads(line)
                if document.get("event") == event:
                    yield document


class Crew:
    """Starts workers and, at the end of its block, leaves none."""

    def __init__(self, dsn: str, environ: Mapping[str, str], directory: Path) -> None:
        self._variables = {name: value for name, value in environ.items() if not name.startswith(_FOREIGN)}
        self._variables["SPECTRAL_DATABASE_URL"] = dsn
        self._directory = directory
        self._workers: list[Worker] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self._workers:
            with suppress(ProcessLookupError):
                worker.process.kill()
        for worker in self._workers:
            await worker.process.wait()

    async def start(self, generation: int, count: int) -> list[Worker]:
        """Start so many workers of this generation; returns when all of them listen."""
        begun = [await self._begin(generation) for _ in range(count)]
        return list(await asyncio.gather(*(self._ready(worker) for worker in begun)))

    async def kill(self, worker: Worker) -> None:
        """End it in the middle of whatever it does."""
        worker.process.kill()
        await worker.process.wait()

    async def stop(self, *workers: Worker) -> None:
        """Have them end in good order.

        Raises:
            DemoFailedError: one of them ended in another way.
        """
        for worker in workers:
            with suppress(ProcessLookupError):
                worker.process.send_signal(signal.SIGTERM)
        for worker in workers:
            code = await worker.process.wait()
            if code:
                raise DemoFailedError(f"{worker.label} ended with code {code} when it was told to stop; see its log")

    async def _begin(self, generation: int) -> Worker:
        number = len(self._workers) + 1
        log = self._directory / f"worker-{number}.log"
        with log.open("wb") as stream:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", _PROGRAM, str(os.getpid()), "worker", *_CONSUMERS),
                stdin=DEVNULL,
                stdout=stream,
                stderr=STDOUT,
                cwd=self._directory,
                env={**self._variables, "SPECTRAL_GENERATION": str(generation)},
                process_group=0,  # a Ctrl-C in the terminal is for the demo alone
            )
        worker = Worker(f"worker {number}", generation, process, log)
        self._workers.append(worker)
        return worker

    async def _ready(self, worker: Worker) -> Worker:
        async def first_words() -> dict[str, Any] | None:
            if worker.process.returncode is not None:
                code = worker.process.returncode
                raise DemoFailedError(f"{worker.label} did not start, it ended with code {code}; see its log")
            return next(worker.logged("listening"), None)

        said = await until(first_words, f"{worker.label} listens")
        return replace(worker, identity=said["worker"])
