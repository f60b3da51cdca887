"""What the tour asks of the database, and does there as a deploy tool or an operator would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    import psycopg

    from spectral_ops.demo.crew import Worker


class Standing(NamedTuple):
    """How far the events of one generation are; of a broadcast, its shares count."""

    generation: int
    total: int
    delivered: int
    in_flight: int
    failed: int


class Business(NamedTuple):
    """What its tables say: decisions in all, scans among them and their projections; and events without a target."""

    decided: int
    scans: int
    projected: int
    broadcasts: int


class Outbox:
    """`core.outbox` and its neighbours, over one connection in autocommit mode."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def standings(self) -> list[Standing]:
        """How far everything is."""
        return [
            Standing(*row)
            for row in await self._rows("""
                select generation, count(*), count(*) filter (where status = 'delivered'),
                       count(*) filter (where status = 'in_flight'), count(*) filter (where status = 'failed')
                from core.outbox where target is not null group by 1 order by 1
            """)
        ]

    async def held_by(self, worker: Worker, event_type: str | None = None) -> list[UUID]:
        """The rows this worker has claimed and not settled, of one type or of any."""
        rows = await self._rows(
            "select id from core.outbox where status = 'in_flight' and claimed_by = %s"
            " and event_type = coalesce(%s, event_type)",
            worker.identity,
            event_type,
        )
        return [row_id for (row_id,) in rows]

    async def sessions_of(self, worker: Worker) -> int:
        """How many connections of this worker the server still serves."""
        return await self._count(
            "select count(*) from pg_stat_activity where position(%s in application_name) > 0", worker.identity
        )

    async def delivered_among(self, row_ids: Sequence[UUID]) -> int:
        """How many of these rows are delivered."""
        return await self._count(
            "select count(*) from core.outbox where id = any (%s) and status = 'delivered'", list(row_ids)
        )

    async def open_of(self, generation: int) -> int:
        """How many rows of this generation are not at their end."""
        return await self._count(
            "select count(*) from core.outbox where generation = %s and status in ('pending', 'in_flight')", generation
        )

    async def promote(self, generation: int) -> None:
        """Make this generation the live one, and have the one before drain."""
        await self._rows("select core.deployment_promote(%s, 'demo', 'the next release')", generation)

    async def retire(self, generation: int) -> None:
        """Say that nothing is left of this generation; the database refuses if something is."""
        await self._rows("select core.deployment_retire(%s, 'demo', 'it has drained')", generation)

    async def dead_letters(self) -> list[tuple[UUID, str]]:
        """The DLQ: ids and errors."""
        return [
            (row_id, error)
            for row_id, error in await self._rows(
                "select id, last_error from core.outbox where status = 'failed' and deleted_at is null order by id"
            )
        ]

    async def replay(self, row_ids: Sequence[UUID], generation: int, reason: str) -> int:
        """Send dead letters back to work; answers how many were not refused."""
        return await self._count(
            "select count(cycle) from core.outbox_replay_many(%s, %s, 'demo', %s)", list(row_ids), generation, reason
        )

    async def handled_by_generation(self) -> dict[int, int]:
        """How many events each generation of workers handled."""
        return dict(
            await self._rows(
                "select generation, count(distinct (handler, key)) from public.spectral_effects group by 1 order by 1"
            )
        )

    async def business(self, event_type: str) -> Business:
        """What the business has; its scans are decisions of this type."""
        (row,) = await self._rows(
            "select count(*), count(*) filter (where event_type = %s), (select count(*) from public.projections),"
            " (select count(*) from core.outbox where target is null) from public.decisions",
            event_type,
        )
        return Business(*row)

    async def _count(self, query: str, *parameters: object) -> int:
        ((count,),) = await self._rows(query, *parameters)
        return int(count)

    async def _rows(self, query: str, *parameters: object) -> list[tuple[Any, ...]]:
        cursor = await self._connection.execute(query.encode(), parameters)
        return await cursor.fetchall()
