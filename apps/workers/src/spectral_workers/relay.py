"""A relay as a process: from the environment to its exit code.

0   it was stopped
1   it crashed; the log says of what
"""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import traceback
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final

from spectral.core.events import bootstrap
from spectral.core.events.broker_settings import RelaySettings
from spectral.core.events.failure import ConfigurationError
from spectral.core.events.infrastructure.observability import otel_metrics, prometheus
from spectral.core.events.infrastructure.observability.health_samples import relay_samples, trouble_samples
from spectral.core.events.infrastructure.observability.log_writer import process_logger
from spectral.core.events.infrastructure.observability.recorder import Recorder
from spectral.core.events.infrastructure.observability.standard import standard_watch
from spectral.core.events.settings import Identity
from spectral_workers.health import Address, health_endpoint
from spectral_workers.logs import configure_logs
from spectral_workers.measured import scrape, troubles
from spectral_workers.process import run_to_the_end
from spectral_workers.stopping import StopSignals
from spectral_workers.telemetry import configure_telemetry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spectral.core.events.infrastructure.observability.log_writer import EventLogger
    from spectral.core.events.infrastructure.observability.watch import Watch
    from spectral.core.events.metrics import Sample
    from spectral.core.events.relay.process import Relay
    from spectral.core.events.settings import DatabaseSettings

SERVICE: Final = "spectral-relay"

_NO_GENERATION: Final = 0
"""It sends the rows of all of them."""

_CLOSING: Final = 5.0
"""Seconds for the goodbye to the broker and the database, and for the log to be written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayOrder:
    """What to run, and how.

    environ: names the broker, and where the log and the telemetry find out who speaks and to whom.
    health: where to say how it is; nowhere unless told.
    debug: whether a crash shows its traceback, which may show values.
    """

    database: DatabaseSettings
    environ: Mapping[str, str] = field(repr=False)
    settings: RelaySettings = field(default_factory=RelaySettings)
    health: Address | None = None
    debug: bool = False


def run_relay(order: RelayOrder) -> int:
    """Send until told to stop; the exit code is the answer.

    Call it in the main thread of a process that does nothing else. It does not return if something is left behind that
    would keep the process: it leaves.

    Raises:
        ConfigurationError: nothing was sent; the message says what to do.
    """
    identity = Identity.from_environ(order.environ, _NO_GENERATION, SERVICE)
    # What was taken is sent: an answer of the database, one of the broker, and the same again to put back the rest.
    signals = StopSignals(4 * order.settings.answer.total_seconds() + _CLOSING, identity)
    name = order.settings.name or f"relay-{socket.gethostname()[:60]}-{os.getpid()}-{secrets.token_hex(3)}"
    lines = configure_logs(identity, order.environ)
    end_telemetry = configure_telemetry(identity, order.environ)
    log = process_logger("spectral.worker", identity)
    recorder = Recorder() if order.health is not None and prometheus.is_installed() else None
    watch = standard_watch(identity, name, {} if recorder is None else {"metrics": recorder}, lines)
    return run_to_the_end(lambda: _work(order, name, signals, (watch, recorder), log), watch, end_telemetry)


async def _work(
    order: RelayOrder, name: str, signals: StopSignals, watched: tuple[Watch, Recorder | None], log: EventLogger
) -> int:
    watch, recorder = watched
    loop = asyncio.get_running_loop()
    relay = bootstrap.relay(
        settings=replace(order.settings, name=name), database=order.database, environ=order.environ, probe=watch
    )
    read = partial(_read, watch, relay)
    with ExitStack() as open_while_working:
        if otel_metrics.has_provider():
            otel_metrics.observe(read)
        if order.health is not None:
            metrics = None if recorder is None else partial(scrape, recorder, read)
            served = open_while_working.enter_context(health_endpoint(order.health, relay.health, metrics))
            log.info("health is served", host=served.host, port=served.port, metrics=metrics is not None)
        signals.tell(lambda: loop.call_soon_threadsafe(relay.stop))
        try:
            await relay.run()
        except ConfigurationError:
            raise
        except Exception:  # noqa: BLE001  the relay has logged it; what is left is the exit code
            if order.debug:
                traceback.print_exc()
            return 1
    return 0


def _read(watch: Watch, relay: Relay) -> list[Sample]:
    """How the relay is now, and what its tools missed."""
    return [*relay_samples(relay.health()), *trouble_samples(troubles(watch))]
