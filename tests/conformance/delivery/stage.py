"""A database on either layout, a broker or none, and proof of the way by which each row reached its worker.

Without that proof the tests could pass while every worker quietly falls back to the database. So a trigger writes down
each claim with the statement that made it, and every test ends with a look at what it has written.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, Unpack

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from spectral.core.events import Consumer, DatabaseSettings
from spectral.core.events.bootstrap import relay, worker
from spectral.core.events.broker_settings import NO_BROKER, BrokerSettings, RelaySettings
from spectral.core.events.delivery.listener import Listener
from spectral.core.events.relay.process import Relay
from tests.integration.delivery.platform_worker import SETTINGS, Bench, Changes, Notes, soon, until
from tests.migrations.schema import role

NEVER: Final = timedelta(hours=1)
"""In these tests no row is claimed because its message is late, and none is sent again because its message seems lost.

Whoever loses a message on a fair day is not to be saved by what is there for foul ones.
"""

RELAY: Final = RelaySettings(
    poll=timedelta(seconds=0.2),  # by which it finds retries: nobody announces those
    grace=NEVER,
    lost=NEVER,
    reconnect=timedelta(seconds=0.05),
)

FORGIVING: Final = replace(RELAY, grace=timedelta(seconds=0.3))
"""A relay that sends again what seems lost, soon."""

_WITNESS: Final = """
create table public.claims (
    worker text not null, by_reference boolean not null, at timestamptz not null default clock_timestamp()
);
-- Of its owner: claims are made by functions that may do nothing here.
create function public.witness() returns trigger language plpgsql security definer as $$
begin
    -- What was set aside is had by its id, with a broker and without.
    insert into public.claims (worker, by_reference)
    select new.claimed_by, current_query() like '%core.outbox_claim_these(%'
    where current_query() not like '%core.outbox_claim_aside(%';
    return null;
end
$$;
create trigger witness after update of status on core.outbox
    for each row when (new.status = 'in_flight' and old.status = 'pending') execute function public.witness();
"""


@dataclass
class Stage(Bench):
    """The bench, with workers that take from the broker if there is one; `relayed` are the notes of the relays."""

    broker: BrokerSettings | None = None
    relayed: Notes = field(default_factory=Notes)
    _takes_since: dict[str, datetime] = field(default_factory=dict)

    @property
    def way(self) -> str:
        """From where workers take their rows."""
        return NO_BROKER if self.broker is None else self.broker.kind

    def worker(self, *consumers: Consumer, **changes: Unpack[Changes]) -> Listener:
        """A worker of generation 1 that was not started."""
        return self._worker(self.dsn, *consumers, **changes)

    @asynccontextmanager
    async def running(self, *consumers: Consumer, **changes: Unpack[Changes]) -> AsyncIterator[Listener]:
        """A worker that runs while the block does, and takes from where it should when the block begins."""
        async with super().running(*consumers, **changes) as listener:
            await self._takes(listener)
            yield listener

    @asynccontextmanager
    async def mortal(self, *consumers: Consumer, **changes: Unpack[Changes]) -> AsyncIterator[Callable[[], None]]:
        """A worker, and how to kill it: in the middle of whatever it does, and it cannot tell the database."""
        with role(self.dsn, groups=("spectral_worker",)) as own:
            await self.execute("grant insert on public.effects to spectral_worker")
            listener = self._worker(own, *consumers, **changes)
            task = asyncio.create_task(listener.run())

            def die() -> None:
                # Nothing of the worker runs between the two.
                self._cut_off(str(conninfo_to_dict(own)["user"]))
                task.cancel()

            try:
                await soon(listener.started())
                await self._takes(listener)
                yield die
            finally:
                if not task.cancelling():
                    die()
                await asyncio.wait({task})

    @asynccontextmanager
    async def relaying(self, settings: RelaySettings = RELAY) -> AsyncIterator[Relay | None]:
        """A relay that runs while the block does, if there is a broker to send to."""
        if self.broker is None:
            yield None
            return
        await self.execute("select core.relay_switch(%s, 'ada', 'test')", self.way)
        running = relay(
            settings=settings, broker=self.broker, database=DatabaseSettings(dsn=self.dsn), probe=self.relayed
        )
        task = asyncio.create_task(running.run())
        try:
            await until(lambda: task.done() or (running.health().is_ready and running.health().listening))
            yield running
        finally:
            running.stop()
            await soon(task)

    async def check_the_way(self) -> None:
        """Every claim of a worker that was up was made the way it should, and there was one."""
        cursor = await self.connection.execute("select worker, by_reference, at from public.claims order by at")
        ways = [
            claim["by_reference"]
            for claim in await cursor.fetchall()
            # Until it has found its broker a worker takes from the database, as it does when it has lost it.
            if claim["worker"] in self._takes_since and claim["at"] > self._takes_since[claim["worker"]]
        ]
        assert ways, "no worker has claimed anything"
        assert set(ways) == {self.broker is not None}, f"{ways.count(False)} of {len(ways)} claims were searched for"

    def _worker(self, dsn: str, *consumers: Consumer, **changes: Unpack[Changes]) -> Listener:
        return worker(
            *consumers,
            settings=replace(SETTINGS, **changes),
            database=DatabaseSettings(dsn=dsn),
            broker=self.broker,
            probe=self.notes,
        )

    async def _takes(self, listener: Listener) -> None:
        name = listener.health().worker
        await until(lambda: listener.health().takes_from == self.way)
        if self.broker is not None:
            # A search may still be under way; what follows it on the same connection is what a receiving worker asks.
            await until(
                lambda: self.value(
                    r"select bool_or(state = 'idle' and query ~ 'core\.outbox_claim_(late|these)\(')"
                    " from pg_stat_activity where datname = current_database() and application_name = %s",
                    f"spectral claim {name}",
                )
            )
        self._takes_since[name] = await self.value("select clock_timestamp()")

    def _cut_off(self, login: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as outside:
            outside.execute(sql.SQL("alter role {} nologin").format(sql.Identifier(login)))
            outside.execute("select pg_terminate_backend(pid, 5000) from pg_stat_activity where usename = %s", [login])


@asynccontextmanager
async def open_stage(dsn: str, broker: BrokerSettings | None) -> AsyncIterator[Stage]:
    """A stage on this database, with a table that handlers write to, and a relay if there is a broker."""
    unseen: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context))
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True, row_factory=dict_row) as connection:
        await connection.execute("create table public.effects (handler text, number integer)")
        await connection.execute(_WITNESS)
        stage = Stage(dsn, connection, broker=broker)
        async with stage.relaying():
            yield stage
        await stage.check_the_way()
    assert unseen == [], "errors that nobody looked at"
