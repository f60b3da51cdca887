"""Conclusions as statements: which handlers took effect, what became of the row, what is given back. All fenced."""

from __future__ import annotations

import re
from enum import Enum, auto
from functools import lru_cache
from operator import itemgetter
from typing import TYPE_CHECKING, Final, assert_never

from psycopg import sql

from spectral.core.events.consumer import HANDLER_NAME_PATTERN
from spectral.core.events.infrastructure.postgres.script import rows_of
from spectral.core.events.outcome import AlreadyHandled, DeadLetter, Handled, Outcome, Released, Retry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
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
_DELIVER_ALIKE: Final = b"select lost from core.outbox_deliver_alike('%s', '{%s}', '{%s}') as lost"
_MANY: Final = 16
"""Rows of a claim that are worth a statement of their own."""

_TOGETHER: Final = b"select core.outbox_%s_together('{%s}'::uuid[], '{%s}'::uuid[], '{%s}'::text[])"
_ONLY: Final = (
    b"select case when pg_catalog.pg_try_advisory_xact_lock("
    b"pg_catalog.hashtextextended('spectral.group.%s', 0)) then (%s) else false end"
)
_RELEASE: Final = sql.SQL("select released from core.outbox_release({}::uuid[], {}::uuid[]) as released")
_SET_ASIDE: Final = sql.SQL("select aside from core.outbox_set_aside({}::uuid[], {}::uuid[], {}::interval[]) as aside")


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

    def begin(self, only: str | None) -> bytes:
        """Pass the gate for all of them, or for none; for none, if another group of the `only` handler is open."""
        begin = self._say(b"begin", len(self._ids))
        return begin if only is None else _ONLY % (_safe(only).encode(), begin)

    def deliver(self, count: int) -> bytes:
        """These have run: write their keys, and that they are delivered."""
        return self._say(b"deliver", count)

    def _say(self, verb: bytes, count: int) -> bytes:
        columns = (",".join(column[:count]).encode() for column in (self._ids, self._tokens, self._names))
        return _TOGETHER % (verb, *columns)


class _Read(Enum):
    """What the answer to a statement names."""

    LOST = auto()  # the rows whose lease did not stand
    STOOD = auto()  # those whose lease did
    NOTHING = auto()  # what became of keys, not of rows


class Writing:
    """What writes these conclusions, and what the answers to it say.

    statements: in this order. What is delivered, which is most of it, goes the short way: rows of one claim, with the
    same handlers, together, if there are many of them; the others row by row in one statement. Of what is delivered,
    keys that rows of others may have too are written by one statement, whichever that is: it takes them in order, and
    several would not, so that two workers would wait for each other.
    """

    def __init__(self, conclusions: Sequence[Conclusion]) -> None:
        self.statements: list[Statement] = []
        self._reads: list[_Read] = []
        self._asked: list[Conclusion] = []  # of which the answers name those that stood
        delivered = [each for each in conclusions if isinstance(each.outcome, _DELIVERED)]
        mixed: list[Conclusion] = []
        heaps = _alike(delivered)
        if len(heaps) > 1:
            mixed = [each for each in delivered if _has_chosen_key(each.delivery)]
            if mixed:
                heaps = _alike([each for each in delivered if not _has_chosen_key(each.delivery)])
        for heap in heaps:
            if len(heap) >= _MANY:
                self._say(_deliver_alike(heap), _Read.LOST)
            else:
                mixed += heap
        if mixed:
            self._say(_deliver(mixed), _Read.STOOD, mixed)
        if len(delivered) < len(conclusions):
            self._write([each for each in conclusions if not isinstance(each.outcome, _DELIVERED)])

    def _write(self, conclusions: Sequence[Conclusion]) -> None:
        begun = [(each.delivery.lease, name) for each in conclusions for name in each.succeeded]
        settled = [(each, *_written(each.outcome)) for each in conclusions if not isinstance(each.outcome, Released)]
        given_back = [(each, each.outcome.delay) for each in conclusions if isinstance(each.outcome, Released)]
        released = [each for each, delay in given_back if not delay]
        aside = [(each, delay) for each, delay in given_back if delay]
        if begun:
            self._say(begin([lease for lease, _ in begun], [name for _, name in begun]), _Read.NOTHING)
        if settled:
            whose, outcomes, errors, delays = zip(*settled, strict=True)
            leases = _parallel([each.delivery.lease for each in whose])
            statement = _SETTLE.format(*leases, list(outcomes), list(errors), list(delays))
            self._say(statement, _Read.STOOD, whose)
        if released:
            leases = _parallel([each.delivery.lease for each in released])
            self._say(_RELEASE.format(*leases), _Read.STOOD, released)
        if aside:
            leases = _parallel([each.delivery.lease for each, _ in aside])
            statement = _SET_ASIDE.format(*leases, [delay for _, delay in aside])
            self._say(statement, _Read.STOOD, [each for each, _ in aside])

    def _say(self, statement: Statement, read: _Read, asked: Sequence[Conclusion] = ()) -> None:
        self.statements.append(statement)
        self._reads.append(read)
        self._asked += asked

    def lost(self, answers: Sequence[PGresult]) -> set[UUID]:
        """The rows whose lease did not stand, so that nothing was written of them. Mostly there are none."""
        lost: set[UUID] = set()
        standing: list[PGresult] = []
        for read, answer in zip(self._reads, answers, strict=False):  # there is an answer even to no statement
            if read is _Read.LOST:
                lost.update(row_id for (row_id,) in rows_of(answer))
            elif read is _Read.STOOD:
                standing.append(answer)
        # No row is asked for twice, and none is answered twice: so many are all of them, and need not be read.
        if sum([answer.ntuples for answer in standing]) < len(self._asked):
            stood = {row_id for answer in standing for (row_id,) in rows_of(answer)}
            lost.update({each.delivery.lease.row_id for each in self._asked} - stood)
        return lost


def _has_chosen_key(delivery: Delivery) -> bool:
    """Whether its publisher has chosen it: nobody else has one that is the event's own id."""
    return delivery.idempotency_key != str(delivery.event_id)


def _alike(conclusions: Iterable[Conclusion]) -> list[list[Conclusion]]:
    """By claim and by the handlers that took effect; of a claim all rows have the same token, the object itself."""
    heaps: dict[tuple[int, tuple[str, ...]], list[Conclusion]] = {}
    for each in conclusions:
        heaps.setdefault((id(each.delivery.lease.token), each.succeeded), []).append(each)
    return list(heaps.values())


def _deliver_alike(heap: Sequence[Conclusion]) -> bytes:
    # In the order of their ids, so that two workers lock them in the same one; written as numbers, all in one go.
    numbers = sorted([each.delivery.lease.row_id.int for each in heap])
    ids = b",".join([b"%032x"] * len(numbers)) % tuple(numbers)
    names = ",".join([_safe(name) for name in heap[0].succeeded])
    return _DELIVER_ALIKE % (heap[0].delivery.lease.token.hex.encode(), ids, names.encode())


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


def _parallel(leases: Sequence[Lease]) -> tuple[list[UUID], list[UUID]]:
    return [lease.row_id for lease in leases], [lease.token for lease in leases]


def _written(outcome: Outcome) -> tuple[str, str | None, timedelta | None]:
    """The outcome in the words of `core.outbox_settle`."""
    match outcome:
        case Handled() | AlreadyHandled() | Released():
            raise AssertionError("delivered the short way, or given back")
        case Retry(error, delay):
            return "retry", error, delay
        case DeadLetter(error):
            return "dead_letter", error, None
        case _:
            assert_never(outcome)
