"""A worker inside an ASGI application: real servers, real requests, and what happens when the worker dies."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psycopg
import pytest

PATIENCE = 40.0

COMMON = """
import asyncio
import logging
import os
from contextlib import asynccontextmanager

import psycopg

from spectral.core.events import Consumer, EventEnvelope, failpoints
from spectral.core.events.bootstrap import publisher_for, worker

logging.basicConfig(level=logging.INFO)
platform = Consumer("platform")
handled = []

@platform.on("worlds.scan.completed")
async def count(event: EventEnvelope) -> None:
    await asyncio.sleep(0.2)
    handled.append(event.payload["n"])

@asynccontextmanager
async def lifespan(app):
    async with worker(platform).lifespan(app):
        yield

async def publish() -> None:
    event = EventEnvelope(event_type="worlds.scan.completed", source="worlds", target="platform", payload={"n": 7})
    dsn = os.environ["SPECTRAL_DATABASE_URL"]
    async with await psycopg.AsyncConnection.connect(dsn) as connection, connection.transaction():
        await publisher_for(connection).publish(event)

def break_the_worker() -> None:
    def fail(name: str) -> None:
        if name == "claim.before":
            raise ZeroDivisionError("a bug of ours")
    failpoints.arm(fail)
"""
FASTAPI = """
from fastapi import FastAPI

app = FastAPI(lifespan=lifespan)

@app.get("/handled")
async def show_handled() -> list[int]:
    return handled

@app.post("/publish")
async def do_publish() -> None:
    await publish()

@app.post("/break")
async def do_break() -> None:
    break_the_worker()
"""
STARLETTE = """
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

async def show_handled(request):
    return JSONResponse(handled)

async def do_publish(request):
    await publish()
    return JSONResponse(None)

async def do_break(request):
    break_the_worker()
    return JSONResponse(None)

routes = [
    Route("/handled", show_handled),
    Route("/publish", do_publish, methods=["POST"]),
    Route("/break", do_break, methods=["POST"]),
]
app = Starlette(lifespan=lifespan, routes=routes)
"""


class Server:
    """uvicorn in a process of its own."""

    def __init__(self, directory: Path, dsn: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "served:app", "--port", "0", "--no-access-log"],
            cwd=directory,
            env={"PATH": os.environ["PATH"], "SPECTRAL_DATABASE_URL": dsn, "SPECTRAL_GENERATION": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said = ""
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        self._client: httpx.Client | None = None

    @property
    def client(self) -> httpx.Client:
        if self._client is None:
            running = self.wait_for(r"Uvicorn running on (http://[\d.:]+)")
            self._client = httpx.Client(base_url=running[1], timeout=PATIENCE)
        return self._client

    def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        with stream:
            for line in stream:
                with self._news:
                    self.said += line
                    self._news.notify_all()

    def wait_for(self, pattern: str) -> re.Match[str]:
        with self._news:
            found = self._news.wait_for(lambda: re.search(pattern, self.said), timeout=PATIENCE)
        assert isinstance(found, re.Match), self.said
        return found

    def wait_until_handled(self, numbers: list[int]) -> None:
        deadline = time.monotonic() + PATIENCE
        while self.client.get("/handled").raise_for_status().json() != numbers:
            assert time.monotonic() < deadline, self.said
            time.sleep(0.02)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def end(self) -> int:
        code = self._process.wait(timeout=PATIENCE)
        self._reader.join()
        return code

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        self._reader.join()
        if self._client is not None:
            self._client.close()


@contextmanager
def served(directory: Path, framework: str, dsn: str, common: str = COMMON) -> Iterator[Server]:
    (directory / "served.py").write_text(common + framework)
    server = Server(directory, dsn)
    try:
        yield server
    finally:
        server.close()


frameworks = pytest.mark.parametrize("framework", [FASTAPI, STARLETTE], ids=["fastapi", "starlette"])


@frameworks
def test_events_are_delivered_while_the_application_serves(tmp_path: Path, database: str, framework: str) -> None:
    with served(tmp_path, framework, database) as server:
        server.client.post("/publish").raise_for_status()
        server.wait_until_handled([7])
        server.client.post("/publish").raise_for_status()
        server.wait_until_handled([7, 7])


@frameworks
def test_the_worker_stops_in_good_order_with_the_server(tmp_path: Path, database: str, framework: str) -> None:
    with served(tmp_path, framework, database) as server:
        server.wait_for("listening")
        for _ in range(3):
            server.client.post("/publish").raise_for_status()
        server.stop()
        server.end()
    assert re.search(r"\bstopped\b", server.said)
    assert "Application shutdown complete" in server.said
    assert "Traceback" not in server.said
    with psycopg.connect(database) as connection:
        found = connection.execute("select distinct status, attempts from core.outbox").fetchall()
    assert set(found) <= {("delivered", 1), ("pending", 0)}


@frameworks
def test_a_worker_that_dies_takes_the_server_down(tmp_path: Path, database: str, framework: str) -> None:
    with served(tmp_path, framework, database) as server:
        server.wait_for("listening")
        server.client.post("/break").raise_for_status()
        server.client.post("/publish").raise_for_status()
        server.end()
        with pytest.raises(httpx.ConnectError):
            server.client.get("/handled")
    assert re.search(r"crashed.*ZeroDivisionError: a bug of ours", server.said)


def test_a_worker_whose_program_configured_no_log_still_says_what_went_wrong(tmp_path: Path, database: str) -> None:
    silent = COMMON.replace("logging.basicConfig(level=logging.INFO)\n", "").replace(
        'handled.append(event.payload["n"])', 'raise TerminalHandlerError("no such scan")'
    )
    silent = silent.replace("failpoints\n", "failpoints, TerminalHandlerError\n")
    with served(tmp_path, FASTAPI, database, silent) as server:
        server.client.post("/publish").raise_for_status()
        server.wait_for(r"handled .*status_result=failed last_error=.*no such scan")
    assert "listening" not in server.said


def test_a_worker_that_cannot_start_stops_the_server(tmp_path: Path, empty_database: str) -> None:
    with served(tmp_path, FASTAPI, empty_database) as server:
        assert server.end() != 0
    assert "spectral migrate up" in server.said
