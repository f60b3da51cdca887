"""The commands that every contestant understands, and what their handlers have in common.

    setup   DSN                                     create the schema
    fill    DSN KIND SETTINGS COUNT                 publish that many, as fast as it goes
    work    DSN KIND SETTINGS                       deliver until told to stop
    singles DSN KIND SETTINGS CONNECTIONS SECONDS   one publish in each transaction, from so many connections
    bulk    DSN KIND SETTINGS COUNT                 one publish of that many
    paced   DSN KIND SETTINGS COUNT PAUSE           one publish after each pause; prints each number and its commit time

KIND is what the handler does: `noop` nothing, `upsert` one upsert, `sleep` awaits 10 ms, `slow` awaits 200 ms, `note`
prints its number and the machine's monotonic clock. Every handler adds one to a number in memory that the
process shares with the one who measures, by a file of its own in the directory that BENCH_TICKS names: so calls can be
counted across processes without asking anybody's database, and to be counted costs next to nothing.

SETTINGS is `default` or `best`: what somebody gets who changes nothing, and the best that the documentation offers.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from contextlib import AbstractAsyncContextManager

    Publish = Callable[[int], Awaitable[object]]
    PublishMany = Callable[[range], Awaitable[object]]

BEST: Final = "best"
CHUNK: Final = 5_000
NAPS: Final = {"sleep": 0.01, "slow": 0.2}
UPSERT: Final = (
    "insert into bench_effects (number, seen) values ({}, 1)"
    " on conflict (number) do update set seen = bench_effects.seen + 1"
)
UPSERT_FORMAT: Final = UPSERT.format("%s")
UPSERT_DOLLAR: Final = UPSERT.format("$1")

_TICKS: Final = os.environ.get("BENCH_TICKS")  # noqa: TID251  the top of a program
_ticks: memoryview | None = None


@dataclass(frozen=True, slots=True)
class Order:
    """Where, what the handlers do, and whether at the best settings."""

    dsn: str
    kind: str
    settings: str

    @property
    def best(self) -> bool:
        """Whether to run at the best documented settings."""
        return self.settings == BEST


class Program(Protocol):
    """What a contestant brings."""

    async def setup(self, dsn: str) -> None:
        """Create the schema."""
        ...

    async def work(self, order: Order) -> None:
        """Deliver until cancelled."""
        ...

    def publishers(self, order: Order, connections: int) -> AbstractAsyncContextManager[Sequence[Publish]]:
        """One publisher of single events for each connection; each call is a transaction of its own."""
        ...

    def bulk(self, order: Order) -> AbstractAsyncContextManager[PublishMany]:
        """A publisher of many events in one transaction."""
        ...


def tick() -> None:
    """One handler call."""
    if _ticks is not None:
        _ticks[0] += 1


def _share_ticks() -> None:
    """Have a number of its own that others can read; also in the child of a fork, which counts for itself."""
    global _ticks  # noqa: PLW0603  one for the process
    if _TICKS:
        with Path(_TICKS, str(os.getpid())).open("w+b") as file:
            file.write(bytes(8))
            file.flush()
            _ticks = memoryview(mmap.mmap(file.fileno(), 8)).cast("Q")


_share_ticks()
os.register_at_fork(after_in_child=_share_ticks)


def say(number: int) -> None:
    """A number, and now."""
    print(number, time.monotonic_ns(), flush=True)  # noqa: T201  what a contestant is for


async def handle(kind: str, number: int, upsert: Publish) -> None:
    """What every handler does; `upsert` is the contestant's own way to its database."""
    if kind == "upsert":
        await upsert(number)
    elif kind == "note":
        say(number)
    elif kind != "noop":
        await asyncio.sleep(NAPS[kind])
    tick()


def main(program: Program, *, uvloop: bool = True) -> None:
    """Run the command that was given, on uvloop where that is the best there is."""
    what, dsn, *rest = sys.argv[1:]
    if what == "setup":
        asyncio.run(program.setup(dsn))
        return
    kind, settings, *numbers = rest
    _run(
        _command(program, what, Order(dsn, kind, settings), numbers),
        quick=uvloop and (settings == BEST or what != "work"),
    )


def _run(command: Awaitable[None], *, quick: bool) -> None:
    async def run() -> None:
        await command

    if quick:
        try:
            import uvloop  # noqa: PLC0415  only the peers' environments have it for certain
        except ImportError:
            pass
        else:
            uvloop.run(run())
            return
    asyncio.run(run())


async def _command(program: Program, what: str, order: Order, numbers: list[str]) -> None:
    match what, numbers:
        case "fill", [count]:
            await _fill(program, order, int(count))
        case "work", []:
            await program.work(order)
        case "singles", [connections, seconds]:
            await _singles(program, order, int(connections), float(seconds))
        case "bulk", [count]:
            await _bulk(program, order, int(count))
        case "paced", [count, pause]:
            await _paced(program, order, int(count), float(pause))
        case _:
            raise SystemExit(__doc__)


async def _fill(program: Program, order: Order, count: int) -> None:
    async with program.bulk(order) as publish:
        for first in range(0, count, CHUNK):
            await publish(range(first, min(first + CHUNK, count)))


async def _bulk(program: Program, order: Order, count: int) -> None:
    async with program.bulk(order) as publish:
        await publish(range(10))  # connections and prepared statements are not what is measured
        started = time.perf_counter()
        await publish(range(10, count + 10))
        _tell(count, time.perf_counter() - started)


async def _singles(program: Program, order: Order, connections: int, seconds: float) -> None:
    async with program.publishers(order, connections) as publishers:
        for number, publish in enumerate(publishers):
            await publish(-number - 1)
        started = time.perf_counter()

        async def keep_on(publish: Publish, number: int) -> int:
            first = number
            while time.perf_counter() - started < seconds:
                await publish(number)
                number += connections
            return (number - first) // connections

        counts = await asyncio.gather(*(keep_on(publish, number) for number, publish in enumerate(publishers)))
        _tell(sum(counts), time.perf_counter() - started)


async def _paced(program: Program, order: Order, count: int, pause: float) -> None:
    async with program.publishers(order, 1) as (publish,):
        due = time.perf_counter()
        for number in range(count):
            await publish(number)
            say(number)
            due += pause
            await asyncio.sleep(max(0.0, due - time.perf_counter()))


def _tell(count: int, seconds: float) -> None:
    print(json.dumps({"count": count, "seconds": seconds}), flush=True)  # noqa: T201  what a contestant is for
