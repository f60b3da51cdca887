"""procrastinate at its defaults."""

from __future__ import annotations

import asyncio
import sys
import time

import procrastinate

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=sys.argv[2]))


@app.task(name="note")
async def note(number: int) -> None:
    """Say when it came."""
    print(number, time.monotonic_ns(), flush=True)  # noqa: T201  what a contestant is for


async def setup() -> None:
    """Create its schema."""
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def work() -> None:
    """Deliver until killed."""
    async with app.open_async():
        await app.run_worker_async()


async def publish(count: int, pause: float) -> None:
    """Defer one by one."""
    async with app.open_async():
        for number in range(count):
            await note.defer_async(number=number)
            print(number, time.monotonic_ns(), flush=True)  # noqa: T201  as above
            await asyncio.sleep(pause)


if __name__ == "__main__":
    what, _, *rest = sys.argv[1:]
    asyncio.run(setup() if what == "setup" else work() if what == "work" else publish(int(rest[0]), float(rest[1])))
