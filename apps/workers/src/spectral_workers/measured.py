"""A worker's numbers: what it counts, how it is, what its watchers missed, and, if it is elected, how the database is.

`spectral worker` serves them on its health port. A worker inside a program has none: there they go to the program's
meter provider, and to whatever route the program gives them.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from spectral.core.events.infrastructure.observability import otel_metrics, prometheus, standard
from spectral.core.events.infrastructure.observability.health_samples import health_samples, trouble_samples
from spectral.core.events.infrastructure.observability.log_writer import process_logger
from spectral.core.events.infrastructure.observability.recorder import Recorder
from spectral.core.events.infrastructure.observability.sentry import lost_reports
from spectral.core.events.infrastructure.observability.watch import Watch
from spectral.core.events.settings import DatabaseSettings, Identity
from spectral_workers import losses
from spectral_workers.emitter import EVERY, Emitter
from spectral_workers.logs import missed_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping
    from datetime import timedelta

    from spectral.core.events.delivery.listener import Listener
    from spectral.core.events.metrics import Sample


@contextmanager
def measured(
    listener: Listener,
    *,
    database: DatabaseSettings | None = None,
    environ: Mapping[str, str] | None = None,
    every: timedelta = EVERY,
) -> Generator[Callable[[], bytes]]:
    """Measure a worker inside a program, and the database if it is elected to, while the block runs.

    Begin it before the worker is run. What is read goes to the program's meter provider, if there is one. What the
    block is given renders all numbers for Prometheus, anew for each call, in any thread; those of the program's
    publishers too. Of a worker with a probe of its own nothing is counted. Of several in a process, measure one.

    database: where to measure; else the environment names it, as it does for the worker.

    Raises:
        ConfigurationError: nothing names a database. Of what the block is given: the extra `metrics` is missing.
    """
    variables = os.environ if environ is None else environ  # noqa: TID251  a program's own
    source = database or DatabaseSettings.from_environ(variables)
    health = listener.health()
    log = process_logger("spectral.worker", Identity.from_environ(variables, health.generation))
    watch = listener.probe if isinstance(listener.probe, Watch) else None
    recorder = Recorder()
    with ExitStack() as until_over:
        if prometheus.is_installed():
            if watch is not None:
                watch.count_with("metrics", recorder)
            until_over.enter_context(standard.publishes_counted("metrics", recorder))
        emitter = until_over.enter_context(Emitter(source, log.bind(worker=health.worker), every))
        read = partial(samples_of, listener, watch, emitter)
        until_over.callback(otel_metrics.observe(read))
        yield partial(scrape, recorder, read)


def samples_of(listener: Listener, watch: Watch | None, emitter: Emitter) -> list[Sample]:
    """How the worker is now, what the tools that watch it missed, and what the emitter has measured."""
    catch_up(watch)
    return [*health_samples(listener.health()), *trouble_samples(troubles(watch)), *emitter.samples()]


def catch_up(watch: Watch | None) -> None:
    """Have that counted which waits to be told with more of its kind."""
    for each in watches_beside(watch):
        each.catch_up()


def troubles(watch: Watch | None) -> dict[str, tuple[int, int]]:
    """What the tools missed; also what they were told in time and could not write or send."""
    total = {
        "logs": missed_lines(),
        "sentry": lost_reports(),
        "traces": losses.SPANS.counted(),
        "otel_metrics": losses.METRICS.counted(),
    }
    for each in watches_beside(watch):
        for tool, (dropped, failed) in each.troubles().items():
            before = total.get(tool, (0, 0))
            total[tool] = before[0] + dropped, before[1] + failed
    return total


def watches_beside(watch: Watch | None) -> list[Watch]:
    """This one, and those of the publishers of this process, which the handlers of a worker may use too."""
    return [*([] if watch is None else [watch]), *standard.watches_of_publishers()]


def scrape(recorder: Recorder, read: Callable[[], list[Sample]]) -> bytes:
    """What was counted and what is read, for Prometheus."""
    samples = read()  # first: what has not been counted yet is counted then
    return prometheus.exposition([*recorder.samples(), *samples], recorder.distributions())
