"""`spectral migrate` as a person or a pipeline runs it: real processes, exit codes, stdout kept for data."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

pytestmark = pytest.mark.database

SPECTRAL = str(Path(sys.executable).with_name("spectral"))


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
    """Runs `spectral migrate` against one database with one directory of files."""

    dsn: str
    directory: Path

    def __call__(self, verb: str, *options: str, **variables: str) -> Ran:
        files = ["--no-bundled", "--directory", str(self.directory)]
        env = {"SPECTRAL_DATABASE_URL": self.dsn, **variables}
        ran = subprocess.run(
            [SPECTRAL, "migrate", verb, *files, *options], capture_output=True, text=True, check=False, env=env
        )
        return Ran(ran.returncode, ran.stdout, ran.stderr)


@pytest.fixture
def spectral(empty_database: str, tmp_path: Path) -> Shell:
    (tmp_path / "20250101000000_first.sql").write_text("create schema core;\ncreate table core.t (id int);")
    (tmp_path / "20250102000000_second.sql").write_text("insert into core.t values (1)")
    return Shell(empty_database, tmp_path)


def test_the_way_from_an_empty_database_to_a_verified_one(spectral: Shell) -> None:
    plan = spectral("plan", "--json")
    assert plan.code == 0
    assert [(step["action"], step["name"]) for step in plan.document["steps"]] == [
        ("apply", "first"),
        ("apply", "second"),
    ]

    dry = spectral("up", "--dry-run", "--json")
    assert (dry.code, dry.document["dry_run"], len(dry.document["applied"])) == (0, True, 2)
    assert len(spectral("status", "--json").document["pending"]) == 2

    up = spectral("up", "--yes", "--json")
    assert (up.code, [each["name"] for each in up.document["applied"]]) == (0, ["first", "second"])
    assert "[1/2] 20250101000000_first.sql" in up.err

    status = spectral("status", "--json").document
    assert set(status) == {"database", "applied", "adoptable", "pending", "drift"}
    assert [(each["name"], each["origin"]) for each in status["applied"]] == [("first", "runner"), ("second", "runner")]
    assert set(status["applied"][0]) >= {"version", "checksum", "applied_at", "applied_by", "duration_ms"}

    verify = spectral("verify", "--json")
    assert (verify.code, verify.document["clean"], verify.document["objects"]) == (0, True, [])
    again = spectral("up")
    assert (again.code, again.out) == (0, "")
    assert again.err.endswith("nothing to do\n")


def test_tables_go_to_stdout_and_the_rest_to_stderr(spectral: Shell) -> None:
    status = spectral("status", NO_COLOR="1", TERM="xterm-256color")
    assert [line.split() for line in status.out.splitlines()] == [
        ["file", "state"],
        ["20250101000000_first.sql", "pending"],
        ["20250102000000_second.sql", "pending"],
    ]
    assert status.err.endswith("0 applied, 2 pending, 0 drifted\n")
    assert "\x1b" not in status.out, "colours reach a pipe"


def test_verify_exits_with_4_and_names_the_change(spectral: Shell) -> None:
    assert spectral("verify").code == 4
    spectral("up")
    with psycopg.connect(spectral.dsn) as connection:
        connection.execute("alter table core.t add column by_hand int")
    found = spectral("verify")
    assert found.code == 4
    assert "column core.t.by_hand was added by hand" in found.out
    (change,) = spectral("verify", "--json").document["objects"]
    assert (change["kind"], change["name"], change["change"]) == ("column", "core.t.by_hand", "added")


def test_drift_is_refused_with_1_and_shown_by_status(spectral: Shell) -> None:
    spectral("up")
    (spectral.directory / "20250101000000_first.sql").write_text("create schema other")
    refused = spectral("up")
    assert (refused.code, refused.out) == (1, "")
    assert "20250101000000_first.sql is not what was applied" in refused.err
    assert refused.err.endswith("try: spectral migrate status\n")
    shown = spectral("status")
    assert shown.code == 0
    assert "DRIFTED: changed" in shown.out


def test_a_failing_file_exits_with_1_and_names_its_line(spectral: Shell) -> None:
    (spectral.directory / "20250103000000_bad.sql").write_text("select 1;\nselct 2;")
    failed = spectral("up")
    assert failed.code == 1
    assert "20250103000000_bad.sql, line 2: " in failed.err
    assert "SQLSTATE 42601" in failed.err
    assert "Traceback" not in failed.err
    assert "Traceback" in spectral("up", SPECTRAL_DEBUG="1").err


def test_the_script_on_stdout_can_be_run_as_it_is(spectral: Shell) -> None:
    script = spectral("sql")
    assert (script.code, script.err) == (0, "")
    with psycopg.connect(spectral.dsn, autocommit=True) as connection:
        connection.execute(script.out.encode())
    assert spectral("verify").code == 0


def test_all_of_the_script_needs_no_database(spectral: Shell) -> None:
    script = spectral("sql", "--all", SPECTRAL_DATABASE_URL="")
    assert script.code == 0
    assert "20250102000000_second" in script.out


@pytest.mark.parametrize("verb", ["up", "status", "plan", "verify", "sql"])
def test_a_database_that_is_down_is_75_and_the_password_stays_unseen(spectral: Shell, verb: str) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, but nobody listens
        port = closed.getsockname()[1]
        down = spectral(verb, SPECTRAL_DATABASE_URL=f"postgresql://me:canary@127.0.0.1:{port}/app")
    assert (down.code, down.out) == (75, "")
    assert f"no connection to 127.0.0.1:{port}/app: Connection refused" in down.err
    assert "canary" not in down.err
    assert len(down.err.splitlines()) == 2


@pytest.mark.parametrize("debug", ["0", "1"])
def test_an_unreadable_connection_string_is_2_and_not_quoted(spectral: Shell, debug: str) -> None:
    bad = spectral("status", SPECTRAL_DATABASE_URL="postgresql://me:can@ary@host/app", SPECTRAL_DEBUG=debug)
    assert bad.code == 2
    assert "ary" not in bad.err.replace("binary", "").replace("library", "")


def test_the_libpq_variables_name_the_database_too(spectral: Shell) -> None:
    parts = psycopg.conninfo.conninfo_to_dict(spectral.dsn)
    named = {"host": "PGHOST", "port": "PGPORT", "dbname": "PGDATABASE", "user": "PGUSER", "password": "PGPASSWORD"}
    variables = {named[key]: str(value) for key, value in parts.items() if key in named}
    assert spectral("plan", SPECTRAL_DATABASE_URL="", **variables).code == 0


def test_usage_errors_are_2(spectral: Shell) -> None:
    assert spectral("up", "--nonsense").code == 2
    assert spectral("nonsense").code == 2
    assert spectral("up", "--lock-timeout", "0").code == 2
    assert spectral("status", SPECTRAL_DATABASE_URL="").code == 2


def test_lint_reports_findings_as_json_with_1(tmp_path: Path) -> None:
    bad = tmp_path / "20250101000000_bad.sql"
    bad.write_text("grant all on all tables in schema core to public;")
    ran = subprocess.run(
        [SPECTRAL, "migrate", "lint", "--json", str(bad)], capture_output=True, text=True, check=False, env={}
    )
    document = json.loads(ran.stdout)
    assert (ran.returncode, document["files"]) == (1, 1)
    assert set(document["findings"][0]) == {"rule", "path", "line", "message"}
    good = tmp_path / "20250102000000_good.sql"
    good.write_text("select 1;")
    clean = subprocess.run(
        [SPECTRAL, "migrate", "lint", "--json", str(good)], capture_output=True, text=True, check=False, env={}
    )
    assert (clean.returncode, json.loads(clean.stdout)) == (0, {"files": 1, "findings": []})
