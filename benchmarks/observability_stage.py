"""What `benchmarks.observability` runs as processes: handlers, a worker that nobody watches, and a collector.

python -m benchmarks.observability_stage quiet WORKLOAD    a worker that tells nobody anything
python -m benchmarks.observability_stage collector         takes whatever comes by HTTP, says its port first
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

import uvloop
from pydantic import BaseModel

from spectral.core.events import Consumer, Transaction
from spectral.core.events.bootstrap import worker
from spectral.core.events.probe import NoteTaker

STAMP_VARIABLE: Final = "BENCH_STAMP"
NAP: Final = 0.01

wait: Final = Consumer("platform")
upsert: Final = Consumer("platform")
noop: Final = Consumer("platform")
WORKLOADS: Final = {
    "wait": (wait, "plain handler that awaits 10 ms"),
    "upsert": (upsert, "transactional handler with one upsert"),
    "noop": (noop, "plain handler that does nothing"),
}
_has_begun = False


class Numbered(BaseModel):
    """What is sent."""

    number: int


def event_type(workload: str) -> str:
    """What an event is called whose handler does this."""
    return f"worlds.{workload}.sent"


def begin() -> None:
    """Leave a stamp at the first call: the time, and the processor time that getting there took."""
    global _has_begun  # noqa: PLW0603  one process, one drain
    if not _has_begun:
        _has_begun = True
        stamp = f"{time.time()} {time.process_time()}"
        Path(os.environ[STAMP_VARIABLE]).write_text(stamp)  # noqa: TID251  a program's own variable


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


@noop.on(event_type("noop"))
async def do_nothing(event: Numbered) -> None:  # noqa: ARG001  as above
    """Nothing."""
    begin()


async def work_quietly(workload: str) -> None:
    """Drain with a probe that takes no notes."""
    await worker(WORKLOADS[workload][0], probe=NoteTaker()).run("drained")


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
        # On the loop that `spectral worker` has, or it would not be compared with the same thing.
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work_quietly(sys.argv[2]))
