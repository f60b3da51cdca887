"""The listener: a worker as its users see it. Subscribe, then a shift of delivering, until it is stopped.

A part that dies of an error that is nobody's event takes the worker down, loudly, instead of leaving it deaf.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Self, cast, get_args

from spectral.core.events.broker_settings import NO_BROKER
from spectral.core.events.delivery.backoff import Backoff
from spectral.core.events.delivery.claim import Until
from spectral.core.events.delivery.health import Health, State
from spectral.core.events.delivery.shift import Calls, Shift
from spectral.core.events.describe import describe
from spectral.core.events.failure import ConfigurationError, SubstrateLostError
from spectral.core.events.probe import Crashed, NeverAllocated, Started, Stopped, Stopping, SubstrateLost

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from types import TracebackType

    from spectral.core.events.delivery.desk import Desk
    from spectral.core.events.delivery.shift import Connections
    from spectral.core.events.probe import Probe

_FIRST_PAUSE: Final = timedelta(milliseconds=250)
_LAST_WORDS: Final = 1.0


class Listener:
    """One worker. Run it with `run`, as `async with`, or as the `lifespan` of an ASGI application; once."""

    def __init__(self, connections: Connections, desk: Desk) -> None:
        self._connections = connections
        self._desk = desk
        self._state = State.STARTING
        self._has_run = False
        self._calls = Calls(grace=desk.settings.times.stop)
        self._shift: Shift | None = None
        self._group: asyncio.TaskGroup | None = None
        self._started = asyncio.Event()

    # what users call

    async def run(self, until: Until = "stopped") -> None:
        """Deliver until `stop` is called, or until there is nothing left to do.

        Raises:
            ConfigurationError: the worker does not fit this database; nothing was started.
            SubstrateLostError: it was to end by itself, and the database was not there in time; nothing was started.
            BaseExceptionGroup: a part of it died, and all of it went down; what it died of was told as `Crashed`.
        """
        if self._has_run:
            raise ConfigurationError("a worker runs once; make another one")
        if until not in get_args(Until):
            raise ConfigurationError(f"a worker runs until one of {get_args(Until)}, not until {until!r}")
        self._has_run = True
        try:
            if await self._subscribe(until):
                await self._deliver(until)
        except BaseException as error:
            self._state = State.DEAD
            if not isinstance(error, asyncio.CancelledError | ConfigurationError | SubstrateLostError):
                self._desk.probe.tell(Crashed(describe(_remedy(error) or error)))
            raise
        finally:
            await self._connections.claims.close()
        self._state = State.STOPPED
        self._desk.probe.tell(Stopped())

    def stop(self, grace: timedelta | None = None) -> None:
        """Claim no more, finish what runs within the grace, then end. A second call ends at once."""
        if self._calls.stop.is_set():
            self._calls.force.set()
        if grace is not None:
            self._calls.grace = grace
        self._calls.stop.set()

    async def started(self) -> None:
        """Wait until the worker has claimed for the first time (it may still lose its database later)."""
        await self._started.wait()

    async def __aenter__(self) -> Self:
        """Deliver while the block runs; if the worker dies, the block is cancelled and its error raised."""
        self._group = asyncio.TaskGroup()
        await self._group.__aenter__()
        self._group.create_task(self.run(), name="spectral-worker")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._calls.stop.is_set():  # leaving the block is not insisting
            self.stop()
        group, self._group = self._group, None
        if group is not None:
            # Not the block's error: the group would cancel the worker instead of letting it stop in good order.
            await group.__aexit__(None, None, None)

    @asynccontextmanager
    async def lifespan(self, app: object = None) -> AsyncGenerator[None]:  # noqa: ARG002  what frameworks pass
        """For FastAPI and Starlette: `lifespan=listener.lifespan`. If the worker dies, the server is told to stop."""
        try:
            async with self:
                yield
        except BaseExceptionGroup:
            # Servers log the end of a lifespan and serve on; deaf, that is worse than down. (A group may also be the
            # application's own.)
            if self._state is State.DEAD:
                os.kill(os.getpid(), signal.SIGTERM)
            raise
        finally:
            await self._flush()

    async def _flush(self) -> None:
        """Have what was told last written: some servers end by the signal that stopped them, without asking anybody."""
        flush = getattr(self._desk.probe, "flush", None)  # not every probe has anything to wait for
        if flush is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(2 * _LAST_WORDS):
                    await asyncio.to_thread(flush, _LAST_WORDS)

    @property
    def probe(self) -> Probe:
        """Who is told what it does."""
        return self._desk.probe

    def health(self) -> Health:
        """How it is; may be called from any thread."""
        shift, settings, reception = self._shift, self._desk.settings, self._connections.reception
        return Health(
            state=self._state if shift is None else self._state_of(shift),
            worker=settings.name,
            generation=settings.generation,
            contexts=self._desk.routes.contexts,
            listening=shift is not None and shift.is_listening,
            ear_down_seconds=0.0 if shift is None else shift.deaf_for(),
            seen_alive=shift is not None and shift.is_seen,
            held=self._desk.held(),
            running=self._desk.running(),
            loop_blocked_seconds=0.0 if shift is None else shift.blocked_for(),
            takes_from=NO_BROKER if reception is None else reception.takes_from,
            has_fallen_back=reception is not None and reception.has_fallen_back,
        )

    def _state_of(self, shift: Shift) -> State:
        if self._state not in (State.IDLE, State.DRAINING):
            return self._state
        if shift.is_stuck:
            return State.DEAD
        if self._state is State.DRAINING:
            return State.DRAINING
        if shift.impaired_for() > self._desk.settings.times.degraded_after.total_seconds():
            return State.DEGRADED
        return State.BUSY if self._desk.held() else State.IDLE

    # the order

    async def _subscribe(self, until: Until) -> bool:
        """Record what this worker handles, waiting for the database if need be; false if stopped meanwhile.

        One that ends by itself does not wait for ever: whatever starts it would start the next one beside it.
        """
        settings, routes = self._desk.settings, self._desk.routes
        backoff = Backoff(_FIRST_PAUSE, settings.times.poll_deaf)
        deadline = None if until == "stopped" else time.monotonic() + settings.times.start.total_seconds()
        live: int | None = None
        while not self._calls.stop.is_set():
            try:
                # Before it is on record itself; what was answered once stands, should the record be asked for again.
                live = live if live is not None else await self._connections.claims.live_far_below()
                lacking = await self._connections.claims.subscribe(
                    routes.subscriptions(), replace=settings.replace_subscriptions
                )
            except SubstrateLostError as lost:
                pause = backoff.next()
                if deadline is not None:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        raise _not_there(lost, settings.times.start) from None
                    pause = min(pause, timedelta(seconds=left))
                self._desk.probe.tell(SubstrateLost("subscribe", describe(lost), pause))
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause.total_seconds()):
                        await self._calls.stop.wait()
                continue
            if lacking:
                missing = ", ".join(f"{each.handler_name} ({each.event_type})" for each in lacking[:5])
                raise ConfigurationError(
                    f"generation {settings.generation} has handlers on record that this worker lacks: {missing}. All "
                    "handlers of one context for one event type run in the same worker, for whoever claims a row "
                    "settles it. Add them to this worker, start it with another generation or, if they were renamed "
                    "or removed, start it with --replace-subscriptions (WorkerSettings(replace_subscriptions=True))"
                )
            if live is not None:
                self._desk.probe.tell(NeverAllocated(settings.generation, live))
            return True
        return False

    async def _deliver(self, until: Until) -> None:
        settings = self._desk.settings
        self._shift = Shift(self._connections, self._desk, self._calls, self._started)
        self._state = State.IDLE
        self._desk.probe.tell(Started(settings.name, settings.generation, self._desk.routes.contexts))
        try:
            await self._shift.run(until, self._on_draining)
        finally:
            self._desk.leave_open()

    def _on_draining(self) -> None:
        self._state = State.DRAINING
        self._desk.probe.tell(Stopping(self._desk.held(), self._calls.grace))


def _not_there(lost: SubstrateLostError, waited: timedelta) -> SubstrateLostError:
    return SubstrateLostError(
        f"the database was not there within {waited.total_seconds():g} s, nothing was started ({describe(lost)}); see "
        "that it is up and that SPECTRAL_DATABASE_URL, DATABASE_URL or the PG* variables lead to it, then start again"
    )


def _remedy(error: BaseException) -> ConfigurationError | None:
    """What somebody has to do, if a part that died has said so: the others went down with it."""
    if isinstance(error, ConfigurationError):
        return error
    parts = cast("BaseExceptionGroup[BaseException]", error).exceptions if isinstance(error, BaseExceptionGroup) else ()
    return next((found for part in parts if (found := _remedy(part)) is not None), None)
