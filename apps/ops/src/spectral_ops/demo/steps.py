"""The steps of the tour: publish, kill a worker, roll out the next generation, dead-letter and replay; then count."""

from __future__ import annotations

import asyncio
import itertools
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from spectral.core.events.testing import Publish, check, settle_down
from spectral_ops.demo.business import SCAN_COMPLETED, TILE_ORDERED
from spectral_ops.demo.counts import Counts
from spectral_ops.demo.patience import until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from uuid import UUID

    from spectral.core.events.testing import Ledger
    from spectral_ops.demo.crew import Crew, Worker
    from spectral_ops.demo.outbox import Outbox
    from spectral_ops.demo.producer import Producer
    from spectral_ops.demo.telling import Teller

WORKERS: Final = 2
"""Processes of each generation."""

SCANS: Final = 600
BULK: Final = 2_000
ORDERS: Final = 60
REPORTS: Final = 10
BROADCASTS: Final = 16
SCANS_OF_BOTH: Final = 200
"""While both generations are at work, from each of them."""

_EVERY_TENTH: Final = 10
_PROBLEMS_KEPT: Final = 20
_HELD_AT_LEAST: Final = 3  # of the four that its handler lets run at once
_SETTLED_WITHIN: Final = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class Stage:
    """What the steps play with; `producers` by generation, `began` by the monotonic clock."""

    dsn: str
    teller: Teller
    crew: Crew
    outbox: Outbox
    ledger: Ledger
    producers: Mapping[int, Sequence[Producer]]
    began: float
    numbers: Iterator[int] = field(default_factory=itertools.count)


@dataclass(frozen=True, slots=True)
class _Loss:
    """A worker that was killed, when, and what it held."""

    worker: Worker
    at: float
    held: Sequence[UUID]


async def play(stage: Stage) -> Counts:
    """All of them, from the first worker to the last count."""
    stage.teller.say(f"Generation 1: {WORKERS} worker processes, each serves platform and worlds")
    workers = await stage.crew.start(1, WORKERS)
    await _publish(stage)
    loss = await _kill(stage, workers)
    async with asyncio.TaskGroup() as group:
        group.create_task(_see_taken_back(stage, loss))
        successors = await _roll_out(stage)
    taken_over = await _drain(stage, loss)
    await _stop(stage, [worker for worker in workers if worker is not loss.worker])
    await stage.outbox.retire(1)
    stage.teller.say("Generation 1 is retired: nothing of it is left to be delivered")
    dead_lettered, replayed = await _replay(stage)
    stage.teller.say("Waiting until nothing is pending or in flight")
    await settle_down(stage.dsn, _SETTLED_WITHIN)
    await _stop(stage, successors)
    stage.teller.say("Asking the oracle what became of every event")
    return await _count(stage, taken_over=taken_over, dead_lettered=dead_lettered, replayed=replayed)


async def _publish(stage: Stage) -> None:
    stage.teller.say(
        f"Publishing in business transactions: {BULK:,} scans in bulk, {SCANS:,} one by one, every tenth rolled back; "
        f"{ORDERS} orders, {REPORTS} reports, {BROADCASTS} broadcasts"
    )
    first = stage.producers[1][0]
    await first.file_reports(REPORTS)
    await first.complete_scans(itertools.islice(stage.numbers, BULK))
    await _publish_scans(stage, {1: SCANS})
    await first.order_tiles(ORDERS)


async def _publish_scans(stage: Stage, counts: Mapping[int, int]) -> None:
    """All producers of these generations at once; a few broadcasts in between."""

    async def publish(producer: Producer, count: int, broadcasts: int) -> None:
        for turn in range(count):
            await producer.complete_scan(next(stage.numbers), change_mind=turn % _EVERY_TENTH == 0)
            if turn < broadcasts:
                await producer.open_season()

    async with asyncio.TaskGroup() as group:
        for generation, count in counts.items():
            producers = stage.producers[generation]
            for producer in producers:
                group.create_task(
                    publish(producer, count // len(producers), BROADCASTS // len(counts) // len(producers))
                )


async def _kill(stage: Stage, workers: Sequence[Worker]) -> _Loss:
    """In the middle of its work: it has claimed a good many events, and handlers of it run."""

    async def busy() -> Worker | None:
        for worker in workers:
            if len(await stage.outbox.held_by(worker, TILE_ORDERED)) >= _HELD_AT_LEAST:
                return worker
        return None

    async def is_forgotten() -> bool:
        return not await stage.outbox.sessions_of(doomed)

    doomed = await until(busy, "a worker is busy with orders")
    await stage.crew.kill(doomed)
    at = time.monotonic()
    # What the server was doing for it at that moment is done, or undone, when its sessions are gone.
    await until(is_forgotten, f"the sessions of {doomed.label} are gone")
    held = await stage.outbox.held_by(doomed)
    stage.teller.say(f"kill -9 {doomed.process.pid}: {doomed.label} died with {len(held)} events in its hands")
    return _Loss(doomed, at, held)


async def _see_taken_back(stage: Stage, loss: _Loss) -> None:
    """Nobody is told of the death: all that the other worker can see is that its sign of life is gone."""

    async def is_taken_back() -> bool:
        return not await stage.outbox.held_by(loss.worker)

    await until(is_taken_back, f"the events of {loss.worker.label} are taken back")
    seconds = time.monotonic() - loss.at
    stage.teller.say(
        f"The {len(loss.held)} events of {loss.worker.label} were taken back, {seconds:.0f} s after its death"
    )


async def _roll_out(stage: Stage) -> list[Worker]:
    """The next release beside the one that runs; each handles only events of its own generation."""
    stage.teller.say(f"Generation 2: {WORKERS} workers of the next release, while generation 1 works on")
    successors = await stage.crew.start(2, WORKERS)
    await stage.outbox.promote(2)
    stage.teller.say(
        f"Generation 2 is live, 1 drains; publishing with both: {SCANS_OF_BOTH} scans each, {BROADCASTS} broadcasts"
    )
    await _publish_scans(stage, {1: SCANS_OF_BOTH, 2: SCANS_OF_BOTH})
    return successors


async def _drain(stage: Stage, loss: _Loss) -> int:
    """Until generation 1 has nothing left to do; answers how much of it the lost worker had begun."""

    async def is_drained() -> bool:
        return not await stage.outbox.open_of(1)

    await until(is_drained, "generation 1 has nothing left to do")
    taken_over = await stage.outbox.delivered_among(loss.held)
    stage.teller.say(f"Generation 1 has drained, and {taken_over} events of {loss.worker.label} with it")
    return taken_over


async def _stop(stage: Stage, workers: Sequence[Worker]) -> None:
    await stage.crew.stop(*workers)
    labels = " and ".join(worker.label for worker in workers)
    stage.teller.say(f"SIGTERM: {labels} of generation {workers[0].generation} exited with 0")


async def _replay(stage: Stage) -> tuple[int, int]:
    """What failed for good in generation 1 is replayed into generation 2, which is mended."""
    dead = await stage.outbox.dead_letters()
    stage.teller.say(f"In the DLQ: {len(dead)} reports. {dead[0][1] if dead else ''}")
    replayed = await stage.outbox.replay([row_id for row_id, _ in dead], 2, "generation 2 can read them")
    stage.teller.say(f"Replayed: {replayed} reports, into generation 2, whose code can read them")
    return len(dead), replayed


async def _count(stage: Stage, *, taken_over: int, dead_lettered: int, replayed: int) -> Counts:
    verdict = await check(stage.dsn, stage.ledger)
    found = verdict.as_dict() | {
        "taken_over": taken_over,
        "dead_lettered": dead_lettered,
        "replayed": replayed,
        "left_in_dlq": verdict.dead_lettered,
        "rolled_back": sum(entry.state is Publish.FAILED for entry in stage.ledger.entries().values()),
    }
    business = await stage.outbox.business(SCAN_COMPLETED)
    return Counts(
        **found,
        **business._asdict(),
        handled_by_generation=await stage.outbox.handled_by_generation(),
        problems=tuple(verdict.problems()[:_PROBLEMS_KEPT]),
        seconds=round(time.monotonic() - stage.began, 1),
    )
