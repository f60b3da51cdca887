"""`spectral top`: delivery as it goes. What it shows is read and judged in `spectral.core.operations`."""

from __future__ import annotations

import json
import signal
import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from spectral_ops.cli.running import with_database

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Generator

    from spectral.core.database import Database
    from spectral.core.operations.insights import Snapshot
    from spectral.core.operations.insights_rates import Rates

    Draw = Callable[[Snapshot, Rates], None]


def top(
    interval: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between two looks.")] = 2.0,
    once: Annotated[
        bool, typer.Option("--once", help="Two looks, one picture, and out; so it is without a terminal.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document for each look, a line each.")] = False,
) -> None:
    """Watch backlog, workers and rates live, until q or Ctrl-C.

    Published counts rows that reach the outbox, a broadcast's shares included; handled counts one for each handler and
    event. Both are differences of the server's own counters, which lag by up to a second.
    """
    single = once or not (as_json or sys.stdout.isatty())

    async def run(database: Database) -> None:
        with _ended_by_signal() as stop, _picture(as_json=as_json, live=not single) as draw:
            await _watch(database, interval, draw, stop, single=single)

    with_database("top", run)


async def _watch(database: Database, interval: float, draw: Draw, stop: asyncio.Event, *, single: bool) -> None:
    import asyncio  # noqa: PLC0415  --help must not pay for it

    from spectral.core.operations.insights import take_snapshot  # noqa: PLC0415  psycopg; --help must not pay for it
    from spectral.core.operations.insights_rates import rates  # noqa: PLC0415  as above

    before = await take_snapshot(database)
    if not single:
        draw(before, rates(before, before))
    while not stop.is_set():
        try:
            await asyncio.wait_for(stop.wait(), interval)
        except TimeoutError:
            after = await take_snapshot(database)
            draw(after, rates(before, after))
            before = after
            if single:
                return


@contextmanager
def _picture(*, as_json: bool, live: bool) -> Generator[Draw]:
    """What to do with each look."""
    if as_json:
        yield _print_line
        return
    from spectral_ops.cli import status_screen, top_screen  # noqa: PLC0415  rich

    console = status_screen.screen()
    if not live:
        yield lambda snapshot, rates: status_screen.show(console, *top_screen.parts(snapshot, rates, (), console.width))
        return
    from rich.live import Live  # noqa: PLC0415  rich

    history: list[Rates] = []
    with Live(console=console, screen=True, auto_refresh=False) as picture:

        def draw(snapshot: Snapshot, rates: Rates) -> None:
            history.append(rates)
            del history[: -top_screen.REMEMBERED]
            picture.update(top_screen.frame(snapshot, rates, history, console.width), refresh=True)

        yield draw


def _print_line(snapshot: Snapshot, rates: Rates) -> None:
    from spectral.core.operations.documents import as_document  # noqa: PLC0415  pydantic; --help must not pay for it
    from spectral.core.operations.verdict import judge  # noqa: PLC0415  as above

    document = as_document({"verdict": judge(snapshot), "rates": rates, "snapshot": snapshot})
    typer.echo(json.dumps(document, ensure_ascii=False))


@contextmanager
def _ended_by_signal() -> Generator[asyncio.Event]:
    """An event that is set by Ctrl-C, and by q where there is a keyboard."""
    import asyncio  # noqa: PLC0415  --help must not pay for it

    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        with _keys(loop, stop) if sys.stdin.isatty() else nullcontext():
            yield stop
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


@contextmanager
def _keys(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> Generator[None]:
    import termios  # noqa: PLC0415  only where there is a terminal
    import tty  # noqa: PLC0415  as above

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)

    def read() -> None:
        if sys.stdin.read(1) in {"q", "Q", ""}:
            stop.set()

    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, read)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
