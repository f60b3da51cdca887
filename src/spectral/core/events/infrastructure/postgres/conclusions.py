"""Conclusions as statements: which handlers took effect, what became of the row, what is given back. All fenced."""

from __future__ import annotations

import re
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Final, assert_never

from psycopg import sql

from spectral.core.events.consumer import HANDLER_NAME_PATTERN
from spectral.core.events.infrastructure.postgres.script import rows_of
from spectral.core.events.outcome import AlreadyHandled, DeadLetter, Handled, Outcome, Released, Retry

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta
    from uuid import UUID

    from psycopg.pq.abc import PGresult

    from spectral.core.events.consumer import Handler
    from spectral.core.events.infrastructure.postgres.script import Statement
    from spectral.core.events.lease import Delivery, Lease
    from spectral.core.events.ports import Conclusion

_BEGIN: Final = sql.SQL("select verdict from core.outbox_begin({}::uuid[], {}::uuid[], {}::text[])")
_SETTLE: Final = sql.SQL(
    "select id from core.outbox_settle({}::uuid[], {}::uuid[], {}::text[], {}::text[], {}::interval[])"
)
_HANDLER_NAME: Final = re.compile(HANDLER_NAME_PATTERN)
_MAX_NAMES: Final = 1_000
_DELIVERED: Final = (Handled, AlreadyHandled)
_DELIVER: Final = (
    b"select delivered from core.outbox_deliver('{%s}'::uuid[], '{%s}'::uuid[], '{%s}'::uuid[], '{%s}'::text[])"
    b" as delivered"
)
_TOGETHER: Final = b"select core.outbox_%s_together('{%s}'::uuid[], '{%s}'::uuid[], '{%s}'::text[])"
_RELEASE: Final = sql.SQL("select released from core.outbox_release({}::uuid[], {}::uuid[]) as released")


def begin(leases: Sequence[Lease], handler_names: Sequence[str]) -> sql.Composed:
    """Pass the gate for these rows and handlers."""
    return _BEGIN.format(*_parallel(leases), list(handler_names))


def begin_one(lease: Lease, handler_name: str) -> bytes:
    """The same for one row and handler, which is what a lane does all day."""
    row_id, token = lease.row_id.hex.encode(), lease.token.hex.encode()
    return b"select core.outbox_begin_one('%s', '%s', '%s')" % (row_id, token, _safe(handler_name).encode())


class Together:
    """Rows that are begun together, each with its handler, and of which the first so many are delivered together."""

    def __init__(self, runs: Sequence[tuple[Delivery, Handler]]) -> None:
        self._ids = [delivery.lease.row_id.hex for delivery, _ in runs]
        self._tokens = [delivery.lease.token.hex for delivery, _ in runs]
        self._names = [_safe(handler.name) for _, handler in runs]

    def begin(self) -> bytes:
        """Pass the gate for all of them, or for none."""
        return self._say(b"begin", len(self._ids))

    def deliver(self, count: int) -> bytes:
        """These have run: write their keys, and that they are delivered."""
        return self._say(b"deliver", count)

    def _say(self, verb: bytes, count: int) -> bytes:
        columns = (",".join(column[:count]).encode() for column in (self._ids, self._tokens, self._names))
        return _TOGETHER % (verb, *columns)


def statements(conclusions: Sequence[Conclusion]) -> list[Statement]:
    """What writes these; `standing` reads the answers. What is delivered, which is most of it, goes the short way."""
    script: list[Statement] = []
    delivered = [each for each in conclusions if isinstance(each.outcome, _DELIVERED)]
    others = [each for each in conclusions if not isinstance(each.outcome, _DELIVERED)]
    begun = [(each.delivery.lease, name) for each in others for name in each.succeeded]
    written = [(each.delivery.lease, _written(each.outcome)) for each in others]
    settled = [(lease, *words) for lease, words in written if words is not None]
    released = [lease for lease, words in written if words is None]
    if delivered:
        script.append(_deliver(delivered))
    if begun:
        script.append(begin([lease for lease, _ in begun], [name for _, name in begun]))
    if settled:
        leases, outcomes, errors, delays = zip(*settled, strict=True)
        script.append(_SETTLE.format(*_parallel(leases), list(outcomes), list(errors), list(delays)))
    if released:
        script.append(_RELEASE.format(*_parallel(released)))
    return script


def _deliver(conclusions: Sequence[Conclusion]) -> bytes:
    # In the order of their ids, so that two workers lock them in the same one.
    rows = sorted([(each.delivery.lease.row_id.hex, each) for each in conclusions], key=itemgetter(0))
    tokens = _tokens(conclusions)
    handled = [(row_id, name) for row_id, each in rows for name in each.succeeded]
    return _DELIVER % (
        ",".join([row_id for row_id, _ in rows]).encode(),
        ",".join([tokens[id(each.delivery.lease.token)] for _, each in rows]).encode(),
        ",".join([row_id for row_id, _ in handled]).encode(),
        ",".join([_safe(name) for _, name in handled]).encode(),
    )


def _tokens(conclusions: Sequence[Conclusion]) -> dict[int, str]:
    """As text, by identity: the rows of a claim share one, and many of them are settled together."""
    tokens = {id(each.delivery.lease.token): each.delivery.lease.token for each in conclusions}
    return {key: token.hex for key, token in tokens.items()}


@lru_cache(_MAX_NAMES)
def _safe(name: str) -> str:
    """A handler's name is lower case letters, digits, underscores and dots, or it could not have been registered."""
    if _HANDLER_NAME.fullmatch(name) is None:
        raise ValueError(f"{name!r} is no handler's name")
    return name


def standing(conclusions: Sequence[Conclusion], answers: Sequence[PGresult]) -> set[UUID]:
    """The rows whose lease still stood, out of the answers to `statements`."""
    verdicts = any(each.succeeded and not isinstance(each.outcome, _DELIVERED) for each in conclusions)
    delivered = any(isinstance(each.outcome, _DELIVERED) for each in conclusions)
    settling = [answer for number, answer in enumerate(answers) if not (verdicts and number == int(delivered))]
    if sum(answer.ntuples for answer in settling) == len(conclusions):
        # No row was asked for twice, and none is answered twice: so many are all of them, and need not be read.
        return {each.delivery.lease.row_id for each in conclusions}
    return {row_id for answer in settling for (row_id,) in rows_of(answer)}


def _parallel(leases: Sequence[Lease]) -> tuple[list[UUID], list[UUID]]:
    return [lease.row_id for lease in leases], [lease.token for lease in leases]


def _written(outcome: Outcome) -> tuple[str, str | None, timedelta | None] | None:
    """The outcome in the words of `core.outbox_settle`; none is a release."""
    match outcome:
        case Handled() | AlreadyHandled():
            raise AssertionError("delivered the short way")
        case Retry(error, delay):
            return "retry", error, delay
        case DeadLetter(error):
            return "dead_letter", error, None
        case Released():
            return None
        case _:
            assert_never(outcome)
