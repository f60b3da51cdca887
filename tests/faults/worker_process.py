"""A worker process: the real worker on the handlers of the fault tests, with a fault built in if the plan says so."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import socket
import threading
import time
from datetime import timedelta
from typing import Any, Final

from spectral.core.events import DatabaseSettings, WorkerSettings, failpoints
from spectral.core.events.bootstrap import worker
from spectral.core.events.delivery import trust
from spectral.core.events.failure import SubstrateLostError
from spectral.core.events.infrastructure.postgres import worker as _preloaded  # noqa: F401  before the fork, not after
from spectral.core.events.probe import Finished, LeaseWasLost, Note, NoteTaker, Quarantined, Reaped
from spectral.core.events.settings import WorkerTimes
from tests.faults.handlers import External, consumers
from tests.faults.plan import Plan, Trap

CRASHED: Final = 1

# Workers live for seconds here: they come to trust their handlers soon, and lose trust as they do anywhere.
trust.ENOUGH = 2


class Channel(NoteTaker):
    """The way to the test: notes go there, one word comes back. Whoever writes waits until it is written."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._lock = threading.Lock()

    def tell(self, note: Note) -> None:
        """Implements `Probe`."""
        details: dict[str, object] = {}
        match note:
            case Finished(delivery, outcome):
                details = {"outcome": type(outcome).__name__, "attempts": delivery.attempts}
            case LeaseWasLost(delivery) | Quarantined(delivery):
                details = {"attempts": delivery.attempts}
            case Reaped(_, status, reason, lost, attempts):
                details = {"status": status, "reason": reason, "worker": lost, "attempts": attempts}
            case _:
                details = {"text": str(note)[:300]}
        self.say(type(note).__name__, **details)

    def say(self, name: str, **details: object) -> None:
        """Send one note."""
        with self._lock:
            self._line.sendall(json.dumps({"note": name, "at": time.monotonic()} | details).encode() + b"\n")

    def wait_for_go(self) -> None:
        """Stand still until the test says go."""
        self._line.recv(16)


class ReachedError(Exception):
    """What a trap raises: nobody's event, nobody's database."""


class Sprung:
    """Springs a trap once."""

    def __init__(self, trap: Trap, channel: Channel) -> None:
        self._trap = trap
        self._channel = channel
        self._reached = 0

    def __call__(self, name: str) -> None:
        """Implements `Failpoint`."""
        if name != self._trap.at:
            return
        self._reached += 1
        if self._reached == self._trap.nth:
            self._channel.say("Trapped", where=name)
            self._spring()
            self._channel.say("WentOn", where=name)

    def _spring(self) -> None:
        match self._trap.action:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "raise":
                raise ReachedError(self._trap.at)
            case "lose":
                raise SubstrateLostError("lost on purpose")
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "hold":
                self._channel.wait_for_go()


def main(plan_text: str, line: socket.socket) -> int:
    """Run one worker until it is stopped; answers the process's exit code."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    plan = Plan.loads(plan_text)
    channel = Channel(line)
    if plan.clock_offset:
        _set_clock(plan.clock_offset)
    if plan.trap is not None:
        failpoints.arm(Sprung(plan.trap, channel))
    try:
        asyncio.run(_run(plan, channel))
    except Exception as error:  # noqa: BLE001  the test reads it; the code says that it ended badly
        channel.say("Ended", error=repr(error)[:500])
        return CRASHED
    return 0


def _set_clock(offset: float) -> None:
    """Have this process believe that it is another day; its steady clock stays steady."""
    true_time, true_time_ns = time.time, time.time_ns
    time.time = lambda: true_time() + offset
    time.time_ns = lambda: true_time_ns() + int(offset * 1e9)


async def _run(plan: Plan, channel: Channel) -> None:
    settings = WorkerSettings(
        generation=plan.generation,
        name=plan.name,
        lanes=plan.lanes,
        batch=plan.batch,
        concurrency=plan.concurrency,
        times=WorkerTimes(**{name: timedelta(seconds=seconds) for name, seconds in plan.times.items()}),
    )
    database = DatabaseSettings(dsn=plan.dsn, direct_dsn=plan.direct_dsn)
    external = External(plan.effects_dsn or plan.dsn)
    listener = worker(*consumers(plan, external), settings=settings, database=database, probe=channel)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, listener.stop)
    loop.add_signal_handler(
        signal.SIGUSR1, lambda: channel.say("State", health=str(listener.health()), tasks=_stacks())
    )
    await listener.run()


def _stacks() -> list[str]:
    """Where every task of this loop waits."""
    return [f"{task.get_name()}: {_innermost(task)}" for task in asyncio.all_tasks()]


def _innermost(task: asyncio.Task[Any]) -> str:
    frames = task.get_stack()
    places = [f"{frame.f_code.co_qualname}:{frame.f_lineno}" for frame in frames]
    waiting = getattr(task.get_coro(), "cr_await", None)
    while waiting is not None:
        frame = getattr(waiting, "cr_frame", None)
        if frame is not None:
            places.append(f"{frame.f_code.co_qualname}:{frame.f_lineno}")
        waiting = getattr(waiting, "cr_await", None)
    return " > ".join(places)
