"""A table of rows in memory, and a loop whose time passes only while everybody waits: to watch the claim loop on."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import cast

import pytest

from spectral.core.events import WorkerSettings
from spectral.core.events.consumer import Subscription
from spectral.core.events.delivery import claim as claim_module
from spectral.core.events.delivery import room as room_module
from spectral.core.events.delivery.claim import ClaimLoop, Until, Ways
from spectral.core.events.delivery.desk import Desk, LoggerFor
from spectral.core.events.lease import Delivery, Lease
from spectral.core.events.outcome import Released
from spectral.core.events.ports import NOTHING_ALONG, Along, ClaimAnswer, ClaimAsk, Outlook
from spectral.core.events.probe import NoteTaker
from spectral.core.events.routes import Line, Routes
from tests.unit.test_routes import delivery

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
TICK = 0.01
LATE = 0.1  # what was committed later than this after it fell due may have to wait for a look


class _Instant(selectors.SelectSelector):
    """Nobody waits: the time has passed."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise AssertionError("everybody waits, and for ever")
        self.now += max(0.0, timeout)
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._instant = _Instant()
        super().__init__(self._instant)

    def time(self) -> float:
        return self._instant.now


def play(scene: Callable[[], Awaitable[None]]) -> None:
    """Run it in no time."""

    async def main() -> None:
        await scene()

    with asyncio.Runner(loop_factory=_Loop) as runner:
        runner.run(main())


def clock() -> float:
    return asyncio.get_running_loop().time()


def at(seconds: float) -> datetime:
    return EPOCH + timedelta(seconds=seconds)


@dataclass(eq=False, slots=True)
class Row:
    """`takes`: how long its handler runs; `retries`: the delays after which it is tried again, before it succeeds."""

    due: float
    event_type: str
    context: str = "platform"
    visible: float = 0.0
    takes: float = 0.0
    retries: list[float] = field(default_factory=list)
    status: str = "pending"

    @property
    def is_late(self) -> bool:
        return self.visible > self.due + LATE


class Table:
    """Implements `Claims` as `core.outbox_claim_from` does, for one generation and channel."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.braked: set[str] = set()
        self.asked: list[ClaimAsk] = []
        self.looks = 0  # claims from the beginning
        self.claims = 0
        self.outlooks = 0  # claims with an outlook on what falls due
        self.streams = False  # so many rows come in that publishers would hinder each other by ringing
        self.claim_takes = 0.001
        self.look_takes = 0.0  # on top, for each that starts at the beginning
        self.leased: dict[Lease, Row] = {}

    def pending(self, now: float) -> list[Row]:
        rows = [row for row in self.rows if row.status == "pending" and row.visible <= now]
        return sorted(rows, key=lambda row: row.due)

    # What a worker asks before it claims at all: nobody here begins so early.

    async def subscribe(self, subscriptions: Sequence[Subscription], *, replace: bool) -> list[Subscription]:
        raise NotImplementedError

    async def live_far_below(self) -> int | None:
        raise NotImplementedError

    async def hold(self, served: Sequence[tuple[str, str | None]]) -> bool:
        """Publishers of this stage ring all the same."""
        return bool(served) and self.streams

    async def withdraw(self, contexts: Sequence[str], *, rings: bool = False) -> None:
        """As above."""

    async def is_crowded(self) -> bool:
        return False

    async def is_quiet(self, contexts: Sequence[str]) -> bool:
        return bool(contexts)

    async def claim(self, asks: Sequence[ClaimAsk], along: Along = NOTHING_ALONG) -> list[ClaimAnswer]:
        del along
        looks = sum(ask.start is None for ask in asks)
        self.claims += 1
        self.looks += looks
        await asyncio.sleep(self.claim_takes / 2 + looks * self.look_takes)
        self.asked = list(asks)
        answers = [self._claim(ask) for ask in asks]
        await asyncio.sleep(self.claim_takes / 2)
        return answers

    async def look_ahead_and_claim(
        self, asks: Sequence[ClaimAsk], along: Along = NOTHING_ALONG
    ) -> tuple[Outlook, list[ClaimAnswer]]:
        del along
        self.outlooks += 1
        contexts = {ask.context for ask in asks}
        now = clock()
        due = [row.due - now for row in self.pending(now) if row.context in contexts and row.due > now]
        outlook = Outlook((), timedelta(seconds=min(due)) if due else None)
        return outlook, await self.claim(asks)

    # Of rows that must run alone there are none here: `test_quarantine` and the tests with a database have them.

    async def enter_quarantine(self, context: str) -> bool:
        raise NotImplementedError

    async def leave_quarantine(self, context: str) -> None:
        raise NotImplementedError

    async def claim_aside(self, ask: ClaimAsk, aside: Delivery) -> ClaimAnswer:
        raise NotImplementedError

    async def close(self) -> None:
        """Nothing to close."""

    def _claim(self, ask: ClaimAsk) -> ClaimAnswer:
        now = clock()
        if ask.context in self.braked:
            return ClaimAnswer([])
        rows = [row for row in self.pending(now) if row.context == ask.context and row.due <= now]
        rows = [row for row in rows if ask.start is None or at(row.due) >= ask.start]
        until, reached = now, None
        if ask.window is not None and len(rows) > ask.window:
            until = rows[ask.window].due
            reached = until
        taken = [
            row for row in rows if row.due <= until and (ask.event_types is None or row.event_type in ask.event_types)
        ][: ask.limit]
        if len(taken) >= ask.limit:
            reached = min(taken[-1].due, now if reached is None else reached)
        made = [self._take(row) for row in taken]
        return ClaimAnswer(made, at(now), None if reached is None else at(reached))

    def _take(self, row: Row) -> Delivery:
        row.status = "in_flight"
        made = delivery(row.event_type, target=row.context, due_at=at(row.due))
        self.leased[made.lease] = row
        return made


class Stage:
    """A claim loop, the table it claims from, and handlers that only take time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *lines: Line, concurrency: int = 10) -> None:
        self.table = Table()
        self.is_alive = True
        self.receives = False  # from a broker
        settings = WorkerSettings(generation=1, lanes=2, batch=5, concurrency=concurrency)
        self.desk = Desk(settings, Routes(lines, {}), NoteTaker(), cast("LoggerFor", None), lambda: 0.3)
        monkeypatch.setattr(room_module, "time", SimpleNamespace(monotonic=clock))
        ways = Ways(
            self._handle,
            self._handle,
            is_alive=lambda: self.is_alive,
            is_deaf=lambda: False,
            is_receiving=lambda: self.receives,
        )
        self.loop = ClaimLoop(self.table, self.desk, ways, asyncio.Event())
        self.lines = lines
        self.sleeps: list[float] = []
        self.gathered: list[bool] = []  # whether there was something to take when it began to wait for more
        self._stands_still = 0
        self._slept_at = -1.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._wait = claim_module._wait
        monkeypatch.setattr(claim_module, "_wait", self._watch)

    def commit(self, *rows: Row) -> None:
        """They are there from now on, and are announced."""
        for row in rows:
            row.visible = clock()
        self.table.rows += rows
        self.loop.wake()

    async def run(self, until: Until = "stopped") -> None:
        await self.loop.run(until)

    async def until_done(self, within: float) -> None:
        """Until every row is delivered."""
        end = clock() + within
        while any(row.status != "delivered" for row in self.table.rows):
            assert clock() < end, [row for row in self.table.rows if row.status != "delivered"][:5]
            await asyncio.sleep(TICK)

    def could_take(self) -> list[Row]:
        """What is due, visible, and of a type that the last claim of a line with room asked for."""
        now, waiting = clock(), {line.handler_names: line for line in self.loop._waiting}
        types = {ask.handler_names: ask.event_types for ask in self.table.asked}
        wanted = [
            (line.context, types.get(names, line.event_types))
            for names, line in waiting.items()
            if line.context not in self.table.braked
        ]
        return [
            row
            for row in self.table.pending(now)
            if row.due <= now
            and any(row.context == context and (kinds is None or row.event_type in kinds) for context, kinds in wanted)
        ]

    async def _watch(self, event: asyncio.Event, seconds: float) -> None:
        """The oracle: nobody sleeps while there is something to take; for what is late, until the next look at most.

        And nobody goes round and round without a sleep.
        """
        if event is self.loop._wake and not event.is_set():
            self.sleeps.append(seconds)
            self._stands_still = self._stands_still + 1 if clock() == self._slept_at else 0
            self._slept_at = clock()
            assert self._stands_still < 100, "it never sleeps, and does nothing"
            longest = max(0.5, 4 * (self.table.look_takes + self.table.claim_takes) * (10 + len(self.table.rows) / 7))
            for row in self.could_take():
                assert seconds <= (longest if row.is_late else TICK), (clock(), seconds, row)
        elif event is not self.loop._wake:
            self.gathered.append(bool(self.could_take()))
        await self._wait(event, seconds)

    def _handle(self, deliveries: Iterable[Delivery]) -> None:
        for each in deliveries:
            task = asyncio.get_running_loop().create_task(self._work(each))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self, held: Delivery) -> None:
        row = self.table.leased.pop(held.lease)
        await asyncio.sleep(row.takes)
        if not row.retries:
            row.status = "delivered"
            self.desk.forget(held)
            return
        delay = row.retries.pop()
        row.due, row.visible, row.status = clock() + delay, clock(), "pending"
        self.desk.forget(held)
        self.loop.expect(timedelta(seconds=delay))

    async def released(self) -> int:
        """How many rows were given back."""
        given = 0
        while self.desk.to_settle:
            given += sum(isinstance(each.outcome, Released) for each in await self.desk.to_settle.take(100))
        return given
