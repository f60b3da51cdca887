"""The emitter: one worker of all those on a database measures it, every 30 seconds, for everybody's metrics.

Elected by an advisory lock that its session holds. It is asked for on a connection of its own, which only the winner
keeps: when that is gone, for whatever reason, the server lets go of the lock and the next one to ask goes on. The
others close theirs and ask again.

A transaction pooler lends it another session from one statement to the next, and the lock would stay with one of them:
nobody could be elected. So it does not stand behind a pooler, unless it was told that this is the direct way and keeps
its session. Who stands down says which variable is missing, and does not ask again.

In a thread with an event loop of its own: nothing that happens here reaches the worker. A database that is away, slow,
or without the rights or the schema it needs, costs the numbers and one line of the log.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from contextlib import AsyncExitStack, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Literal, Self

from spectral.core.database import connect
from spectral.core.events import metrics
from spectral.core.events.describe import describe
from spectral.core.events.metrics import Sample
from spectral.core.events.settings import DIRECT_VARIABLE
from spectral.core.operations import growth
from spectral.core.operations.gauges import gauges
from spectral.core.operations.insights import take_snapshot
from spectral.core.operations.verdict_values import Limits
from spectral.core.operations.verdict_words import name_holder

if TYPE_CHECKING:
    from types import TracebackType

    from spectral.core.database import Database
    from spectral.core.events.infrastructure.observability.log_writer import EventLogger
    from spectral.core.events.settings import DatabaseSettings
    from spectral.core.operations.insights_values import Snapshot

    Level = Literal["debug", "info", "warning"]

EVERY: Final = timedelta(seconds=30)

_CONNECT: Final = 5.0
_STATEMENT: Final = timedelta(seconds=10)
_LOOK: Final = 20.0
"""Seconds for all statements of a look: a line that has died without a word answers none of them."""
_LEAVE: Final = 2.0
"""Seconds that the worker waits for the thread when it ends; the process does not wait for it at all."""
_KEPT: Final = 3
"""For how many times `every` numbers are shown: whoever reads older ones would take yesterday for today."""
_SOON: Final = 0.1
_JITTER: Final = 0.1

_TRIES: Final = 20
"""To get back the session with the lock: a pooler lends its sessions in turn, or the last one again."""

# The server, too, has to notice that this machine is gone, or nobody could take over. Not on a session that is lent:
# the settings would stay with it. A pooler makes up the process that it tells its clients of when they connect.
_SHOW_LIFE: Final = b"""
select set_config('tcp_keepalives_idle', '5', false), set_config('tcp_keepalives_interval', '3', false),
    set_config('tcp_keepalives_count', '3', false)
where pg_backend_pid() = %s
"""
_STAND: Final = b"select pg_try_advisory_lock(core.emitter_lock_key()), pg_backend_pid()"
_WHO: Final = b"select pg_backend_pid()"
_LET_GO: Final = b"select pg_advisory_unlock(core.emitter_lock_key()) where pg_backend_pid() = %s"


class Emitter:
    """Stands for election while the block runs, and measures while it is elected. It raises nothing.

    database: its direct address is used; behind a transaction pooler the lock would be somebody else's. log: the
    worker's. every: how often to measure, and to ask whether somebody has to.
    """

    def __init__(
        self, database: DatabaseSettings, log: EventLogger, every: timedelta = EVERY, *, limits: Limits | None = None
    ) -> None:
        self._dsn = database.direct_dsn or database.dsn
        self._is_said_to_be_direct = bool(database.direct_dsn)
        self._every = every.total_seconds()
        self._limits = limits or Limits()
        self._log = log
        self._is_pooled = False
        self._shown: tuple[float, list[Sample]] | None = None
        self._told: str | None = None
        self._named: tuple[object, ...] | None = None
        self._stop = asyncio.Event()

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="spectral-emitter", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with suppress(RuntimeError):  # the loop is closed: the thread has ended
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_LEAVE)

    def samples(self) -> list[Sample]:
        """The numbers of the last look; none while another worker is elected, or when the last look is too old."""
        shown = self._shown
        if shown is None or time.monotonic() - shown[0] > _KEPT * self._every:
            return []
        return shown[1]

    # in the thread

    def _run(self) -> None:
        try:
            self._loop.run_until_complete(self._until_stopped())
        finally:
            self._loop.close()

    async def _until_stopped(self) -> None:
        work = asyncio.ensure_future(self._work())
        stopped = asyncio.ensure_future(self._stop.wait())
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        for task in (work, stopped):
            task.cancel()
        await asyncio.gather(work, stopped, return_exceptions=True)

    async def _work(self) -> None:
        # Workers are started together; they need not all ask in the same instant.
        await asyncio.sleep(self._every * _SOON * random.random())  # noqa: S311  no secret
        while not self._is_pooled:
            await self._serve_a_term()
            await self._pause()

    async def _serve_a_term(self) -> None:
        """From asking for the lock to not having it, or having it no more."""
        try:
            async with AsyncExitStack() as open_meanwhile:
                async with asyncio.timeout(_CONNECT):
                    connecting = connect(self._dsn, "emitter", statement_timeout=_STATEMENT)
                    database = await open_meanwhile.enter_async_context(connecting)
                    told = database.connection.info.backend_pid
                    if not self._is_said_to_be_direct and await database.value(_WHO) != told:
                        self._stand_down()
                        return
                    await database.tuples(_SHOW_LIFE, [told])
                    (is_elected, pid), *_ = await database.tuples(_STAND)
                if not is_elected:
                    self._tell("debug", "another worker measures the database")
                    return
                await self._measure(database, pid)
        except Exception as error:  # noqa: BLE001  the worker delivers with or without its numbers
            reason = "no answer in time" if isinstance(error, TimeoutError) else describe(error)
            self._tell("warning", "the database cannot be measured", error=reason)
        finally:
            self._shown = None

    async def _measure(self, database: Database, pid: int) -> None:
        while True:
            async with asyncio.timeout(_LOOK):
                if await database.value(_WHO) != pid:
                    self._stand_down()
                    await _let_go(database, pid)
                    return
                snapshot = await take_snapshot(database)
            self._tell("info", "this worker measures the database")
            self._name_holder(snapshot)
            self._shown = (
                time.monotonic(),
                [
                    *gauges(snapshot, self._limits),
                    Sample(metrics.EMITTER_UP, (), 1.0),
                    Sample(metrics.EMITTER_TIMESTAMP, (), time.time()),
                ],
            )
            await self._pause()

    def _stand_down(self) -> None:
        """For good: another connection would lead through the same pooler."""
        self._is_pooled = True
        remedy = f"set {DIRECT_VARIABLE} to an address of the server that keeps its session for each connection"
        self._tell("warning", "the database cannot be measured through a transaction pooler", remedy=remedy)

    async def _pause(self) -> None:
        await asyncio.sleep(self._every * random.uniform(1 - _JITTER, 1 + _JITTER))  # noqa: S311  no secret

    def _tell(self, level: Level, message: str, **fields: str) -> None:
        """Once for each change: the same news every 30 seconds are none."""
        if message != self._told:
            self._told = message
            self._write(level, message, **fields)

    def _name_holder(self, snapshot: Snapshot) -> None:
        """Who it is that keeps dead rows from vacuum: names are no labels, so the log has them."""
        holder = next((each for each in snapshot.holders if growth.holds_up(each, self._limits)), None)
        named = None if holder is None else (holder.kind, holder.name, holder.pid)
        if holder is not None and named != self._named:
            self._write(
                "warning",
                "a transaction keeps dead rows from vacuum",
                holder=name_holder(holder),
                transactions=holder.age,
                seconds=None if holder.since is None else holder.since.total_seconds(),
            )
        self._named = named

    def _write(self, level: Level, message: str, **fields: object) -> None:
        with suppress(Exception):  # a log that cannot be written must not end the measuring
            getattr(self._log, level)(message, **fields)


async def _let_go(database: Database, pid: int) -> None:
    """Unlock, should the session with the lock be lent again."""
    for _ in range(_TRIES):
        if await database.tuples(_LET_GO, [pid]):
            return
