"""`spectral mcp` as a client starts it: a real process, talked to on stdin and stdout by a real client."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from mcp import Client, StdioServerParameters, stdio_client
from mcp_types import CallToolResult, Implementation
from psycopg import conninfo
from psycopg.types.json import Jsonb

from tests.acceptance.worker_process import PATIENCE, SPECTRAL
from tests.migrations.sql import EVENT_TYPE, claim, fail, publish, row, settle

Connection = psycopg.Connection[Any]
CANARY = "canary"
PAYLOAD = "only in the detail"


@asynccontextmanager
async def spectral_mcp(dsn: str, log: Path, *options: str, **variables: str) -> AsyncIterator[Client]:
    """A client of a fresh server; what the server says on stderr goes to the log."""
    command = StdioServerParameters(
        command=SPECTRAL, args=["mcp", *options], env={"SPECTRAL_DATABASE_URL": dsn, **variables}
    )
    who = Implementation(name="desk-agent", version="3")
    with log.open("w") as errors:
        async with Client(stdio_client(command, errlog=errors), client_info=who, mode="legacy") as client:
            yield client


@pytest.fixture
def secret_dsn(database: str, connection: Connection) -> Iterator[str]:
    """The same database for a login with a password, which nothing may show."""
    connection.execute("create role desk_login login superuser password 'canary'")
    yield conninfo.make_conninfo(database, user="desk_login", password=CANARY)
    connection.execute("drop role desk_login")


def document_of(result: CallToolResult) -> dict[str, Any]:
    assert not result.is_error, result.content
    assert isinstance(result.structured_content, dict)
    return result.structured_content


async def test_an_agent_finds_a_failure_plans_a_replay_and_carries_it_out(
    secret_dsn: str, connection: Connection, tmp_path: Path
) -> None:
    early = fail(connection, "ValueError: no")
    async with spectral_mcp(secret_dsn, tmp_path / "log", "--allow-writes", SPECTRAL_OPERATOR="ada@ops") as client:
        answers: list[CallToolResult] = []

        async def call(name: str, **arguments: object) -> dict[str, Any]:
            answers.append(await client.call_tool(name, arguments))
            return document_of(answers[-1])

        offered = {tool.name for tool in (await client.list_tools()).tools}
        (group,) = (await call("triage_dlq"))["groups"]
        assert (group["event_type"], group["error_class"], group["count"]) == (EVENT_TYPE, "ValueError", 1)
        detail = await call("get_dlq_event_detail", event_id=group["sample_id"])
        assert detail["status"] == "failed"
        planned = await call("plan_replay", event_type=EVENT_TYPE, error_class="ValueError")
        assert planned["event_ids"] == [str(early)]
        late = fail(connection, "ValueError: no")
        done = await call("replay_dlq_event", token=planned["token"], reason="deployed the fix")
        assert (done["step"], done["event_ids"]) == ("applied", [str(early)])
        assert [row(connection, each)["status"] for each in (early, late)] == ["pending", "failed"]
        planned = await call("discard_dlq_event", event_id=str(late), reason="a test order")
        done = await call("discard_dlq_event", token=planned["token"], reason="a test order")
        assert done["event_ids"] == [str(late)]
        entries = (await call("list_audit"))["entries"]
        assert [(each["action"], each["actor"], each["reason"]) for each in entries[:2]] == [
            ("discard", "agent:desk-agent/3 for ada@ops", "a test order"),
            ("replay", "agent:desk-agent/3 for ada@ops", "deployed the fix"),
        ]
        assert entries[0]["session_role"] == "desk_login"
        await call("get_backlog")
        await call("list_generations")
        await call("run_doctor")
        await call("list_dlq_events")
        await call("plan_discard", event_ids=[str(publish_failed(connection))])
        again = await client.call_tool("discard_dlq_event", {"token": planned["token"], "reason": "x"})
        assert again.is_error
    asked = {"plan_discard", "plan_replay", "replay_dlq_event", "discard_dlq_event", "list_audit", "get_backlog"}
    assert offered == asked | {
        "list_generations",
        "run_doctor",
        "list_dlq_events",
        "triage_dlq",
        "get_dlq_event_detail",
    }
    shown = (
        json.dumps([answer.model_dump(mode="json") for answer in [*answers, again]]) + (tmp_path / "log").read_text()
    )
    assert CANARY not in shown


def publish_failed(connection: Connection) -> object:
    event_id = publish(connection, p_payload=Jsonb({"secret": PAYLOAD}))
    settle(connection, claim(connection), "dead_letter", "ValueError: no")
    return event_id


async def test_without_leave_to_write_it_reads_and_payloads_are_in_the_detail_only(
    database: str, connection: Connection, tmp_path: Path
) -> None:
    event_id = publish_failed(connection)
    async with spectral_mcp(database, tmp_path / "log") as client:
        assert not any("replay" in tool.name or "discard" in tool.name for tool in (await client.list_tools()).tools)
        refused = await client.call_tool("discard_dlq_event", {"event_id": str(event_id), "reason": "x"})
        assert refused.is_error
        for name in ("list_dlq_events", "triage_dlq", "list_audit", "get_backlog"):
            assert PAYLOAD not in (await client.call_tool(name)).model_dump_json()
        detail = document_of(await client.call_tool("get_dlq_event_detail", {"event_id": str(event_id)}))
        assert json.loads(detail["payload"]) == {"secret": PAYLOAD}
    assert "reads only" in (tmp_path / "log").read_text()


async def test_it_starts_without_its_database_and_says_so_in_every_answer(tmp_path: Path) -> None:
    dsn = f"postgresql://{CANARY}:{CANARY}@127.0.0.1:1/shop"
    async with spectral_mcp(dsn, tmp_path / "log", "--allow-writes") as client:
        refused = await client.call_tool("get_backlog")
    assert refused.is_error
    assert "no connection to 127.0.0.1:1/shop" in refused.model_dump_json()
    assert CANARY not in refused.model_dump_json() + (tmp_path / "log").read_text()


def test_ctrl_c_ends_it_while_stdin_is_open() -> None:
    with subprocess.Popen(
        [SPECTRAL, "mcp"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"SPECTRAL_DATABASE_URL": "postgresql://127.0.0.1:1/shop"},
    ) as process:
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["id"] == 1
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) == -signal.SIGINT
        finally:
            process.kill()


def test_without_the_package_it_says_what_to_install() -> None:
    script = """
import sys
from importlib import util
found = util.find_spec
util.find_spec = lambda name, *rest: None if name == "mcp" else found(name, *rest)
from spectral_ops.cli import main
sys.argv = ["spectral", "mcp"]
main()
"""
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, env={})
    assert ran.returncode == 1
    assert ran.stderr == ('error: serving agents needs an extra package\n  try: pip install "spectral-events[mcp]"\n')
