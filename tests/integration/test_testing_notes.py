"""`RecordingProbe`: keeps what it is told, and wakes who waits for it."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest

from spectral.core.events.probe import Crashed, EarOpened, LoopBlocked, Note, Stopped
from spectral.core.events.testing import RecordingProbe


def test_keeps_notes_in_order_and_by_kind() -> None:
    probe = RecordingProbe()
    notes: list[Note] = [EarOpened(("a",)), Stopped(), EarOpened(("b",))]
    for note in notes:
        probe.tell(note)
    assert probe.notes == tuple(notes)
    assert probe.of(EarOpened) == [notes[0], notes[2]]
    assert probe.of(Crashed) == []


async def test_waiting_ends_at_once_for_what_was_told_before() -> None:
    probe = RecordingProbe()
    probe.tell(Stopped())
    assert await probe.wait_for(Stopped, within=timedelta(0)) == [Stopped()]


async def test_waiting_ends_when_another_thread_tells_the_last_of_them() -> None:
    probe = RecordingProbe()
    probe.tell(LoopBlocked(1))
    waiting = asyncio.ensure_future(probe.wait_for(LoopBlocked, times=3))
    await asyncio.sleep(0)

    def tell() -> None:
        for seconds in (2, 3):
            probe.tell(Stopped())
            probe.tell(LoopBlocked(seconds))

    threading.Thread(target=tell).start()
    assert [note.seconds for note in await waiting] == [1, 2, 3]


async def test_waiting_in_vain_says_what_was_told_instead() -> None:
    probe = RecordingProbe()
    probe.tell(Stopped())
    with pytest.raises(TimeoutError, match="0 of 1 Crashed; the last notes: Stopped"):
        await probe.wait_for(Crashed, within=timedelta(milliseconds=10))
