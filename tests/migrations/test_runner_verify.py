"""The fingerprint: `verify` names what was changed by hand, and the DBA's script leaves the same record as `up`."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import psycopg
import pytest

from spectral.core.embedded import Binaries
from spectral.core.migrations import bundled_directory, script, status, up, verify

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.database

PSQL = str(Binaries.from_wheel().directory / "psql")

SCHEMA = """\
create schema core;
create table core.t (id int primary key, body text not null, constraint t_body_check check (body <> ''));
create index t_body_idx on core.t (body);
alter table core.t enable row level security;
create policy t_all on core.t using (true);
create function core.f(a int, b text[]) returns int language sql security definer
    set search_path = pg_catalog as 'select 1';
create function core.touch() returns trigger language plpgsql as $$ begin return new; end $$;
create trigger t_touch before update on core.t for each row execute function core.touch();
create view core.v with (security_invoker = true) as select id from core.t;
create table core.parts (at date not null) partition by range (at);
"""

NEW_BODY = """\
create or replace function core.f(a int, b text[]) returns int language sql security definer
    set search_path = pg_catalog as 'select 2'"""


def write(directory: Path, **files: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, sql in files.items():
        (directory / f"{name.removeprefix('v')}.sql").write_text(sql)
    return directory


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return write(tmp_path / "files", v20250101000000_schema=SCHEMA, v20250102000000_more="select 1 -- no semicolon")


def execute(dsn: str, sql: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.encode())


@pytest.mark.parametrize(
    ("by_hand", "finding"),
    [
        (
            NEW_BODY,
            "function core.f(int4, _text) was changed by hand",
        ),
        ("alter function core.f security invoker", "function core.f(int4, _text) was changed by hand"),
        ("alter function core.f reset search_path", "function core.f(int4, _text) was changed by hand"),
        ("create function core.g() returns int language sql as 'select 1'", "function core.g() was added by hand"),
        ("drop function core.f", "function core.f(int4, _text) was removed by hand"),
        ("alter table core.t disable trigger t_touch", "trigger t_touch on core.t was changed by hand"),
        ("alter table core.t enable replica trigger t_touch", "trigger t_touch on core.t was changed by hand"),
        ("drop trigger t_touch on core.t", "trigger t_touch on core.t was removed by hand"),
        ("alter table core.t add column extra int", "column core.t.extra was added by hand"),
        ("alter table core.t alter column body drop not null", "column core.t.body was changed by hand"),
        ("alter table core.t disable row level security", "table core.t was changed by hand"),
        ("alter table core.t force row level security", "table core.t was changed by hand"),
        ("drop policy t_all on core.t", "policy t_all on core.t was removed by hand"),
        ("alter table core.t drop constraint t_body_check", "constraint t_body_check on core.t was removed by hand"),
        ("drop index core.t_body_idx", "index t_body_idx on core.t was removed by hand"),
        ("alter view core.v set (security_invoker = false)", "table core.v was changed by hand"),
        (
            (
                "create or replace trigger t_touch before update on core.t for each row when (false)"
                " execute function core.touch()"
            ),
            "definition of trigger t_touch on core.t was changed by hand",
        ),
        (
            "alter table core.t drop constraint t_body_check, add constraint t_body_check check (true)",
            "definition of constraint t_body_check on core.t was changed by hand",
        ),
        ("alter policy t_all on core.t using (false)", "definition of policy t_all on core.t was changed by hand"),
        (
            "drop index core.t_body_idx; create index t_body_idx on core.t (body) where id > 1",
            "definition of index t_body_idx on core.t was changed by hand",
        ),
        (
            "create or replace view core.v with (security_invoker = true) as select 1 as id",
            "definition of view core.v was changed by hand",
        ),
        ("grant select on core.t to public", "table core.t was changed by hand"),
    ],
)
def test_a_change_by_hand_is_named(empty_database: str, files: Path, by_hand: str, finding: str) -> None:
    up(empty_database, directories=[files])
    execute(empty_database, by_hand)
    found = verify(empty_database, directories=[files])
    assert not found.clean
    assert [each.message for each in found.objects] == [finding]


@pytest.mark.parametrize(
    "harmless",
    [
        "create table core.parts_2025 partition of core.parts for values from ('2025-01-01') to ('2026-01-01')",
        "alter table core.t set (autovacuum_vacuum_scale_factor = 0.01)",
        "create table public.elsewhere ()",
        "grant select on core.t to pg_monitor",
        "insert into core.t values (1, 'x')",
    ],
)
def test_what_operation_brings_with_it_is_no_drift(empty_database: str, files: Path, harmless: str) -> None:
    up(empty_database, directories=[files])
    execute(empty_database, harmless)
    assert verify(empty_database, directories=[files]).clean


def test_the_fingerprint_does_not_depend_on_the_search_path(empty_database: str, files: Path) -> None:
    up(empty_database, directories=[files])
    other = psycopg.conninfo.make_conninfo(empty_database, options="-c search_path=core,public")
    assert verify(other, directories=[files]).clean


@pytest.mark.parametrize("applied_before", [0, 1])
def test_the_script_leaves_what_up_leaves(
    empty_database: str, files: Path, tmp_path: Path, applied_before: int
) -> None:
    if applied_before:
        first = write(tmp_path / "first", v20250101000000_schema=SCHEMA)
        up(empty_database, directories=[first])
    execute(empty_database, script(empty_database, directories=[files]))
    assert verify(empty_database, directories=[files]).clean
    origins = [row.origin for row in status(empty_database, directories=[files]).applied]
    assert origins == [*["runner"] * applied_before, *["script"] * (2 - applied_before)]
    assert script(empty_database, directories=[files]) == "-- Nothing is pending.\n"


def test_psql_runs_the_script_of_our_own_migrations(empty_database: str, tmp_path: Path) -> None:
    file = tmp_path / "all.sql"
    file.write_text(script(None, directories=[bundled_directory()]))
    psql = [
        PSQL,
        "--no-psqlrc",
        "--quiet",
        "--set",
        "ON_ERROR_STOP=1",
        "--dbname",
        empty_database,
        "--file",
        str(file),
    ]
    ran = subprocess.run(psql, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert verify(empty_database, directories=[bundled_directory()]).clean


def test_a_script_that_fails_midway_stops_even_where_psql_does_not(
    empty_database: str, files: Path, tmp_path: Path
) -> None:
    write(files, v20250103000000_broken="selct 1", v20250104000000_after="create table core.after ()")
    file = tmp_path / "all.sql"
    file.write_text(script(None, directories=[files]))
    psql = [PSQL, "--no-psqlrc", "--quiet", "--dbname", empty_database, "--file", str(file)]
    ran = subprocess.run(psql, capture_output=True, text=True, check=False)
    assert "20250104000000_after.sql was not applied" in ran.stderr
    found = status(empty_database, directories=[files])
    assert [each.name for each in found.applied] == ["schema", "more"]
    assert [each.name for each in found.pending] == ["broken", "after"]


def test_a_script_for_an_empty_database_refuses_another(empty_database: str, files: Path) -> None:
    up(empty_database, directories=[files])
    with pytest.raises(psycopg.errors.RaiseException, match="does not fit the database"):
        execute(empty_database, script(None, directories=[files]))


def test_a_script_adopts_what_supabase_applied(empty_database: str, files: Path) -> None:
    execute(empty_database, SCHEMA)
    execute(
        empty_database,
        "create schema supabase_migrations;"
        "create table supabase_migrations.schema_migrations (version text primary key, name text, statements text[]);"
        "insert into supabase_migrations.schema_migrations (version) values ('20250101000000')",
    )
    execute(empty_database, script(empty_database, directories=[files]))
    assert [row.origin for row in status(empty_database, directories=[files]).applied] == ["supabase", "script"]
    assert verify(empty_database, directories=[files]).clean
