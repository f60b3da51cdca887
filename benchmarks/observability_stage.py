"""What `benchmarks.observability` runs as processes: handlers, a worker that nobody watches, and a collector.

python -m benchmarks.observability_stage quiet WORKLOAD    `spectral worker --drain`, but it tells nobody anything
python -m benchmarks.observability_stage collector         takes whatever comes by HTTP, says its port first
"""

from __future__ import annotations

import asyncio
import atexit
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final
from unittest.mock import patch

from pydantic import BaseModel

from spectral.core.events import Consumer, EventEnvelope, Transaction
from spectral.core.events.probe import NoteTaker
from spectral_ops.cli import main
from spectral_workers import process

STAMP_VARIABLE: Final = "BENCH_STAMP"
WARM_UP: Final = 1_000
"""So many events come before anything is measured: what is loaded, connected or learned once is no part of it."""

NAP: Final = 0.01
ELSEWHERE: Final = "worlds"
"""A context that no worker here is for."""

wait: Final = Consumer("platform")
upsert: Final = Consumer("platform")
order: Final = Consumer("platform")
noop: Final = Consumer("platform")
WORKLOADS: Final = {
    "wait": (wait, "plain handler that awaits 10 ms"),
    "order": (order, "transactional handler that reads, writes and publishes what follows"),
    "upsert": (upsert, "transactional handler with one upsert"),
    "noop": (noop, "plain handler that does nothing"),
}
_calls = 0


class Numbered(BaseModel):
    """What is sent."""

    number: int


def event_type(workload: str) -> str:
    """What an event is called whose handler does this."""
    return f"worlds.{workload}.sent"


def begin() -> None:
    """Leave a stamp when warm, and one at the end: the time, and the processor time of the process so far."""
    global _calls  # noqa: PLW0603  one process, one drain
    _calls += 1
    if _calls == WARM_UP:
        _stamp()
        # When everything is written and sent, but before the interpreter dismantles itself: that takes longer the more
        # is loaded, a tenth of a second for `spectral worker`, and has nothing to do with events.
        atexit.register(_stamp)


def _stamp() -> None:
    path = Path(os.environ[STAMP_VARIABLE])  # noqa: TID251  a program's own variable
    with path.open("a") as stamps:
        stamps.write(f"{time.time()} {time.process_time()}\n")


@wait.on(event_type("wait"))
async def wait_a_little(event: Numbered) -> None:  # noqa: ARG001  parsed, as everywhere
    """Await 10 ms."""
    begin()
    await asyncio.sleep(NAP)


@upsert.on(event_type("upsert"))
async def write(event: Numbered, tx: Transaction) -> None:
    """One upsert, in the transaction that settles the event."""
    begin()
    await tx.execute(
        "insert into bench_effects values (%s, 1) on conflict (number) do update set seen = bench_effects.seen + 1",
        (event.number,),
    )


@order.on(event_type("order"))
async def take(event: Numbered, tx: Transaction) -> None:
    """What most handlers do: look something up, write it down, tell the next."""
    begin()
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
async def do_nothing(event: Numbered) -> None:  # noqa: ARG001  as above
    """Nothing."""
    begin()


class _Nobody(NoteTaker):
    """In place of the watch: takes no notes."""

    def troubles(self) -> dict[str, tuple[int, int]]:
        """None."""
        return {}


def work_quietly(workload: str) -> None:
    """The worker as it is, with a probe that takes no notes."""
    sys.argv[1:] = ["worker", "--drain", f"benchmarks.observability_stage:{workload}"]
    with patch.object(process, "standard_watch", lambda *_: _Nobody()):
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
        work_quietly(sys.argv[2])
