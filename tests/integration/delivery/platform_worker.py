"""A worker of the platform context in this process, and what a test wants to do to it and to know of it."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypedDict, TypeVar, Unpack
from uuid import UUID

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row
from pydantic import BaseModel

from spectral.core.events import (
    Consumer,
    DatabaseSettings,
    EventEnvelope,
    PublishSettings,
    RetryPolicy,
    Transaction,
    WorkerSettings,
    WorkerTimes,
)
from spectral.core.events.bootstrap import publisher_for, publishing, worker
from spectral.core.events.delivery.listener import Listener
from spectral.core.events.probe import Note, NoteTaker

COMPLETED = "worlds.scan.completed"
STARTED = "worlds.scan.started"
DEADLINE = 30.0

TIMES = WorkerTimes(
    poll=timedelta(seconds=60),  # whatever is delivered sooner was announced or timed
    poll_deaf=timedelta(seconds=0.3),
    heartbeat=timedelta(seconds=1),
    answer=timedelta(seconds=5),
    reconnect=timedelta(seconds=0.1),
    reconnect_cap=timedelta(seconds=0.5),
    grace=timedelta(seconds=1),
    reap=timedelta(seconds=0.2),
    stop=timedelta(seconds=10),
    patience=timedelta(seconds=0.3),
)

SETTINGS = WorkerSettings(
    generation=1,
    times=TIMES,
    commit_within=timedelta(seconds=1),  # neighbours share a commit, however slow the machine is
)

NEVER_AGAIN = RetryPolicy(max_retries=0)
AT_ONCE = RetryPolicy(max_retries=3, base=timedelta(0), cap=timedelta(0))

N = TypeVar("N", bound=Note)
T = TypeVar("T")


class Scan(BaseModel):
    """The platform's view of a scan."""

    number: int


class Changes(TypedDict, total=False):
    """Settings in which a worker differs from the others."""

    generation: int
    accept_generations: frozenset[int]
    classes: tuple[str, ...]
    name: str
    lanes: int
    batch: int
    concurrency: int
    commit_within: timedelta
    replace_subscriptions: bool
    times: WorkerTimes


class Notes(NoteTaker):
    """A probe that remembers."""

    def __init__(self) -> None:
        self._told: list[Note] = []

    def tell(self, note: Note) -> None:
        self._told.append(note)

    def forget(self) -> None:
        self._told.clear()

    def of(self, kind: type[N]) -> list[N]:
        return [note for note in self._told if isinstance(note, kind)]


async def until(condition: Callable[[], object | Awaitable[object]], within: float = DEADLINE) -> None:
    """Wait for something that no signal announces."""
    deadline = time.monotonic() + within
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return
        if time.monotonic() > deadline:
            raise AssertionError(f"still not so after {within} s: {inspect.getsource(condition).strip()}")
        await asyncio.sleep(0.01)


async def soon(awaited: Awaitable[T]) -> T:
    """Wait for a signal, but not for ever."""
    async with asyncio.timeout(DEADLINE):
        return await awaited


async def write_effect(tx: Transaction, handler: str, number: int) -> None:
    """What a transactional handler does."""
    await tx.execute("insert into public.effects (handler, number) values (%s, %s)", [handler, number])


@dataclass
class Bench:
    """One database, the workers on it, and whoever looks at both."""

    dsn: str
    connection: psycopg.AsyncConnection[Any]
    notes: Notes = field(default_factory=Notes)

    # what happens before

    async def publish(
        self,
        *numbers: int,
        event_type: str = COMPLETED,
        **given: Any,  # noqa: ANN401  fields of the envelope, options of publish
    ) -> list[UUID]:
        """Publish one event for each number, in one transaction; answers their ids."""
        fields = {"source": "worlds", "target": "platform", **given}
        generation = fields.pop("generation", 1)
        options = {name: fields.pop(name) for name in ("delay", "processing_class") if name in fields}
        envelopes = [EventEnvelope(event_type=event_type, payload={"number": each}, **fields) for each in numbers]
        async with self.connection.transaction():
            publisher = publisher_for(self.connection, publishing(PublishSettings(generation=generation)))
            await publisher.publish_many(envelopes, **options)
        return [envelope.event_id for envelope in envelopes]

    async def insert(self, **columns: object) -> UUID:
        """Insert a row as somebody would who has SQL and no library."""
        given = {
            "event_type": COMPLETED,
            "source": "worlds",
            "target": "platform",
            "generation": 1,
            "channel": "outbox_gen_1",
        } | columns
        statement = sql.SQL("insert into core.outbox ({}) values ({}) returning id").format(
            sql.SQL(", ").join(map(sql.Identifier, given)), sql.SQL(", ").join(map(sql.Placeholder, given))
        )
        row = await self._one(statement, given)
        return UUID(str(row["id"]))

    # what happens meanwhile

    def worker(self, *consumers: Consumer, **changes: Unpack[Changes]) -> Listener:
        """A worker of generation 1 that was not started."""
        return worker(
            *consumers,
            settings=replace(SETTINGS, **changes),
            database=DatabaseSettings(dsn=self.dsn),
            probe=self.notes,
        )

    @asynccontextmanager
    async def running(self, *consumers: Consumer, **changes: Unpack[Changes]) -> AsyncIterator[Listener]:
        """A worker that runs while the block does."""
        async with self.worker(*consumers, **changes) as listener:
            await listener.started()
            await until(lambda: listener.health().listening)
            yield listener

    async def drain(self, *consumers: Consumer, **changes: Unpack[Changes]) -> Listener:
        """Run a worker until nothing is due and nothing held."""
        listener = self.worker(*consumers, **changes)
        async with asyncio.timeout(DEADLINE):
            await listener.run(until="drained")
        return listener

    async def execute(self, statement: str, *parameters: object) -> None:
        """Do something to the database."""
        await self.connection.execute(statement.encode(), parameters)

    async def value(self, statement: str, *parameters: object) -> Any:  # noqa: ANN401  whatever the column holds
        """The one value that a statement answers."""
        (value,) = (await self._one(statement.encode(), parameters)).values()
        return value

    # what is so afterwards

    async def row(self, event_id: UUID) -> dict[str, Any]:
        """One row of the outbox, as far as it can always be read."""
        return await self._one(
            "select status, attempts, last_error, first_failed_at, next_attempt_at, delivered_at, claim_token,"
            " claimed_by, generation, failure_history from core.outbox where id = %s",
            [event_id],
        )

    async def status(self, event_id: UUID) -> str:
        """Where a row is in its life."""
        return str((await self.row(event_id))["status"])

    async def statuses(self) -> Counter[str]:
        """How many rows are in which state."""
        cursor = await self.connection.execute("select status, count(*) as rows from core.outbox group by status")
        return Counter({row["status"]: row["rows"] for row in await cursor.fetchall()})

    async def all_are(self, status: str) -> bool:
        """Whether every row is in this state."""
        return (await self.statuses()).keys() == {status}

    async def effects(self) -> list[tuple[str, int]]:
        """What handlers wrote, in order."""
        cursor = await self.connection.execute("select handler, number from public.effects order by handler, number")
        return [(row["handler"], row["number"]) for row in await cursor.fetchall()]

    async def keys(self) -> list[str]:
        """The handlers that hold a dedup key, one for each key."""
        cursor = await self.connection.execute("select handler_name from core.event_handled order by handler_name")
        return [row["handler_name"] for row in await cursor.fetchall()]

    async def backends(self, kind: str = "%") -> list[int]:
        """The server processes of workers' connections: ear, keep, claim, settle, lane."""
        cursor = await self.connection.execute(
            "select pid from pg_stat_activity where datname = current_database() and application_name like %s",
            [f"spectral {kind} %"],
        )
        return [row["pid"] for row in await cursor.fetchall()]

    async def is_left_alone(self) -> bool:
        """Whether no worker is connected any more."""
        return await self.backends() == []

    async def take_away(self, event_id: UUID, *, for_good: bool = True) -> None:
        """Take a row's claim back as a reaper would that thinks its worker dead."""
        async with self.connection.transaction():
            await self.execute(
                "update core.outbox set status = 'pending', claim_token = null, claimed_by = null,"
                " last_error = 'X: taken', next_attempt_at = clock_timestamp()"
                " + case when %s then interval '1 day' else '0 s' end where id = %s",
                for_good,
                event_id,
            )

    async def terminate(self, kind: str) -> None:
        """Cut workers' connections of a kind from the server's side."""
        for pid in await self.backends(kind):
            await self.execute("select pg_terminate_backend(%s)", pid)

    @asynccontextmanager
    async def down(self) -> AsyncIterator[None]:
        """Nobody but this connection gets through to the database, and whoever was there is thrown out."""
        elsewhere = make_conninfo(self.dsn, dbname="postgres")
        name = sql.Identifier(await self.value("select current_database()"))
        async with await psycopg.AsyncConnection.connect(elsewhere, autocommit=True) as outside:
            await outside.execute(sql.SQL("alter database {} allow_connections false").format(name))
            try:
                await self.terminate("%")
                yield
            finally:
                await outside.execute(sql.SQL("alter database {} allow_connections true").format(name))

    async def _one(
        self, statement: str | bytes | sql.Composed, parameters: Sequence[object] | Mapping[str, object]
    ) -> dict[str, Any]:
        cursor = await self.connection.execute(statement, parameters)
        row: dict[str, Any] | None = await cursor.fetchone()
        assert row is not None
        return row


@asynccontextmanager
async def open_bench(dsn: str) -> AsyncIterator[Bench]:
    """A bench on this database, with a table that handlers write to."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True, row_factory=dict_row) as connection:
        await connection.execute("create table public.effects (handler text, number integer)")
        yield Bench(dsn, connection)


def shortened(**times: float) -> WorkerTimes:
    """The tests' times but for these, in seconds."""
    return replace(TIMES, **{name: timedelta(seconds=seconds) for name, seconds in times.items()})
