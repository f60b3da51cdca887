"""Conclusions as statements: which handlers took effect, what became of the row, what is given back. All fenced."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never
from uuid import UUID

from psycopg import sql

from spectral.core.events.outcome import AlreadyHandled, DeadLetter, Handled, Outcome, Released, Retry

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from spectral.core.events.infrastructure.postgres.script import Rows
    from spectral.core.events.lease import Lease
    from spectral.core.events.ports import Conclusion

_BEGIN: Final = sql.SQL("select verdict from core.outbox_begin({}::uuid[], {}::uuid[], {}::text[])")
_SETTLE: Final = sql.SQL(
    "select id from core.outbox_settle({}::uuid[], {}::uuid[], {}::text[], {}::text[], {}::interval[])"
)
_RELEASE: Final = sql.SQL("select released from core.outbox_release({}::uuid[], {}::uuid[]) as released")


def begin(leases: Sequence[Lease], handler_names: Sequence[str]) -> sql.Composed:
    """Pass the gate for these rows and handlers."""
    return _BEGIN.format(*_parallel(leases), list(handler_names))


def statements(conclusions: Sequence[Conclusion]) -> list[sql.Composed]:
    """What writes these; `standing` reads the answers."""
    begun = [(each.delivery.lease, name) for each in conclusions for name in each.succeeded]
    written = [(each.delivery.lease, _written(each.outcome)) for each in conclusions]
    settled = [(lease, *words) for lease, words in written if words is not None]
    released = [lease for lease, words in written if words is None]
    script: list[sql.Composed] = []
    if begun:
        script.append(begin([lease for lease, _ in begun], [name for _, name in begun]))
    if settled:
        leases, outcomes, errors, delays = zip(*settled, strict=True)
        script.append(_SETTLE.format(*_parallel(leases), list(outcomes), list(errors), list(delays)))
    if released:
        script.append(_RELEASE.format(*_parallel(released)))
    return script


def standing(conclusions: Sequence[Conclusion], answers: Sequence[Rows]) -> set[UUID]:
    """The rows whose lease still stood, out of the answers to `statements`."""
    settling = answers[1:] if any(each.succeeded for each in conclusions) else answers
    # A handler may have taught its connection to read ids as something else.
    return {UUID(str(row_id)) for rows in settling for (row_id,) in rows}


def _parallel(leases: Sequence[Lease]) -> tuple[list[UUID], list[UUID]]:
    return [lease.row_id for lease in leases], [lease.token for lease in leases]


def _written(outcome: Outcome) -> tuple[str, str | None, timedelta | None] | None:
    """The outcome in the words of `core.outbox_settle`; none is a release."""
    match outcome:
        case Handled() | AlreadyHandled():
            return "delivered", None, None
        case Retry(error, delay):
            return "retry", error, delay
        case DeadLetter(error):
            return "dead_letter", error, None
        case Released():
            return None
        case _:
            assert_never(outcome)
