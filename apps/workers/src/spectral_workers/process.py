"""One worker as a process: from its settings to its exit code.

0   it was stopped, or has done what it was to do
1   it crashed; the log says of what
"""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from spectral.core.events.bootstrap import worker
from spectral.core.events.failure import ConfigurationError
from spectral_workers.health import Address, health_endpoint
from spectral_workers.locate import locate_consumers
from spectral_workers.logs import configure_logs
from spectral_workers.stopping import StopSignals, leave

if TYPE_CHECKING:
    from spectral.core.events.consumer import Consumer
    from spectral.core.events.delivery.claim import Until
    from spectral.core.events.settings import DatabaseSettings, WorkerSettings

_LAST_WORDS: Final = 1.0
"""Seconds for tasks and threads to end after the worker has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to run, and how.

    apps: names of consumers, `module:attribute`.
    health: where to say how it is; nowhere unless told.
    debug: whether a crash shows its traceback, which may show values.
    """

    apps: tuple[str, ...]
    settings: WorkerSettings
    database: DatabaseSettings
    until: Until = "stopped"
    health: Address | None = None
    debug: bool = False


def run_worker(order: Order) -> int:
    """Run until told to stop, or until there is nothing left to do; the exit code is the answer.

    Call it in the main thread of a process that does nothing else. It does not return if something is left behind that
    would keep the process: it leaves.

    Raises:
        ConfigurationError: nothing was started; the message says what to do.
    """
    signals = StopSignals(patience_of(order.settings))
    consumers = locate_consumers(order.apps)
    configure_logs(order.settings.generation)  # after the imports: one of them may have done it
    loop = asyncio.new_event_loop()
    executor = ThreadPoolExecutor(thread_name_prefix="spectral-threads")
    loop.set_default_executor(executor)
    try:
        code = loop.run_until_complete(_work(order, consumers, signals))
    finally:
        is_quiet = _quieten(loop, executor)
    if not is_quiet:
        leave(code)
    loop.close()
    return code


def patience_of(settings: WorkerSettings) -> float:
    """How many seconds stopping in good order takes at most."""
    times = settings.times
    # One answer for the last claim, one for the last settlement, and the moment that cancelled handlers get.
    return (times.stop + 2 * times.answer).total_seconds() + 2


async def _work(order: Order, consumers: tuple[Consumer, ...], signals: StopSignals) -> int:
    loop = asyncio.get_running_loop()
    listener = worker(*consumers, settings=order.settings, database=order.database)
    with ExitStack() as open_while_working:
        if order.health is not None:
            served = open_while_working.enter_context(health_endpoint(order.health, listener.health))
            log = structlog.get_logger("spectral.worker")
            log.info("health is served", host=served.host, port=served.port)
        signals.tell(lambda: loop.call_soon_threadsafe(listener.stop))
        try:
            await listener.run(order.until)
        except ConfigurationError:
            raise
        except Exception:  # noqa: BLE001  the listener has logged it; what is left is the exit code
            if order.debug:
                traceback.print_exc()
            return 1
    return 0


def _quieten(loop: asyncio.AbstractEventLoop, executor: ThreadPoolExecutor) -> bool:
    """Cancel what still runs and give it a moment; false if something will not end.

    `asyncio.run` would wait for it for ever: a handler that ignores its cancellation may never end.
    """
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.wait(tasks, timeout=_LAST_WORDS))
    executor.shutdown(wait=False, cancel_futures=True)
    deadline = time.monotonic() + _LAST_WORDS
    for thread in threading.enumerate():
        if thread is not threading.main_thread() and not thread.daemon:
            thread.join(max(0.0, deadline - time.monotonic()))
    others = [each for each in threading.enumerate() if each is not threading.main_thread() and not each.daemon]
    return not others and all(task.done() for task in tasks)
