"""`spectral mcp --http` as a real process on a real port: who gets in, under which name, and how it ends."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import httpx2
import psycopg
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import Implementation

from tests.acceptance.worker_process import PATIENCE, SPECTRAL
from tests.migrations.sql import fail, row

Connection = psycopg.Connection[Any]
TOKEN = "canary-0123456789abcdef"
NOWHERE = "postgresql://127.0.0.1:1/shop"
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}


@dataclass
class Server:
    """A server that listens."""

    process: subprocess.Popen[str]
    url: str
    said: list[str]
    reader: threading.Thread

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        self.reader.join(PATIENCE)
        return code


@contextmanager
def serving(dsn: str, *options: str, **variables: str) -> Iterator[Server]:
    with subprocess.Popen(
        [SPECTRAL, "mcp", "--http", "--port", "0", *options],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={"SPECTRAL_DATABASE_URL": dsn, **variables},
        text=True,
    ) as process:
        stream = process.stderr
        assert stream is not None
        said: list[str] = []
        for line in stream:
            said.append(line)
            if line.startswith("listening on "):
                break
        reader = threading.Thread(target=lambda: said.extend(stream))
        reader.start()
        try:
            yield Server(process, said[-1].split()[2], said, reader)
        finally:
            process.kill()
            process.wait()
            reader.join()


@asynccontextmanager
async def client_of(server: Server, *, mode: str = "auto", token: str | None = TOKEN) -> AsyncIterator[Client]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as http:
        transport = streamable_http_client(server.url, http_client=http)
        async with Client(transport, client_info=Implementation(name="remote", version="2"), mode=mode) as client:
            yield client


def ask(server: Server, **headers: str) -> set[int]:
    """The statuses of a plain request with these headers beside those it needs, in both ways the protocol goes."""
    needed = {"Accept": "application/json, text/event-stream"}
    return {
        httpx.post(
            server.url, json=PING, headers={**needed, "MCP-Protocol-Version": version, **headers}, timeout=PATIENCE
        ).status_code
        for version in ("2025-11-25", "2026-07-28")
    }


async def test_an_agent_with_the_token_plans_and_replays_over_http(database: str, connection: Connection) -> None:
    event_id = fail(connection)
    with serving(database, "--allow-writes", "--by", "ada", SPECTRAL_MCP_TOKEN=TOKEN) as server:
        # Every client has a connection of its own, and speaks another version of the protocol; the plans are shared.
        async with client_of(server, mode="auto") as client:
            planned = await client.call_tool("replay_dlq_event", {"event_id": str(event_id), "reason": "x"})
        assert planned.structured_content is not None
        async with client_of(server, mode="legacy") as client:
            token = planned.structured_content["token"]
            done = await client.call_tool("replay_dlq_event", {"token": token, "reason": "the fix is out"})
            again = await client.call_tool("replay_dlq_event", {"token": token, "reason": "the fix is out"})
            audit = await client.call_tool("list_audit", {"action": "replay"})
        assert done.structured_content is not None
        assert (done.structured_content["event_ids"], again.is_error) == ([str(event_id)], True)
        assert audit.structured_content is not None
        assert audit.structured_content["entries"][0]["actor"] == "agent:remote/2 for ada"
        assert row(connection, event_id)["status"] == "pending"
        assert server.end() == 0
        assert "with a token" in "".join(server.said)
        assert TOKEN not in "".join(server.said) + json.dumps(done.model_dump(mode="json"))


def test_only_who_knows_the_token_and_calls_it_by_its_name_gets_in() -> None:
    with serving(NOWHERE, "--allow-host", "ops.example.com", SPECTRAL_MCP_TOKEN=TOKEN) as server:
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        assert ask(server) == {401}
        assert ask(server, Authorization=f"Bearer {TOKEN}x") == {401}
        assert ask(server, Authorization=TOKEN) == {401}
        assert ask(server, **bearer, Host="evil.example.com") == {421}
        assert ask(server, **bearer, Origin="http://evil.example.com") == {403}
        let_in = (
            ask(server, **bearer)
            | ask(server, **bearer, Host="ops.example.com")
            | ask(server, **bearer, Host="ops.example.com:8443", Origin="https://ops.example.com:8443")
            | ask(server, **bearer, Origin="http://localhost:3000")
        )
        assert {401, 403, 421}.isdisjoint(let_in)
        assert server.end(signal.SIGINT) == 0


async def test_on_this_machine_it_needs_no_token_but_its_own_name() -> None:
    with serving(NOWHERE) as server:
        assert ask(server, Host="evil.example.com") == {421}
        assert ask(server, Origin="http://evil.example.com") == {403}
        async with client_of(server, token=None, mode="legacy") as client:
            assert len((await client.list_tools()).tools) == 7
            refused = await client.call_tool("get_backlog")
            assert refused.is_error
            # A client that is still there, with a stream open, does not keep it from ending.
            assert server.end() == 0
        assert "without a token" in "".join(server.said)


@pytest.mark.parametrize(
    ("options", "variables", "said"),
    [
        (("--host", "0.0.0.0"), {}, "set SPECTRAL_MCP_TOKEN"),  # noqa: S104  refused, that is the point
        (("--allow-writes",), {}, "set SPECTRAL_MCP_TOKEN"),
        (("--host", "192.0.2.1"), {"SPECTRAL_MCP_TOKEN": TOKEN}, "nobody can listen on 192.0.2.1"),
    ],
    ids=["no token", "no token to write", "not our address"],
)
def test_it_does_not_start_where_it_would_be_open_to_others_or_cannot_be(
    options: tuple[str, ...], variables: dict[str, str], said: str
) -> None:
    ran = subprocess.run(
        [SPECTRAL, "mcp", "--http", *options],
        capture_output=True,
        text=True,
        check=False,
        env={"SPECTRAL_DATABASE_URL": NOWHERE, **variables},
    )
    assert ran.returncode == 2
    assert said in ran.stderr
    assert TOKEN not in ran.stderr


def test_an_address_without_http_is_a_mistake_and_said_to_be_one() -> None:
    ran = subprocess.run([SPECTRAL, "mcp", "--port", "9"], capture_output=True, text=True, check=False, env={})
    assert ran.returncode == 2
    assert "are for --http" in ran.stderr
