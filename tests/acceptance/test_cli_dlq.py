"""`spectral dlq` as a person at the controls runs it: what it shows, what it does, what it asks, and how it ends."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final
from uuid import UUID, uuid4

import psycopg
import pytest

from spectral.core.events.infrastructure.observability.outlet import flush_all
from spectral_ops.cli import main
from tests.acceptance.worker_process import PATIENCE, SPECTRAL
from tests.migrations.schema import outbox_row, role, update, value
from tests.migrations.sql import fail, row

Connection = psycopg.Connection[Any]
_GO_ON: Final = re.compile(r"go on: (spectral .*)")


@dataclass(frozen=True)
class Ran:
    """What a command did; what it said to a person and what it logged are both on stderr."""

    code: int
    out: str
    err: str
    log: list[dict[str, Any]] = field(default_factory=list, compare=False)

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


@dataclass
class Shell:
    """Runs `spectral` in this process, as a login that has nothing but spectral_operator."""

    dsn: str
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str) -> Ran:
        flush_all()  # what the test itself has published is told a moment later, and is none of the command's
        self.capsys.readouterr()
        with self.monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["spectral", *arguments])
            for name, given in self.environment.items():
                patch.setenv(name, given)
            with pytest.raises(SystemExit) as end:
                main()
        captured = self.capsys.readouterr()
        lines = captured.err.splitlines(keepends=True)
        log = [json.loads(line) for line in lines if line.startswith("{")]
        said = "".join(line for line in lines if not line.startswith("{"))
        return Ran(int(end.value.code or 0), captured.out, said, log)

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": "/usr/bin:/bin", "SPECTRAL_DATABASE_URL": self.dsn, "SPECTRAL_OPERATOR": "ada"}

    @contextmanager
    def process(
        self,
        *arguments: str,
        stdin: int = subprocess.DEVNULL,
        stdout: int = subprocess.DEVNULL,
        stderr: int = subprocess.PIPE,
    ) -> Iterator[subprocess.Popen[str]]:
        """A process of its own, which gets signals and has a terminal; killed if the test leaves it running."""
        with subprocess.Popen(
            [SPECTRAL, *arguments], env=self.environment, text=True, stdin=stdin, stdout=stdout, stderr=stderr
        ) as process:
            # Whatever is waited for, it is not waited for ever.
            overdue = threading.Timer(PATIENCE, process.kill)
            overdue.start()
            try:
                yield process
            finally:
                overdue.cancel()
                process.kill()


@pytest.fixture
def spectral(database: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Shell]:
    with role(database, groups=("spectral_operator",)) as dsn:
        yield Shell(dsn, monkeypatch, capsys)


def letters(connection: Connection, count: int, error: str = "ValueError: platform.index: no") -> list[UUID]:
    return [outbox_row(connection, "failed", last_error=error, payload={"note": "canary"}) for _ in range(count)]


def said_next(process: subprocess.Popen[str]) -> str:
    """The next line for a person."""
    assert process.stderr is not None
    return next(line for line in process.stderr if not line.startswith("{"))


def replayed(connection: Connection) -> int:
    return int(value(connection, "select coalesce(sum(affected), 0) from core.audit where action = 'replay'"))


# looking


def test_the_list_goes_on_by_the_command_it_shows(spectral: Shell, connection: Connection) -> None:
    ids = letters(connection, 5)
    letters(connection, 1, "KeyError: no")
    first = spectral("dlq", "list", "--error", "ValueError", "-n", "3")
    assert first.code == 0
    assert len(first.out.splitlines()) == 4
    command = first.err.splitlines()[-1].removeprefix("  try: ")
    second = spectral(*shlex.split(command)[1:], "--json")
    shown = [line.split()[0] for line in first.out.splitlines()[1:]]
    shown += [each["id"] for each in second.document["items"]]
    assert sorted(shown) == sorted(map(str, ids))
    assert (second.document["next_cursor"], second.err) == (None, "2 shown, no more\n")
    assert "canary" not in first.out + second.out


def test_groups_show_what_failures_have_in_common(spectral: Shell, connection: Connection) -> None:
    letters(connection, 3)
    letters(connection, 1, "KeyError: no")
    found = spectral("dlq", "groups")
    assert [line.split()[:4] for line in found.out.splitlines()[1:]] == [
        ["3", "worlds.scan.completed", "platform", "ValueError"],
        ["1", "worlds.scan.completed", "platform", "KeyError"],
    ]
    assert found.err == "2 group(s)\n"
    (group,) = spectral("dlq", "groups", "--handler", "platform.index", "--json").document["items"]
    assert (group["count"], group["capped"], group["handler_name"]) == (3, False, "platform.index")


def test_an_empty_dlq_is_no_error(spectral: Shell) -> None:
    for verb in ("list", "groups"):
        assert spectral("dlq", verb) == Ran(0, "", "none\n")
    assert spectral("dlq", "replay", "--all", "--yes") == Ran(0, "", "nothing to replay\n")
    assert spectral("dlq", "list", "--json").document == {"items": [], "next_cursor": None}


def test_show_prints_the_whole_event_and_what_can_be_done(spectral: Shell, connection: Connection) -> None:
    (event_id,) = letters(connection, 1)
    shown = spectral("dlq", "show", str(event_id))
    assert shown.code == 0
    for expected in ("failed after 6 executions", "ValueError in platform.index", '"note": "canary"', str(event_id)):
        assert expected in shown.out
    assert f"spectral dlq replay {event_id}" in shown.err
    update(connection, event_id, deleted_at="now")
    assert spectral("dlq", "show", str(event_id)).err == "it is discarded, not in the DLQ\n"


# replaying few


def test_one_is_replayed_by_its_id_with_who_and_why_in_the_audit(spectral: Shell, connection: Connection) -> None:
    event_id = fail(connection)
    done = spectral("dlq", "replay", str(event_id), "--reason", "fixed in 1.4.2", "--yes")
    assert done == Ran(0, "", "1 event replayed into generation 1\n")
    assert row(connection, event_id)["status"] == "pending"
    assert connection.execute("select actor, reason, affected from core.audit").fetchall() == [
        ("ada", "fixed in 1.4.2", 1)
    ]


def test_what_is_refused_is_told_with_the_reason_and_the_rest_is_done(spectral: Shell, connection: Connection) -> None:
    first, second = letters(connection, 2)
    pending, unknown = outbox_row(connection), uuid4()
    refused = spectral("dlq", "replay", str(first), str(pending), "--yes")
    assert refused.code == 1
    assert refused.err == f"{pending}: not replayed, it is pending\n1 event replayed into generation 1\n"
    missing = spectral("dlq", "replay", str(unknown), str(second), "--yes", "--json")
    assert missing.code == 3
    assert missing.err.startswith(f"{unknown}: not replayed, there is no such event\n")
    assert {each["id"]: each["refusal"] for each in missing.document["events"]} == {
        str(unknown): "unknown",
        str(second): None,
    }
    assert spectral("dlq", "replay", str(unknown)).code == 3
    assert replayed(connection) == 2


def test_into_which_generation_can_be_said_and_a_retired_one_is_refused(
    spectral: Shell, connection: Connection
) -> None:
    event_id = fail(connection)
    retired = spectral("dlq", "replay", str(event_id), "--generation", "0", "--yes")
    assert retired.code == 1
    assert "generation 0 is retired" in retired.err
    assert spectral("dlq", "replay", str(event_id), "--generation", "2", "--yes").code == 0
    assert row(connection, event_id)["generation"] == 2


@pytest.mark.parametrize(
    ("generation", "code", "said"), [("0", 1, "generation 0 is retired"), ("99", 3, "no generation 99")]
)
@pytest.mark.parametrize("options", [("--dry-run",), ("--yes",), ()], ids=" ".join)
def test_a_generation_that_nothing_can_be_replayed_into_is_refused_before_anything_is_asked(
    spectral: Shell, connection: Connection, options: tuple[str, ...], generation: str, code: int, said: str
) -> None:
    letters(connection, 1)
    refused = spectral("dlq", "replay", "--all", "--generation", generation, *options)
    assert (refused.code, refused.out) == (code, "")
    assert said in refused.err
    assert "spectral generations list" in refused.err
    assert "go on" not in refused.err
    assert replayed(connection) == 0


# replaying many


def test_what_is_refused_half_way_is_not_said_to_go_on(spectral: Shell, connection: Connection) -> None:
    letters(connection, 20)
    options = ("--all", "--yes", "--batch", "5", "--rate", "5", "--generation", "2")
    with spectral.process("dlq", "replay", *options) as process:
        assert process.stderr is not None
        assert said_next(process) == "replayed 5 of 20\n"
        connection.execute("update core.deployments set status = 'retired', retired_at = now() where generation = 2")
        rest = process.stderr.read()
        assert process.wait() == 1
    assert "generation 2" in rest
    assert "go on" not in rest


def test_a_filter_is_previewed_asked_for_and_done(spectral: Shell, connection: Connection) -> None:
    letters(connection, 5)
    (other,) = letters(connection, 1, "KeyError: no")
    chosen = ("dlq", "replay", "--error", "ValueError")
    dry = spectral(*chosen, "--dry-run", "--json")
    assert (dry.code, dry.document["preview"]["count"], dry.document["report"]) == (0, 5, None)
    assert dry.err == "5 event(s) would be replayed into generation 1\n"
    asked = spectral(*chosen)
    assert (asked.code, asked.out) == (5, "")
    assert asked.err.endswith("say it with --yes\n")
    assert replayed(connection) == 0
    done = spectral(*chosen, "--yes", "--batch", "2", "--json")
    report = done.document["report"]
    assert (done.code, report["replayed"], report["remaining"], report["stopped"]) == (0, 5, 0, False)
    assert done.err.splitlines() == [
        "replayed 2 of 5",
        "replayed 4 of 5",
        "replayed 5 of 5",
        "5 events replayed into generation 1; 0 left of those that were there",
    ]
    assert [line["count"] for line in done.log] == [2, 2, 1]
    assert row(connection, other)["status"] == "failed"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["replay"], "say which"),
        (["replay", "--failed-before", "2026-01-01"], "say which"),
        (["replay", str(UUID(int=1)), "--all"], "not by both"),
        (["replay", str(UUID(int=1)), "--type", "a.b.c"], "not by both"),
        (["replay", "--all", "--type", "a.b.c"], "--all means everything"),
        (["replay", "not-an-id"], "valid UUID"),
        (["replay", "--all", "--batch", "0"], "--batch"),
        (["replay", "--all", "--failed-before", "noon"], "no time"),
        (["discard", "--all"], "say why"),
        (["discard", "--all", "--reason", " "], "say why"),
    ],
)
def test_what_makes_no_sense_is_a_usage_error(spectral: Shell, arguments: list[str], complaint: str) -> None:
    refused = spectral("dlq", *arguments, "--yes")
    assert (refused.code, refused.out) == (2, "")
    assert complaint in " ".join(refused.err.split())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_it_after_the_batch_and_the_command_it_shows_does_the_rest(
    spectral: Shell, connection: Connection, number: signal.Signals
) -> None:
    letters(connection, 40)
    options = ("--all", "--yes", "--batch", "5", "--rate", "10", "--reason", "it's fixed")
    with spectral.process("dlq", "replay", *options) as process:
        assert process.stderr is not None
        assert said_next(process) == "replayed 5 of 40\n"
        process.send_signal(number)
        rest = process.stderr.read()
        assert process.wait() == 1
    done = replayed(connection)
    assert 5 <= done < 40
    assert f"{40 - done} left" in rest
    late = fail(connection)  # after it began: not its business
    command = _GO_ON.findall(rest)[0].replace("--rate 10.0", "--rate 1000")
    assert "--reason 'it'\"'\"'s fixed'" in command
    assert "--generation 1" in command  # another one may be live when somebody goes on
    resumed = spectral(*shlex.split(command)[1:])
    assert resumed.code == 0, resumed.err
    assert replayed(connection) == 40
    assert row(connection, late)["status"] == "failed"
    assert value(connection, "select count(distinct each) from core.audit, unnest(event_ids) as each") == 40


def test_a_connection_lost_half_way_is_75_and_shows_how_to_go_on(spectral: Shell, connection: Connection) -> None:
    letters(connection, 20)
    options = ("--all", "--yes", "--batch", "5", "--rate", "5")
    with spectral.process("dlq", "replay", *options) as process:
        assert process.stderr is not None
        assert said_next(process) == "replayed 5 of 20\n"
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'spectral dlq replay'"
        )
        rest = process.stderr.read()
        assert process.wait() == 75
    assert "the connection to the database was lost" in rest
    (command,) = _GO_ON.findall(rest)
    assert spectral(*shlex.split(command.replace("--rate 5.0", ""))[1:]).code == 0
    assert replayed(connection) == 20


@contextmanager
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends of one: what a person holds, and what the process gets."""
    person, process = pty.openpty()
    try:
        yield person, process
    finally:
        os.close(person)


def said_on(person: int) -> str:
    """Everything until the process is gone."""
    said = b""
    while True:
        try:
            more = os.read(person, 4096)
        except OSError:  # nobody holds the other end any more
            return said.decode()
        if not more:
            return said.decode()
        said += more


def test_ctrl_c_at_the_question_ends_it_and_nothing_is_done(spectral: Shell, connection: Connection) -> None:
    letters(connection, 3)
    with terminal() as (person, device):
        with spectral.process("dlq", "replay", "--all", stdin=device, stdout=device, stderr=device) as process:
            os.close(device)
            asked = b""
            while b"[y/N]" not in asked:
                asked += os.read(person, 4096)
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=PATIENCE / 2) == 130
        assert replayed(connection) == 0


def test_json_gives_a_terminal_no_orders_either(spectral: Shell, connection: Connection) -> None:
    (event_id,) = letters(connection, 1)
    update(connection, event_id, last_error="ValueError: platform.index: \x9b31m \u202e \x7f")
    shown = spectral("dlq", "show", str(event_id), "--json")
    assert "\x9b31m \u202e \x7f" in json.dumps(shown.document, ensure_ascii=False)
    assert all(letter.isprintable() or letter == "\n" for letter in shown.out)


@pytest.mark.parametrize(("answer", "code", "left"), [("y\n", 0, 0), ("n\n", 5, 6), ("\n", 5, 6)])
def test_at_a_terminal_it_asks_and_shows_a_bar(
    spectral: Shell, connection: Connection, answer: str, code: int, left: int
) -> None:
    letters(connection, 6)
    command = ("dlq", "replay", "--all", "--batch", "2")
    with terminal() as (person, theirs), spectral.process(*command, stdin=theirs, stderr=theirs) as process:
        os.close(theirs)
        os.write(person, answer.encode())
        said = said_on(person)
        assert process.wait() == code
    assert "replay 6 event(s) into generation 1? [y/N]" in said
    assert ("6/6" in said) == (code == 0)
    assert value(connection, "select count(*) from core.dead_letters") == left


# discarding


def test_discarding_takes_events_out_of_the_dlq_and_keeps_the_reason(spectral: Shell, connection: Connection) -> None:
    first, *_ = letters(connection, 4)
    letters(connection, 1, "KeyError: no")
    one = spectral("dlq", "discard", str(first), "--reason", "a test order", "--yes")
    assert one == Ran(0, "", "1 event discarded\n")
    (line,) = one.log
    assert (line["event"], line["service"], line["event_id"]) == ("discarded", "spectral-cli", str(first))
    assert (line["by"], line["reason"], line["count"]) == ("ada", "a test order", 1)
    assert spectral("dlq", "discard", str(first), "--reason", "again", "--yes").code == 1
    dry = spectral("dlq", "discard", "--error", "ValueError", "--reason", "test orders", "--dry-run")
    assert (dry.code, dry.err) == (0, "3 event(s) would be discarded\n")
    many = spectral("dlq", "discard", "--error", "ValueError", "--reason", "test orders", "--yes")
    assert many.err.endswith("3 events discarded; 0 left of those that were there\n")
    assert value(connection, "select count(*) from core.dead_letters") == 1
    assert connection.execute("select reason, sum(affected) from core.audit group by 1 order by 2").fetchall() == [
        ("a test order", 1),
        ("test orders", 3),
    ]
