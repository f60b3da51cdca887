"""The driver's client, tamed: one attempt to connect, one connection, and an end that is told and leaves no socket.

The driver would reconnect by itself and keep what was to be sent meanwhile; here the flow decides what to do without
a broker. Two of the driver's private methods are replaced, and a test for each tells if it ceases to be called.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

import nats.errors
from nats.aio.client import Client

from spectral.core.events.broker_settings import BROKER_URL_VARIABLE
from spectral.core.events.failure import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable

    from spectral.core.events.broker_settings import BrokerSettings

_NEARBY: Final = {"localhost", "127.0.0.1", "::1"}
_PLAIN_LINE: Final = "the connection to NATS leaves this machine without encryption; use tls://"


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Where a server is, and who we are there: a user with a password, or a token."""

    address: str
    encrypted: bool
    user: str | None = field(repr=False)
    password: str | None = field(repr=False)
    token: str | None = field(repr=False)


def servers_of(url: str) -> list[Server]:
    """The servers that a URL names, separated by commas; what is percent-encoded in it is decoded.

    Raises:
        ConfigurationError: it has no usable address. The message does not show it.
    """
    try:
        return [_server_of(each.strip()) for each in url.split(",")]
    except ValueError:
        raise ConfigurationError(
            f"the broker's URL has no usable host and port; set {BROKER_URL_VARIABLE} to something like "
            "nats://host:4222, with the user, a colon, the password and an @ before the host"
        ) from None  # it would quote the URL


def advice_for(settings: BrokerSettings) -> tuple[str, ...]:
    """What should be changed though it works: a line on which others may read along."""
    is_open_to_all = any(
        not server.encrypted and urlsplit(server.address).hostname not in _NEARBY for server in servers_of(settings.url)
    )
    return (_PLAIN_LINE,) if is_open_to_all else ()


def _server_of(url: str) -> Server:
    parts = urlsplit(url)
    if parts.hostname is None:
        raise ValueError
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    name = None if parts.username is None else unquote(parts.username)
    password = None if parts.password is None else unquote(parts.password)
    return Server(
        address=f"{parts.scheme}://{host}:{parts.port or 4222}",
        encrypted=parts.scheme == "tls",
        user=None if password is None else name,
        password=password,
        token=name if password is None else None,
    )


class TamedClient(Client):
    """A client that tells its end once, sends no password in the clear where that was not asked for, and ends clean."""

    def __init__(self, *, encrypted: bool, ended: Callable[[], None]) -> None:
        super().__init__()
        self._encrypted = encrypted
        self._ended = ended

    def _connect_command(self) -> bytes:
        """The driver's first words, which hold the password: only after TLS, if the URL says tls.

        The driver encrypts if the server asks for it. A server that does not, or somebody in between who took the
        question out, would get the password as it is.
        """
        if self._encrypted and not self._server_info.get("tls_required"):
            raise nats.errors.SecureConnWantedError
        return super()._connect_command()

    async def _close(self, status: int, do_cbs: bool = True) -> None:  # noqa: FBT001, FBT002  the driver's signature
        """The driver's way out, on its own or ours: whoever waits is told first, and the socket does not stay.

        The driver first tries to send what is left. On a connection that is gone this fails or takes for ever.
        """
        self._ended()
        try:
            with suppress(OSError, RuntimeError):  # RuntimeError: uvloop's word for a closed transport
                await super()._close(status, do_cbs)
        finally:
            writer = getattr(self._transport, "_io_writer", None)
            if isinstance(writer, asyncio.StreamWriter):
                writer.transport.abort()
