"""System Cards: what worlds has said of its world models, kept as it was said."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from psycopg.rows import tuple_row
from psycopg.types.json import Jsonb

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime
    from uuid import UUID

    import psycopg

# A revision says the same whenever it is told.
_INSERT: Final = """
    insert into platform.system_card_snapshots (world_model_id, revision, workspace_id, event_id, card, published_at)
    values (%s, %s, %s, %s, %s, %s)
    on conflict (world_model_id, revision) do nothing
"""
_CURRENT: Final = """
    select world_model_id, revision, workspace_id, event_id, card, published_at
    from platform.system_card_snapshots
    where world_model_id = %s
    order by revision desc
    limit 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One revision of a card; `card` is the payload of the event, with what platform does not know of too."""

    world_model_id: UUID
    revision: int
    workspace_id: UUID | None
    event_id: UUID
    card: Mapping[str, Any]
    published_at: datetime


async def keep_snapshot(connection: psycopg.AsyncConnection[Any], snapshot: Snapshot) -> None:
    """Keep the revision in the caller's transaction; one that is known already stays as it is."""
    await connection.execute(
        _INSERT,
        [
            snapshot.world_model_id,
            snapshot.revision,
            snapshot.workspace_id,
            snapshot.event_id,
            Jsonb(snapshot.card),
            snapshot.published_at,
        ],
    )


async def current_system_card(connection: psycopg.AsyncConnection[Any], world_model_id: UUID) -> Snapshot | None:
    """The newest revision that has arrived; none if none has."""
    cursor = connection.cursor(row_factory=tuple_row)
    row = await (await cursor.execute(_CURRENT, [world_model_id])).fetchone()
    if row is None:
        return None
    model, revision, workspace_id, event_id, card, published_at = row
    return Snapshot(
        world_model_id=model,
        revision=revision,
        workspace_id=workspace_id,
        event_id=event_id,
        card=card,
        published_at=published_at,
    )
