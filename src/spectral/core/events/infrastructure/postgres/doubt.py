"""Doubt: conclusions that were sent and whose answer was lost, and what the rows say of them.

A lease is of one claim, and is gone once its row is settled. What is left to tell by is what a settlement writes: the
state, the count of attempts, which every claim raises, and whose the row was or what went wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, assert_never

from psycopg import sql

from spectral.core.events.infrastructure.postgres.script import rows_of
from spectral.core.events.outcome import AlreadyHandled, DeadLetter, Handled, Released, Retry

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from spectral.core.events.infrastructure.postgres.session import Session
    from spectral.core.events.ports import Conclusion

_BECAME: Final = sql.SQL("select id, status, attempts, claimed_by, last_error from core.outbox_became({}::uuid[])")


class _Became(NamedTuple):
    """What a row is by now."""

    status: str
    attempts: int
    claimed_by: str | None
    last_error: str | None


async def stood(session: Session, doubted: Sequence[Conclusion], worker: str) -> dict[UUID, Conclusion]:
    """Which of these the rows say were written. Asked after whoever might have been writing them still has ended.

    Raises:
        SubstrateLostError: it may work later.
    """
    if not doubted:
        return {}
    ids = [each.delivery.lease.row_id for each in doubted]
    (answer,) = await session.ask_script(_BECAME.format(sorted(set(ids))))
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
        case Retry(error, _):
            return row == ("pending", attempts, None, error)
        case DeadLetter(error):
            return row == ("failed", attempts, worker, error)
        case Released():
            return row[:3] == ("pending", attempts - 1, None)
        case _:
            assert_never(conclusion.outcome)
