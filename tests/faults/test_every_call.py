"""Every call that a worker makes to its database is failed once, in every way a call can fail, and nothing comes of it.

The nth worker fails its nth call. Each is of a generation of its own, so that many of them play in one database.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import psycopg
import pytest

from spectral.core.events import DatabaseSettings, WorkerSettings
from spectral.core.events.bootstrap import worker
from spectral.core.events.delivery.listener import Listener
from spectral.core.events.probe import Crashed, Note, NoteTaker
from spectral.core.events.settings import WorkerTimes
from spectral.core.events.testing import check, settle_down
from tests.faults.calls import HOWS, Calls, How
from tests.faults.handlers import MIXED, PLAIN, TRANSACTIONAL, External, consumers
from tests.faults.plan import SHORT_TIMES, Plan
from tests.faults.stage import Stage, envelope_of

AT_ONCE: Final = 20
ROWS: Final = 9
FIRST_GENERATION: Final = 100
TIMES: Final = WorkerTimes(
    **{name: timedelta(seconds=seconds) for name, seconds in {**SHORT_TIMES, "answer": 1.5, "poll": 0.5}.items()}
)


@dataclass
class Crashes(NoteTaker):
    """A probe that listens for the worst only."""

    of: list[str] = field(default_factory=list)

    def tell(self, note: Note) -> None:
        if isinstance(note, Crashed):
            self.of.append(note.error)


def publish_for(stage: Stage, generation: int) -> None:
    """One event of every kind that takes another way through the worker."""
    events = [
        *(envelope_of(event_type) for event_type in (TRANSACTIONAL, PLAIN, MIXED)),
        *(envelope_of(event_type, {"do": "fail", "times": 1}) for event_type in (TRANSACTIONAL, PLAIN, MIXED)),
        envelope_of(TRANSACTIONAL, {"do": "commit", "times": 1}),
        envelope_of(TRANSACTIONAL, {"do": "refuse"}),
        envelope_of(TRANSACTIONAL, target=None),
    ]
    with psycopg.connect(stage.dsn) as connection, stage.publishing(connection, events, generation=generation):
        assert len(events) == ROWS


def listener(dsn: str, generation: int, probe: Crashes, external: External) -> Listener:
    settings = WorkerSettings(generation=generation, name=name_of(generation), lanes=1, times=TIMES)
    plan = Plan(dsn=dsn, name=settings.name, generation=generation)
    return worker(*consumers(plan, external), settings=settings, database=DatabaseSettings(dsn=dsn), probe=probe)


def name_of(generation: int) -> str:
    return f"worker-{generation}"


async def play(stage: Stage, generations: range) -> list[str]:
    """Run a worker for each of these generations until nothing is left to do; answers why any of them crashed."""
    probe = Crashes()
    for generation in generations:
        publish_for(stage, generation)
    external = External(stage.dsn)
    workers = [listener(stage.dsn, generation, probe, external) for generation in generations]
    async with asyncio.TaskGroup() as group:
        for each in workers:
            group.create_task(each.run())
        await settle_down(stage.dsn, timedelta(seconds=60))
        for each in workers:
            each.stop()
    await external.close()
    return probe.of


@pytest.mark.timeout(180)
@pytest.mark.parametrize("how", HOWS)
async def test_any_call_may_fail_once(stage: Stage, monkeypatch: pytest.MonkeyPatch, how: How) -> None:
    calls = Calls(how)
    calls.install(monkeypatch)
    assert await play(stage, range(FIRST_GENERATION, FIRST_GENERATION + 1)) == []
    ordinals = calls.made[name_of(FIRST_GENERATION)]
    assert ordinals > 20  # there is something to fail
    for first in range(1, ordinals + 1, AT_ONCE):
        doomed = range(first, min(first + AT_ONCE, ordinals + 1))
        calls.doomed = {name_of(FIRST_GENERATION + ordinal): ordinal for ordinal in doomed}
        crashes = await play(stage, range(FIRST_GENERATION + doomed.start, FIRST_GENERATION + doomed.stop))
        assert crashes == []
    verdict = await check(stage.dsn, stage.ledger)
    verdict.assert_clean(at_least=ROWS * ordinals)
    assert verdict.dead_lettered == ordinals + 1
