"""`up` on a real server: from empty, again, adopted from Supabase, and what a failing file leaves behind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from spectral.core.migrations import (
    Adopted,
    Applied,
    Applying,
    DatabaseUnavailableError,
    MigrationFailedError,
    Overwriting,
    Progress,
    UpOptions,
    plan,
    status,
    up,
    verify,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.database


def write(directory: Path, **files: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, sql in files.items():
        (directory / f"{name.removeprefix('v')}.sql").write_text(sql)
    return directory


def rows(dsn: str, query: bytes) -> list[tuple[Any, ...]]:
    with psycopg.connect(dsn) as connection:
        return connection.execute(query).fetchall()


@pytest.fixture
def two_files(tmp_path: Path) -> Path:
    return write(
        tmp_path / "files",
        v20250101000000_schema="create schema core;\ncreate table core.t (id int primary key);",
        v20250102000000_rows="insert into core.t values (1); -- 100 %s of them\ninsert into core.t values (2)",
    )


def test_from_empty_every_file_is_applied_in_order_and_recorded(empty_database: str, two_files: Path) -> None:
    seen: list[Progress] = []
    report = up(empty_database, directories=[two_files], on_progress=seen.append)
    assert [each.name for each in report.applied] == ["schema", "rows"]
    assert [type(each) for each in seen] == [Applying, Applied, Applying, Applied]
    assert rows(empty_database, b"select id from core.t order by id") == [(1,), (2,)]
    ledger = b"select name, origin, applied_by = session_user, duration >= '0', checksum ~ '^[0-9a-f]{64}$'"
    assert rows(empty_database, ledger + b" from spectral_migrations.history order by version") == [
        ("schema", "runner", True, True, True),
        ("rows", "runner", True, True, True),
    ]
    assert verify(empty_database, directories=[two_files]).clean


def test_the_second_run_changes_nothing(empty_database: str, two_files: Path) -> None:
    up(empty_database, directories=[two_files])
    before = rows(empty_database, b"select version, applied_at from spectral_migrations.history order by version")
    report = up(empty_database, directories=[two_files])
    assert (report.applied, report.adopted, report.skipped) == ((), (), ())
    after = rows(empty_database, b"select version, applied_at from spectral_migrations.history order by version")
    assert after == before


def test_status_and_plan_write_nothing(empty_database: str, two_files: Path) -> None:
    found = status(empty_database, directories=[two_files])
    assert ([each.name for each in found.pending], found.applied) == (["schema", "rows"], ())
    assert [step.migration.name for step in plan(empty_database, directories=[two_files])] == ["schema", "rows"]
    assert not verify(empty_database, directories=[two_files]).clean
    assert rows(empty_database, b"select from pg_namespace where nspname = 'spectral_migrations'") == []


def test_a_dry_run_says_what_it_would_do_and_does_not_do_it(empty_database: str, two_files: Path) -> None:
    report = up(empty_database, directories=[two_files], options=UpOptions(dry_run=True))
    assert [each.name for each in report.applied] == ["schema", "rows"]
    assert rows(empty_database, b"select from pg_namespace where nspname in ('core', 'spectral_migrations')") == []


@pytest.mark.parametrize(
    ("sql", "line", "sqlstate"),
    [
        ("create table core.half (id int);\n\nselect 1;\nselct 2;\n", 4, "42601"),
        ("create table core.half (id int);\n-- no position comes with this one\ncreate table core.t ();\n", 3, "42P07"),
        ("create table core.half (id int);\ndo $$\nbegin\n  perform 1 / 0;\nend $$;\n", 2, "22012"),
        ("create table core.half (id int);\nselect 1,\n  nothing from core.t;\n", 3, "42703"),
    ],
)
def test_a_failing_file_is_rolled_back_whole_and_its_line_named(
    empty_database: str, two_files: Path, sql: str, line: int, sqlstate: str
) -> None:
    write(two_files, v20250103000000_broken=sql, v20250104000000_never="create table core.never ()")
    with pytest.raises(MigrationFailedError, match=rf"20250103000000_broken\.sql, line {line}: ") as caught:
        up(empty_database, directories=[two_files])
    assert (caught.value.line, caught.value.sqlstate) == (line, sqlstate)
    found = status(empty_database, directories=[two_files])
    assert [each.name for each in found.applied] == ["schema", "rows"]
    assert [each.name for each in found.pending] == ["broken", "never"]
    assert rows(empty_database, b"select to_regclass('core.half')") == [(None,)]


def test_the_error_never_shows_a_row(empty_database: str, two_files: Path) -> None:
    write(
        two_files,
        v20250103000000_clash="create table core.p (name text primary key, s text);\n"
        "insert into core.p values ('canary-4711', 'x'), ('canary-4711', 'y')",
    )
    with pytest.raises(MigrationFailedError) as caught:
        up(empty_database, directories=[two_files])
    assert caught.value.sqlstate == "23505"
    assert "canary" not in str(caught.value)


def test_after_the_file_is_corrected_up_carries_on(empty_database: str, two_files: Path) -> None:
    write(two_files, v20250103000000_third="selct 1")
    with pytest.raises(MigrationFailedError):
        up(empty_database, directories=[two_files])
    write(two_files, v20250103000000_third="select 1")
    assert [each.name for each in up(empty_database, directories=[two_files]).applied] == ["third"]


def test_a_lost_connection_leaves_the_earlier_files_applied(empty_database: str, two_files: Path) -> None:
    write(
        two_files,
        v20250103000000_suicide="create table core.half (id int);\nselect pg_terminate_backend(pg_backend_pid());",
    )
    with pytest.raises(DatabaseUnavailableError, match="run it again"):
        up(empty_database, directories=[two_files])
    assert [each.name for each in status(empty_database, directories=[two_files]).pending] == ["suicide"]
    assert rows(empty_database, b"select to_regclass('core.half')") == [(None,)]


def test_what_the_supabase_cli_applied_is_adopted_not_run_again(empty_database: str, two_files: Path) -> None:
    with psycopg.connect(empty_database) as connection:
        connection.execute(
            b"create schema supabase_migrations;"
            b"create table supabase_migrations.schema_migrations (version text primary key, name text);"
            b"insert into supabase_migrations.schema_migrations (version, name)"
            b" values ('20250101000000', 'schema'), ('20240101000000', 'of_the_users_own');"
            b"create schema core; create table core.t (id int primary key)"
        )
    found = status(empty_database, directories=[two_files])
    assert ([each.name for each in found.adoptable], [each.name for each in found.pending]) == (["schema"], ["rows"])
    assert [step.action.value for step in plan(empty_database, directories=[two_files])] == ["adopt", "apply"]

    seen: list[Progress] = []
    report = up(empty_database, directories=[two_files], on_progress=seen.append)
    assert ([each.name for each in report.adopted], [each.name for each in report.applied]) == (["schema"], ["rows"])
    assert [type(each) for each in seen] == [Adopted, Applying, Applied]
    ledger = rows(empty_database, b"select name, origin from spectral_migrations.history order by version")
    assert ledger == [("schema", "supabase"), ("rows", "runner")]
    assert verify(empty_database, directories=[two_files]).clean


def test_a_hand_made_change_is_named_before_it_becomes_the_record(empty_database: str, two_files: Path) -> None:
    up(empty_database, directories=[two_files])
    with psycopg.connect(empty_database) as connection:
        connection.execute("alter table core.t add column by_hand int")
    write(two_files, v20250103000000_third="select 1")
    seen: list[Progress] = []
    up(empty_database, directories=[two_files], on_progress=seen.append)
    (named,) = [each for each in seen if isinstance(each, Overwriting)]
    assert [each.message for each in named.objects] == ["column core.t.by_hand was added by hand"]
