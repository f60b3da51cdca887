"""A process beside a broker: a worker that may take from it, or a relay, with a fault built in if the plan says so."""

from __future__ import annotations

import asyncio
import ctypes
import resource
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Final

from spectral.core.events import DatabaseSettings, WorkerSettings, failpoints
from spectral.core.events.bootstrap import relay, worker
from spectral.core.events.broker_settings import BrokerSettings, RelaySettings
from spectral.core.events.delivery.health import Health
from spectral.core.events.delivery.listener import Listener
from spectral.core.events.infrastructure import nats, redis
from spectral.core.events.infrastructure.postgres import relay_claims, relay_ear, relay_store
from spectral.core.events.infrastructure.postgres import worker as postgres_worker
from spectral.core.events.probe import BrokerBack, BrokerLost, Note, ReferencesVoid, Relayed, RelaySwitched
from spectral.core.events.relay.health import RelayHealth
from spectral.core.events.relay.process import Relay
from spectral.core.events.settings import WorkerTimes
from tests.faults.handlers import External, consumers
from tests.faults.plan import Plan
from tests.faults.worker_process import CRASHED, Channel, Sprung

PRELOADED: Final = (nats, redis, relay_claims, relay_ear, relay_store, postgres_worker)
"""What the library imports when it is needed: here before the fork, not after."""

_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerPlan(Plan):
    """One process beside a broker: a relay if it says how that goes about it, else a worker."""

    broker: BrokerSettings
    relay: RelaySettings | None = None


class BrokerChannel(Channel):
    """Tells of the way over a broker in fields that a test can count."""

    def tell(self, note: Note) -> None:
        """Implements `Probe`."""
        match note:
            case Relayed():
                self.say("Relayed", rows=note.rows, resent=note.resent, refused=note.refused)
            case ReferencesVoid(_, references):
                self.say("ReferencesVoid", references=references)
            case BrokerLost(_, error, _):
                self.say("BrokerLost", error=error)
            case BrokerBack(broker, _):
                self.say("BrokerBack", broker=broker)
            case RelaySwitched(mode):
                self.say("RelaySwitched", mode=mode)
            case _:
                super().tell(note)


def main(plan: BrokerPlan, line: socket.socket) -> None:
    """Run until stopped; the exit code says how it ended."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    channel = BrokerChannel(line)
    if plan.trap is not None:
        failpoints.arm(Sprung(plan.trap, channel))
    try:
        asyncio.run(_run(plan, channel))
    except Exception as error:  # noqa: BLE001  the test reads it; the code says that it ended badly
        channel.say("Ended", error=repr(error)[:500])
        sys.exit(CRASHED)


async def _run(plan: BrokerPlan, channel: BrokerChannel) -> None:
    made = _worker(plan, channel) if plan.relay is None else _relay(plan, plan.relay, channel)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, made.stop)
    loop.add_signal_handler(signal.SIGUSR1, lambda: channel.say("State", **_plain(made.health)))
    channel.say("Ready")  # for signals
    await made.run()


def _worker(plan: BrokerPlan, channel: BrokerChannel) -> Listener:
    settings = WorkerSettings(
        generation=plan.generation,
        name=plan.name,
        lanes=plan.lanes,
        batch=plan.batch,
        concurrency=plan.concurrency,
        times=WorkerTimes(**{name: timedelta(seconds=seconds) for name, seconds in plan.times.items()}),
    )
    return worker(
        *consumers(plan, External(plan.effects_dsn)),
        settings=settings,
        database=DatabaseSettings(dsn=plan.dsn),
        broker=plan.broker,
        probe=channel,
    )


def _relay(plan: BrokerPlan, settings: RelaySettings, channel: BrokerChannel) -> Relay:
    return relay(settings=settings, broker=plan.broker, database=DatabaseSettings(dsn=plan.dsn), probe=channel)


def _plain(health: Callable[[], Health | RelayHealth]) -> dict[str, object]:
    """How it is, in values that can travel."""
    found = health()
    told = {each.name: getattr(found, each.name) for each in fields(found)}
    plain = {name: value for name, value in told.items() if isinstance(value, str | int | float | bool)}
    return {**plain, "is_ready": found.is_ready}
