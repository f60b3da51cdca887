"""The nemesis: workers and publishers under mixed random faults, with quiet periods, and the oracle at the end.

    python -m tests.faults.nemesis --seconds 600 --seed 42

The seed decides which faults come in which order; what they hit depends on the machine, so a seed that found something
finds it again soon, not always at once.
"""

from __future__ import annotations

import argparse
import random
import secrets
import signal
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import psycopg

from spectral.core.embedded import EmbeddedPostgres
from spectral.core.events.testing import Verdict
from spectral.core.migrations import up
from tests.faults.crew import PATIENCE, Crew, WorkerProcess, eventually
from tests.faults.durable import durable_server, restart_at_once
from tests.faults.publishers import Publisher, publishing_on
from tests.faults.stage import Stage
from tests.faults.wire import Direction, Wire, wired

GENERATIONS: Final = (1, 1, 2)
"""One worker for each of these."""

PAYLOADS: Final[tuple[dict[str, object], ...]] = (
    *[{}] * 20,
    *[{"do": "sleep", "seconds": 0.05}] * 6,
    {"do": "sleep", "seconds": 1.0},
    *[{"do": "fail", "times": 1}] * 3,
    {"do": "fail", "times": 2},
    {"do": "commit", "times": 1},
    {"do": "refuse"},
)
MAX_RETRIES: Final = 7
SECONDS_FOR_A_PILL: Final = 20
"""Each costs as many workers as it has executions."""

SESSIONS: Final = ("spectral ear", "spectral keep", "spectral lane", "spectral claim", "spectral settle", "spectral")
OWN_END: Final = {0, 13, -signal.SIGKILL, -signal.SIGSEGV}
"""How a worker may end here: stopped, killed, or by a pill. Whoever ends otherwise has crashed."""


@dataclass
class Nemesis:
    """Does harm, and undoes it in time."""

    stage: Stage
    wire: Wire
    server: EmbeddedPostgres
    dice: random.Random
    workers: list[WorkerProcess] = field(default_factory=list)
    retired: list[WorkerProcess] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    next_pill_at: float = 0.0
    undo: list[tuple[float, Callable[[], object]]] = field(default_factory=list)

    def employ(self, generation: int) -> WorkerProcess:
        """Start a worker behind the wire."""
        return self.stage.start(
            "nemesis",
            dsn=self.wire.dsn,
            generation=generation,
            contexts=("platform", "worlds"),
            max_retries=MAX_RETRIES,
            times={"lease": 4.0, "answer": 2.0},
            timeout=2.5,
        )

    def watch(self, seconds: float) -> None:
        """Let time pass; undo what is due, and replace whoever is gone."""
        end = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            due, self.undo = (
                [each for each in self.undo if each[0] <= now],
                [each for each in self.undo if each[0] > now],
            )
            for _, undo in due:
                undo()
            for place, worker in enumerate(self.workers):
                if not worker.is_alive:
                    self.retired.append(worker)
                    self.workers[place] = self.employ(worker.plan.generation)
            if now >= end:
                return
            time.sleep(0.05)

    def strike(self) -> None:
        """One fault, drawn at random."""
        faults = (
            *[self.kill] * 3,
            *[self.stand_still] * 2,
            self.send_away,
            *[self.end_sessions] * 2,
            *[self.cut] * 3,
            *[self.freeze] * 2,
            *[self.swallow] * 2,
            self.deafen,
            self.refuse,
            self.restart,
            self.poison,
        )
        fault = self.dice.choice(faults)
        self.done[fault.__name__] += 1
        with suppress(psycopg.Error):  # the server is away: so was the fault
            fault()

    def kill(self) -> None:
        self.dice.choice(self.workers).signal(signal.SIGKILL)

    def stand_still(self) -> None:
        worker = self.dice.choice(self.workers)
        worker.signal(signal.SIGSTOP)
        self._later(lambda: worker.signal(signal.SIGCONT), 5.0)

    def send_away(self) -> None:
        self.dice.choice(self.workers).signal(signal.SIGTERM)

    def end_sessions(self) -> None:
        self.stage.rows(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name like %s",
            f"{self.dice.choice(SESSIONS)}%",
        )

    def cut(self) -> None:
        self.wire.cut(self.dice.choice(SESSIONS))

    def freeze(self) -> None:
        self.wire.freeze(session := self.dice.choice(SESSIONS))
        self._later(lambda: self.wire.thaw(session), 4.0)

    def swallow(self) -> None:
        self.wire.swallow(self.dice.choice(list(Direction)), session := self.dice.choice(SESSIONS))
        self._later(lambda: self.wire.cut(session), 4.0)

    def deafen(self) -> None:
        self.wire.swallow_notifications()
        self._later(lambda: self.wire.swallow_notifications(on=False), 3.0)

    def refuse(self) -> None:
        self.wire.refuse()
        self.wire.cut(self.dice.choice(SESSIONS))
        self._later(lambda: self.wire.refuse(on=False), 2.0)

    def restart(self) -> None:
        restart_at_once(self.server)

    def poison(self) -> None:
        if time.monotonic() >= self.next_pill_at:
            self.next_pill_at = time.monotonic() + SECONDS_FOR_A_PILL
            self.stage.publish(1, payload={"do": self.dice.choice(("exit", "segfault"))})

    def heal(self) -> None:
        """End every fault."""
        for _, undo in self.undo:
            undo()
        self.undo.clear()
        self.wire.heal()
        self.watch(0)

    def _later(self, undo: Callable[[], object], seconds: float) -> None:
        self.undo.append((time.monotonic() + self.dice.uniform(0.2, seconds), undo))

    def confess(self) -> None:
        """Have every worker tell where it stands, for whoever has to find out why."""
        for worker in self.workers:
            worker.signal(signal.SIGUSR1)
            with suppress(AssertionError):
                worker.wait_for("State", seconds=5)
            print(worker.plan.name, *worker.notes[-20:], sep="\n  ")  # noqa: T201  what pytest shows of a failure

    def crashes(self) -> list[str]:
        """Workers that ended without having been made to."""
        ended = [each for each in (*self.retired, *self.workers) if not each.is_alive]
        crashed = [each for each in ended if each.code not in OWN_END and not _sent_away_unborn(each)]
        return [f"{each.plan.name} {each.code}: {each.notes[-5:]}" for each in crashed]


def _sent_away_unborn(worker: WorkerProcess) -> bool:
    """Told to stop before it could hear: the signal itself ends a process that has not done anything yet."""
    return worker.code == -signal.SIGTERM and not worker.notes


def rage(nemesis: Nemesis, publishers: list[Publisher], seconds: float) -> None:
    """Strike again and again; in the quiet periods everybody has to get on."""
    end = time.monotonic() + seconds
    with publishing_on(*publishers):
        while time.monotonic() < end:
            for _ in range(nemesis.dice.randint(3, 8)):
                nemesis.strike()
                nemesis.watch(nemesis.dice.uniform(0.1, 1.0))
            nemesis.heal()
            _assert_progress(nemesis, publishers)


def _assert_progress(nemesis: Nemesis, publishers: list[Publisher]) -> None:
    committed = sum(each.committed for each in publishers)
    delivered = _delivered(nemesis.stage)

    def both_got_on() -> bool:
        nemesis.watch(0)
        return sum(each.committed for each in publishers) > committed and _delivered(nemesis.stage) > delivered

    eventually(both_got_on, "in a quiet period events are published and delivered")


def _delivered(stage: Stage) -> int:
    try:
        return int(stage.one("select count(*) from core.outbox where status = 'delivered'"))
    except psycopg.Error:
        return 0


def run(seconds: float, seed: int, crew: Crew) -> tuple[Verdict, Counter[str]]:
    """The whole play; raises an `AssertionError` if anything happened that must not."""
    dice = random.Random(seed)  # noqa: S311  dice, not secrets
    with durable_server() as server, wired(server.tcp_dsn) as wire:
        up(server.tcp_dsn)
        stage = Stage(server.tcp_dsn, crew)
        nemesis = Nemesis(stage, wire, server, dice)
        nemesis.workers = [nemesis.employ(generation) for generation in GENERATIONS]
        publishers = [
            Publisher(stage, seed + number, generations=GENERATIONS, pause=0.05, payloads=PAYLOADS)
            for number in range(2)
        ]
        rage(nemesis, publishers, seconds)
        verdict = _settle(nemesis)
        if not verdict.clean:
            nemesis.confess()
        verdict.assert_clean()
        assert not (crashes := nemesis.crashes()), crashes
        assert not (wrong := _wrong_ends(stage)), wrong
        crew.dismiss()
        return verdict, nemesis.done


def _settle(nemesis: Nemesis) -> Verdict:
    """Wait for the end of everything, however long the backlog, but not while nothing moves; pills still kill."""
    before, moved_at = 0, time.monotonic()
    while time.monotonic() < moved_at + PATIENCE:
        nemesis.watch(0.1)
        counts = nemesis.stage.statuses()
        if not {"pending", "in_flight"} & counts.keys():
            break
        if (ended := sum(counts.get(status, 0) for status in ("delivered", "failed"))) > before:
            before, moved_at = ended, time.monotonic()
    return nemesis.stage.settle(timedelta(0))


def _wrong_ends(stage: Stage) -> list[tuple[object, ...]]:
    """Good events in the DLQ, and bad ones that are not."""
    return stage.rows(
        "select id, status, attempts, payload, last_error from core.outbox where target is not null"
        " and (status = 'failed') <> (coalesce(payload ->> 'do', '') in ('refuse', 'exit', 'segfault')) limit 10"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Workers and publishers under mixed random faults.")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, {arguments.seconds:g} s", flush=True)  # noqa: T201  a program for a terminal
    with Crew() as crew:
        verdict, done = run(arguments.seconds, arguments.seed, crew)
    print(dict(done), verdict.as_dict(), sep="\n")  # noqa: T201  as above


if __name__ == "__main__":
    main()
