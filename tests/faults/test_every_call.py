"""Every call that a worker makes to its database is failed once, in every way a call can fail, and nothing comes of it.

The nth worker fails its nth call. Each is of a generation of its own, so that many of them play in one database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final, TypeAlias

import psycopg
import pytest

from spectral.core.events import DatabaseSettings, EventEnvelope, WorkerSettings
from spectral.core.events.bootstrap import worker
from spectral.core.events.consumer import Handler
from spectral.core.events.delivery import desk, trust
from spectral.core.events.delivery.listener import Listener
from spectral.core.events.delivery.trust import Trust
from spectral.core.events.infrastructure.postgres.errands import PostgresBriefTransaction, PostgresErrands
from spectral.core.events.infrastructure.postgres.lane import PostgresLane
from spectral.core.events.lease import Delivery
from spectral.core.events.probe import Crashed, Note, NoteTaker
from spectral.core.events.settings import WorkerTimes
from spectral.core.events.testing import check, settle_down
from tests.faults.calls import HOWS, Calls, How
from tests.faults.handlers import MIXED, PLAIN, TRANSACTIONAL, External, consumers
from tests.faults.plan import SHORT_TIMES, Plan
from tests.faults.stage import Stage, envelope_of

Events: TypeAlias = Callable[[], list[EventEnvelope]]

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


class Trusting(Trust):
    """That of a worker which has seen its handlers do well."""

    briefly = False

    def __init__(self) -> None:
        super().__init__()
        self.ran("platform.project", plainly=True, briefly=self.briefly)


class TrustingInBrief(Trusting):
    """The same, of handlers that sent one statement each."""

    briefly = True


def of_every_kind() -> list[EventEnvelope]:
    """One event of every kind that takes another way through the worker."""
    return [
        *(envelope_of(event_type) for event_type in (TRANSACTIONAL, PLAIN, MIXED)),
        *(envelope_of(event_type, {"do": "fail", "times": 1}) for event_type in (TRANSACTIONAL, PLAIN, MIXED)),
        envelope_of(TRANSACTIONAL, {"do": "commit", "times": 1}),
        envelope_of(TRANSACTIONAL, {"do": "refuse"}),
        envelope_of(TRANSACTIONAL, target=None),
    ]


def for_groups() -> list[EventEnvelope]:
    """Some that do well together, and later two of which one does not."""
    return [
        *(envelope_of(TRANSACTIONAL) for _ in range(ROWS - 2)),
        envelope_of(TRANSACTIONAL, target=None),
        envelope_of(TRANSACTIONAL, {"do": "refuse"}, target=None),
    ]


def publish_for(stage: Stage, generation: int, events: list[EventEnvelope]) -> None:
    with psycopg.connect(stage.dsn) as connection, stage.publishing(connection, events, generation=generation):
        assert len(events) == ROWS


def listener(dsn: str, generation: int, probe: Crashes, external: External) -> Listener:
    settings = WorkerSettings(generation=generation, name=name_of(generation), lanes=1, times=TIMES)
    plan = Plan(dsn=dsn, name=settings.name, generation=generation)
    return worker(*consumers(plan, external), settings=settings, database=DatabaseSettings(dsn=dsn), probe=probe)


def name_of(generation: int) -> str:
    return f"worker-{generation}"


async def play(stage: Stage, generations: range, events: Events = of_every_kind) -> list[str]:
    """Run a worker for each of these generations until nothing is left to do; answers why any of them crashed."""
    probe = Crashes()
    for generation in generations:
        publish_for(stage, generation, events())
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
    await fail_each_call_once(stage, monkeypatch, how, of_every_kind)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("trusting", [Trusting, TrustingInBrief])
async def test_any_call_of_a_group_without_savepoints_may_fail_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, how: How, trusting: type[Trusting]
) -> None:
    begun: list[int] = []
    carried_out: list[int] = []
    begin = PostgresLane.begin_together
    carry_out = PostgresErrands.carry_out

    async def counted_errands(self: PostgresErrands, within: float) -> PostgresBriefTransaction | None:
        carried_out.append(len(self.waiting))
        return await carry_out(self, within)

    async def counted(self: PostgresLane, runs: Sequence[tuple[Delivery, Handler]], only: str | None = None) -> bool:
        begun.append(len(runs))
        return await begin(self, runs, only)

    monkeypatch.setattr(PostgresErrands, "carry_out", counted_errands)
    monkeypatch.setattr(PostgresLane, "begin_together", counted)
    monkeypatch.setattr(trust, "ENOUGH", 1)
    monkeypatch.setattr(desk, "Trust", trusting)
    monkeypatch.setattr(
        f"{__name__}.TIMES", replace(TIMES, lease=timedelta(minutes=1))
    )  # longer than a handler may take
    await fail_each_call_once(stage, monkeypatch, how, for_groups)
    assert max(begun) > 1
    assert (max(carried_out, default=0) > 1) == trusting.briefly


async def fail_each_call_once(stage: Stage, monkeypatch: pytest.MonkeyPatch, how: How, events: Events) -> None:
    calls = Calls(how)
    calls.install(monkeypatch)
    assert await play(stage, range(FIRST_GENERATION, FIRST_GENERATION + 1), events) == []
    ordinals = calls.made[name_of(FIRST_GENERATION)]
    assert ordinals > 20  # there is something to fail
    for first in range(1, ordinals + 1, AT_ONCE):
        doomed = range(first, min(first + AT_ONCE, ordinals + 1))
        calls.doomed = {name_of(FIRST_GENERATION + ordinal): ordinal for ordinal in doomed}
        crashes = await play(stage, range(FIRST_GENERATION + doomed.start, FIRST_GENERATION + doomed.stop), events)
        assert crashes == []
    verdict = await check(stage.dsn, stage.ledger)
    verdict.assert_clean(at_least=ROWS * ordinals)
    assert verdict.dead_lettered == ordinals + 1
