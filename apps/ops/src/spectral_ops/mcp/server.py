"""The tools on the wire: the catalogue as a server of the Model Context Protocol, over stdio or HTTP.

Every call has a connection of its own, and no more than a few run at once. Whatever goes wrong is answered as a failed
call with what to do next: never a traceback, never a connection string.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Final

from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool, ToolAnnotations
from pydantic import ValidationError

from spectral.core.database import connect
from spectral.core.events.failure import SpectralError
from spectral_ops.mcp.catalogue import CATALOGUE, INSTRUCTIONS, Call, Entry
from spectral_ops.mcp.identity import acting
from spectral_ops.mcp.plans import PlanBook

if TYPE_CHECKING:
    from mcp.server import ServerRequestContext
    from mcp_types import CallToolRequestParams, PaginatedRequestParams

    from spectral.core.events.probe import Probe
    from spectral.core.events.settings import DatabaseSettings
    from spectral_ops.mcp.results import Result

_AT_ONCE: Final = 4
_WRITES_ARE_OFF: Final = "spectral mcp --allow-writes (a person has to start it so)"


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Which database, for whom, and whether anything may be changed; `probe` is told what is."""

    database: DatabaseSettings
    person: str
    allow_writes: bool = False
    plans: PlanBook = field(default_factory=PlanBook)
    probe: Probe | None = None


def build_server(settings: ServerSettings) -> Server:
    """A server of the tools that these settings allow; the others are not even listed."""
    offered = {entry.name: entry for entry in CATALOGUE if settings.allow_writes or not entry.writes}
    tools = ListToolsResult(tools=[_described(entry) for entry in offered.values()])
    room = asyncio.Semaphore(_AT_ONCE)

    async def list_tools(_context: ServerRequestContext, _parameters: PaginatedRequestParams | None) -> ListToolsResult:
        return tools

    async def call_tool(context: ServerRequestContext, parameters: CallToolRequestParams) -> CallToolResult:
        entry = offered.get(parameters.name)
        if entry is None:
            return _unknown(parameters.name)
        try:
            asked = entry.arguments.model_validate(parameters.arguments or {})
        except ValidationError as error:
            return _misasked(error)
        try:
            opening = connect(settings.database.dsn, f"mcp {entry.name}", probe=settings.probe)
            async with room, opening as database:
                call = Call(database, settings.database, settings.plans, _actor(context, settings.person))
                return _answered(await entry.call(call, asked))
        except Exception as error:  # noqa: BLE001  the one place where an error becomes an answer
            return _failed(error)

    return Server(
        "spectral",
        version=version("spectral-events"),
        title="Spectral",
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def serve_stdio(server: Server) -> None:
    """Answer on stdin and stdout until stdin ends."""
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def _described(entry: Entry) -> Tool:
    return Tool(
        name=entry.name,
        title=entry.title,
        description=entry.description,
        input_schema=entry.arguments.model_json_schema(),
        output_schema=entry.result.model_json_schema(mode="serialization"),
        annotations=ToolAnnotations(read_only_hint=not entry.changes, destructive_hint=entry.changes),
    )


def _actor(context: ServerRequestContext, person: str) -> str:
    told = context.session.client_params
    client = told.client_info if told is not None else None
    return acting(client.name if client else None, client.version if client else None, person)


def _answered(result: Result) -> CallToolResult:
    """The values, typed; and as text, since many a client shows its model nothing else: in short, then as JSON."""
    texts = [result.summary(), result.model_dump_json()]
    return CallToolResult(
        content=[TextContent(type="text", text=text) for text in texts],
        structured_content=result.model_dump(mode="json"),
    )


def _unknown(name: str) -> CallToolResult:
    if any(entry.name == name for entry in CATALOGUE):
        return _refusal(f"{name} is for changing events, and that is not allowed here", _WRITES_ARE_OFF)
    return _refusal("there is no such tool", "list the tools")


def _misasked(error: ValidationError) -> CallToolResult:
    wrong = [f"{'.'.join(map(str, each['loc'])) or 'arguments'}: {each['msg']}" for each in error.errors()]
    return _refusal("; ".join(wrong), None)


def _failed(error: Exception) -> CallToolResult:
    if isinstance(error, SpectralError):
        return _refusal(str(error), getattr(error, "remedy", None))
    # Not one of ours: its text may quote anything, a connection string included.
    return _refusal(f"unexpected {type(error).__name__}", "spectral doctor")


def _refusal(message: str, remedy: str | None) -> CallToolResult:
    text = f"{message}\ntry: {remedy}" if remedy else message
    return CallToolResult(content=[TextContent(type="text", text=text)], is_error=True)
