"""One connection of a worker: opened when it is needed, given up when it does not answer, opened again the next time.

Here the driver's errors become the flow's: `SubstrateLostError` for what may pass, `ConfigurationError` for what will
not until somebody acts. Whatever else the server refuses is the caller's to name.
"""

from __future__ import annotations

import asyncio
import re
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg import conninfo, sql
from psycopg.pq import Conninfo
from psycopg.rows import tuple_row

from spectral.core.events.describe import describe
from spectral.core.events.failure import ConfigurationError, SubstrateLostError
from spectral.core.events.infrastructure.postgres.closing import close, finish
from spectral.core.events.infrastructure.postgres.script import StatementRefusedError, run_script
from spectral.core.events.infrastructure.postgres.untaught import UNTAUGHT
from spectral.core.events.infrastructure.postgres.watched import WatchedConnection

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from datetime import timedelta

    from psycopg.pq.abc import PGresult

    from spectral.core.events.infrastructure.postgres.script import Statement

T = TypeVar("T")

_KEEPALIVES: Final = {
    "keepalives": 1,
    "keepalives_idle": 5,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}
_SERVER_KEEPALIVES: Final = {
    # The server's side of the same: it frees the locks of a machine that is gone.
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "3",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "15000",
}

_STYLES: Final = {"datestyle": "ISO", "intervalstyle": "postgres"}
"""What our answers are read by, whatever the role or the database prefers; handlers' own are as they prefer."""

_LASTING: Final = {"idle_session_timeout": "0"}
"""A session of ours waits for hours: a limit that is meant for others would end it again and again."""

_OUR_RULES: Final = {"default_transaction_isolation": "read committed", "idle_in_transaction_session_timeout": "0"}
"""What our statements are made for: in a stricter isolation, workers that share the work would refuse each other's
claims. In a handler's transaction the role's own rules hold."""

_PASSING_CLASSES: Final = frozenset({"08", "53", "57", "58"})
"""Connections, resources, an operator's intervention, the system below."""

_CONTENTION: Final = frozenset({"55P03", "40P01", "40001", "57014"})
"""Lock timeout, deadlock, serialization failure, and a statement that somebody or a timeout has ended."""

_READ_ONLY: Final = "25006"
_NOT_ON_A_STANDBY: Final = "0A000"
"""A standby refuses to write; and even to look at a table that is not logged, such as the bell's leases."""

_LINE_ERRORS: Final = (psycopg.OperationalError, psycopg.InterfaceError)
_CLOSE_WITHIN: Final = 3.0
_SECOND_LOOK: Final = 0.1
_REFUSED_FOR_GOOD: Final = 2
_REMEDIES: Final = {
    "28": "the database refuses this login; check the user and the password of the connection string",
    "3D": "the database of the connection string does not exist; create it, then run: spectral migrate up",
    "3F": "this database has no Spectral schema, or an old one; run: spectral migrate up",
    "42P01": "this database has no Spectral schema, or an old one; run: spectral migrate up",
    "42883": "this database has no Spectral schema, or an old one; run: spectral migrate up",
    "role": "this login may not act as the role that the connection's options name (PGOPTIONS, or `options` in the"
    " connection string); run: grant <role> to <login>",
    "42501": "this role may not deliver events; run: grant spectral_worker to <role>",
}


_WORKED: Final = set[int]()
"""Connection strings that led somewhere once, in this process; not the strings themselves, which hold passwords."""


_LED_TO: Final = dict[int, tuple[str, int]]()
"""Of several hosts the one, and its port, that a session of this process was last led to; as above."""


class _Silence:
    """When a server last owed a session of this process its answer.

    Whichever it was: the way through a pooler and the one past it lead to the same. Where there are several databases,
    a session too many is opened anew, once for each silence.
    """

    last_at = 0.0


class Session:
    """A connection that comes back. One caller at a time.

    `for_handlers`: they are given it. Then it is not in autocommit mode, and is asked so often that it is watched for
    good; and its settings are the session's defaults, if the server lets them be, so that a reset brings them back.
    """

    def __init__(
        self,
        dsn: str,
        application: str,
        answer: timedelta,
        *,
        settings: Mapping[str, str],
        for_handlers: bool = False,
    ) -> None:
        self._dsn = dsn
        self._application = application[:63]
        self._answer = answer.total_seconds()
        self._hosts = _hosts(dsn)
        wanted = _SERVER_KEEPALIVES | _LASTING | ({} if for_handlers else _STYLES | _OUR_RULES) | dict(settings)
        values = (sql.SQL("set_config({}, {}, false)").format(name, value) for name, value in wanted.items())
        self.apply_settings = sql.SQL("select {}").format(sql.SQL(", ").join(values))
        self._autocommit = not for_handlers
        self._kind = WatchedConnection if for_handlers else psycopg.AsyncConnection[Any]
        self._ways = None if for_handlers else UNTAUGHT  # with types: handlers are used to the project's
        self._defaults = _with_defaults(dsn, wanted) if for_handlers else None
        self._defaults_refused = 0
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._answered_at = 0.0
        self._closing: set[asyncio.Task[None]] = set()
        self.refused_at = 0  # which statement of a script the server refused, when it last did

    @property
    def is_open(self) -> bool:
        """Whether there is a connection that is not known to be lost."""
        return self._connection is not None and not self._connection.closed

    @property
    def is_doubtful(self) -> bool:
        """Whether the server has owed another session its answer since it last answered this one.

        It may be gone without a word, as a machine is that was failed over from: then each session would have to wait
        in vain to find out. One that has nothing to lose had better be opened anew.
        """
        return self._connection is not None and self._answered_at < _Silence.last_at

    async def connection(self) -> psycopg.AsyncConnection[Any]:
        """The connection, opened if it is not.

        Raises:
            SubstrateLostError: it cannot be opened now.
            ConfigurationError: it cannot be opened until somebody acts.
        """
        if self._connection is None or self._connection.closed:
            self._connection = await self._within(self._open(), None, self._answer * self._hosts)
            _WORKED.add(hash(self._dsn))
            if self._hosts > 1:
                _LED_TO[hash(self._dsn)] = (self._connection.info.host, self._connection.info.port)
            self._answered_at = time.monotonic()
        return self._connection

    async def call(self, work: Callable[[psycopg.AsyncConnection[Any]], Awaitable[T]]) -> T:
        """Do something on the connection, within the time an answer may take.

        Raises:
            SubstrateLostError: the connection is lost or did not answer, and was given up.
            psycopg.Error: the server refused, and it is the caller's to say what that means.
        """
        connection = await self.connection()
        return await self._within(work(connection), connection)

    async def script(self, *statements: Statement) -> list[PGresult]:
        """`call`, for statements that need no more of the driver than to be sent; a hundred times a second, or more.

        Raises:
            SubstrateLostError: the connection is lost or did not answer, and was given up.
            psycopg.Error: the server refused, and it is the caller's to say what that means.
        """
        connection = self._connection
        if connection is None or connection.closed:
            connection = await self.connection()
        try:
            answers = await run_script(connection, statements, self._answer)
        except TimeoutError:
            self._give_up(None)
            _Silence.last_at = time.monotonic()
            raise SubstrateLostError(f"no answer within {self._answer:g} s") from None
        except asyncio.CancelledError:
            self._give_up(None)
            raise
        except StatementRefusedError as refused:
            self.refused_at = refused.number
            raise self._judge(refused.error, connection) from None
        except psycopg.Error as error:
            raise self._judge(error, connection) from None
        self._answered_at = time.monotonic()
        return answers

    async def ask_script(self, *statements: Statement) -> list[PGresult]:
        """`script`, for what the server has no reason to refuse but for reasons that pass; see `ask`."""
        try:
            return await self.script(*statements)
        except psycopg.Error as error:
            raise _passing(error) from None

    async def ask(self, work: Callable[[psycopg.AsyncConnection[Any]], Awaitable[T]]) -> T:
        """`call`, for what the server has no reason to refuse but for reasons that pass.

        Raises:
            SubstrateLostError: it may work later.
            ConfigurationError: it will not until somebody acts.
        """
        try:
            return await self.call(work)
        except psycopg.Error as error:
            raise _passing(error) from None

    async def drop(self) -> None:
        """Give the connection up, whatever goes on; never raises and hardly waits."""
        if self._connection is not None:
            self._give_up(None)
        if self._closing:
            await asyncio.wait(self._closing, timeout=_CLOSE_WITHIN)

    async def _open(self) -> psycopg.AsyncConnection[Any]:
        parameters = conninfo.make_conninfo(
            self._dsn if self._hosts == 1 else _first(self._dsn, _LED_TO.get(hash(self._dsn))),
            **_KEEPALIVES,
            **self._patience_with_each_host(),
            application_name=self._application,
            client_encoding="utf8",  # whatever the connection string or the role prefers: scripts are UTF-8
        )
        connection = await self._connect(parameters)
        try:
            await connection.execute(self.apply_settings)
            await connection.set_autocommit(self._autocommit)
        except BaseException:
            finish(connection)
            raise
        return connection

    def _patience_with_each_host(self) -> dict[str, int]:
        """One that is silent must not take the time of the others."""
        if self._hosts == 1 or _given(self._dsn).get("connect_timeout"):
            return {}
        return {"connect_timeout": max(2, int(self._answer / 2))}  # the client library's least is 2

    async def _connect(self, parameters: str) -> psycopg.AsyncConnection[Any]:
        """With the settings as defaults, if so; a pooler may refuse them, in whatever words, or lose them."""
        connect = partial(self._kind.connect, autocommit=True, row_factory=tuple_row, context=self._ways)
        if self._defaults is not None:
            try:
                given = conninfo.make_conninfo(parameters, options=self._defaults)
                return await connect(given)
            except psycopg.OperationalError as error:
                if _refusal(str(error)):  # of the login, which is not to be tried twice
                    raise
                connection = await connect(parameters)
                # Once may be a server that came up in between.
                self._defaults_refused += 1
                if self._defaults_refused >= _REFUSED_FOR_GOOD:
                    self._defaults = None
                return connection
        return await connect(parameters)

    async def _within(
        self, work: Awaitable[T], connection: psycopg.AsyncConnection[Any] | None, seconds: float | None = None
    ) -> T:
        """Wait no longer than an answer may take: a driver that waits for a dead socket is left behind."""
        limit = self._answer if seconds is None else seconds
        task = asyncio.ensure_future(work)
        try:
            done, _ = await asyncio.wait({task}, timeout=limit)
            if not done:
                # After a loop that stood still the time is up and the answer is there: look once more.
                done, _ = await asyncio.wait({task}, timeout=_SECOND_LOOK)
        except asyncio.CancelledError:
            self._give_up(task)
            raise
        if not done:
            self._give_up(task)
            if connection is not None:
                _Silence.last_at = time.monotonic()
            raise SubstrateLostError(f"no answer within {limit:g} s")
        try:
            answer = task.result()
        except psycopg.Error as error:
            raise self._judge(error, connection) from None
        self._answered_at = time.monotonic()
        return answer

    def _judge(self, error: psycopg.Error, connection: psycopg.AsyncConnection[Any] | None) -> Exception:
        """What a driver's error is: the loss of the connection, or the server's refusal."""
        if connection is None:
            # What has worked is not wrong: a password is being changed, or whoever knows it is away.
            if hash(self._dsn) not in _WORKED:
                explain(error)
        elif connection.closed or (error.sqlstate is None and isinstance(error, _LINE_ERRORS)):
            self._give_up(None)
        else:
            # A standby: the next connection may lead to the primary. What a handler has done is not for us to tell.
            if error.sqlstate == _READ_ONLY or (error.sqlstate == _NOT_ON_A_STANDBY and self._autocommit):
                self._give_up(None)
            return error
        return SubstrateLostError(describe(error))

    def _give_up(self, task: asyncio.Future[Any] | None) -> None:
        """Be rid of the connection at once; in the background, what waits for it ends and it is closed."""
        connection, self._connection = self._connection, None
        closing = asyncio.ensure_future(close(connection, task))
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)


def _given(dsn: str) -> dict[str, str]:
    """What the connection string says, and where it says nothing the environment."""
    named = {each.keyword.decode(): (each.val or b"").decode() for each in Conninfo.get_defaults()}
    return named | {name: str(value) for name, value in conninfo.conninfo_to_dict(dsn).items()}


def _hosts(dsn: str) -> int:
    """How many are tried, one after the other."""
    given = _given(dsn)
    return (given.get("hostaddr") or given.get("host") or "").count(",") + 1


def _first(dsn: str, led_to: tuple[str, int] | None) -> str:
    """With the host that it last led to before the others, so that one that is silent is not waited for each time.

    Only if the client library sees to it that it takes writes: else the first may be a standby by now, for ever.
    """
    given = _given(dsn)
    hosts = (given.get("host") or "").split(",")
    ports = (given.get("port") or "").split(",")
    is_fixed = given.get("hostaddr") or given.get("load_balance_hosts", "disable") != "disable"
    if led_to is None or is_fixed or given.get("target_session_attrs") not in {"read-write", "primary"}:
        return dsn
    places = list(zip(hosts, ports * len(hosts) if len(ports) == 1 else ports, strict=False))
    found = [place for place in places if place[0] == led_to[0] and place[1] in (str(led_to[1]), "")]
    if len(places) != len(hosts) or not found:
        return dsn
    ordered = found[:1] + [place for place in places if place is not found[0]]
    return conninfo.make_conninfo(
        dsn, host=",".join(host for host, _ in ordered), port=",".join(port for _, port in ordered)
    )


def _with_defaults(dsn: str, settings: Mapping[str, str]) -> str | None:
    """Those of the connection string or the environment, and these; none if a service may have some too."""
    given = _given(dsn)
    if given.get("service"):
        return None
    return " ".join([str(given.get("options") or ""), *(f"-c {name}={value}" for name, value in settings.items())])


def _passing(error: psycopg.Error) -> Exception:
    """The loss it amounts to, if it may pass; itself, if it is nothing that is known to happen."""
    explain(error)
    may_pass = passes(error) or is_contention(error) or error.sqlstate == _NOT_ON_A_STANDBY
    return SubstrateLostError(describe(error)) if may_pass else error


def explain(error: psycopg.Error) -> None:
    """Raise what somebody has to do about it, if that is known."""
    state = error.sqlstate or _refusal(str(error))
    remedy = _REMEDIES.get(state) or _REMEDIES.get(state[:2])
    if remedy is not None:
        raise ConfigurationError(remedy) from None


def _refusal(message: str) -> str:
    """The class of a refused login: the client library keeps its code to itself, so only its words tell.

    In another language than English nothing is known, and the worker waits and says so.
    """
    if re.search(r"FATAL: +database .* does not exist", message):
        return "3D"
    if re.search(r"FATAL: +(\w+ authentication failed|role .* does not exist|no pg_hba\.conf entry)", message):
        return "28"
    if re.search(r"FATAL: +permission denied to set role", message):
        return "role"
    return ""


def passes(error: psycopg.Error) -> bool:
    """Whether the server refused for a reason that passes and that no statement of ours can help."""
    state = error.sqlstate or ""
    return (state[:2] in _PASSING_CLASSES or state == _READ_ONLY) and state not in _CONTENTION


def is_contention(error: psycopg.Error) -> bool:
    """Whether somebody else was in the way."""
    return error.sqlstate in _CONTENTION
