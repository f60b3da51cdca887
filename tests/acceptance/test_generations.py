"""`spectral generations` as a person or a deploy script runs it: real processes, exit codes, stdout kept for data."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from spectral.core.deployments import handing_over
from spectral.core.events.infrastructure.observability.outlet import flush_all
from spectral_ops.cli import main
from tests.acceptance.worker_process import PATIENCE, SPECTRAL, Outbox, publish, write_app

Connection = psycopg.Connection[Any]


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.out)
        return found


@dataclass(frozen=True)
class Shell:
    """Runs `spectral generations` against one database: the whole program, in this process, or in one of its own."""

    dsn: str
    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *arguments: str, **variables: str) -> Ran:
        flush_all()  # what the test itself has published is told a moment later, and is none of the command's
        self.capsys.readouterr()
        for name, value in {"SPECTRAL_DATABASE_URL": self.dsn, "SPECTRAL_OPERATOR": "ada", **variables}.items():
            self.monkeypatch.setenv(name, value)
        self.monkeypatch.setattr(sys, "argv", ["spectral", "generations", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        shown = self.capsys.readouterr()
        return Ran(int(end.value.code or 0), shown.out, shown.err)

    def at_a_terminal(self, *arguments: str, answer: str) -> Ran:
        """A process with a terminal to ask at and to draw on; stdout goes to a pipe."""
        terminal, end = os.openpty()
        os.write(terminal, answer.encode())
        process = subprocess.Popen(
            [SPECTRAL, "generations", *arguments],
            env={"SPECTRAL_DATABASE_URL": self.dsn, "TERM": "xterm"},
            stdin=end,
            stdout=subprocess.PIPE,
            stderr=end,
        )
        os.close(end)
        shown = b""
        try:
            while piece := os.read(terminal, 4096):
                shown += piece
        except OSError:  # nobody holds the other end any more
            os.close(terminal)
        out, _ = process.communicate(timeout=PATIENCE)
        return Ran(process.returncode, out.decode(), shown.decode())


@pytest.fixture
def spectral(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Shell]:
    """In a directory with an app; what is imported from there is forgotten afterwards."""
    write_app(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield Shell(database, monkeypatch, capsys)
    sys.modules.pop("app", None)


def audited(connection: Connection) -> list[tuple[Any, ...]]:
    return connection.execute("select action, actor, reason from core.audit order by id").fetchall()


def test_the_way_of_a_release_from_its_number_to_its_end(spectral: Shell, connection: Connection) -> None:
    dry = spectral("allocate", "app:platform", "--label", "v2", "--dry-run")
    assert (dry.code, dry.out) == (0, "3\n")
    allocated = spectral("allocate", "app:platform", "--label", "v2")
    assert (allocated.code, allocated.out) == (0, "3\n")
    assert allocated.err == "generation 3 is allocated: 1 subscription(s)\n"

    unconfirmed = spectral("promote", "3")
    assert (unconfirmed.code, unconfirmed.out) == (5, "")
    assert unconfirmed.err.startswith("error: make generation 3 instead of 1 live: not done")
    assert spectral("promote", "3", "--dry-run").err == "generation 3 would be live; 1 would drain\n"
    promoted = spectral("promote", "3", "--yes", "--json", "--reason", "v2 is up", "--by", "bob")
    assert promoted.document == {"generation": 3, "before": 1, "changed": True, "dry_run": False}
    assert spectral("rollback", "--yes").err == "generation 1 is live; 3 drains\n"
    assert spectral("drain", "2", "--yes").err == "generation 2 drains\n"
    assert spectral("retire", "3", "--dry-run").err == "it may be done; nothing was changed\n"
    retired = spectral("retire", "3", "--yes", "--json").document
    assert (retired["generation"], retired["status"], retired["label"]) == (3, "retired", "v2")
    assert audited(connection) == [
        ("allocate", "ada", None),
        ("promote", "bob", "v2 is up"),
        ("rollback", "ada", None),
        ("drain", "ada", None),
        ("retire", "ada", None),
    ]


def test_the_list_is_a_table_and_says_below_it_what_to_see_to(spectral: Shell) -> None:
    publish(spectral.dsn, "worlds.scan.completed", 3)
    shown = spectral("list")
    assert [line.split()[:2] for line in shown.out.splitlines()] == [
        ["generation", "status"],
        ["2", "allocated"],
        ["1", "live"],
        ["0", "retired"],
    ]
    assert shown.out.splitlines()[2].split()[-4:] == ["3", "0", "0", "0"]
    start = "SPECTRAL_GENERATION=1 spectral worker <module>:<consumer>"
    assert shown.err == f"generation 1 is live and has no worker\n  try: {start}\n"

    document = spectral("list", "--json", "--retired", "0").document
    assert [each["generation"] for each in document["generations"]] == [2, 1]
    live = document["generations"][1]
    assert (live["pending"], live["workers"]) == ({"rows": 3, "capped": False}, [])
    assert document["remarks"] == [{"message": "generation 1 is live and has no worker", "remedy": start}]


def test_rows_that_are_left_are_named_and_handed_over(spectral: Shell, connection: Connection) -> None:
    publish(spectral.dsn, "worlds.scan.completed", 250)
    publish(spectral.dsn, "worlds.scan.renamed", 2)
    spectral("allocate", "app:platform", "--generation", "2")
    spectral("promote", "2", "--yes")
    refused = spectral("retire", "1", "--yes")
    assert refused.code == 1
    assert refused.err == (
        "error: generation 1 is not at its end: 250 pending worlds.scan.completed of platform, "
        "2 pending worlds.scan.renamed of platform\n"
        "  try: spectral generations hand-over 1 2\n"
    )

    preview = spectral("hand-over", "1", "2", "--dry-run")
    assert [line.split() for line in preview.out.splitlines()] == [
        ["context", "type", "rows"],
        ["platform", "worlds.scan.completed", "250"],
        ["platform", "worlds.scan.renamed", "2"],
    ]
    assert preview.err.splitlines() == [
        (
            "warning: 2 worlds.scan.renamed of platform: nobody subscribes to them in generation 2, "
            "so they would end as NoHandlerError"
        ),
        "warning: generation 2 has no worker",
        "252 rows would be handed over",
    ]
    assert spectral("hand-over", "1", "2").code == 5
    done = spectral("hand-over", "1", "2", "--yes", "--batch", "100", "--json")
    assert done.document["done"] == {
        "moved": 252,
        "pending": {"rows": 0, "capped": False},
        "in_flight": {"rows": 0, "capped": False},
        "aborted": False,
    }
    assert [each["subscribed"] for each in done.document["preview"]["waiting"]] == [True, False]
    assert len(done.document["warnings"]) == 2
    assert done.err.splitlines()[:3] == ["100 of 252", "200 of 252", "252 of 252"]
    assert connection.execute("select count(*) from core.outbox where generation = 2").fetchone() == (252,)
    again = spectral("hand-over", "1", "2", "--yes")
    assert (again.code, again.err) == (0, "nothing waits there\n")
    assert spectral("retire", "1", "--yes").code == 0


def test_a_hand_over_that_leaves_rows_behind_is_a_failure_and_says_how_to_go_on(
    spectral: Shell, connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handing_over, "_PAUSE", 0.0)
    publish(spectral.dsn, "worlds.scan.completed", 2)
    connection.execute("select core.deployment_promote(2)")
    with psycopg.connect(spectral.dsn) as holder:
        holder.execute("select from core.outbox limit 1 for update")
        left = spectral("hand-over", "1", "2", "--yes")
    assert left.code == 1
    assert left.err.endswith(
        "1 rows were handed over; left are 1 that wait and 0 in flight\n"
        "given up: what still waits is held, or new\n"
        "  try: spectral generations hand-over 1 2 --batch 1000\n"
    )
    assert spectral("hand-over", "1", "2", "--yes").code == 0


def test_a_hand_over_ends_after_the_batch_at_hand_when_somebody_presses_ctrl_c(
    spectral: Shell, connection: Connection
) -> None:
    publish(spectral.dsn, "worlds.scan.completed", 3000)
    connection.execute("select core.deployment_promote(2)")
    options = ("--context", "platform", "--reason", "v1 is gone", "--by", "ada")
    with subprocess.Popen(
        [SPECTRAL, "generations", "hand-over", "1", "2", "--batch", "1", "--yes", *options],
        env={"SPECTRAL_DATABASE_URL": spectral.dsn},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        while "1 of 3,000" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(PATIENCE) == 1
    again = "spectral generations hand-over 1 2 --context platform --batch 1 --reason 'v1 is gone' --by ada"
    assert rest.endswith(f"ended before it was done\n  try: {again}\n")
    assert Outbox(spectral.dsn).count() == {("pending", 0): 3000}
    moved, entries = connection.execute(
        "select count(*), (select count(*) from core.audit where action = 'hand_over')"
        " from core.outbox where generation = 2"
    ).fetchone() or (0, 0)
    assert 0 < moved < 3000
    assert moved == entries


def test_a_person_at_a_terminal_is_asked_and_sees_a_bar(spectral: Shell, connection: Connection) -> None:
    publish(spectral.dsn, "worlds.scan.completed", 5)
    no = spectral.at_a_terminal("promote", "2", answer="n\n")
    assert no.code == 5
    assert "make generation 2 instead of 1 live? [y/N] " in no.err
    assert connection.execute("select generation from core.live_generation").fetchone() == (1,)
    assert spectral.at_a_terminal("promote", "2", answer="y\n").code == 0
    yes = spectral.at_a_terminal("hand-over", "1", "2", answer="y\n")
    assert (yes.code, yes.out.strip()) == (0, "")
    assert "5/5" in yes.err
    assert "5 rows were handed over; left are 0 that wait and 0 in flight" in yes.err


@pytest.mark.parametrize(
    ("arguments", "code", "said", "remedy"),
    [
        (["promote", "7", "--yes"], 3, "there is no generation 7", "spectral generations list"),
        (["promote", "0", "--yes"], 1, "generation 0 is retired, and stays so", "spectral generations allocate"),
        (["rollback", "--yes"], 1, "there is nothing to roll back to", "spectral generations list"),
        (["hand-over", "1", "2", "--yes"], 1, "generation 1 is live", "spectral generations promote 2"),
        (["allocate", "--generation", "0"], 1, "generation 0 is retired already", "spectral generations allocate"),
    ],
)
def test_an_error_ends_with_the_command_that_helps(
    spectral: Shell, arguments: list[str], code: int, said: str, remedy: str
) -> None:
    ran = spectral(*arguments)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err.startswith(f"error: {said}")
    assert ran.err.endswith(f"\n  try: {remedy}\n")


def test_an_app_that_is_none_and_a_database_that_is_down_have_their_codes(spectral: Shell) -> None:
    assert spectral("allocate", "nowhere:app").code == 2
    down = spectral("list", SPECTRAL_DATABASE_URL="postgresql://me:canary@127.0.0.1:1/app")
    assert (down.code, down.out) == (75, "")
    assert "canary" not in down.err
