"""Following events on a terminal: what is printed, and what becomes of it when the database is away or slow."""

from __future__ import annotations

import asyncio
import json
import signal
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import typer

from spectral.core.database import DatabaseTooSlowError, DatabaseUnavailableError, connect
from spectral.core.operations.documents import as_document
from spectral.core.operations.tail import Missed, TailMemory, recent, tail
from spectral_ops.cli.events_options import plain, when
from spectral_ops.cli.output import note

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator
    from datetime import timedelta
    from typing import Any

    from spectral.core.database import Database
    from spectral.core.operations.events import EventFilter
    from spectral.core.operations.tail import Change

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What to show, how many to begin with, how often to look (none: not at all after that), and how to print it."""

    wanted: EventFilter
    last: int
    every: timedelta | None
    as_json: bool


def follow(dsn: str, wish: Wish) -> None:
    """Print what happens until somebody stops it.

    Raises:
        DatabaseUnavailableError: there was no connection to begin with.
        DatabaseTooSlowError: nor was there a first answer.
    """
    asyncio.run(_follow(dsn, wish))


async def _follow(dsn: str, wish: Wish) -> None:
    memory, began, pause = TailMemory(), False, _FIRST_PAUSE
    with _stopped() as stop:
        while not stop.is_set():
            try:
                async with connect(dsn, "tail") as database:
                    if not began:
                        await _begin(database, wish, memory)
                        began = True
                    if wish.every is None:
                        return
                    pause = _FIRST_PAUSE
                    await _until(stop, _print_changes(database, wish, wish.every, memory))
            except (DatabaseTooSlowError, DatabaseUnavailableError) as error:
                if not began:
                    raise
                note(f"{error}; trying again in {pause:g} s")
                await _until(stop, asyncio.sleep(pause))
                pause = min(pause * 2, _LONGEST_PAUSE)


async def _begin(database: Database, wish: Wish, memory: TailMemory) -> None:
    for change in await recent(database, wish.wanted, memory, limit=wish.last):
        _print(change, as_json=wish.as_json)


async def _print_changes(database: Database, wish: Wish, every: timedelta, memory: TailMemory) -> None:
    async for each in tail(database, wish.wanted, every=every, memory=memory):
        if isinstance(each, Missed):
            note("more happened than can be shown; some of it is left out")
        else:
            _print(each, as_json=wish.as_json)


def _print(change: Change, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(as_document(change), ensure_ascii=False))
        return
    event = change.event
    error = f"  {plain(event.error)}" if event.error and change.what in {"failed", "to be retried"} else ""
    to = plain(event.context) or "(broadcast)"
    what = change.what.replace("_", " ")
    typer.echo(f"{when(change.at)}  {what:13}  {event.id}  {plain(event.event_type)} > {to}{error}")


async def _until(stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> None:
    """Do this until it is done, fails, or somebody wants to stop."""
    doing, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    await asyncio.wait([doing, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if doing.cancel():
        await asyncio.wait([doing])
    else:
        doing.result()


@contextmanager
def _stopped() -> Generator[asyncio.Event]:
    """Set by Ctrl-C, and by SIGTERM."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
