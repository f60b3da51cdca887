"""`spectral events`, `audit` and `tail` as a person runs them."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from typing import IO, Any
from uuid import UUID

import psycopg
import pytest

from spectral.core.events.envelope import new_event_id
from tests.acceptance.test_cli_dlq import Shell
from tests.migrations.schema import outbox_row, role, value
from tests.migrations.sql import claim, fail, publish, settle, subscribe

Connection = psycopg.Connection[Any]


@pytest.fixture
def spectral(database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    with role(database, groups=("spectral_operator",)) as dsn:
        yield Shell(dsn, monkeypatch, capsys)


def test_the_list_says_what_it_looked_at_and_goes_on_by_the_command_it_shows(
    spectral: Shell, connection: Connection
) -> None:
    published = [str(publish(connection, p_payload='{"note": "canary"}')) for _ in range(3)]
    first = spectral("events", "list", "--status", "pending", "--limit", "2")
    assert [line.split()[0] for line in first.out.splitlines()[1:]] == published[:2]
    said, command = first.err.splitlines()
    assert said == "2 shown of what is pending, longest due first"
    second = spectral(*shlex.split(command.removeprefix("  more: "))[1:], "--json")
    assert [each["id"] for each in second.document["items"]] == published[2:]
    assert second.err.endswith("; no more\n")
    assert "canary" not in first.out + second.out


def test_show_tells_the_whole_course_of_an_event(spectral: Shell, connection: Connection) -> None:
    subscribe(connection, "platform")
    event_id = fail(connection, "ValueError: platform.handler: no")
    spectral("dlq", "replay", str(event_id), "--reason", "fixed in 1.4.2", "--yes")
    settle(connection, claim(connection, worker="worker-2"), "delivered")
    shown = spectral("events", "show", str(event_id))
    assert (shown.code, shown.err) == (0, "")
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    assert lines[0] == "worlds.scan.completed (version 1), delivered after 1 execution"
    course = [line.split("Z ", 1)[1] for line in lines[lines.index("course") + 1 : lines.index("handlers")]]
    assert course == [
        "published by worlds",
        "failed: after 1 execution: ValueError: platform.handler: no",
        "replayed (cycle 1) by ada: fixed in 1.4.2",
        "claimed by worker-2: execution 1",
        "delivered",
    ]
    assert "platform.handler has not taken effect" in lines
    assert lines[-2:] == ["payload (2 bytes)", "{}"]


def test_show_tells_a_failure_that_was_made_good_for_what_it_is(spectral: Shell, connection: Connection) -> None:
    event_id = publish(connection)
    settle(connection, claim(connection), "retry", "ConnectionError: platform.handler: away")
    settle(connection, claim(connection, worker="worker-2"), "delivered")
    lines = spectral("events", "show", str(event_id)).out.splitlines()
    words = [" ".join(line.split()) for line in lines]
    assert "last error ConnectionError in platform.handler, execution 1 of 2" in words
    course = lines[lines.index("course") + 1 :][:4]
    assert [line.split("Z  ", 1)[1] for line in course] == [
        "published by worlds",
        "first failure: execution 1: ConnectionError: platform.handler: away",
        "claimed by worker-2: execution 2",
        "delivered",
    ]
    assert all(re.fullmatch(r"  \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}Z  .*", line) for line in course)


def test_show_tells_of_what_waits_for_nobody_how_that_ends(spectral: Shell, connection: Connection) -> None:
    shown = spectral("events", "show", str(publish(connection))).out
    assert "no handler of platform is on record for this type in generation 1\n" in shown
    assert "a worker of platform puts it into the DLQ as NoHandlerError,\n" in shown
    subscribe(connection, "platform")
    assert "NoHandlerError" not in spectral("events", "show", str(publish(connection))).out


def test_what_an_event_holds_is_no_order_to_the_terminal(spectral: Shell, connection: Connection) -> None:
    event_id = outbox_row(
        connection, "failed", payload={"note": "\x1b[2J\x9b31m"}, last_error="ValueError: \x1b]0;owned\x07"
    )
    for command in (("events", "show", str(event_id)), ("dlq", "list"), ("events", "list"), ("tail", "--once")):
        shown = spectral(*command)
        assert shown.code == 0
        assert not {"\x1b", "\x9b", "\x07"} & set(shown.out)


def test_a_large_payload_does_not_fill_the_screen(spectral: Shell, connection: Connection) -> None:
    event_id = outbox_row(connection, payload={"text": "x" * 200_000})
    shown = spectral("events", "show", str(event_id))
    assert "payload (200,012 bytes, the beginning)" in shown.out
    assert len(shown.out) < 70_000
    document = spectral("events", "show", str(event_id), "--json").document
    assert (document["payload"], document["payload_truncated"]) == (None, True)


@pytest.mark.parametrize("command", ["events", "dlq"])
def test_an_event_that_does_not_exist_is_3(spectral: Shell, command: str) -> None:
    missing = spectral(command, "show", str(UUID(int=1)))
    assert (missing.code, missing.out) == (3, "")
    assert missing.err.endswith("  try: spectral events list\n")


def test_a_cursor_that_is_none_is_refused(spectral: Shell) -> None:
    for command in (("events", "list"), ("dlq", "list"), ("audit",)):
        refused = spectral(*command, "--cursor", "nonsense")
        assert (refused.code, refused.out) == (1, "")
        assert "no cursor of this list" in refused.err


def test_the_audit_shows_who_did_what_and_why(spectral: Shell, connection: Connection) -> None:
    event_id = fail(connection)
    spectral("dlq", "replay", str(event_id), "--by", "bob", "--reason", "fixed", "--yes")
    other = fail(connection)
    spectral("dlq", "discard", str(other), "--reason", "a test order", "--yes")
    shown = spectral("audit")
    assert [line.split()[2] for line in shown.out.splitlines()[1:]] == ["discard", "replay"]
    assert shown.err == "2 shown, no more\n"
    (entry,) = spectral("audit", "--event", str(event_id), "--json").document["items"]
    assert (entry["actor"], entry["reason"], entry["event_ids"]) == ("bob", "fixed", [str(event_id)])
    assert spectral("audit", "--actor", "ada", "--action", "replay").err == "none\n"
    first = spectral("audit", "-n", "1")
    command = first.err.splitlines()[-1].removeprefix("  try: ")
    assert "bob" in spectral(*shlex.split(command)[1:]).out
    assert spectral("audit", "--since", "2999-01-01").err == "none\n"


def test_a_tail_shows_the_last_ones_and_then_what_happens_until_it_is_stopped(
    spectral: Shell, connection: Connection
) -> None:
    first = publish(connection)
    with spectral.process("tail", "--json", "--every", "0.1", stdout=subprocess.PIPE) as process:
        out, err = process.stdout, process.stderr
        assert out is not None
        assert err is not None

        def told(out: IO[str] = out) -> tuple[str, UUID]:
            document = json.loads(out.readline())
            return document["what"], UUID(document["event"]["id"])

        assert told() == ("published", first)
        second = publish(connection)
        assert told() == ("published", second)
        held = claim(connection)
        assert {told(), told()} == {("claimed", first), ("claimed", second)}
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'spectral tail'"
        )
        assert err.readline().endswith("trying again in 1 s\n")
        settle(connection, held, "delivered")
        assert {told(), told()} == {("delivered", first), ("delivered", second)}
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0


def test_a_tail_goes_on_after_an_answer_that_took_too_long(spectral: Shell, connection: Connection) -> None:
    first = publish(connection)
    with spectral.process("tail", "--every", "0.1", stdout=subprocess.PIPE) as process:
        out, err = process.stdout, process.stderr
        assert out is not None
        assert err is not None
        assert str(first) in out.readline()
        with connection.transaction():
            connection.execute("lock table core.outbox in access exclusive mode")
            cancelled = 0
            while not cancelled:  # until its next look has come to the lock
                assert process.poll() is None
                cancelled = value(
                    connection,
                    "select count(*) filter (where pg_cancel_backend(pid))"
                    " from pg_locks join pg_stat_activity using (pid)"
                    " where not granted and application_name = 'spectral tail'",
                )
        assert err.readline().endswith("trying again in 1 s\n")
        second = publish(connection)
        assert str(second) in out.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait() == 0


def test_a_tail_can_be_a_look_at_what_failed_last(spectral: Shell, connection: Connection) -> None:
    publish(connection)
    outbox_row(connection, "failed", id=new_event_id(), last_error="ValueError: platform.index: no")
    shown = spectral("tail", "--status", "failed", "--once")
    assert shown.code == 0
    (line,) = shown.out.splitlines()
    assert line.endswith("worlds.scan.completed > platform  ValueError: platform.index: no")
    assert " failed " in line
