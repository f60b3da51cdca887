"""The statements of handlers that run at the same time in one transaction, sent together: one round trip for all.

A statement costs a worker several times as much to wait for as the server to carry out. The driver's own pipeline saves
the server the waiting, but the worker next to nothing; so this goes straight to libpq, with what the driver makes of
a statement and its parameters, and hands out the driver's cursors. For that it needs some of the driver's inner parts,
which are known of some versions only; with any other, handlers run one after the other.
"""

from __future__ import annotations

import asyncio
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, Format
from psycopg.rows import tuple_row
from psycopg.waiting import Ready, Wait

from spectral.core.events.describe import describe
from spectral.core.events.failure import SubstrateLostError, TransactionMisusedError
from spectral.core.events.infrastructure.postgres.lasting import may_last
from spectral.core.events.infrastructure.postgres.transaction import PlainCursor, require_text
from spectral.core.events.ports import ErrandsVoidError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from psycopg import abc
    from psycopg.abc import PQGen
    from psycopg.adapt import AdaptersMap
    from psycopg.pq.abc import PGconn, PGresult

    from spectral.core.events.envelope import EventEnvelope
    from spectral.core.events.infrastructure.postgres.watched import WatchedConnection


def _query_of_driver() -> Any:  # noqa: ANN401  if there is one, it is the driver's
    try:
        return import_module("psycopg._queries").PostgresQuery
    except (ImportError, AttributeError):  # another driver than those we know
        return None


_Query: Any = _query_of_driver()
KNOWS_DRIVER: Final = _Query is not None and re.match(r"3\.[23]\.", psycopg.__version__) is not None
"""Whether the driver is one whose inner parts are known."""

_GOOD: Final = frozenset({ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK, ExecStatus.EMPTY_QUERY})
_MAX_PREPARED: Final = 100
_UNKNOWN_NAME: Final = b"26000"  # somebody has had the session forget them
_UNUSABLE: Final = frozenset({b"0A000", _UNKNOWN_NAME})  # the table has other columns by now

_Key: TypeAlias = tuple[bytes, tuple[int, ...]]


class Prepared:
    """Which statements are prepared on a connection, and under which name: what is sent again is, up to a number."""

    def __init__(self) -> None:
        self._names: dict[_Key, bytes] = {}
        self._new: dict[_Key, bool] = {}  # of the pipeline that is under way; whether the server has prepared it
        self._given = 0

    def name_of(self, key: _Key) -> tuple[bytes, bool]:
        """Its name, and whether it has still to be prepared; no name: it is not to be prepared."""
        name = self._names.get(key)
        if name:
            return name, False
        if name is None:
            if len(self._names) < _MAX_PREPARED:
                self._names[key] = b""
            return b"", False
        self._given += 1
        name = self._names[key] = b"spectral_errand_%d" % self._given
        self._new[key] = False
        return name, True

    def stands(self, key: _Key) -> None:
        """The server has prepared it."""
        self._new[key] = True

    def all_stand(self) -> None:
        """The pipeline was carried out."""
        self._new.clear()

    def fall(self, key: _Key, sqlstate: bytes | None) -> bool:
        """The server has refused that one, and not come to what was sent after it.

        Answers whether its name is to blame: only one that has stood before can be.
        """
        is_to_blame = bool(self._names.get(key)) and key not in self._new and sqlstate in _UNUSABLE
        unknown = [each for each, stands in self._new.items() if not stands]
        if is_to_blame:
            unknown = list(self._names) if sqlstate == _UNKNOWN_NAME else [*unknown, key]
        for each in unknown:
            self._names[each] = b""
        self._new.clear()
        return is_to_blame


class _Answer(PlainCursor):
    """The driver's cursor, with an answer that is there already.

    It shares the adapters of its connection instead of copying them, which is most of what a cursor costs.
    """

    def __init__(self, connection: WatchedConnection, transformer: abc.Transformer, result: PGresult) -> None:
        # Like the driver's, which is not called for it makes that copy.
        self._conn = connection
        self._pgconn = connection.pgconn
        self._adapters = connection.adapters
        self._row_factory = tuple_row
        self.format = Format.TEXT
        self.arraysize = 1
        self._closed = False
        self._last_query = None
        self._reset()
        self._tx = transformer
        self._set_results([result])

    @property
    def adapters(self) -> AdaptersMap:
        """See the driver's; whoever changes them changes the connection's."""
        self._use()
        return super().adapters


class _Errand:
    """One statement, and who waits for it."""

    __slots__ = ("answer", "formats", "key", "params", "sender", "transformer")

    def __init__(
        self,
        sender: PostgresBriefTransaction,
        connection: WatchedConnection,
        query: str,
        params: Sequence[object] | Mapping[str, object] | None,
    ) -> None:
        self.transformer = Transformer(connection)
        converted = _Query(self.transformer)
        converted.convert(query.encode(), params)
        self.key = converted.query, converted.types
        self.params, self.formats = converted.params, converted.formats
        self.sender = sender
        self.answer: asyncio.Future[_Answer] = asyncio.get_running_loop().create_future()

    def answered(self, connection: WatchedConnection, result: PGresult) -> None:
        """Hand it out; that it cannot be read is its handler's matter, as it would be anywhere."""
        if self.answer.done():
            return
        try:
            self.answer.set_result(_Answer(connection, self.transformer, result))
        except Exception as error:  # noqa: BLE001  whatever a loader of the program's own may raise
            self.answer.set_exception(error)


class PostgresErrands:
    """Implements `Errands`, on a connection in a transaction."""

    def __init__(self, connection: WatchedConnection, prepared: Prepared) -> None:
        self.connection = connection
        self.waiting: list[_Errand] = []
        self.on_errand: Callable[[], None] = _ignore
        self.loop = asyncio.get_running_loop()
        self._prepared = prepared

    @property
    def are_waiting(self) -> bool:
        """See `Errands`."""
        return bool(self.waiting)

    def add(self, errand: _Errand) -> None:
        """One more."""
        self.waiting.append(errand)
        self.on_errand()

    def transaction(self) -> PostgresBriefTransaction:
        """See `Errands`."""
        return PostgresBriefTransaction(self)

    async def carry_out(self, within: float) -> PostgresBriefTransaction | None:
        """See `Errands`."""
        errands, self.waiting = self.waiting, []
        pgconn = self.connection.pgconn
        try:
            async with self.connection.lock:
                pgconn.enter_pipeline_mode()
                preparing = [self._send(pgconn, errand) for errand in errands]
                pgconn.pipeline_sync()
                results = await self.connection.completed(_answers(pgconn), within)
                pgconn.exit_pipeline_mode()
        except psycopg.Error as error:
            raise SubstrateLostError(describe(error)) from None
        answers = iter(results)
        answered: list[tuple[_Errand, PGresult]] = []
        for errand, prepares in zip(errands, preparing, strict=True):
            result = next(answers)
            if prepares and result.status in _GOOD:
                self._prepared.stands(errand.key)
                result = next(answers)
            if result.status not in _GOOD:
                sqlstate = result.error_field(DiagnosticField.SQLSTATE)
                if self._prepared.fall(errand.key, sqlstate):
                    raise ErrandsVoidError
                errand.sender.refusal = None if sqlstate is None else sqlstate.decode()
                return errand.sender
            answered.append((errand, result))
        self._prepared.all_stand()
        for errand, result in answered:
            errand.answered(self.connection, result)
        return None

    def give_up(self) -> None:
        """See `Errands`."""
        self.connection.give_up()

    def _send(self, pgconn: PGconn, errand: _Errand) -> bool:
        """Answers whether it is prepared before."""
        name, prepares = self._prepared.name_of(errand.key)
        query, types = errand.key
        if not name:
            pgconn.send_query_params(query, errand.params, param_types=types, param_formats=errand.formats)
            return False
        if prepares:
            pgconn.send_prepare(name, query, types)
        pgconn.send_query_prepared(name, errand.params, errand.formats)
        return prepares


class PostgresBriefTransaction:
    """Implements `BriefTransaction`. What is too much for it is not an error of the handler: it is called off."""

    def __init__(self, errands: PostgresErrands) -> None:
        self._errands = errands
        self._errand: _Errand | None = None
        self._ended = False
        self.overran = False
        self.refusal: str | None = None

    @property
    def is_waiting(self) -> bool:
        """See `BriefTransaction`."""
        return self._errand is not None and not self._errand.answer.done()

    @property
    def connection(self) -> psycopg.AsyncConnection[Any]:
        """Not while others run."""
        self._note_overrun()
        raise asyncio.CancelledError

    async def execute(
        self, query: str, params: Sequence[object] | Mapping[str, object] | None = None
    ) -> psycopg.AsyncCursor[tuple[Any, ...]]:
        """Have the statement carried out with those of the others."""
        require_text(query)
        is_elsewhere = asyncio.get_running_loop() is not self._errands.loop
        if self._ended or self._errand is not None or is_elsewhere or may_last(query):
            await self._overrun()
        errand = self._errand = _Errand(self, self._errands.connection, query, params)
        self._errands.add(errand)
        try:
            cursor = await errand.answer
        except asyncio.CancelledError:
            self.overran = True  # it may be carried out all the same
            raise
        cursor.hand_over(self)
        return cursor

    async def publish(self, envelope: EventEnvelope) -> None:  # noqa: ARG002  see `Transaction`
        """Not while others run."""
        await self._overrun()

    async def _overrun(self) -> NoReturn:
        self._note_overrun()
        await asyncio.sleep(0)  # whoever tries it again and again must not hold up everybody
        raise asyncio.CancelledError

    def _note_overrun(self) -> None:
        if self._ended:
            raise TransactionMisusedError("the transaction ended with its handler; await everything it starts")
        self.overran = True
        self._errands.loop.call_soon_threadsafe(self._errands.on_errand)

    def end(self) -> None:
        """See `BriefTransaction`; a statement that nobody has waited for was too much."""
        self._ended = True
        self.overran = self.overran or self.is_waiting
        # They know each other: what was asked and answered would wait for the garbage collector, with all the driver
        # has made of it.
        self._errand = None


def _answers(pgconn: PGconn) -> PQGen[list[PGresult]]:
    """Write everything, reading what comes meanwhile; then read up to the end of the pipeline."""
    while pgconn.flush():
        ready = yield Wait.RW
        if ready & Ready.R:
            pgconn.consume_input()
    results: list[PGresult] = []
    while True:
        while not pgconn.is_busy():  # asked first: what was read while writing may be all there is
            result = pgconn.get_result()
            if result is None:  # between two statements, unless libpq has given up
                if pgconn.status != ConnStatus.OK:
                    raise psycopg.OperationalError("the connection was lost")
            elif result.status == ExecStatus.PIPELINE_SYNC:
                return results
            else:
                results.append(result)
        yield Wait.R
        pgconn.consume_input()


def _ignore() -> None:
    """Until somebody wants to know."""
