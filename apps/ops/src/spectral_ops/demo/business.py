"""The business of the demo: scans are finished in `worlds`, `platform` keeps a projection of them.

`Producer` writes a scan and publishes in one transaction; some of its transactions roll back. `Consumer` is a delivery
loop by hand, verb by verb as the database offers them: claim, begin, (effect), settle.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from spectral.core.events import EventEnvelope
from spectral.core.events.bootstrap import publisher_for

if TYPE_CHECKING:
    from uuid import UUID

    import psycopg

    from spectral.core.events.delivery.publish import Publishing

EVENT_TYPE: Final = "worlds.scan.completed"
HANDLER: Final = "platform.project_scan"
GENERATION: Final = 1

SCHEMA: Final = """
    create table public.scans (number integer primary key);
    create table public.projected (number integer not null, worker text not null);
    insert into core.deployments (generation, status, promoted_at) values (1, 'live', clock_timestamp());
    insert into core.subscriptions (generation, context, event_type, handler_name)
        values (1, 'platform', 'worlds.scan.completed', 'platform.project_scan');
"""


class ChangedMindError(Exception):
    """The business transaction is rolled back."""


class Producer:
    """Finishes scans: the row and its event are one transaction."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], publishing: Publishing) -> None:
        self._connection = connection
        self._publisher = publisher_for(connection, publishing)

    async def finish(self, number: int, *, change_mind: bool = False) -> None:
        """Finish one scan; or change one's mind after publishing, and nothing ever happened."""
        async with self._connection.transaction():
            await self._connection.execute("insert into public.scans values (%s)", [number])
            await self._publisher.publish(
                EventEnvelope(event_type=EVENT_TYPE, source="worlds", target="platform", payload={"number": number})
            )
            if change_mind:
                raise ChangedMindError

    async def finish_many(self, numbers: range) -> None:
        """Finish thousands of scans in one transaction: two statements."""
        async with self._connection.transaction():
            await self._connection.execute(
                "insert into public.scans select * from generate_series(%s::integer, %s)", [numbers.start, numbers[-1]]
            )
            await self._publisher.publish_many(
                EventEnvelope(event_type=EVENT_TYPE, source="worlds", target="platform", payload={"number": number})
                for number in numbers
            )


class Claimed(NamedTuple):
    """What the consumer needs of a claimed row."""

    id: UUID
    token: UUID
    number: int


class Consumer:
    """A worker by hand."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], name: str) -> None:
        self._connection = connection
        self._name = name

    async def claim(self, limit: int = 50) -> list[Claimed]:
        """Take due events under a lease."""
        async with self._connection.transaction():
            cursor = await self._connection.execute(
                "select id, claim_token, (payload::jsonb ->> 'number')::integer from core.outbox_claim("
                "%s, 'platform', '{1}', '{outbox_gen_1,outbox_default}', %s, %s)",
                [self._name, [EVENT_TYPE], limit],
            )
            return [Claimed(*row) for row in await cursor.fetchall()]

    async def handle(self, claimed: list[Claimed]) -> None:
        """Effect, dedup record and acknowledgement of all of them commit together."""
        ids, tokens = [row.id for row in claimed], [row.token for row in claimed]
        count = len(claimed)
        async with self._connection.transaction():
            cursor = await self._connection.execute(
                "select id from core.outbox_begin(%s, %s, %s) where verdict = 'run'", [ids, tokens, [HANDLER] * count]
            )
            to_run = {row[0] for row in await cursor.fetchall()}
            effects = [row.number for row in claimed if row.id in to_run]
            await self._connection.execute(
                "insert into public.projected select number, %s from unnest(%s::integer[]) as number",
                [self._name, effects],
            )
            await self._settle(claimed, "delivered", None)

    async def fail(self, claimed: list[Claimed]) -> None:
        """Send them to the DLQ, as a handler that cannot succeed would."""
        async with self._connection.transaction():
            await self._settle(claimed, "dead_letter", "TerminalHandlerError: this scan cannot be read")

    async def _settle(self, claimed: list[Claimed], outcome: str, error: str | None) -> None:
        count = len(claimed)
        await self._connection.execute(
            "select core.outbox_settle(%s, %s, %s, %s::text[], %s::interval[])",
            [
                [row.id for row in claimed],
                [row.token for row in claimed],
                [outcome] * count,
                [error] * count,
                [None] * count,
            ],
        )
