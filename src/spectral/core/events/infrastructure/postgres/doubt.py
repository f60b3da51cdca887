"""Doubt: conclusions that were sent and whose answer was lost, and what the rows say of them.

A lease is of one claim, and is gone once its row is settled. What is left to tell by is what a settlement writes: the
state, whose the row was or what went wrong, and the count of attempts, which every claim raises and only a release
takes back. A row that somebody else has had since still says most of it. What it does not say is taken for not written:
so it is of a retry after which somebody else has failed, who may have done so in the same words. And if two answers in
a row are lost, a row that was given back, and that this worker claimed and delivered once more, passes for delivered
the first time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, assert_never

import psycopg

from spectral.core.events.describe import describe
from spectral.core.events.failure import SubstrateLostError
from spectral.core.events.infrastructure.postgres.script import rows_of, uuid_array
from spectral.core.events.infrastructure.postgres.session import passes
from spectral.core.events.outcome import AlreadyHandled, DeadLetter, Handled, Released, Retry

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from spectral.core.events.infrastructure.postgres.session import Session
    from spectral.core.events.ports import Conclusion

_BECAME: Final = b"select id, status, attempts, claimed_by, last_error from core.outbox_became(%s)"


class _Became(NamedTuple):
    """What a row is by now."""

    status: str
    attempts: int
    claimed_by: str | None
    last_error: str | None


async def stood(session: Session, doubted: Sequence[Conclusion], worker: str) -> dict[UUID, Conclusion]:
    """Which of these the rows say were written. Asked after whoever might have been writing them still has ended.

    None if the server refuses to say: it is asked only to tell somebody, and no worker ends for that.

    Raises:
        SubstrateLostError: it may work later.
    """
    if not doubted:
        return {}
    ids = [each.delivery.lease.row_id for each in doubted]
    try:
        (answer,) = await session.script(_BECAME % uuid_array(sorted(set(ids))))
    except psycopg.Error as error:
        if passes(error):
            raise SubstrateLostError(describe(error)) from None
        return {}
    became = {row_id: _Became(*found) for row_id, *found in rows_of(answer)}
    return {
        row_id: each
        for row_id, each in zip(ids, doubted, strict=True)
        if row_id in became and _is_written(each, became[row_id], worker)
    }


def _is_written(conclusion: Conclusion, row: _Became, worker: str) -> bool:
    attempts = conclusion.delivery.attempts
    match conclusion.outcome:
        case Handled() | AlreadyHandled():
            return row[:3] == ("delivered", attempts, worker)
        case Retry(error, _):  # neither the next claim nor a delivery changes it, and a reaper writes one of its own
            is_waiting = row[:3] == ("pending", attempts, None)
            is_tried_next = row.attempts == attempts + 1 and row.status in ("in_flight", "delivered")
            return row.last_error == error and (is_waiting or is_tried_next)
        case DeadLetter(error):
            return row == ("failed", attempts, worker, error)
        case Released():  # a claim of what was reaped instead would have raised the count
            was_claimed = row.status == "in_flight" or row.claimed_by not in (None, worker)
            return row[:3] == ("pending", attempts - 1, None) or (row.attempts == attempts and was_claimed)
        case _:
            assert_never(conclusion.outcome)
