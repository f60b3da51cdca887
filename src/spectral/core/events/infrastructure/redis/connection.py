"""One connection to Redis: given up when it does not answer, and opened again only when somebody asks for it.

Here the driver's errors become the flow's: `BrokerLostError` for what may pass, `ConfigurationError` for what will not
until somebody acts. No message holds the URL or its password. The driver's own retries are off: the flow decides.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from redis.asyncio.connection import Connection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from spectral.core.events.broker import BrokerLostError
from spectral.core.events.broker_settings import BROKER_URL_VARIABLE
from spectral.core.events.describe import describe
from spectral.core.events.failure import ConfigurationError
from spectral.core.events.infrastructure.redis.shape import NEEDED_RIGHTS
from spectral.core.events.infrastructure.redis.standing import Standing

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Sequence

    from spectral.core.events.broker_settings import BrokerSettings
    from spectral.core.events.infrastructure.redis.shape import Command

T = TypeVar("T")

_SECOND_LOOK: Final = 0.1
_OURS: Final[dict[str, object]] = {
    # Whatever the URL says: how long to wait, how often to try and what answers look like is not its matter.
    "protocol": 2,
    "decode_responses": False,
    "socket_timeout": None,
    "socket_connect_timeout": None,
    "health_check_interval": 0,
    "retry_on_timeout": False,
    "retry_on_error": [],
    "retry": Retry(NoBackoff(), 0),
}
_NEARBY: Final = {"localhost", "127.0.0.1", "::1"}
_PLAIN_LINE: Final = "the connection to Redis leaves this machine without encryption; use rediss://"
_CODE: Final = re.compile(r"\b(NOGROUP|UNBLOCKED|WRONGTYPE|OOM|NOPERM)\b")
_NOT_IN_THE_WORDS: Final[dict[type[ResponseError], str]] = {
    OutOfMemoryError: "OOM",
    NoPermissionError: "NOPERM",
    ReadOnlyError: "READONLY",
}
"""The driver takes the code away and makes it a class, but for errors inside a script."""

_FORBIDDEN_IN_A_SCRIPT: Final = re.compile(r"ACL failure in script|user executing the script can't")


@dataclass(frozen=True, slots=True)
class Refusal:
    """The server's answer to a command that it did not carry out."""

    code: str
    words: str


class Line:
    """A connection. One exchange at a time; others wait for their turn."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._answer = settings.answer.total_seconds()
        self._make, self._secret, self._is_open_to_all = _driver(settings.url)
        self._wire: _Wire | None = None
        self._turn = asyncio.Lock()
        self._asked: set[asyncio.Task[list[object]]] = set()
        self._standing = Standing()

    def advice(self) -> tuple[str, ...]:
        """What the server's operator should change, once it is open; none of it is a reason not to work."""
        return (*self._standing.advice(), *((_PLAIN_LINE,) if self._is_open_to_all else ()))

    async def open(self) -> None:
        """Connect anew, and see whether this is a server that can be used.

        Raises:
            BrokerLostError: it cannot be reached, or refuses.
            ConfigurationError: it will not do.
        """
        await self.drop()
        wire = self._make()
        try:
            await self._within(wire.connect(), self._answer)
            (told,) = await self._within(_exchange(wire, [("INFO",)]), self._answer)
            # A user may be forbidden to ask; it is not needed.
            self._standing = Standing.read(told.decode(errors="replace")) if isinstance(told, bytes) else Standing()
            self._standing.insist()
        except BaseException:
            await _close(wire)
            raise
        before, self._wire = self._wire, wire
        if before is not None:  # somebody else opened meanwhile
            await _close(before)

    async def ask(self, *commands: Command, block: float = 0.0) -> list[object]:
        """Send all, then read all answers; `block` is for how long the server may hold one back.

        Raises:
            BrokerLostError: the connection is lost or did not answer, and was given up; any number were carried out.
        """
        if not commands:
            return []
        # Whoever is cancelled does not take the connection along: the exchange is brought to its end without him.
        asked = asyncio.ensure_future(self._in_turn(commands, block))
        self._asked.add(asked)
        asked.add_done_callback(self._asked.discard)
        asked.add_done_callback(retrieve)
        return await asyncio.shield(asked)

    async def demand(self, *commands: Command) -> list[object]:
        """`ask`, for what the server has no reason to refuse.

        Raises:
            BrokerLostError: see `ask`; or it refuses, and may not later.
            ConfigurationError: it refuses until somebody acts.
        """
        answers = await self.ask(*commands)
        for answer in answers:
            if isinstance(answer, Refusal):
                raise self.judge(answer)
        return answers

    def judge(self, refusal: Refusal) -> Exception:
        """What a refusal amounts to."""
        if refusal.code == "WRONGTYPE":
            return ConfigurationError(
                "where a stream of Spectral belongs, Redis has a key of another type: somebody else uses the name. "
                f"Remove that key (redis-cli --scan --pattern 'spectral_*' lists them), or let {BROKER_URL_VARIABLE} "
                "name another database number"
            )
        if refusal.code == "NOPERM":
            return BrokerLostError(f"Redis forbids this user what is needed; its ACL must grant: {NEEDED_RIGHTS}")
        return BrokerLostError(f"Redis refuses: {self._concealed(refusal.words)}")

    async def drop(self) -> None:
        """Be rid of the connection; whoever waits for an answer learns that it is lost. Never raises, does not wait."""
        wire, self._wire = self._wire, None
        if wire is not None:
            await _close(wire)

    async def _in_turn(self, commands: Sequence[Command], block: float) -> list[object]:
        async with self._turn:
            wire = self._wire
            if wire is None:
                raise BrokerLostError("there is no connection to Redis")
            try:
                return await self._within(_exchange(wire, commands), self._answer + block)
            except BaseException:
                # What is still to come on it must not be taken for the answer to something else.
                if self._wire is wire:
                    self._wire = None
                await _close(wire)
                raise

    async def _within(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        """Wait no longer than an answer may take; here the driver's errors become ours."""
        task = asyncio.ensure_future(work)
        try:
            done, _ = await asyncio.wait({task}, timeout=seconds)
            if not done:
                # After a loop that stood still the time is up and the answer is there: look once more.
                done, _ = await asyncio.wait({task}, timeout=_SECOND_LOOK)
        except asyncio.CancelledError:
            _abandon(task)
            raise
        if not done:
            _abandon(task)
            raise BrokerLostError(f"no answer from Redis within {self._answer:g} s")
        try:
            return task.result()
        except AuthenticationError:
            raise BrokerLostError(
                f"Redis refuses this login; check the user and the password in {BROKER_URL_VARIABLE}"
            ) from None
        except (RedisError, OSError) as error:
            raise BrokerLostError(self._concealed(describe(error))) from None

    def _concealed(self, words: str) -> str:
        """Servers quote what they do not understand."""
        return words.replace(self._secret, "***") if self._secret else words


class _Wire(Protocol):
    """What is used of the driver's connection."""

    async def connect(self) -> None: ...

    async def disconnect(self, nowait: bool = ...) -> None: ...  # noqa: FBT001  the driver's signature

    def pack_commands(self, commands: Iterable[Command]) -> list[bytes]: ...

    async def send_packed_command(self, command: Iterable[bytes]) -> None: ...

    async def read_response(self) -> object: ...


def _driver(url: str) -> tuple[Callable[[], _Wire], str, bool]:
    """What makes a connection; the password that nobody is to see; whether others may read along on the way."""
    try:
        options = cast("dict[str, Any]", parse_url(url))
        kind = options.pop("connection_class", Connection)
        options |= _OURS
        if "path" not in options:  # a socket file has no such thing
            options["socket_keepalive"] = True

        def make() -> _Wire:
            return cast("_Wire", kind(**options))

        make()
    except (ValueError, TypeError, RedisError):  # whose words may quote what they did not understand
        raise ConfigurationError(
            f"{BROKER_URL_VARIABLE} cannot be read: write it as redis://host:6379/0, with the user, a colon, the "
            "password and an @ before the host; rediss:// for an encrypted connection; and percent-encode what is "
            "special in the password"
        ) from None
    is_open_to_all = kind is Connection and options.get("host", "localhost") not in _NEARBY
    return make, str(options.get("password") or ""), is_open_to_all


async def _exchange(wire: _Wire, commands: Sequence[Command]) -> list[object]:
    await wire.send_packed_command(wire.pack_commands(commands))
    answers: list[object] = []
    for _ in commands:
        try:
            answers.append(await wire.read_response())
        except ResponseError as error:
            answers.append(_refusal(error))
    return answers


def _refusal(error: ResponseError) -> Refusal:
    words = str(error)
    if _FORBIDDEN_IN_A_SCRIPT.search(words):
        return Refusal("NOPERM", words)
    found = _CODE.search(words)
    return Refusal(_NOT_IN_THE_WORDS.get(type(error)) or (found[0] if found else ""), words)


def retrieve(task: asyncio.Future[Any]) -> None:
    """Nobody else may look at how it ended, and that is no reason to complain."""
    if not task.cancelled():
        task.exception()


def _abandon(task: asyncio.Future[Any]) -> None:
    task.add_done_callback(retrieve)
    task.cancel()


async def _close(wire: _Wire) -> None:
    with suppress(RedisError, OSError):
        await wire.disconnect(nowait=True)
