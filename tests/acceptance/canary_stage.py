"""Where secrets are put for the tests of secrets: a project whose handlers tell all, and whoever might hear of it."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final

BIRD: Final = "kanarienvogel"
"""Not the English word: that is in the name of this file, and so in the list of processes."""

NUMBER: Final = 8472_9584_1
PASSWORD: Final = f"{BIRD}-in-the-dsn"

PUBLISHER: Final = """
import math, os, sys
import psycopg
import structlog
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from spectral.core.events import EventEnvelope
from spectral.core.events.bootstrap import publisher_for, publishing

structlog.configure(
    processors=[structlog.processors.JSONRenderer()], logger_factory=structlog.PrintLoggerFactory(sys.stderr)
)
provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
trace.set_tracer_provider(provider)
shared = publishing()
payload = {"name": "BIRD of the payload", "number": NUMBER, "notes": ["BIRD", {"deep": "a BIRD sings"}]}

def event(kind, **more):
    return EventEnvelope(event_type=f"worlds.scan.{kind}", source="worlds", target="platform", payload=payload | more)

with psycopg.connect(os.environ["SPECTRAL_DATABASE_URL"], autocommit=True) as connection:
    publisher = publisher_for(connection, shared)
    for kind in sys.argv[1:]:
        with connection.transaction():
            publisher.publish(event(kind))
    twice = event("handled")
    for refused in (event("handled", wrong=math.nan), twice, twice, event("refused")):
        try:
            with connection.transaction():
                publisher.publish(refused)
        except Exception as error:
            print(type(error).__name__, file=sys.stderr)
assert shared.flush(30)
assert provider.force_flush()
"""

APP: Final = """
from datetime import timedelta
from pydantic import BaseModel
from spectral.core.events import Consumer, DeliveryContext, EventEnvelope, RetryPolicy, Transaction

platform = Consumer("platform", retry=RetryPolicy(max_retries=1, base=timedelta(0), cap=timedelta(0)))
BIRD_ON_THE_STACK = "kanarienvogel in a variable"

class Scan(BaseModel):
    name: int
    number: bool

@platform.on("worlds.scan.handled")
async def handled(event: EventEnvelope, context: DeliveryContext) -> None:
    context.logger.info("handled it")

@platform.on("worlds.scan.quoted")
async def quotes_it_all(event: EventEnvelope) -> None:
    raise RuntimeError(f"cannot handle {event.payload}")

@platform.on("worlds.scan.valued")
async def quotes_a_value(event: EventEnvelope) -> None:
    raise ValueError(event.payload["name"])

@platform.on("worlds.scan.numbered")
async def quotes_a_number(event: EventEnvelope) -> None:
    raise OSError(f"no account {event.payload['number']}")

@platform.on("worlds.scan.local")
async def has_variables(event: EventEnvelope) -> None:
    on_the_stack = BIRD_ON_THE_STACK
    raise ZeroDivisionError(f"{len(on_the_stack)} cannot be divided")

@platform.on("worlds.scan.grouped")
async def fails_twice(event: EventEnvelope) -> None:
    try:
        raise KeyError(event.payload["name"])
    except KeyError as error:
        away = OSError(str(event.payload["notes"]))
        raise ExceptionGroup(f"all of {event.payload['name']}", [error, away]) from error

@platform.on("worlds.scan.connected")
async def shows_its_dsn(event: EventEnvelope) -> None:
    raise ConnectionError("no answer from postgresql://ada:kanarienvogel@db.example/app, password=kanarienvogel")

@platform.on("worlds.scan.unfit")
async def wants_another_shape(scan: Scan) -> None:
    pass

@platform.on("worlds.scan.unfit_in_transaction")
async def wants_another_shape_too(scan: Scan, tx: Transaction) -> None:
    pass

@platform.on("worlds.scan.duplicate")
async def saves_it_twice(event: EventEnvelope, tx: Transaction) -> None:
    for _ in range(2):
        await tx.execute("insert into people (name) values (%s)", [event.payload["name"]])

@platform.on("worlds.scan.cast")
async def casts_it(event: EventEnvelope, tx: Transaction) -> None:
    await tx.execute("select %s::text::integer", [event.payload["name"]])

@platform.on("worlds.scan.raised")
async def has_the_server_complain(event: EventEnvelope, tx: Transaction) -> None:
    await tx.execute("select complain(%s)", [event.payload["name"]])

@platform.on("worlds.scan.deferred")
async def is_refused_at_the_commit(event: EventEnvelope, tx: Transaction) -> None:
    await tx.execute("insert into pets (name) values (%s)", [event.payload["name"]])

@platform.on("worlds.scan.quoted_in_transaction")
async def quotes_it_in_a_transaction(event: EventEnvelope, tx: Transaction) -> None:
    raise RuntimeError(f"cannot handle {event.payload!r}")
"""

CRASH: Final = """
import os
import sentry_sdk
from spectral.core.events.delivery.desk import Desk

def crash(self, conclusions, *_):
    on_the_stack = BIRD_ON_THE_STACK, conclusions[0].delivery.payload
    raise RuntimeError("lost postgresql://ada:kanarienvogel@db.example/app")

assert Desk.settled_together
Desk.settled_together = crash
sentry_sdk.init(dsn=os.environ["SENTRY_DSN"], include_local_variables=True, attach_stacktrace=True)
"""

TABLES: Final = """
create table people (name text primary key);
create table pets (name text references people deferrable initially deferred);
create function complain(what text) returns void language plpgsql as
$$ begin raise exception 'no such thing as %', what using detail = what, hint = what; end $$;
create function refuse() returns trigger language plpgsql as
$$ begin raise exception 'cannot take %', new.payload using detail = new.payload; end $$;
create trigger refuses before insert on core.outbox
for each row when (new.event_type = 'worlds.scan.refused') execute function refuse();
"""

FAILING: Final = (
    "quoted",
    "valued",
    "numbered",
    "local",
    "grouped",
    "connected",
    "unfit",
    "unfit_in_transaction",
    "duplicate",
    "cast",
    "raised",
    "deferred",
    "quoted_in_transaction",
)


class Sink:
    """Takes whatever is sent to it, as a collector and as Sentry; `received` by path."""

    def __init__(self) -> None:
        self.received: dict[str, bytes] = {}
        self.port = 0

    def kinds(self) -> set[str]:
        return {path.strip("/").rpartition("/")[2] for path in self.received}


@contextmanager
def open_sink() -> Iterator[Sink]:
    sink = Sink()

    class Request(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            sink.received[self.path] = sink.received.get(self.path, b"") + body
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base's name
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Request) as server:
        sink.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield sink
        finally:
            server.shutdown()
            thread.join()
