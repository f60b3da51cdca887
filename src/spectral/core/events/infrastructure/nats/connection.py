"""One connection to a NATS server, from its beginning to its loss; it never comes back by itself.

Everything that is waited for here ends: with an answer, with the loss of the connection, or when the time is up. All
three that are no answer are `BrokerLostError`, whose message never shows a URL, a user or a password.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import ssl
from math import ceil
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import nats.errors

from spectral.core.events.broker import BrokerLostError
from spectral.core.events.broker_settings import BROKER_URL_VARIABLE
from spectral.core.events.infrastructure.nats.client import TamedClient, servers_of
from spectral.core.events.infrastructure.nats.loss import reason_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

    from spectral.core.events.broker_settings import BrokerSettings
    from spectral.core.events.infrastructure.nats.client import Server

_T = TypeVar("_T")

_API: Final = "$JS.API."
_CLOSE_SECONDS: Final = 1.0
_UNSENT_BYTES: Final = 1 << 30  # beyond it the driver waits without a limit and swallows a cancellation
_DRIVERS_ERRORS: Final = (nats.errors.Error, OSError, RuntimeError, AttributeError, AssertionError, ValueError)
"""What the driver raises on a connection that is going down; the last four where it finds its own parts gone."""


class RefusedError(Exception):
    """JetStream answered that it will not: with the code of HTTP, its own, and its reason."""

    def __init__(self, code: int, reason_code: int, description: str) -> None:
        super().__init__(description)
        self.code = code
        self.reason_code = reason_code
        self.description = description


class Connection:
    """Publishes, subscribes and asks JetStream, until it is lost."""

    def __init__(self, settings: BrokerSettings, server: Server) -> None:
        self._answer = settings.answer.total_seconds()
        self._server = server
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._last_error: Exception | None = None
        self._under_way: set[asyncio.Task[Any]] = set()
        self._closing: asyncio.Task[None] | None = None
        self._client = TamedClient(encrypted=server.encrypted, ended=self._end)

    @classmethod
    async def open(cls, settings: BrokerSettings, name: str) -> Connection:
        """Connect to one of the servers, as `name`.

        Raises:
            BrokerLostError: none can be reached, or it refuses; the message says what to do.
            ConfigurationError: the URL has no usable address.
        """
        servers = servers_of(settings.url)
        random.shuffle(servers)
        refusal: BrokerLostError | None = None
        for server in servers:
            connection = cls(settings, server)
            try:
                await connection._connect(name, settings.answer.total_seconds() / len(servers))
            except BrokerLostError as error:
                refusal = error
            else:
                return connection
        raise refusal or BrokerLostError(f"no server is known; set {BROKER_URL_VARIABLE}")

    async def ask(self, call: str, body: Mapping[str, object] | None = None) -> dict[str, object]:
        """Ask JetStream's own interface.

        Raises:
            RefusedError: it answered, and will not.
        """
        written = b"" if body is None else json.dumps(body).encode()
        try:
            message = await self.answered(self._client.request(_API + call, written, timeout=self._answer))
        except nats.errors.NoRespondersError:
            raise BrokerLostError(
                "JetStream does not answer; start the server with -js, or wait until its cluster has a leader"
            ) from None
        try:
            answer = cast("dict[str, object]", json.loads(message.data))
            error = cast("dict[str, object] | None", answer.get("error"))
            if error is None:
                return answer
            code, reason_code = int(str(error.get("code", 0))), int(str(error.get("err_code", 0)))
        except (ValueError, AttributeError):
            raise BrokerLostError("the broker's answer cannot be read; is it a NATS server?") from None
        raise RefusedError(code, reason_code, str(error.get("description", "no reason")))

    async def publish(
        self, subject: str, data: bytes, *, reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Send without waiting for anybody: what was sent is on its way once `flush` returns."""
        self.check()
        try:
            await self._client.publish(subject, data, reply=reply, headers=headers)
        except _DRIVERS_ERRORS as error:
            raise self._told(error) from None

    async def subscribe(self, subject: str, callback: Callable[[Msg], Awaitable[None]]) -> Subscription:
        """Have messages of a subject handed to `callback`, which must not raise."""
        subscribing = self._client.subscribe(subject, cb=callback)  # pyright: ignore[reportUnknownMemberType]
        return await self.answered(subscribing)

    async def drain(self, subscription: Subscription) -> None:
        """Unsubscribe; whatever the server sent before was handed over when this returns."""
        await self.answered(subscription.drain())  # type: ignore[no-untyped-call]  # the driver's gap

    async def unsubscribe(self, subscription: Subscription) -> None:
        """Unsubscribe from what nobody will answer any more."""
        await self.answered(subscription.unsubscribe())

    async def flush(self) -> None:
        """Until the server has read everything that was published before."""
        await self.answered(self._client.flush(timeout=ceil(self._answer)))

    async def wait(self, event: asyncio.Event, seconds: float) -> bool:
        """Until it happens, for so long at most; whether it did."""
        if event.is_set():
            return True
        happening = asyncio.ensure_future(event.wait())
        try:
            await self._first(happening, seconds)
        finally:
            happening.cancel()
        return event.is_set()

    async def answered(self, work: Coroutine[object, object, _T]) -> _T:
        """What comes of it, if it comes in time; else the connection is given up.

        The work goes on if this is cancelled: the driver's reader dies of an answer to what waits no longer.
        """
        task = asyncio.ensure_future(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        task.add_done_callback(retrieve)
        try:
            if not await self._first(task, self._answer):
                raise self.give_up(f"the broker did not answer within {self._answer:g} seconds")
        except BrokerLostError:
            task.cancel()
            raise
        try:
            return task.result()
        except nats.errors.NoRespondersError:
            raise
        except (*_DRIVERS_ERRORS, asyncio.CancelledError) as error:  # the driver cancels what waits when it closes
            raise self._told(error) from None

    def give_up(self, reason: str) -> BrokerLostError:
        """Have done with a connection that keeps silent; the error to raise."""
        self._end(reason)
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._client.close())
            self._closing.add_done_callback(retrieve)
        return BrokerLostError(reason)

    def inbox(self) -> str:
        """A subject that nobody else has."""
        return self._client.new_inbox()

    def check(self) -> None:
        """Raises `BrokerLostError` if the connection is known to be lost."""
        if self._lost.done():
            raise BrokerLostError(self._lost.result())

    async def close(self) -> None:
        """Close the connection, whether it is alive or not."""
        self.give_up("the connection to the broker is closed")
        if self._closing is None:
            return
        try:
            await asyncio.wait({self._closing}, timeout=_CLOSE_SECONDS)
        finally:
            self._closing.cancel()

    async def _first(self, task: asyncio.Task[_T], seconds: float) -> bool:
        """Wait for the task, or the loss of the connection, which is raised; false if the time is up."""
        waited: set[asyncio.Future[Any]] = {task, self._lost}
        await asyncio.wait(waited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            self.check()
        return task.done()

    async def _connect(self, name: str, seconds: float) -> None:
        logger = logging.getLogger("nats")
        if not logger.handlers:  # or what the driver says to nobody would go to standard error
            logger.addHandler(logging.NullHandler())
        # In a task of its own: the driver may not notice a cancellation that comes along with the server's answer.
        connecting = asyncio.ensure_future(self._begin(name, seconds))
        connecting.add_done_callback(retrieve)
        connected = False
        try:
            await asyncio.wait({connecting}, timeout=seconds)
            if not connecting.done():
                raise TimeoutError
            connecting.result()
            connected = True
        except _DRIVERS_ERRORS as error:
            raise self._told(self._last_error or error) from None
        finally:
            if not connected:
                connecting.cancel()
                await self.close()

    async def _begin(self, name: str, seconds: float) -> None:
        server = self._server
        # in a thread: it reads every authority from files
        tls = await asyncio.to_thread(ssl.create_default_context) if server.encrypted else None
        await self._client.connect(
            servers=server.address,
            user=server.user,
            password=server.password,
            token=server.token,
            tls=tls,
            name=name,
            error_cb=self._note,
            allow_reconnect=False,
            max_reconnect_attempts=1,  # the driver knows no "none" for the first connect
            reconnect_time_wait=0,
            connect_timeout=ceil(seconds),
            pending_size=_UNSENT_BYTES,
        )
        if self._lost.done():  # given up meanwhile
            await self._client.close()

    async def _note(self, error: Exception) -> None:
        """What the driver has to say, which would else be printed; a lack of permission is the end."""
        self._last_error = error
        if "permissions violation" in str(error).lower():
            self._end()

    def _end(self, reason: str | None = None) -> None:
        if not self._lost.done():
            self._lost.set_result(reason or reason_of(self._last_error))

    def _told(self, error: BaseException) -> BrokerLostError:
        if self._lost.done():
            return BrokerLostError(self._lost.result())
        return BrokerLostError(reason_of(error))


def retrieve(task: asyncio.Task[_T]) -> None:
    """Nobody waits for it any more; unread, its error would be printed."""
    if not task.cancelled():
        task.exception()
