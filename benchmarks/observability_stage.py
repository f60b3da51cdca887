"""What `benchmarks.observability` runs as processes: a worker that is watched by turns, and a collector.

python -m benchmarks.observability_stage worker WORKLOAD [OPTION...]   `spectral worker --drain`, watched by turns
python -m benchmarks.observability_stage collector                     takes whatever comes by HTTP, says its port first
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Final
from unittest.mock import patch

from pydantic import BaseModel

from spectral.core.events import Consumer, EventEnvelope, Transaction
from spectral.core.events.infrastructure.observability.standard import standard_watch
from spectral.core.events.probe import Finished, NoteTaker
from spectral_ops.cli import main
from spectral_workers import process

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spectral.core.events.infrastructure.observability.watch import Watch
    from spectral.core.events.probe import Act, Activity, Handle, Note

TURNS_VARIABLE: Final = "BENCH_TURNS"
"""Where to write how the turns went."""

TURN: Final = 0.5
"""Seconds for which a worker is watched, or is not. A shared machine may be twice as fast a few seconds later, and is
nearly as fast as it was half a second ago."""

CHANGE: Final = 0.15
"""Seconds before each turn that count for none: what the one before it has left is written and sent meanwhile, and what
comes of this one has begun to be. Spans that are too few to be sent yet wait until the watch has its next turn."""

NAP: Final = 0.01
ELSEWHERE: Final = "worlds"
"""A context that no worker here is for."""

wait: Final = Consumer("platform")
upsert: Final = Consumer("platform")
order: Final = Consumer("platform")
noop: Final = Consumer("platform")
WORKLOADS: Final = {
    "wait": (wait, "plain handler that awaits 10 ms", 60_000),
    "order": (order, "transactional handler that reads, writes and publishes what follows", 40_000),
    "upsert": (upsert, "transactional handler with one upsert", 300_000),
    "noop": (noop, "plain handler that does nothing", 500_000),
}
"""Who handles it, what that is, and how many events are drained unless told otherwise."""


class Numbered(BaseModel):
    """What is sent."""

    number: int


def event_type(workload: str) -> str:
    """What an event is called whose handler does this."""
    return f"worlds.{workload}.sent"


@wait.on(event_type("wait"))
async def wait_a_little(event: Numbered) -> None:  # noqa: ARG001  parsed, as everywhere
    """Await 10 ms."""
    await asyncio.sleep(NAP)


@upsert.on(event_type("upsert"))
async def write(event: Numbered, tx: Transaction) -> None:
    """One upsert, in the transaction that settles the event."""
    await tx.execute(
        "insert into bench_effects values (%s, 1) on conflict (number) do update set seen = bench_effects.seen + 1",
        (event.number,),
    )


@order.on(event_type("order"))
async def take(event: Numbered, tx: Transaction) -> None:
    """What most handlers do: look something up, write it down, tell the next."""
    cursor = await tx.execute("select seen from bench_effects where number = %s for update", (event.number,))
    seen = await cursor.fetchone()
    await tx.execute(
        "insert into bench_effects values (%s, %s) on conflict (number) do update set seen = excluded.seen",
        (event.number, 1 if seen is None else seen[0] + 1),
    )
    await tx.publish(
        EventEnvelope(
            event_type="platform.order.taken", source="platform", target=ELSEWHERE, payload={"number": event.number}
        )
    )


@noop.on(event_type("noop"))
async def do_nothing(event: Numbered) -> None:
    """Nothing."""


class ByTurns:
    """A probe that tells the watch, then for as long nobody, and so on; writes down how many events each turn had."""

    def __init__(self, watch: Watch, turns: Path) -> None:
        self._watch = watch
        self._nobody = NoteTaker()
        self._turns = turns
        self._told: Watch | NoteTaker = watch
        self._is_measured = False
        self._begin()

    def _begin(self) -> None:
        self._finished = 0
        self._began, self._used = time.monotonic(), time.process_time()

    def _end_turn(self, seconds: float) -> None:
        used, is_watched = time.process_time() - self._used, self._told is self._watch
        with self._turns.open("a") as turns:
            turns.write(f"{json.dumps([is_watched, self._finished, seconds, used])}\n")
        self._told = self._nobody if is_watched else self._watch

    def _count(self, events: int) -> None:
        self._finished += events
        seconds = time.monotonic() - self._began
        if seconds < (TURN if self._is_measured else CHANGE):
            return
        if self._is_measured:
            self._end_turn(seconds)
        self._is_measured = not self._is_measured
        self._begin()

    def begin(self, act: Act) -> Activity:
        """See `Probe`."""
        return self._told.begin(act)

    def tell(self, note: Note) -> None:
        """See `Probe`."""
        self._told.tell(note)
        if isinstance(note, Finished):
            self._count(1)

    def begin_many(self, acts: Sequence[Handle]) -> list[Activity]:
        """See `Probe`."""
        if self._told is self._watch:
            return self._watch.begin_many(acts)
        return [self._nobody.begin(act) for act in acts]

    def end_many(self, activities: Sequence[Activity]) -> None:
        """See `Probe`."""
        if self._told is self._watch:
            self._watch.end_many(activities)
        else:
            for activity in activities:
                activity.end()

    def tell_many(self, notes: Sequence[Finished]) -> None:
        """See `Probe`."""
        if self._told is self._watch:
            self._watch.tell_many(notes)
        else:
            for note in notes:
                self._told.tell(note)
        self._count(len(notes))

    def catch_up(self) -> None:
        """See `Watch`."""
        self._watch.catch_up()

    def flush(self, within: float) -> bool:
        """See `Watch`."""
        return self._watch.flush(within)

    def troubles(self) -> dict[str, tuple[int, int]]:
        """See `Watch`."""
        return self._watch.troubles()


def work(workload: str, options: Sequence[str]) -> None:
    """The worker as it is, watched by turns."""
    environ = os.environ  # noqa: TID251  a program's own variables
    turns = Path(environ[TURNS_VARIABLE])
    sys.argv[1:] = ["worker", "--drain", *options, f"benchmarks.observability_stage:{workload}"]
    with patch.object(process, "standard_watch", lambda *who: ByTurns(standard_watch(*who), turns)):
        main()


class _Taken(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Read it, forget it."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base's name
        """Nobody wants to know."""


def collect() -> None:
    """Be a collector until killed."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Taken) as server:
        sys.stdout.write(f"{server.server_port}\n")
        sys.stdout.flush()
        server.serve_forever()


if __name__ == "__main__":
    if sys.argv[1] == "collector":
        collect()
    else:
        work(sys.argv[2], sys.argv[3:])
