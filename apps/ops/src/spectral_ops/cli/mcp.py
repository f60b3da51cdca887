"""`spectral mcp`: the operator's tools for agents. What they do is decided in `spectral_ops.mcp`."""

from __future__ import annotations

import signal
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Final

import typer

from spectral_ops.cli.database import environment
from spectral_ops.cli.options import By, actor
from spectral_ops.cli.output import note

if TYPE_CHECKING:
    from spectral_ops.mcp.http import HttpSettings
    from spectral_ops.mcp.server import ServerSettings

_HOST: Final = "127.0.0.1"
_PORT: Final = 8765
_SERVICE: Final = "spectral-mcp"


def mcp(
    http: Annotated[bool, typer.Option("--http", help="Serve streamable HTTP instead of stdin and stdout.")] = False,
    host: Annotated[
        str, typer.Option(help="The address to listen on; others than this machine's need a token.")
    ] = _HOST,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0: any that is free.")] = _PORT,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A name that clients call it by, beside the address; repeatable."),
    ] = None,
    allow_writes: Annotated[
        bool, typer.Option("--allow-writes", help="Offer the tools that replay and discard; they plan first.")
    ] = False,
    by: By = None,
) -> None:
    """Serve the operator's tools to an agent (MCP).

    Started by the agent's client, which talks to it on stdin and stdout until it closes them. It reads the DLQ, the
    backlog, the generations, the doctor and the audit; it changes nothing unless --allow-writes is given, and then
    only what was planned before. With --http the token is SPECTRAL_MCP_TOKEN.
    """
    if not http and (allow_host or (host, port) != (_HOST, _PORT)):
        raise typer.BadParameter("--host, --port and --allow-host are for --http; say that too")
    if find_spec("mcp") is None:
        raise ModuleNotFoundError(name="mcp")
    from spectral.core.database import describe_database  # noqa: PLC0415  psycopg; --help must not pay for it
    from spectral.core.events.settings import DatabaseSettings  # noqa: PLC0415  as above
    from spectral_ops.cli.operator_log import operator_log  # noqa: PLC0415  as above
    from spectral_ops.mcp.http import TOKEN_VARIABLE, HttpSettings  # noqa: PLC0415  as above
    from spectral_ops.mcp.server import ServerSettings  # noqa: PLC0415  as above

    variables = environment()
    database, log = DatabaseSettings.from_environ(variables), operator_log(_SERVICE, variables)
    settings = ServerSettings(database, actor(by), allow_writes=allow_writes, probe=log)
    token = variables.get(TOKEN_VARIABLE) or None
    listening = HttpSettings(host, port, token, tuple(allow_host or ()), allow_writes) if http else None
    note(f"{describe_database(settings.database.dsn)}: {'writes are allowed' if allow_writes else 'reads only'}")
    _serve(settings, listening)


def _serve(settings: ServerSettings, listening: HttpSettings | None) -> None:
    import asyncio  # noqa: PLC0415  --help must not pay for it

    from spectral_ops.mcp.http import serve_http  # noqa: PLC0415  as above
    from spectral_ops.mcp.server import build_server, serve_stdio  # noqa: PLC0415  as above

    server = build_server(settings)
    if listening is not None:
        guarded = "with" if listening.token else "without"
        asyncio.run(serve_http(server, listening, lambda address: note(f"listening on {address} {guarded} a token")))
        return
    if sys.stdin.isatty():
        note("this talks to a program, not to a person; Ctrl-C ends it")
    # A thread waits for stdin, and an orderly end would wait for that thread. There is nothing to put in order: every
    # change is one statement.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    asyncio.run(serve_stdio(server))
