"""The dedup log by hash, which is the one part that copies: a twin, a trigger that writes to both, the exchange.

The key of the table in use stays the gate until the exchange, and the twin's is it from then on; both hold the same
rows in that moment, so a handler takes effect once throughout. The exchange is the last step: there is no way back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spectral.core.partitions.grants import copy_grants
from spectral.core.partitions.patience import patiently, without_limit
from spectral.core.partitions.telling import lockable

if TYPE_CHECKING:
    from spectral.core.database import Database
    from spectral.core.partitions.telling import Teller
    from spectral.core.partitions.values import EnableOptions

_POSITION = 5
_TABLE = "core.event_handled"


async def convert_dedup(
    database: Database, teller: Teller, options: EnableOptions, who: tuple[str, str | None]
) -> None:
    """Lay the dedup log out by hash. Begun again after anything that came between, it copies what is missing."""
    tell = teller.attempts("dedup", _POSITION, "core.event_handled by hash")
    with lockable(_TABLE):
        blocks = await patiently(
            database, "select core.partitions_dedup_prepare(%s, %s)", who, options.give_up_after, tell
        )
    if blocks is None:
        return
    await copy_grants(database, _TABLE, "core.event_handled_hashed")
    for begin in range(0, blocks, options.copy_at_once):
        end = min(begin + options.copy_at_once, blocks)
        await without_limit(database, "select core.partitions_dedup_copy(%s, %s)", [begin, end])
        teller.tell("dedup", _POSITION, f"copied {end:,} of {blocks:,} blocks of the dedup log")
    with lockable(_TABLE):
        await patiently(database, "select core.partitions_dedup_switch(%s, %s)", who, options.give_up_after, tell)


async def is_copying(database: Database) -> bool:
    """Whether a copy was begun, and not exchanged."""
    return bool(await database.value("select to_regclass('core.event_handled_hashed') is not null"))


async def undo_dedup(database: Database, options: EnableOptions, who: tuple[str, str | None]) -> None:
    """Take the twin and the trigger away, if they are there and the exchange was not made."""
    with lockable(_TABLE):
        await patiently(database, "select core.partitions_dedup_undo(%s, %s)", who, options.give_up_after)
