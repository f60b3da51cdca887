"""Where faults of a broker play: the stage of the other fault tests, a real broker, relays and workers beside it.

The processes come from a fork server that has imported everything: they are real ones, killed by real signals.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from multiprocessing import connection as sentinels
from typing import Any, Final, Protocol, TypeVar

import pytest

from spectral.core.events.broker import BrokerLane, BrokerSender, Reference
from spectral.core.events.broker_settings import BrokerKind, BrokerSettings, RelaySettings
from spectral.core.events.infrastructure.nats import NatsSender
from spectral.core.events.infrastructure.redis import RedisSender
from tests.faults import broker_process
from tests.faults.broker_process import BrokerPlan
from tests.faults.crew import PATIENCE, Crew, Note, WorkerProcess, eventually
from tests.faults.plan import SHORT_TIMES
from tests.faults.stage import Stage
from tests.integration.relay.nats_server import _one_for_this_process as running_nats
from tests.integration.relay.redis_server import running_redis

LANE: Final = BrokerLane(1, "outbox_gen_1", "platform")
RELAY: Final = RelaySettings(
    poll=timedelta(seconds=0.3),
    answer=timedelta(seconds=3),
    grace=timedelta(seconds=0.5),
    reconnect=timedelta(seconds=0.05),
    reconnect_cap=timedelta(seconds=0.5),
)
SOON: Final = {"answer": timedelta(seconds=3), "redeliver_after": timedelta(seconds=1)}
"""Of a broker. What is late stays at its half minute: nothing here is to be saved by that unless it says so."""

_SENDERS: Final[dict[BrokerKind, Callable[[BrokerSettings, str], BrokerSender]]] = {
    BrokerKind.NATS: NatsSender,
    BrokerKind.REDIS: RedisSender,
}
_FORKS: Final = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([broker_process.__name__])
_POLLING: Final = threading.Lock()

T = TypeVar("T")


class Server(Protocol):
    """What tests do to a broker."""

    @property
    def url(self) -> str: ...
    def start(self, *, empty: bool = False) -> None: ...
    def kill(self) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...
    def restore(self) -> None: ...


class Broker:
    """A server of one kind, and how to reach it."""

    def __init__(self, kind: BrokerKind, server: Server) -> None:
        self.kind = kind
        self.server = server
        self.settings = BrokerSettings(kind=kind, url=server.url, **SOON)  # type: ignore[arg-type]  # times all


class BrokerStage(Stage):
    """One play with one broker, or with more."""

    def __init__(self, dsn: str, crew: Crew, broker: Broker) -> None:
        super().__init__(dsn, crew)
        self.broker = broker
        self.server = broker.server
        self.prefix: str = self.one("select prefix from core.relay_mode()")
        self._started: list[WorkerProcess] = []

    # who takes part

    def work(self, name: str = "worker", *, times: dict[str, float] | None = None, **changes: Any) -> WorkerProcess:  # noqa: ANN401  fields of BrokerPlan
        """Start a worker that knows the broker."""
        plan = self._plan(name, times={**SHORT_TIMES, **(times or {})})
        return self._start(replace(plan, **changes))

    def relay(self, settings: RelaySettings = RELAY, **changes: Any) -> WorkerProcess:  # noqa: ANN401  as above
        """Start a relay."""
        plan = self._plan("relay")
        return self._start(replace(plan, relay=replace(settings, name=plan.name), **changes))

    def switch(self, mode: str | None = None) -> None:
        """As an operator does: to the broker, unless told where."""
        self.one("select core.relay_switch(%s, 'ada', 'a test')", mode or self.broker.kind)

    def switched(self, *workers: WorkerProcess) -> None:
        """Switch to the broker, and wait until these take from it."""
        self.switch()
        for worker in workers:
            worker.wait_for("BrokerBack")

    def dismiss(self) -> None:
        """Kill whoever is left, and leave nothing on the broker."""
        for process in self._started:
            process.signal(signal.SIGKILL)
        for process in self._started:
            process.wait_for_end()
            process.leave()
        self.server.restore()
        self.ask_broker(lambda sender: sender.forget(LANE.generation))

    def _plan(self, name: str, **given: Any) -> BrokerPlan:  # noqa: ANN401  as above
        unique = f"{name}-{next(self._numbers)}"
        return BrokerPlan(dsn=self.dsn, effects_dsn=self.dsn, name=unique, broker=self.broker.settings, **given)

    def _start(self, plan: BrokerPlan) -> WorkerProcess:
        ours, theirs = socket.socketpair()
        started = WorkerProcess(plan, ours)
        process = _FORKS.Process(target=broker_process.main, args=(plan, theirs), daemon=True)
        with theirs, _POLLING:
            process.start()
        assert process.pid is not None
        started.born(process.pid)
        threading.Thread(target=_see_the_end, args=(process, started), daemon=True).start()
        self._started.append(started)
        return started

    # what there is to see

    def state(self, process: WorkerProcess) -> Note:
        """How it is, as its health endpoint would say."""
        process.wait_for("Ready")
        said = len(process.said("State"))
        process.signal(signal.SIGUSR1)
        return process.wait_for("State", count=said + 1)

    def until(self, process: WorkerProcess, **wanted: object) -> None:
        """Wait until its health says so."""
        eventually(lambda: wanted.items() <= self.state(process).items(), f"{process.plan.name} is {wanted}")

    def waiting(self) -> int:
        """How many messages the broker has that nobody has acknowledged."""
        return self.ask_broker(lambda sender: sender.waiting(LANE))

    def nothing_waits(self) -> None:
        """Wait until every message was acknowledged."""
        eventually(lambda: not self.waiting(), "nothing waits at the broker")

    def references(self) -> list[Reference]:
        """To every row of the lane, as it is now."""
        rows = self.rows(
            "select id, coalesce(parent_id, id), event_type, jsonb_array_length(failure_history), attempts"
            " from core.outbox where target = 'platform' order by id"
        )
        return [Reference(row, event, kind, LANE, replays, attempts) for row, event, kind, replays, attempts in rows]

    def send(self, references: Sequence[Reference]) -> None:
        """Send these as a relay would, or somebody who has a copy."""

        async def send(sender: BrokerSender) -> None:
            await sender.prepare(LANE)
            assert await sender.send(references) == []

        self.ask_broker(send)

    def ask_broker(self, question: Callable[[BrokerSender], Coroutine[Any, Any, T]]) -> T:
        """On a connection of its own."""

        async def ask() -> T:
            sender = _SENDERS[self.broker.kind](replace(self.broker.settings, answer=timedelta(seconds=5)), self.prefix)
            await sender.open()
            try:
                await sender.prepare(LANE)
                return await question(sender)
            finally:
                await sender.close()

        return asyncio.run(ask())


def _see_the_end(process: Any, started: WorkerProcess) -> None:  # noqa: ANN401  the context's own class
    sentinels.wait([process.sentinel])
    with _POLLING:  # the code can be read once, and starting a process looks at all the others
        code = process.exitcode
    started.ended(code)


def total(process: WorkerProcess, name: str, field: str) -> int:
    """The sum of this field over all notes of this name."""
    return sum(note[field] for note in process.said(name))


def finished(*workers: WorkerProcess) -> int:
    """How many deliveries these have brought to an end."""
    return sum(len(worker.said("Finished")) for worker in workers)


def go_on(*workers: WorkerProcess, by: int = 40) -> None:
    """Wait until these have finished so many more."""
    wanted = finished(*workers) + by
    eventually(lambda: finished(*workers) >= wanted, f"{by} more are finished", PATIENCE)


def sent_all(relay: WorkerProcess, rows: int) -> None:
    """Wait until it has sent so many since it was started; what seems lost to it, more than once."""
    eventually(lambda: total(relay, "Relayed", "rows") >= rows, f"{rows} are sent", PATIENCE)


def sends_on(relay: WorkerProcess, by: int = 20) -> None:
    """Wait until it has sent so many more."""
    wanted = total(relay, "Relayed", "rows") + by
    eventually(lambda: total(relay, "Relayed", "rows") >= wanted, f"{by} more are sent", PATIENCE)


def nats() -> Broker:
    """The NATS server of this test process."""
    server = running_nats()
    server.restore()
    return Broker(BrokerKind.NATS, server)


def redis() -> Broker:
    """The Redis server of this test process."""
    server = running_redis()
    server.restore()
    return Broker(BrokerKind.REDIS, server)


@pytest.fixture(params=[nats, redis], ids=["nats", "redis"])
def broker(request: pytest.FixtureRequest) -> Broker:
    """A broker that runs."""
    made: Broker = request.param()
    return made


@contextmanager
def playing(dsn: str, crew: Crew, broker: Broker) -> Iterator[BrokerStage]:
    """A play, of which nothing is left afterwards."""
    stage = BrokerStage(dsn, crew, broker)
    try:
        yield stage
    finally:
        stage.dismiss()


@pytest.fixture
def stage(database: str, crew: Crew, broker: Broker) -> Iterator[BrokerStage]:
    """See `BrokerStage`."""
    with playing(database, crew, broker) as opened:
        yield opened
