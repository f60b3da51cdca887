"""Secrets: a bird that is put wherever secrets are, and must be heard nowhere. Real processes, real collectors."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.acceptance.canary_stage import (
    APP,
    BIRD,
    CRASH,
    FAILING,
    NUMBER,
    PASSWORD,
    PUBLISHER,
    TABLES,
    Sink,
    open_sink,
)
from tests.acceptance.cli_desk import Desk
from tests.acceptance.worker_process import WorkerProcess, eventually

QUOTED_BY_A_TRIGGER = "RaiseException: cannot take "

LOGGED = """
import sys

@platform.on("worlds.scan.logged")
async def logs_its_errors(event: EventEnvelope, context: DeliveryContext, tx: Transaction) -> None:
    try:
        raise KeyError(event.payload["name"])
    except KeyError as cause:
        cause.add_note(event.payload["name"])
        try:
            raise RuntimeError(f"cannot reach postgresql://ada:kanarienvogel@db.example, {event.payload}") from cause
        except RuntimeError as error:
            context.logger.exception("logged an error")
            context.logger.bind(more=1).error("logged an error", exc_info=error)
            context.logger.critical("logged an error", exc_info=sys.exc_info())
    try:
        async with tx.connection.transaction():
            await tx.execute("select complain(%s)", [event.payload["name"]])
    except Exception:
        context.logger.exception("logged an error")
"""


@pytest.fixture
def sink() -> Iterator[Sink]:
    """A collector."""
    with open_sink() as opened:
        yield opened


@pytest.fixture
def dsn(database: str, connection: psycopg.Connection[Any]) -> str:
    """With a password that nobody asks for, but everybody might show."""
    connection.execute(TABLES)
    return database.replace("postgres@", f"postgres:{PASSWORD}@")


def variables(dsn: str, sink: Sink) -> dict[str, str]:
    return {
        "SPECTRAL_DATABASE_URL": dsn,
        "SPECTRAL_ENVIRONMENT": "test",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{sink.port}",
        "OTEL_EXPORTER_OTLP_HEADERS": f"authorization={BIRD}",
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
        "SENTRY_DSN": f"http://{BIRD}@127.0.0.1:{sink.port}/1",
    }


def assert_quiet(where: str, text: str) -> None:
    at = text.lower().find(BIRD)
    assert at < 0, f"in {where}: ...{text[max(0, at - 300) : at + 100]}..."
    assert str(NUMBER) not in text, f"the number in {where}"


def publish(dsn: str, sink: Sink, *kinds: str) -> str:
    """Publish one of each kind, and some that are refused, from a process of its own; answers what it wrote."""
    script = PUBLISHER.replace("BIRD", BIRD).replace("NUMBER", str(NUMBER))
    ran = subprocess.run(
        [sys.executable, "-", *kinds],
        input=script,  # as an argument it would be in the list of processes
        env={"PATH": "/usr/bin:/bin", "SPECTRAL_GENERATION": "1", **variables(dsn, sink)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return ran.stdout + ran.stderr


def processes() -> str:
    """The command lines with the bird in them, of whatever runs."""
    lines = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(each.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:  # it has ended
            continue
    assert lines
    return "\n".join(line for line in lines if BIRD in line)


def ask(port: int, path: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def stored(connection: psycopg.Connection[Any]) -> Iterator[tuple[str, str]]:
    """Everything in the tables of the substrate but payloads."""
    names = connection.execute("select tablename from pg_tables where schemaname = 'core'").fetchall()
    for (name,) in names:
        rows = connection.execute(f"select to_jsonb(t) - 'payload' from core.{name} as t".encode()).fetchall()  # noqa: S608
        yield f"core.{name}", json.dumps(rows, ensure_ascii=False)


def without_payload(document: object) -> object:
    if isinstance(document, dict):
        return {
            key: without_payload(value) for key, value in document.items() if key not in {"payload", "payload_text"}
        }
    return [without_payload(each) for each in document] if isinstance(document, list) else document


def errors(connection: psycopg.Connection[Any]) -> dict[str, str]:
    rows = connection.execute("select event_type, last_error from core.outbox where last_error is not null").fetchall()
    return {event_type.removeprefix("worlds.scan."): error for event_type, error in rows}


def test_the_bird_is_heard_nowhere(dsn: str, connection: psycopg.Connection[Any], tmp_path: Path, sink: Sink) -> None:
    (tmp_path / "app.py").write_text(APP + LOGGED)
    said = publish(dsn, sink, *FAILING, "logged")
    assert said.count('"event": "publish refused"') == 3
    for error in ("PayloadNotJsonError: payload.wrong is nan", "DuplicateEventError: event ", QUOTED_BY_A_TRIGGER):
        assert f'"error": "{error}' in said
        assert error.encode() in sink.received["/v1/traces"], "its span is sent"
    assert_quiet("what the publisher says", said)
    with WorkerProcess(tmp_path, "app:platform", "--health-port", "0", **variables(dsn, sink)) as worker:
        port: int = worker.wait_for("health is served")["port"]
        worker.wait_for("handled", times=len(FAILING), status_result="failed")
        worker.wait_for("handled", status_result="retry")
        worker.wait_for("handled it")
        worker.wait_for("logged an error", times=4)
        for path in ("/health", "/ready", "/live", "/metrics"):
            status, answer = ask(port, path)
            assert status == 200, path
            assert_quiet(path, answer)
        assert_quiet("the list of processes", processes())
        eventually(lambda: sink.kinds() >= {"traces", "metrics", "envelope"}, "everything is sent somewhere")
        worker.stop()
        assert worker.end() == 0
    assert_quiet("the log", worker.text)
    assert (
        worker.text.count(r"KeyError: '[payload]'\nwhich led to:")
        == worker.text.count("RuntimeError: cannot reach postgres")
        == 3
    )
    assert "RaiseException: no such thing as [payload] (P0001)" in worker.text
    for path, body in sink.received.items():
        assert_quiet(path, body.decode(errors="replace"))
    assert sink.received["/api/1/envelope/"].count(b'"fingerprint"') == len(FAILING)

    assert_operators_hear_nothing(dsn, connection, tmp_path)
    assert_what_operators_need_is_there(errors(connection))


def assert_operators_hear_nothing(dsn: str, connection: psycopg.Connection[Any], directory: Path) -> None:
    desk = Desk(dsn, directory)
    failed = connection.execute("select id from core.outbox where status = 'failed' order by id").fetchall()
    assert len(failed) == len(FAILING)
    (first,), (second,), *rest = failed
    assert desk.spectral("dlq", "replay", str(first), "--yes", "--reason", "mended").code == 0
    assert desk.spectral("dlq", "discard", str(second), "--yes", "--reason", "stale").code == 0
    for where, text in stored(connection):
        assert_quiet(where, text)
    for (event_id,) in [(first,), (second,), *rest]:
        shown = desk.spectral("events", "show", str(event_id), "--json")
        assert shown.code == 0
        assert BIRD in shown.out  # the payload is there, to be looked at by whoever asks for it
        assert_quiet("events show --json", json.dumps(without_payload(json.loads(shown.out))) + shown.err)
    screen = desk.spectral("events", "show", str(rest[0][0])).out
    payload = json.dumps(
        connection.execute("select payload from core.outbox where id = %s", rest[0]).fetchall()[0][0],
        indent=2,
        ensure_ascii=False,
    )
    assert payload in screen
    assert_quiet("events show", screen.replace(payload, ""))
    lists = ("dlq list", "dlq groups", "audit", "events list", "tail --once --last 1000")
    for command in (*lists, "status", "top --once", "doctor", "relay status"):
        ran = desk.spectral(*command.split(), "--json")
        assert ran.out
        assert_quiet(command, ran.out + ran.err)


def assert_what_operators_need_is_there(found: dict[str, str]) -> None:
    expected = {
        "quoted": "RuntimeError: platform.quotes_it_all: cannot handle ",
        "valued": "ValueError: platform.quotes_a_value: [payload]",
        "numbered": "OSError: platform.quotes_a_number: no account [payload]",
        "local": "ZeroDivisionError: platform.has_variables: 27 cannot be divided",
        "grouped": "ExceptionGroup: platform.fails_twice: all of [payload]",
        "connected": "ConnectionError: platform.shows_its_dsn: no answer from postgresql://ada:***@db.example/app,",
        "unfit": "ValidationError: platform.wants_another_shape: 2 of Scan: name: int_parsing",
        "unfit_in_transaction": "ValidationError: platform.wants_another_shape_too: 2 of Scan: name: int_parsing",
        "duplicate": 'UniqueViolation: platform.saves_it_twice: duplicate key value violates unique constraint "people',
        "cast": "InvalidTextRepresentation: platform.casts_it: invalid input syntax for type integer (22P02)",
        "raised": "RaiseException: platform.has_the_server_complain: no such thing as [payload] (P0001)",
        "deferred": "ForeignKeyViolation: platform.is_refused_at_the_commit: insert or update on table",
        "quoted_in_transaction": "RuntimeError: platform.quotes_it_in_a_transaction: cannot handle ",
    }
    assert {kind: found[kind][: len(text)] for kind, text in expected.items() if kind in found} == {
        kind: text for kind, text in expected.items() if kind in found
    }
    assert found.keys() <= expected.keys()
    assert len(found) >= len(FAILING) - 1  # one was replayed, and has no error any more


def test_the_bird_is_not_heard_when_the_worker_crashes(dsn: str, tmp_path: Path, sink: Sink) -> None:
    (tmp_path / "app.py").write_text(APP + CRASH)
    publish(dsn, sink)
    with WorkerProcess(tmp_path, "app:platform", **variables(dsn, sink)) as worker:
        assert worker.end() == 1
    (crashed,) = worker.logged("crashed")
    assert "RuntimeError: lost postgresql://ada:***@db.example/app" in crashed["error"]
    assert_quiet("the log", worker.text)
    for path, body in sink.received.items():
        assert_quiet(path, body.decode(errors="replace"))


@pytest.mark.parametrize(
    "arguments",
    [
        "status",
        "top --once",
        "tail --once",
        "worker app:platform --once",
        "dlq list",
        "doctor",
        "migrate status",
    ],
)
def test_the_bird_is_not_heard_when_the_database_is_away(arguments: str, tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    away = f"postgresql://ada:{PASSWORD}@127.0.0.1:1/app?connect_timeout=2"
    if arguments.startswith("worker"):
        with WorkerProcess(tmp_path, *arguments.split()[1:], SPECTRAL_DATABASE_URL=away) as worker:
            worker.wait_for("database lost")
            assert_quiet("the list of processes", processes())
        assert_quiet("the log", worker.text)
        return
    for flag in ((), ("--json",)):
        ran = Desk(away, tmp_path).spectral(*arguments.split(), *flag)
        assert ran.code != 0
        assert ran.out or ran.err
        assert_quiet(arguments, ran.out + ran.err)
