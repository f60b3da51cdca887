"""The tools over streamable HTTP: who may call, under which name, and until when.

Loopback unless told otherwise. Any other address or name needs a token, and so do tools that change anything. The Host
and Origin of every request are checked, so that a page in a browser cannot reach the tools under a name of its own (DNS
rebinding).
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import signal
import socket
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import uvicorn
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse

from spectral.core.events.failure import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from mcp.server import Server
    from starlette.types import ASGIApp, Receive, Scope, Send

TOKEN_VARIABLE: Final = "SPECTRAL_MCP_TOKEN"  # noqa: S105  the variable's name
PATH: Final = "/mcp"

_SHORTEST_TOKEN: Final = 16
_LARGEST_REQUEST: Final = 256 * 1024
_MOST_CLIENTS: Final = 100
_GRACE: Final = 3
"""Seconds for what is being answered when it is told to stop."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Where to listen, for whom. `names` are those that clients may call it by beside the address itself.

    `writes`: tools are offered that change something. Every user of this machine can reach loopback.
    """

    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = field(default=None, repr=False)
    names: tuple[str, ...] = ()
    writes: bool = False

    def __post_init__(self) -> None:
        if self.token is not None and len(self.token) < _SHORTEST_TOKEN:
            raise ConfigurationError(
                f"{TOKEN_VARIABLE} is too short; take one of at least {_SHORTEST_TOKEN} characters: "
                "openssl rand -hex 32"
            )
        exposed = None if self.token is not None else self._exposed()
        if exposed is not None:
            why, option = exposed
            raise ConfigurationError(
                f"{why}, and there is no token; set {TOKEN_VARIABLE} (openssl rand -hex 32), or leave out {option}"
            )
        if is_wildcard(self.host) and not self.names:
            raise ConfigurationError(
                f"{self.host} is no name that a client calls; say which names it may use: --allow-host ops.example.com"
            )

    def _exposed(self) -> tuple[str, str] | None:
        """Why it must not be open to everybody, and the option that makes it so."""
        if not is_loopback(self.host):
            return f"{self.host} can be reached from other machines", "--host"
        outside = next((name for name in self.names if not is_loopback(name.strip("[]"))), None)
        if outside is not None:
            return f"{outside} is what other machines call it by", "--allow-host"
        return ("every user of this machine could change events", "--allow-writes") if self.writes else None

    @property
    def hosts(self) -> frozenset[str]:
        """The names that a request may ask for, as they stand in its Host header, without a port."""
        own: set[str] = {"127.0.0.1", "localhost", "::1"} if is_loopback(self.host) else set()
        bound: set[str] = set() if is_wildcard(self.host) else {self.host}
        return frozenset(map(_in_url, {*own, *bound, *self.names}))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach it."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Whether it stands for every address of this machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host


async def serve_http(server: Server, settings: HttpSettings, ready: Callable[[str], object]) -> None:
    """Answer until SIGTERM or SIGINT; `ready` is told the address once it is listened on.

    Raises:
        ConfigurationError: nobody can listen there.
    """
    with _listening(settings) as listener:
        config = uvicorn.Config(
            application(server, settings),
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=_GRACE,
        )
        serving = _Serving(config)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, serving.stop)
        ready(f"http://{_in_url(settings.host)}:{listener.getsockname()[1]}{PATH}")
        await serving.serve(sockets=[listener])


def application(server: Server, settings: HttpSettings) -> ASGIApp:
    """The tools behind the checks."""
    names = sorted(settings.hosts)
    served = server.streamable_http_app(
        streamable_http_path=PATH,
        max_request_body_size=_LARGEST_REQUEST,
        max_sessions=_MOST_CLIENTS,
        transport_security=TransportSecuritySettings(
            allowed_hosts=[shown for name in names for shown in (name, f"{name}:*")],
            allowed_origins=[
                f"{scheme}://{shown}" for name in names for scheme in ("http", "https") for shown in (name, f"{name}:*")
            ],
        ),
    )
    return served if settings.token is None else TokenGate(served, settings.token)


class TokenGate:
    """Lets through who knows the token."""

    def __init__(self, behind: ASGIApp, token: str) -> None:
        self._behind = behind
        self._expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 to everybody else; the comparison takes as long for a near miss as for any other."""
        if scope["type"] == "http":
            given = Headers(scope=scope).get("authorization", "").encode("latin-1")
            if not hmac.compare_digest(given, self._expected):
                refusal = PlainTextResponse(
                    f"a token is needed: Authorization: Bearer <{TOKEN_VARIABLE}>\n",
                    status_code=401,
                    headers={"WWW-Authenticate": "Bearer"},
                )
                await refusal(scope, receive, send)
                return
        await self._behind(scope, receive, send)


class _Serving(uvicorn.Server):
    """Ends in good order at the first signal, and at once at the second; the exit code is 0 either way."""

    def stop(self) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """The base would raise the signal again once it has ended, and die of it."""
        yield


def _listening(settings: HttpSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family)
    except OSError as error:
        raise ConfigurationError(
            f"nobody can listen on {settings.host}, port {settings.port} ({error.strerror}); "
            "choose others with --port and --host"
        ) from None


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
