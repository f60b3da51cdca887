"""`spectral retention` as a person, a cron job or a container runs it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import psycopg
import pytest

from spectral.core.events.infrastructure.observability.outlet import flush_all
from spectral_ops.cli import main
from tests.integration.test_retention_sweep import delivered, events, many_delivered, record
from tests.migrations.schema import role

Connection = psycopg.Connection[Any]

SPECTRAL: Final = str(Path(sys.executable).with_name("spectral"))
NOWHERE: Final = "postgresql://anna:canary@127.0.0.1:1/nothing"


@dataclass(frozen=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


@dataclass
class Shell:
    """Runs `spectral retention` in this process, as a login that has nothing but spectral_retention."""

    dsn: str
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str, **variables: str) -> Ran:
        flush_all()  # what the test itself has published is told a moment later, and is none of the command's
        self.capsys.readouterr()
        with self.monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["spectral", "retention", *arguments])
            for name, value in {"SPECTRAL_DATABASE_URL": self.dsn, **variables}.items():
                patch.setenv(name, value)
            with pytest.raises(SystemExit) as end:
                main()
        captured = self.capsys.readouterr()
        return Ran(int(end.value.code or 0), captured.out, captured.err)


@pytest.fixture
def spectral(database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    with role(database, groups=("spectral_retention",)) as dsn:
        yield Shell(dsn, monkeypatch, capsys)


@contextmanager
def started(dsn: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """A process of its own, and what it says; gone afterwards."""
    process = subprocess.Popen(
        [SPECTRAL, "retention", "run", "--yes", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        env={"SPECTRAL_DATABASE_URL": dsn},
    )
    try:
        assert process.stderr is not None
        with process.stderr as said:
            yield process, said
    finally:
        process.kill()
        process.wait()


def said_next(said: IO[str]) -> str:
    """The next line for a person; the others are the log's."""
    return next(line for line in said if not line.startswith("{"))


def cells(table: str) -> list[list[str]]:
    return [line.split() for line in table.splitlines()]


# show


def test_show_says_how_long_things_are_kept_and_that_nothing_was_due(spectral: Shell) -> None:
    shown = spectral("show")
    assert (shown.code, cells(shown.out)) == (
        0,
        [
            ["kept", "active", "then", "put", "away"],
            ["events", "45", "days", "7", "days"],
            ["dedup", "records", "60", "days", "7", "days"],
        ],
    )
    assert shown.err == "no sweep has come to its end yet, and nothing was due\n"


def test_show_as_json_has_the_policies_the_last_sweep_and_the_judgement(spectral: Shell) -> None:
    spectral("run", "--yes")
    shown = spectral("show", "--json", SPECTRAL_RETENTION_OUTBOX_DAYS="30").document
    assert [(each["subject"], each["content_class"], each["active"]) for each in shown["policies"]] == [
        ("outbox_row", "*", 30 * 86400.0),
        ("event_handled", "*", 60 * 86400.0),
    ]
    assert shown["sweep"]["last"]["complete"] is True
    assert shown["sweep"]["completed_at"] == shown["sweep"]["last"]["finished_at"]
    assert shown["lateness"]["overdue"] is False


def test_show_says_when_the_sweep_is_overdue_and_what_to_run(spectral: Shell, connection: Connection) -> None:
    connection.execute(
        "update core.sweeper set finished_at = now() - interval '3 days', name = 'anna',"
        " started_at = now(), renewed_at = now()"
    )
    shown = spectral("show")
    sweeping, last, late, remedy = shown.err.splitlines()
    assert sweeping.startswith("sweeping: anna, since ")
    assert last.startswith("last sweep: ")
    assert (late, remedy) == ("overdue: the last complete sweep ended 3 days ago", "  try: spectral retention run")


# run


def test_run_sweeps_and_shows_what_it_did(spectral: Shell, connection: Connection) -> None:
    kept = delivered(connection, 1)
    delivered(connection, 60, put_away=8)
    record(connection, "old", 61)
    ran = spectral("run", "--yes", "--by", "nightly")
    assert (ran.code, cells(ran.out)) == (
        0,
        [["put", "away", "deleted"], ["events", "0", "1"], ["dedup", "records", "1", "0"]],
    )
    *lines, last = ran.err.splitlines()
    assert lines[:2] == ["events: 100 %, 0 put away, 1 deleted", "dedup records: 100 %, 1 put away, 0 deleted"]
    logged = json.loads(lines[2])
    assert (logged["event"], logged["service"], logged["generation"]) == ("swept", "spectral-cli", None)
    assert (logged["put_away"], logged["deleted"], logged["finished"]) == (1, 1, True)
    assert last.startswith("swept in ")
    assert last.endswith("s: 1 put away, 1 deleted")
    assert set(events(connection)) == {kept}
    actors = connection.execute("select distinct actor from core.audit where action = 'sweep'").fetchall()
    assert [actor.startswith("nightly #") for (actor,) in actors] == [True]


def test_run_as_json_is_one_document_on_stdout(spectral: Shell, connection: Connection) -> None:
    many_delivered(connection, 3, 60)
    ran = spectral("run", "--yes", "--json", "--batch", "2")
    assert ran.code == 0
    found = ran.document
    assert (found["ended"], found["dry_run"], found["other"]) == ("complete", False, None)
    assert (found["outbox"], found["event_handled"]) == (
        {"put_away": 3, "deleted": 0},
        {"put_away": 0, "deleted": 0},
    )


def test_without_a_terminal_and_without_yes_nothing_is_deleted(spectral: Shell, connection: Connection) -> None:
    delivered(connection, 60, put_away=8)
    ran = spectral("run", SPECTRAL_RETENTION_OUTBOX_GRACE_DAYS="3")
    assert (ran.code, ran.out, len(events(connection))) == (5, "", 1)
    assert "delete for good what was put away 3 days ago" in ran.err
    assert "--yes" in ran.err


def test_a_dry_run_asks_nobody_and_changes_nothing(spectral: Shell, connection: Connection) -> None:
    delivered(connection, 60, put_away=8)
    ran = spectral("run", "--dry-run")
    assert (ran.code, len(events(connection))) == (0, 1)
    assert ["events", "0", "1"] in cells(ran.out)
    assert ran.err.endswith("nothing was changed\n")


def test_while_another_sweeper_is_at_work_there_is_nothing_to_do(spectral: Shell, connection: Connection) -> None:
    connection.execute("select core.sweep_begin('anna')")
    ran = spectral("run", "--yes")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.startswith("nothing to do: a sweeper is at work (anna, since 20")
    found = spectral("run", "--yes", "--json")
    assert (found.code, found.document["ended"], found.document["other"]["name"]) == (0, "busy", "anna")


def test_a_login_without_the_role_is_told_what_to_grant(spectral: Shell, database: str) -> None:
    with role(database, groups=("spectral_operator",)) as dsn:
        ran = spectral("run", "--yes", SPECTRAL_DATABASE_URL=dsn)
        name = psycopg.conninfo.conninfo_to_dict(dsn)["user"]
    assert (ran.code, ran.err) == (
        1,
        f"error: the login {name} may not sweep\n  try: grant spectral_retention to {name}\n",
    )


@pytest.mark.parametrize("command", [["show"], ["run", "--dry-run"], ["run", "--yes"]], ids=" ".join)
def test_policies_that_do_not_go_together_are_refused_before_anything_is_done(
    spectral: Shell, command: list[str]
) -> None:
    ran = spectral(*command, SPECTRAL_RETENTION_OUTBOX_DAYS="60", SPECTRAL_DATABASE_URL=NOWHERE)
    assert (ran.code, ran.out) == (2, "")
    assert "set event_handled.active to 68 days or more" in ran.err


@pytest.mark.parametrize("option", ["--json", "--dry-run"])
def test_what_goes_on_for_ever_has_no_one_result(spectral: Shell, option: str) -> None:
    ran = spectral("run", "--yes", "--every", "60", option)
    assert ran.code == 2
    assert "--every goes neither with --dry-run nor with --json" in ran.err


@pytest.mark.parametrize("command", [["show"], ["run", "--yes"]], ids=" ".join)
def test_a_database_that_is_away_is_told_by_its_code(spectral: Shell, command: list[str]) -> None:
    ran = spectral(*command, SPECTRAL_DATABASE_URL=NOWHERE)
    assert ran.code == 75
    assert "canary" not in ran.err


# a process, its terminal and its signals


def test_on_a_terminal_it_asks_and_draws_a_bar(spectral: Shell, connection: Connection) -> None:
    delivered(connection, 60, put_away=8)
    ours, theirs = pty.openpty()
    env = {"SPECTRAL_DATABASE_URL": spectral.dsn, "TERM": "xterm", "COLUMNS": "100"}
    for answer, code, left in (("n", 5, 1), ("y", 0, 0)):
        with subprocess.Popen(
            [SPECTRAL, "retention", "run"], stdin=theirs, stdout=subprocess.PIPE, stderr=theirs, env=env
        ) as process:
            said = _read_until(ours, b"[y/N]")
            os.write(ours, f"{answer}\n".encode())
            said += _read_until(ours, b"not done" if code else b"swept in")
            assert process.wait(30) == code
        assert b"delete for good" in said
        assert (b"100%" in said) == (code == 0)
        assert len(events(connection)) == left
    os.close(ours)
    os.close(theirs)


def _read_until(descriptor: int, wanted: bytes) -> bytes:
    said = b""
    while wanted not in said:
        said += os.read(descriptor, 1024)
    return said


def test_a_sweep_that_is_told_to_stop_finishes_its_call_and_says_that_it_is_not_done(
    spectral: Shell, connection: Connection
) -> None:
    many_delivered(connection, 20, 60)
    connection.execute(
        "create function public.wait() returns trigger language plpgsql as"
        " $$ begin perform pg_advisory_xact_lock(79); return new; end $$;"
        " create trigger a_wait before update on core.outbox for each row execute function public.wait();"
        " select pg_advisory_lock(79)"
    )
    with started(spectral.dsn, "--batch", "10") as (process, said):
        waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
        while connection.execute(waiting).fetchone() != (1,):
            assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        connection.execute("select pg_advisory_unlock(79)")
        assert process.wait(30) == 1
        assert said.read().endswith("stopped; what is done is done\n  try: spectral retention run\n")
    assert sum(events(connection).values()) == 10
    assert connection.execute("select name, result ->> 'complete' from core.sweeper").fetchone() == (None, "false")


def test_several_run_for_ever_and_sweep_once_in_a_period(spectral: Shell, connection: Connection) -> None:
    many_delivered(connection, 3, 60)
    with started(spectral.dsn, "--every", "3600") as (first, first_said):
        assert first_said.readline() == "events: 100 %, 3 put away, 0 deleted\n"
        assert said_next(first_said).startswith("swept in ")
        with started(spectral.dsn, "--every", "3600") as (second, second_said):
            assert second_said.readline() == "swept not long ago; the next sweep is due in 59 minutes\n"
            for process in (first, second):
                process.send_signal(signal.SIGTERM)
                assert process.wait(30) == 0


def test_whoever_runs_for_ever_sweeps_again_when_it_is_due(spectral: Shell) -> None:
    with started(spectral.dsn, "--every", "1") as (process, said):
        for _ in range(2):
            assert said_next(said).startswith("swept in ")
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0


def test_whoever_runs_for_ever_waits_for_what_the_login_is_not_granted_yet(database: str) -> None:
    with role(database) as dsn, started(dsn, "--every", "1") as (process, said):
        for _ in range(2):
            assert said.readline().startswith("not swept: ")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_whoever_runs_for_ever_waits_for_a_database_that_is_away() -> None:
    with started(NOWHERE, "--every", "1") as (process, said):
        for _ in range(2):
            assert said.readline().startswith("not swept: no connection to 127.0.0.1:1/nothing")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
