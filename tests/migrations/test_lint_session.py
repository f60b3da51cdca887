"""The transaction and the session belong to the runner; SECURITY DEFINER functions are closed on every side."""

from __future__ import annotations

from pathlib import Path

import pytest

from spectral.core.migrations.lint import Rule, lint_files, lint_sql


def broken_rules(sql: str) -> list[Rule]:
    return [finding.rule for finding in lint_sql(sql, path=Path("m.sql"))]


@pytest.mark.parametrize(
    "sql",
    [
        "begin",
        "start transaction",
        "commit",
        "end",
        "rollback",
        "savepoint s",
        "release s",
        "prepare transaction 'x'",
        "create index concurrently i on worlds.card (id)",
        "drop index concurrently worlds.i",
        "reindex table concurrently worlds.card",
        "reindex (concurrently) table worlds.card",
        "reindex schema worlds",
        "vacuum worlds.card",
        "create database d",
        "drop database d",
        "alter database d set tablespace t",
        "create tablespace t location '/x'",
        "alter system set work_mem = '1GB'",
        "cluster",
        "discard all",
        "alter table worlds.card detach partition worlds.old concurrently",
        "create subscription s connection '' publication p",
        "do $$ begin commit; end $$",
        "do $$ begin execute 'vacuum'; end $$",
    ],
)
def test_what_breaks_the_runners_transaction_is_found(sql: str) -> None:
    assert broken_rules(sql) == [Rule.TRANSACTION_CONTROL]


@pytest.mark.parametrize(
    "sql",
    [
        "create index i on worlds.card (id)",
        "drop index worlds.i",
        "reindex table worlds.card",
        "reindex (concurrently false) table worlds.card",
        "analyze worlds.card",
        "cluster worlds.card using i",
        "refresh materialized view concurrently worlds.v",
        "alter table worlds.card detach partition worlds.old",
        "alter database d set work_mem = '1GB'",
        "do $$ begin begin null; exception when others then null; end; end $$",
        "create procedure worlds.p() language plpgsql as $$ begin commit; end $$",
    ],
)
def test_what_fits_into_a_transaction_is_silent(sql: str) -> None:
    assert broken_rules(sql) == []


@pytest.mark.parametrize(
    "statement",
    [
        "set role worlds_app",
        "set session role worlds_app",
        "set role none",
        "set role to default",
        "reset role",
        "set session authorization worlds_app",
        "set local session authorization worlds_app",
        "reset session authorization",
    ],
)
def test_changes_of_the_sessions_role_are_found_at_the_top_and_in_code(statement: str) -> None:
    assert broken_rules(statement) == [Rule.SESSION_ROLE]
    assert broken_rules(f"do $$ begin {statement}; end $$") == [Rule.SESSION_ROLE]
    assert broken_rules(f"create function a.f() returns void language sql as '{statement}'") == [Rule.SESSION_ROLE]


def test_set_config_is_read_as_set() -> None:
    assert broken_rules("select set_config('role', 'worlds_app', false)") == [Rule.SESSION_ROLE]
    assert broken_rules("do $$ begin perform pg_catalog.set_config('ROLE', 'x', f); end $$") == [Rule.SESSION_ROLE]
    assert broken_rules("do $$ begin if set_config('role', 'x', false) = '' then end if; end $$") == [Rule.SESSION_ROLE]
    assert broken_rules("do $$ declare a text; begin a := set_config('role', 'x', false); end $$") == [
        Rule.SESSION_ROLE
    ]
    assert broken_rules("select set_config('role', 'worlds_app', true), set_config('work_mem', '1', false)") == []


def test_set_local_role_is_allowed() -> None:
    assert broken_rules("set local role worlds_app; set local role none; set work_mem = '1GB'; reset work_mem") == []


def definer(path: str, name: str = "core.f", arguments: str = "a int") -> str:
    body = "as $$ select 1 $$"
    return f"create or replace function {name}({arguments}) returns int language sql security definer {path} {body};\n"


PINNED = "set search_path = pg_catalog, pg_temp"
REVOKED = "revoke all on function core.f(int) from public;\n"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "set search_path = pg_catalog",
        "set search_path = ''",
        "set search_path = pg_temp, pg_catalog",
        "set search_path = pg_catalog, public, pg_temp",
        'set search_path = "$user", pg_temp',
        "set search_path = worlds, pg_temp",
        "set search_path = 'pg_catalog, pg_temp'",
        "set search_path from current",
        "set search_path to default",
        "set work_mem = '1GB'",
        "set search_path = pg_catalog, pg_temp set search_path = public",
    ],
)
def test_definer_functions_without_a_safe_path_are_found(path: str) -> None:
    assert broken_rules(definer(path) + REVOKED) == [Rule.DEFINER_SEARCH_PATH]
    if path:
        assert broken_rules(definer(path).replace("definer", "invoker")) == []


@pytest.mark.parametrize("path", ["pg_catalog, pg_temp", "pg_catalog, core, pg_temp", "core, pg_temp", "pg_temp"])
def test_definer_functions_with_a_safe_path_are_silent(path: str) -> None:
    assert broken_rules(definer(f"set search_path = {path}") + REVOKED) == []


def test_altering_a_function_keeps_it_safe() -> None:
    safe = definer(PINNED) + REVOKED
    assert broken_rules(safe + "alter function core.f(int) reset search_path") == [Rule.DEFINER_SEARCH_PATH]
    assert broken_rules(safe + "alter function core.f reset all") == [Rule.DEFINER_SEARCH_PATH]
    assert broken_rules(safe + "alter function core.f(int) set search_path = public") == [Rule.DEFINER_SEARCH_PATH]
    assert broken_rules(safe + "alter function core.f(int) set search_path = core, pg_temp") == []
    assert broken_rules(safe + "alter function core.f(int) stable") == []
    assert broken_rules("alter function core.g() reset search_path") == [Rule.DEFINER_SEARCH_PATH]
    assert broken_rules("alter function core.g() set search_path = public") == []
    assert broken_rules("alter function core.g() security invoker") == []
    unsafe = "alter function core.g() security definer; revoke all on function core.g() from public"
    assert broken_rules(unsafe) == [Rule.DEFINER_SEARCH_PATH]
    both = f"alter function core.g() security definer {PINNED}"
    assert broken_rules(both) == [Rule.DEFINER_PUBLIC_EXECUTE]
    assert broken_rules(f"{both}; revoke execute on function core.g() from public") == []


@pytest.mark.parametrize(
    "revoke",
    [
        "revoke all on function core.f(int) from public",
        "revoke execute on function core.f(integer) from worlds_app, public",
        "revoke all on function core.f from public",
        "revoke all on routine core.f(a int4) from public",
        "revoke all on function core.other(), core.f(int) from public",
        "revoke all on all functions in schema core from public",
        "do $$ begin revoke all on function core.f(int) from public; end $$",
    ],
)
def test_a_revoke_closes_the_function(revoke: str) -> None:
    assert broken_rules(definer(PINNED) + revoke) == []


@pytest.mark.parametrize(
    "revoke",
    [
        "",
        "revoke all on function core.f(text) from public",
        "revoke all on function core.f(int[]) from public",
        "revoke all on function worlds.f(int) from public",
        "revoke all on function core.f(int) from worlds_app",
        "revoke grant option for execute on function core.f(int) from public",
        "revoke all on all functions in schema worlds from public",
        "revoke all on table core.f from public",
        "create function core.g() returns void language sql as 'revoke all on function core.f(int) from public'",
    ],
)
def test_other_revokes_do_not(revoke: str) -> None:
    assert broken_rules(definer(PINNED) + revoke) == [Rule.DEFINER_PUBLIC_EXECUTE]


def test_a_new_function_is_open_again_and_a_replaced_one_is_not() -> None:
    created = definer(PINNED).replace("create or replace", "create")
    assert broken_rules(REVOKED + created) == [Rule.DEFINER_PUBLIC_EXECUTE]
    assert broken_rules(REVOKED + definer(PINNED)) == []
    assert broken_rules(created + REVOKED + "drop function core.f(int);" + created) == [Rule.DEFINER_PUBLIC_EXECUTE]


def test_arguments_are_matched_without_outputs_and_with_them() -> None:
    outputs = definer(PINNED, arguments="a int, out b text")
    assert broken_rules(outputs + REVOKED) == []
    assert broken_rules(outputs + "revoke all on function core.f(int, out text) from public") == []
    procedure = f"create procedure core.p(a int, out b text) security definer {PINNED} language sql as '';"
    assert broken_rules(procedure + "revoke all on procedure core.p(int, text) from public") == []


def test_functions_are_followed_from_file_to_file(tmp_path: Path) -> None:
    (tmp_path / "20250101000000_create.sql").write_text(definer(PINNED) + REVOKED)
    (tmp_path / "20250102000000_replace.sql").write_text(definer(PINNED))
    assert lint_files([tmp_path]) == []
    (tmp_path / "20250101120000_drop.sql").write_text("drop function core.f;")
    assert [(each.path.name, each.rule) for each in lint_files([tmp_path])] == [
        ("20250102000000_replace.sql", Rule.DEFINER_PUBLIC_EXECUTE)
    ]
