"""The delivery protocol as the schema's functions speak it, as a model: rows, workers, a reaper.

One step is one commit, or one thing that is not durable yet. A worker may die at any point. One that stalls takes no
step for a while, and the reaper may take its claim at any moment in which the row is not locked: every zombie is among
the states.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.model.search import System

Status = Literal["pending", "in_flight", "delivered", "failed"]
Phase = Literal["idle", "claimed", "open", "raised"]


class Row(NamedTuple):
    status: Status = "pending"
    attempts: int = 0
    held: bool = False  # whether a claim stands
    executions: int = 0


class Worker(NamedTuple):
    phase: Phase = "idle"
    row: int = 0
    holds: bool = False  # whether the claim that stands is this worker's; once lost, it never comes back
    runs: bool = False  # whether the gate was open, so that the handler runs
    may_release: bool = True


class World(NamedTuple):
    rows: tuple[Row, ...]
    workers: tuple[Worker, ...]
    handled: frozenset[tuple[str, int]] = frozenset()  # (key, the row that took it)
    effects: tuple[tuple[str, int], ...] = ()
    finished: frozenset[str] = frozenset()  # keys of which a handler has come to its end


@dataclass(frozen=True, slots=True)
class Protocol:
    """The rules, each of which can be left out to see that it is needed."""

    keys: tuple[str, ...]
    poisoned: frozenset[int] = frozenset()  # rows that kill every process that runs them
    workers: int = 2
    max_attempts: int = 2
    fenced: bool = True
    gate_before_handler: bool = True
    key_at_the_end: bool = False  # whether the key is looked for before the handler, and taken when it has ended
    all_or_nothing: bool = True  # whether that undoes what the handler did if somebody else has it by then
    count_at_claim: bool = True
    reaper_respects_locks: bool = True
    handler_commits: bool = False  # whether a handler may commit by itself, half way, and then fail
    guarded: bool = True  # whether the server refuses that

    def system(self) -> System[World]:
        start = World((Row(),) * len(self.keys), (Worker(),) * self.workers, effects=tuple((k, 0) for k in self.keys))
        return System(start, self.steps, self.broken, _all_ended)

    # steps

    def steps(self, world: World) -> Iterator[tuple[str, World]]:
        for number, worker in enumerate(world.workers):
            yield from self._worker_steps(world, number, worker)
        for number, row in enumerate(world.rows):
            if row.status == "in_flight" and not (self.reaper_respects_locks and _is_locked(world, number)):
                yield f"reap {number}", _with_row(world, number, self._given_back(row))

    def _worker_steps(self, world: World, me: int, worker: Worker) -> Iterator[tuple[str, World]]:
        match worker.phase:
            case "idle":
                for number, row in enumerate(world.rows):
                    if row.status == "pending":
                        yield f"{me} claims {number}", self._claimed(world, me, number, row)
            case "claimed":
                yield from self._begin(world, me, worker)
                if worker.may_release:
                    yield f"{me} releases {worker.row}", self._released(world, me, worker)
            case "open":
                yield from self._end(world, me, worker)
            case "raised":
                yield f"{me} settles {worker.row} as failed", self._settled_failure(world, me, worker)
        if worker.phase != "idle":
            yield f"{me} dies", _with_worker(world, me, Worker(may_release=worker.may_release))

    def _claimed(self, world: World, me: int, number: int, row: Row) -> World:
        attempts = row.attempts + self.count_at_claim
        taken = row._replace(status="in_flight", attempts=attempts, held=True)
        worker = world.workers[me]._replace(phase="claimed", row=number, holds=True, runs=False)
        return _with_worker(_with_row(world, number, taken), me, worker)

    def _begin(self, world: World, me: int, worker: Worker) -> Iterator[tuple[str, World]]:
        row, key = world.rows[worker.row], self.keys[worker.row]
        if _is_locked(world, worker.row):
            return
        if self.fenced and not worker.holds:
            yield f"{me} is fenced from {worker.row}", _with_worker(world, me, _idle(worker))
            return
        if not self.gate_before_handler:
            run = row._replace(executions=row.executions + 1)
            opened = worker._replace(phase="open", runs=True)
            yield f"{me} runs {worker.row}", _with_worker(_with_row(world, worker.row, run), me, opened)
            return
        if not self.key_at_the_end and any(
            other.phase == "open" and other.runs and self.keys[other.row] == key
            for at, other in enumerate(world.workers)
            if at != me
        ):
            return  # waits for whoever holds the key uncommitted
        runs = key not in _known(world)
        run = row._replace(executions=row.executions + runs)
        opened = worker._replace(phase="open", runs=runs)
        yield f"{me} begins {worker.row}", _with_worker(_with_row(world, worker.row, run), me, opened)

    def _end(self, world: World, me: int, worker: Worker) -> Iterator[tuple[str, World]]:
        if worker.runs and worker.row in self.poisoned:
            return
        if self.key_at_the_end and self.all_or_nothing and worker.runs and self.keys[worker.row] in _known(world):
            yield f"{me} is refused {worker.row}", _with_worker(world, me, worker._replace(phase="claimed", runs=False))
            return
        yield f"{me} commits {worker.row}", self._committed(world, me, worker)
        yield f"{me} raises in {worker.row}", _with_worker(world, me, worker._replace(phase="raised"))
        if self.handler_commits and worker.runs:
            yield f"{me} commits half of {worker.row}", self._half_committed(world, me, worker)

    def _committed(self, world: World, me: int, worker: Worker) -> World:
        row, key = world.rows[worker.row], self.keys[worker.row]
        handled = world.handled if key in _known(world) else world.handled | {(key, worker.row)}
        effects = tuple((each, count + (worker.runs and each == key)) for each, count in dict(world.effects).items())
        delivered = row._replace(status="delivered", held=False)
        finished = world.finished | ({key} if worker.runs else set())
        after = _with_row(world, worker.row, delivered)._replace(handled=handled, effects=effects, finished=finished)
        return _with_worker(after, me, _idle(worker))

    def _half_committed(self, world: World, me: int, worker: Worker) -> World:
        """The handler commits what it has so far, key included, and fails then; guarded, that commit itself fails."""
        key = self.keys[worker.row]
        after = world if self.guarded else world._replace(handled=world.handled | {(key, worker.row)})
        return _with_worker(after, me, worker._replace(phase="raised"))

    def _settled_failure(self, world: World, me: int, worker: Worker) -> World:
        row = world.rows[worker.row]
        if self.fenced and not worker.holds:
            return _with_worker(world, me, _idle(worker))
        counted = row if self.count_at_claim else row._replace(attempts=row.attempts + 1)
        return _with_worker(_with_row(world, worker.row, self._given_back(counted)), me, _idle(worker))

    def _given_back(self, row: Row) -> Row:
        return row._replace(status="failed" if row.attempts >= self.max_attempts else "pending", held=False)

    def _released(self, world: World, me: int, worker: Worker) -> World:
        row = world.rows[worker.row]
        after = world
        if worker.holds or not self.fenced:
            attempts = row.attempts - self.count_at_claim
            after = _with_row(world, worker.row, row._replace(status="pending", attempts=attempts, held=False))
        return _with_worker(after, me, _idle(worker)._replace(may_release=False))

    # invariants

    def broken(self, before: World, step: str, after: World) -> str | None:
        for key, count in after.effects:
            if count > 1:
                return f"the effect of {key} happened {count} times"
        for number, (old, new) in enumerate(zip(before.rows, after.rows, strict=True)):
            wrong = self._broken_row(before, after, number, old, new)
            if wrong is not None:
                return wrong
            if new.attempts < old.attempts and "releases" not in step:
                return f"row {number} lost an attempt"
        return None

    def _broken_row(self, before: World, after: World, number: int, old: Row, new: Row) -> str | None:
        if old.status in ("delivered", "failed") and new.status != old.status:
            return f"row {number} was {old.status} and is {new.status}"
        if new.status == "failed" and (self.keys[number], number) in after.handled:
            return f"row {number} was handled and is failed"
        if new.status == "delivered" and self.keys[number] not in after.finished:
            return f"row {number} is delivered, and no handler came to its end"
        if new.executions > self.max_attempts:
            return f"row {number} ran {new.executions} times"
        # Only the worker that takes the step changes its phase.
        steps = zip(before.workers, after.workers, strict=True)
        ended_by = next((was for was, now in steps if was.phase != now.phase and was.row == number), None)
        if old.held and not new.held and ended_by and ended_by.phase != "idle" and not ended_by.holds:
            return f"row {number} was settled by a worker that no longer held it"
        return None


def _all_ended(world: World) -> bool:
    return all(row.status in ("delivered", "failed") for row in world.rows)


def _known(world: World) -> set[str]:
    return {key for key, _ in world.handled}


def _is_locked(world: World, number: int) -> bool:
    return any(worker.phase == "open" and worker.row == number for worker in world.workers)


def _idle(worker: Worker) -> Worker:
    return Worker(may_release=worker.may_release)


def _with_row(world: World, number: int, row: Row) -> World:
    """The row changed; when its claim ended, whoever held it holds it no longer."""
    workers = world.workers
    if world.rows[number].held and not row.held:
        workers = tuple(each._replace(holds=each.holds and each.row != number) for each in workers)
    return world._replace(rows=(*world.rows[:number], row, *world.rows[number + 1 :]), workers=workers)


def _with_worker(world: World, number: int, worker: Worker) -> World:
    return world._replace(workers=(*world.workers[:number], worker, *world.workers[number + 1 :]))
