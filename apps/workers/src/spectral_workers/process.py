"""One worker as a process: from its settings to its exit code.

0   it was stopped, or has done what it was to do
1   it crashed; the log says of what
"""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from spectral.core.events.bootstrap import named, worker
from spectral.core.events.failure import ConfigurationError, SubstrateLostError
from spectral.core.events.infrastructure.observability import otel_metrics, prometheus
from spectral.core.events.infrastructure.observability.log_writer import process_logger
from spectral.core.events.infrastructure.observability.outlet import flush_all
from spectral.core.events.infrastructure.observability.recorder import Recorder
from spectral.core.events.infrastructure.observability.standard import publishes_counted, standard_watch
from spectral.core.events.settings import SERVICE_VARIABLES, Identity
from spectral_workers.emitter import Emitter
from spectral_workers.health import Address, health_endpoint
from spectral_workers.locate import locate_consumers
from spectral_workers.logs import SERVICE, configure_logs
from spectral_workers.measured import samples_of, scrape, watches_beside
from spectral_workers.stopping import StopSignals, leave
from spectral_workers.telemetry import configure_telemetry

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping

    from spectral.core.events.consumer import Consumer
    from spectral.core.events.delivery.claim import Until
    from spectral.core.events.infrastructure.observability.watch import Watch
    from spectral.core.events.metrics import Sample
    from spectral.core.events.settings import DatabaseSettings, WorkerSettings

_LAST_WORDS: Final = 1.0
"""Seconds for tasks and threads to end after the worker has, and for what was told last to be written."""

_CLOSING: Final = 3.0
"""Seconds for the log to be written and the telemetry to be sent at the end, if what is behind them hangs."""

_YOUNG: Final = 50_000
"""Objects to be made before the interpreter looks for circles among them: a span that waits to be sent has a dozen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to run, and how.

    apps: names of consumers, `module:attribute`.
    environ: where the log and the telemetry find out who speaks and to whom.
    health: where to say how it is; nowhere unless told.
    debug: whether a crash shows its traceback, which may show values.
    """

    apps: tuple[str, ...]
    settings: WorkerSettings
    database: DatabaseSettings
    environ: Mapping[str, str] = field(repr=False)
    until: Until = "stopped"
    health: Address | None = None
    debug: bool = False


def run_worker(order: Order) -> int:
    """Run until told to stop, or until there is nothing left to do; the exit code is the answer.

    Call it in the main thread of a process that does nothing else. It does not return if something is left behind that
    would keep the process: it leaves.

    Raises:
        ConfigurationError: nothing was started; the message says what to do.
        SubstrateLostError: nothing was started, for the database was not there in time; so may it be the next time.
    """
    identity = Identity.from_environ(order.environ, order.settings.generation, SERVICE)
    signals = StopSignals(patience_of(order.settings), identity)
    consumers = locate_consumers(order.apps)
    # After the imports: one of them may have configured the log, or a tracer provider, and keeps it.
    lines = configure_logs(identity, order.environ)
    end_telemetry = configure_telemetry(identity, order.environ)
    watched = _Watched.of(order, identity, lines)
    return run_to_the_end(lambda: _work(watched, consumers, signals), watched.watch, end_telemetry)


def run_to_the_end(
    work: Callable[[], Coroutine[Any, Any, int]], watch: Watch, end_telemetry: Callable[[], None]
) -> int:
    """Run this on a loop of its own, and see to it that what was told last is written; the exit code is the answer.

    It does not return if something is left behind that would keep the process: it leaves.
    """
    spare_the_collector()
    loop = _new_loop()
    executor = ThreadPoolExecutor(thread_name_prefix="spectral-threads")
    loop.set_default_executor(executor)
    try:
        code = loop.run_until_complete(work())
    finally:
        is_quiet = _quieten(loop, executor)
        _flush(watch)  # first, for spans end there
        end_telemetry()
    if not is_quiet or not _is_written():
        leave(code)
    loop.close()
    return code


def spare_the_collector() -> None:
    """Have garbage collected among what the work makes, seldom, and not among all that is loaded.

    A full collection of a worker with its libraries takes 50 ms, in which no handler runs. A project that has set
    another threshold than the interpreter's own, or none, keeps it if it is higher.
    """
    gc.collect()
    gc.freeze()
    young, *older = gc.get_threshold()
    if 0 < young < _YOUNG:
        gc.set_threshold(_YOUNG, *older)


def _new_loop() -> asyncio.AbstractEventLoop:
    """The quicker one, if the extra `uvloop` is installed."""
    if find_spec("uvloop") is None:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = import_module("uvloop").new_event_loop()
    return loop


@dataclass(frozen=True, slots=True)
class _Watched:
    """An order, with a worker that has a name, and who watches it."""

    order: Order
    identity: Identity
    watch: Watch
    recorder: Recorder | None

    @classmethod
    def of(cls, order: Order, identity: Identity, lines: Callable[[str, int], None] | None) -> _Watched:
        """Have it watched by all there is; numbers are only kept if there is a port to read them on."""
        settings = named(order.settings)
        recorder = Recorder() if order.health is not None and prometheus.is_installed() else None
        watch = standard_watch(identity, settings.name, {} if recorder is None else {"metrics": recorder}, lines)
        return cls(replace(order, settings=settings), identity, watch, recorder)


def patience_of(settings: WorkerSettings) -> float:
    """How many seconds stopping in good order takes at most."""
    times = settings.times
    # One answer for the last claim, one for the last settlement, and the moment that cancelled handlers get.
    return (times.stop + 2 * times.answer).total_seconds() + 2 + _CLOSING


async def _work(watched: _Watched, consumers: tuple[Consumer, ...], signals: StopSignals) -> int:
    loop, order = asyncio.get_running_loop(), watched.order
    log = process_logger("spectral.worker", watched.identity)
    environ = {**order.environ, SERVICE_VARIABLES[0]: watched.identity.service}
    listener = worker(
        *consumers, settings=order.settings, database=order.database, environ=environ, probe=watched.watch
    )
    with ExitStack() as open_while_working:
        if watched.recorder is not None:
            open_while_working.enter_context(publishes_counted("metrics", watched.recorder))
        pushes = otel_metrics.has_provider()
        read: Callable[[], list[Sample]] = list
        if watched.recorder is not None or pushes:
            emitter = open_while_working.enter_context(Emitter(order.database, log.bind(worker=order.settings.name)))
            read = partial(samples_of, listener, watched.watch, emitter)
        if pushes:
            otel_metrics.observe(read)
        if order.health is not None:
            metrics = None if watched.recorder is None else partial(scrape, watched.recorder, read)
            served = open_while_working.enter_context(health_endpoint(order.health, listener.health, metrics))
            log.info("health is served", host=served.host, port=served.port, metrics=metrics is not None)
        signals.tell(lambda: loop.call_soon_threadsafe(listener.stop))
        try:
            await listener.run(order.until)
        except (ConfigurationError, SubstrateLostError):  # nothing was started
            raise
        except Exception:  # noqa: BLE001  the listener has logged it; what is left is the exit code
            if order.debug:
                traceback.print_exc()
            return 1
    return 0


def _flush(watch: Watch) -> None:
    """Have what was told last written or sent, unless whatever is behind it hangs; what handlers published, too."""
    deadline = time.monotonic() + _LAST_WORDS
    for each in watches_beside(watch):
        each.flush(max(0.0, deadline - time.monotonic()))


def _is_written() -> bool:
    """Whether the log is; if not, the interpreter's own end would wait for whoever reads it, or exit with 120."""
    try:
        if flush_all(_LAST_WORDS):
            sys.stderr.flush()
            return True
    except (OSError, ValueError):  # nobody is there any more
        pass
    return False


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
