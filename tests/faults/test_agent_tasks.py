"""Agent tasks on workers that are killed and that stand still: by policy, and never two runs of one task at once."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final, Self
from uuid import UUID

import psycopg
import pytest

from spectral.core.events.testing import EFFECTS_SCHEMA, Ledger, Verdict, check, settle_down
from spectral.core.migrations import bundled_directory, up
from spectral.platform.agent_tasks import Enqueued, NewTask, OnLoss, enqueue
from spectral.platform.agent_tasks.operations import MIGRATIONS
from tests.faults.agent_task_worker import SCHEMA
from tests.faults.crew import PATIENCE, ROOT, eventually

SEED: Final = 42
LOST_TOGETHER: Final = """
select a.task_id, a.fence, b.fence
from platform.agent_task_runs as a
join platform.agent_task_runs as b on b.task_id = a.task_id and b.fence > a.fence
where a.ended_at is null or a.ended_at > b.began_at
"""
STEPS_TOGETHER: Final = """
with spans as (
    select task_id, fence, min(at) as began, max(at) as ended from public.steps group by task_id, fence
)
select a.task_id, a.fence, b.fence
from spans as a
join spans as b on b.task_id = a.task_id and b.fence > a.fence
where a.ended >= b.began
"""


class AgentWorker:
    """One process; whatever is left of it afterwards is killed."""

    def __init__(self, dsn: str, name: str) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.agent_task_worker", dsn, name],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._said: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self._said.append(line.strip())
                self._news.notify_all()

    def wait_for(self, word: str) -> Self:
        with self._news:
            assert self._news.wait_for(lambda: word in self._said, PATIENCE), f"{self.name} said {self._said}"
        return self

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self, number: signal.Signals) -> int:
        self._process.send_signal(number)
        return self._process.wait(PATIENCE)

    def leave(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert self._process.stdout is not None
        self._process.stdout.close()


class Play:
    """A database with tasks, the processes that run them, and the oracle."""

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn
        self._ledger = Ledger()
        self._workers: list[AgentWorker] = []
        up(dsn, directories=[bundled_directory(), MIGRATIONS])
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(EFFECTS_SCHEMA.encode())
            connection.execute(SCHEMA.encode())

    def start(self) -> AgentWorker:
        self._workers.append(AgentWorker(self.dsn, f"agent-{len(self._workers) + 1}"))
        return self._workers[-1]

    def leave(self) -> None:
        for worker in self._workers:
            worker.leave()

    def enqueue(self, steps: int, *, on_loss: OnLoss = OnLoss.RESUME, **more: int) -> UUID:
        task = NewTask(kind="steps", input={"steps": steps, **more}, on_loss=on_loss, max_attempts=20)

        async def publish() -> Enqueued:
            async with await psycopg.AsyncConnection.connect(self.dsn) as connection:
                return await enqueue(connection, task, generation=1)

        found = asyncio.run(publish())
        attempt = self._ledger.attempt(
            found.event_id,
            str(found.event_id),
            event_type="agent.task.dispatched",
            target="platform",
            generation=1,
        )
        attempt.ok()
        return found.id

    def rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return connection.execute(query.encode(), parameters).fetchall()

    def wait_for_steps(self, count: int) -> None:
        eventually(lambda: self.rows("select count(*) from public.steps")[0][0] >= count, f"{count} steps are taken")

    def runs(self, task_id: UUID) -> list[str]:
        found = self.rows("select outcome from platform.agent_task_runs where task_id = %s order by fence", task_id)
        return [outcome for (outcome,) in found]

    def states(self) -> dict[str, int]:
        return dict(self.rows("select status, count(*) from platform.agent_tasks group by status"))

    def assert_clean(self, delivered: int) -> Verdict:
        """Everything was delivered, the oracle has no complaint, and no two runs of a task were on at once."""
        assert asyncio.run(settle_down(self.dsn, timedelta(seconds=PATIENCE)))
        verdict = asyncio.run(check(self.dsn, self._ledger))
        verdict.assert_clean(at_least=delivered)
        assert (verdict.delivered, verdict.dead_lettered) == (delivered, 0)
        assert self.rows(LOST_TOGETHER) == []
        assert self.rows(STEPS_TOGETHER) == []
        return verdict


@pytest.fixture
def play(database: str) -> Iterator[Play]:
    found = Play(database)
    try:
        yield found
    finally:
        found.leave()


def test_a_task_whose_worker_is_killed_in_the_middle_is_resumed_where_it_was(play: Play) -> None:
    victim = play.start()
    task_id = play.enqueue(30)
    play.wait_for_steps(3)
    victim.end(signal.SIGKILL)
    play.start()
    verdict = play.assert_clean(delivered=1)
    assert play.states() == {"succeeded": 1}
    assert play.runs(task_id) == ["lost", "succeeded"]
    assert verdict.external_duplicates == 1
    taken = play.rows("select step, count(*) from public.steps group by step order by step")
    assert [step for step, _ in taken] == list(range(30))
    # The step at which it was killed may have been written and not yet saved; no other is taken twice.
    assert sum(count for _, count in taken) <= 31
    ((attempts, error),) = play.rows("select attempts, last_error from platform.agent_tasks")
    assert (attempts, error) == (2, f"WorkerLostError: {victim.name} was lost in run 1")


def test_a_task_that_must_not_be_begun_twice_has_failed_when_its_worker_is_killed(play: Play) -> None:
    victim = play.start()
    task_id = play.enqueue(200, on_loss=OnLoss.FAIL)
    play.wait_for_steps(3)
    victim.end(signal.SIGKILL)
    play.start()
    play.assert_clean(delivered=1)
    assert play.states() == {"failed": 1}
    assert play.runs(task_id) == ["lost"]
    assert play.rows("select distinct worker from public.steps") == [(victim.name,)]


def test_a_worker_that_stood_still_past_its_heartbeat_is_fenced(play: Play) -> None:
    zombie = play.start()
    task_id = play.enqueue(20, stop_at=5)
    zombie.wait_for("stopping")
    heir = play.start()
    # The heir's run is on: from here the zombie must not be able to write any more.
    eventually(lambda: play.rows("select 1 from public.steps where worker = %s limit 1", heir.name), "it is taken over")
    zombie.send(signal.SIGCONT)
    zombie.wait_for("refused")
    play.assert_clean(delivered=1)
    assert play.runs(task_id) == ["lost", "succeeded"]
    assert play.rows("select worker, array_agg(step order by step) from public.steps group by 1 order by 1") == [
        (zombie.name, list(range(5))),
        (heir.name, list(range(5, 20))),
    ]
    assert play.rows("select result_ref from platform.agent_tasks") == [(f"done by {heir.name}",)]
    assert zombie.end(signal.SIGTERM) == 0  # a worker that was fenced works on


def test_workers_come_and_go_and_every_task_is_run_to_its_end_one_run_at_a_time(play: Play) -> None:
    chance = random.Random(SEED)  # noqa: S311  which one is killed next, the same each time
    workers = [play.start() for _ in range(2)]
    tasks = [play.enqueue(15) for _ in range(6)]
    for round_ in (1, 2):
        play.wait_for_steps(15 * round_)
        workers.pop(chance.randrange(len(workers))).end(signal.SIGKILL)
        workers.append(play.start())
    play.assert_clean(delivered=6)
    assert play.states() == {"succeeded": 6}
    assert any("lost" in play.runs(task_id) for task_id in tasks)
    whole = play.rows("select task_id from public.steps group by task_id having count(distinct step) = 15")
    assert {task_id for (task_id,) in whole} == set(tasks)
