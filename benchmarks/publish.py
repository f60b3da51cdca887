"""`make bench`: what publishing costs against the bare SQL it consists of, as ratios within one run.

Rounds are interleaved, so that a slow moment of the machine hits all contenders alike; medians and spread are shown,
never an absolute promise.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
from rich.console import Console
from rich.table import Table

from spectral.core.embedded import EmbeddedPostgres
from spectral.core.events import EventEnvelope, PublishSettings
from spectral.core.events.bootstrap import publisher_for, publishing
from spectral.core.migrations import up

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

ROUNDS: Final = 5
BULK: Final = 10_000
SINGLES: Final = 400
RESULT: Final = Path(".cache") / "bench-publish.json"

_COLUMNS: Final = (
    "id, event_type, event_version, occurred_at, source, target, workspace_id, payload, idempotency_key,"
    " trace_context, channel, generation, content_class"
)
_BARE_INSERT: Final = (
    b"insert into core.outbox (event_type, source, target, payload, generation, channel)"
    b" values ('worlds.scan.completed', 'worlds', 'platform', '{\"number\": 1}', 1, 'outbox_gen_1')"
)


@dataclass(frozen=True, slots=True)
class Contender:
    """One way of doing the work; `run` answers how many events it published."""

    name: str
    against: str
    run: Callable[[], Awaitable[int]]


class Contest:
    """The contenders on one server."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._shared = publishing(PublishSettings(generation=1))

    async def bulk_publish(self) -> int:
        """`publish_many` of prepared envelopes."""
        envelopes = [_event(number) for number in range(BULK)]
        async with await self._connect() as connection, connection.transaction():
            self._started = time.perf_counter()
            return await publisher_for(connection, self._shared).publish_many(envelopes)

    async def bulk_insert_select(self) -> int:
        """The same rows from a table that is already in the server."""
        async with await self._connect() as connection:
            await connection.execute("create temp table rows (like core.outbox including defaults)")
            await connection.execute(
                f"insert into rows ({_COLUMNS}) select core.uuid7(), 'worlds.scan.completed', 1, now(), 'worlds',"  # noqa: S608  constants
                " 'platform', null, jsonb_build_object('number', n), core.uuid7()::text, null, 'outbox_gen_1', 1,"
                f" 'event' from generate_series(1, {BULK}) as n"
            )
            self._started = time.perf_counter()
            await connection.execute(f"insert into core.outbox ({_COLUMNS}) select {_COLUMNS} from rows")  # noqa: S608  constants
        return BULK

    async def single_publish(self) -> int:
        """One event in each transaction, on one connection."""
        async with await self._connect() as connection:
            publisher = publisher_for(connection, self._shared)
            self._started = time.perf_counter()
            for number in range(SINGLES):
                async with connection.transaction():
                    await publisher.publish(_event(number))
        return SINGLES

    async def single_insert(self) -> int:
        """The bare INSERT in each transaction, on one connection."""
        async with await self._connect() as connection:
            self._started = time.perf_counter()
            for _ in range(SINGLES):
                async with connection.transaction():
                    await connection.execute(_BARE_INSERT)
        return SINGLES

    def contenders(self) -> list[Contender]:
        """In pairs: ours, and the bare SQL it is measured against."""
        return [
            Contender("publish_many, 10,000 events", "insert ... select of the same rows", self.bulk_publish),
            Contender("insert ... select of the same rows", "", self.bulk_insert_select),
            Contender("publish, one per transaction", "bare insert, one per transaction", self.single_publish),
            Contender("bare insert, one per transaction", "", self.single_insert),
        ]

    async def timed(self, contender: Contender) -> float:
        """Events per second of one round."""
        count = await contender.run()
        return count / (time.perf_counter() - self._started)

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(self._dsn, autocommit=True)


def _event(number: int) -> EventEnvelope:
    return EventEnvelope(
        event_type="worlds.scan.completed", source="worlds", target="platform", payload={"number": number}
    )


async def _measure(dsn: str) -> dict[str, list[float]]:
    contest = Contest(dsn)
    rates: dict[str, list[float]] = {contender.name: [] for contender in contest.contenders()}
    for turn in range(ROUNDS + 1):
        sys.stderr.write(f"round {turn} of {ROUNDS}{' (warm-up)' if turn == 0 else ''}\n")
        for contender in contest.contenders():
            rate = await contest.timed(contender)
            if turn:
                rates[contender.name].append(rate)
    return rates


def _report(rates: dict[str, list[float]]) -> None:
    against = {contender.name: contender.against for contender in Contest("").contenders()}
    table = Table("", "events/s", "spread", "of the bare SQL", box=None, pad_edge=False)
    medians = {name: statistics.median(found) for name, found in rates.items()}
    for name, median in medians.items():
        ratio = f"{median / medians[against[name]]:.2f}" if against[name] else ""
        table.add_row(name, f"{median:,.0f}", f"{min(rates[name]):,.0f} to {max(rates[name]):,.0f}", ratio)
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({"rates": rates, "medians": medians}, indent=2))


def main() -> None:
    """Run the contest on a server of its own, with fsync on."""
    with EmbeddedPostgres() as server:
        up(server.dsn)
        _report(asyncio.run(_measure(server.dsn)))


if __name__ == "__main__":
    main()
