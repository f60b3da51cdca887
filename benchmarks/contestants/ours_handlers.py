"""The handlers of `ours`, one consumer for each kind, where `spectral worker` finds them."""

from __future__ import annotations

import asyncio
from typing import Final

from pydantic import BaseModel

from benchmarks.contestants import stage
from spectral.core.events import Consumer, Transaction

noop: Final = Consumer("platform")
upsert: Final = Consumer("platform")
sleep: Final = Consumer("platform")
slow: Final = Consumer("platform")
note: Final = Consumer("platform")
shared: Final = Consumer("platform")
CONSUMERS: Final = {"noop": noop, "upsert": upsert, "sleep": sleep, "slow": slow, "note": note, "shared": shared}


class Numbered(BaseModel):
    """What is sent."""

    number: int


def event_type(kind: str) -> str:
    """What an event is called whose handler does this."""
    return f"worlds.{kind}.sent"


@noop.on(event_type("noop"))
async def do_nothing(event: Numbered) -> None:  # noqa: ARG001  parsed, as everywhere
    """Nothing."""
    stage.tick()


@upsert.on(event_type("upsert"))
async def write(event: Numbered, tx: Transaction) -> None:
    """One upsert, in the transaction that settles the event."""
    await tx.execute(stage.UPSERT_FORMAT, (event.number,))
    stage.tick()


@sleep.on(event_type("sleep"))
async def wait(event: Numbered) -> None:  # noqa: ARG001  as above
    """Await 10 ms."""
    await asyncio.sleep(stage.NAPS["sleep"])
    stage.tick()


@slow.on(event_type("slow"))
async def wait_long(event: Numbered) -> None:  # noqa: ARG001  as above
    """Await 200 ms."""
    await asyncio.sleep(stage.NAPS["slow"])
    stage.tick()


@note.on(event_type("note"))
async def tell(event: Numbered) -> None:
    """Say when it came."""
    stage.say(event.number)
    stage.tick()


@shared.on(event_type("shared"))
async def tell_or_wait(event: Numbered) -> None:
    """Say when it came; one of the crowd, which has no number, awaits 10 ms instead."""
    if event.number < 0:
        await asyncio.sleep(stage.NAPS["sleep"])
    else:
        stage.say(event.number)
    stage.tick()


@shared.on(event_type("slow"))
async def wait_long_beside_it(event: Numbered) -> None:  # noqa: ARG001  as above
    """Await 200 ms."""
    await asyncio.sleep(stage.NAPS["slow"])
    stage.tick()
