"""The keeper's chores: one that is under way when the worker stops is told of, or given up soon."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import cast

import pytest

from spectral.core.events import WorkerSettings, WorkerTimes
from spectral.core.events.delivery import keep
from spectral.core.events.delivery.desk import Desk, LoggerFor
from spectral.core.events.delivery.keep import KeepLoop
from spectral.core.events.failure import ConfigurationError, SubstrateLostError
from spectral.core.events.ports import Keeper
from spectral.core.events.probe import Note, NoteTaker, Reaped, Unhandled
from spectral.core.events.routes import Line, Routes
from tests.unit.log_notes import dead_row

FAILED = Unhandled("platform", [dead_row()])


class Stage(NoteTaker):
    """A keeper that has failed a row, and a loop that is about to hear of it."""

    def __init__(self) -> None:
        self.told: list[Note] = []
        self.committed = asyncio.Event()
        self.answered = asyncio.Event()
        self.error: Exception | None = None
        self.reaped = asyncio.Event()
        self.opening, self.may_open = asyncio.Event(), asyncio.Event()
        self.may_open.set()
        self.is_open = self.is_closed = False
        self.calls = 0
        moment = timedelta(milliseconds=1)
        times = {"unhandled_after": moment, "reap": moment, "grace": moment}
        settings = WorkerSettings(generation=1, times=WorkerTimes(**times))
        routes = Routes((Line("platform", ("worlds.scan.completed",), ("platform.handler",), transactional=False),), {})
        desk = Desk(settings, routes, self, cast("LoggerFor", None), lambda: 0.5)
        loop = KeepLoop(cast("Keeper", self), desk, lambda: None, lambda _: None)
        self.keeping = asyncio.create_task(loop.run())

    def tell(self, note: Note) -> None:
        self.told.append(note)

    async def open(self) -> None:
        """As a keeper does."""
        self.opening.set()
        await self.may_open.wait()
        self.is_open = True

    async def fail_unhandled(self, _context: str) -> Unhandled | None:
        self.calls += 1
        self.committed.set()
        await self.answered.wait()
        if self.error is not None:
            raise self.error
        return FAILED

    async def reap(self) -> list[Reaped]:
        self.reaped.set()
        return []

    async def mend_bell(self) -> int:
        """Due with the rest, where a machine stood still for a moment."""
        return 0

    async def release_unknown(self, _known: object, _older_than: timedelta) -> int:
        """As above."""
        return 0

    async def close(self) -> None:
        self.is_closed = True

    async def reached(self, moment: asyncio.Event) -> None:
        """Wait for it, or fail with what the loop failed with."""
        waiting = asyncio.create_task(moment.wait())
        await asyncio.wait((waiting, self.keeping), return_when=asyncio.FIRST_COMPLETED)
        if not moment.is_set():
            waiting.cancel()
            self.keeping.result()
            pytest.fail("the loop ended by itself")

    async def stop(self) -> None:
        """Cancel it in the middle of a chore."""
        await self.reached(self.committed)
        self.keeping.cancel()
        await asyncio.sleep(0)  # a turn of the loop, in which it is thrown in

    async def ends(self) -> None:
        with pytest.raises(asyncio.CancelledError):
            await self.keeping
        assert self.is_closed


async def test_rows_that_were_failed_as_the_worker_stopped_are_told_of() -> None:
    stage = Stage()
    await stage.stop()
    stage.answered.set()
    await stage.ends()
    assert stage.told == [FAILED]
    assert stage.calls == 1, "and no more are"


async def test_an_answer_that_does_not_come_keeps_no_worker_from_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep, "_END_WITHIN", 0.01)
    stage = Stage()
    await stage.stop()
    await stage.ends()
    assert stage.told == []


@pytest.mark.parametrize("error", [SubstrateLostError("gone"), ConfigurationError("no such function")])
async def test_a_refusal_does_not_either(error: Exception) -> None:
    stage = Stage()
    stage.error = error
    await stage.stop()
    stage.answered.set()
    await stage.ends()
    assert stage.told == []


async def test_a_worker_that_is_stopped_while_it_signs_in_can_sign_out() -> None:
    stage = Stage()
    stage.may_open.clear()
    await stage.reached(stage.opening)
    stage.keeping.cancel()
    await asyncio.sleep(0)  # as above
    stage.may_open.set()
    await stage.ends()
    assert stage.is_open, "else nobody could sign out what may have been signed in"


async def test_a_heap_that_nobody_handles_keeps_nothing_from_being_reaped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keep, "_AT_ONCE", 0.0)
    stage = Stage()
    stage.answered.set()
    await stage.reached(stage.committed)
    stage.reaped.clear()
    await stage.reached(stage.reaped)
    assert stage.calls > 0
    stage.keeping.cancel()
    await stage.ends()
