"""Grants hidden in code: DO blocks, functions in SQL and PL/pgSQL, and SQL put together from strings."""

from __future__ import annotations

from pathlib import Path

import pytest

from spectral.core.migrations.lint import Rule, lint_sql

BAD_GRANT = "grant select on worlds.card to platform_app"
GOOD_GRANT = "grant select on worlds.card to worlds_app"


def found(sql: str) -> list[tuple[Rule, int]]:
    return [(finding.rule, finding.line) for finding in lint_sql(sql, path=Path("m.sql"))]


def in_do(*lines: str, declare: str = "") -> str:
    return "\n".join(["do $$", f"declare {declare}", "begin", *lines, "end", "$$;"])


def test_grants_in_a_do_block_are_found_on_their_own_line() -> None:
    sql = in_do("  perform 1;", "  if true then", f"    {BAD_GRANT};", "  end if;")
    assert found("\n\n" + sql) == [(Rule.CROSS_CONTEXT_GRANT, 8)]
    assert found(in_do(GOOD_GRANT + ";", "revoke all on worlds.card from platform_app;")) == []


@pytest.mark.parametrize(
    "block",
    [
        "for i in 1..2 loop {}; end loop;",
        "while true loop {}; end loop;",
        "case when true then null; else {}; end case;",
        "case when true then {}; end case;",
        "begin null; exception when others then {}; end;",
        "if false then null; elsif true then {}; end if;",
        "for r in select 1 loop {}; end loop;",
    ],
)
def test_grants_in_any_control_structure_are_found(block: str) -> None:
    assert found(in_do(block.format(BAD_GRANT), declare="r record;")) == [(Rule.CROSS_CONTEXT_GRANT, 4)]


def test_a_do_block_inside_a_do_block_is_unfolded() -> None:
    assert found(in_do("do $x$", "begin", BAD_GRANT + ";", "end $x$;")) == [(Rule.CROSS_CONTEXT_GRANT, 6)]


def test_bodies_in_sql_are_read() -> None:
    header = "create function worlds.f() returns void language sql"
    assert found(f"{header} as $$\nselect 1;\n{BAD_GRANT};\n$$") == [(Rule.CROSS_CONTEXT_GRANT, 3)]
    assert found(f"{header} as '{BAD_GRANT}'") == [(Rule.CROSS_CONTEXT_GRANT, 1)]
    assert found(f"{header} begin atomic {BAD_GRANT}; end") == [(Rule.CROSS_CONTEXT_GRANT, 1)]
    assert found(f"{header} begin atomic select 1; select 2; end") == []
    assert found(f"{header} as $$ {GOOD_GRANT} $$") == []
    assert found(f"{header} return 1") == []


@pytest.mark.parametrize(
    "signature",
    [
        "function worlds.f() returns trigger",
        "function worlds.f(a int, variadic b worlds.card[]) returns worlds.card",
        "function worlds.f(a worlds.card) returns setof worlds.card",
        "function worlds.f(out a worlds.card) returns setof worlds.card",
        "function worlds.f(inout a int, out b text)",
        "function worlds.f() returns table (a int, b worlds.suit)",
        "function worlds.f(worlds.card, anyelement) returns anyelement",
        "function worlds.f() returns void",
        "procedure worlds.f(inout a worlds.card)",
    ],
)
def test_plpgsql_functions_of_every_shape_are_read(signature: str) -> None:
    body = (
        f"declare c worlds.card; d constant worlds.suit[] := '{{}}'; e worlds.card%rowtype;\nbegin\n{BAD_GRANT};\nend"
    )
    assert found(f"create {signature} language plpgsql as $$\n{body}\n$$") == [(Rule.CROSS_CONTEXT_GRANT, 4)]


def test_values_of_foreign_types_can_be_used_in_bodies() -> None:
    declare = "c worlds.card := null; d worlds.suit[]; n bigint;"
    usage = "select * into c from worlds.card; c.name := 'x'; d[1] := 'y'; get diagnostics n = row_count;"
    assert found(in_do(usage, declare=declare)) == []


def test_a_body_that_does_not_parse_is_a_finding() -> None:
    assert found("select 1;\ndo $$ begin foo bar baz end $$") == [(Rule.UNREADABLE_CODE, 2)]
    assert found("do $$ begin grant; end $$") == [(Rule.UNREADABLE_CODE, 1)]
    assert found("create function a.f() returns int language sql as $$ selec 1 $$") == [(Rule.UNREADABLE_CODE, 1)]
    assert found("do $$ begin raise notice 'unclosed; end $$") == [(Rule.UNREADABLE_CODE, 1)]


def test_other_languages_are_left_alone() -> None:
    assert found("create function a.f() returns int language c as 'lib', 'grant_it'") == []
    assert found("do language plpython3u $$ plpy.execute('grant') $$") == []


@pytest.mark.parametrize(
    "expression",
    [
        "'grant select on worlds.card to platform_app'",
        "$q$grant select on worlds.card to platform_app$q$",
        "'gr' || 'ant select on worlds.card to ' || 'platform_app'",
        "format('grant %s on %I.%I to %s_app', 'select', 'worlds', 'card', 'platform') || ''",
        "format('grant select on worlds.%2$I to %1$I', 'platform_app', name)",
        "format('grant select on %I.%I to %I', 'worlds', 'card', 'platform_app')",
        "format('grant select on worlds.%I to platform_app', name)",
        "format('grant select on worlds.%1$I to %2$I', name, 'platform_app')",
        "concat('grant select on ', quote_ident('worlds'), '.card to platform_app'::text)",
        "'do $x$ begin grant select on worlds.card to platform_app; end $x$'",
    ],
)
def test_dynamic_grants_are_computed_and_checked(expression: str) -> None:
    assert found(in_do(f"execute {expression};", declare="name text;")) == [(Rule.CROSS_CONTEXT_GRANT, 4)]


@pytest.mark.parametrize(
    "expression",
    [
        "format('grant select on worlds.card to %I', name)",
        "format('grant select on %I.card to worlds_app', name)",
        "format('grant select on worlds.%s to worlds_app', name)",
        "format('grant %s', name)",
        "format(name, 'grant select')",
        "'grant select on worlds.card to ' || name",
        "'grant ' || name || ' to worlds_app'",
        "case when true then 'grant select' else 'revoke select' end || ' on worlds.card ...'",
        "coalesce(name, 'grant select on worlds.card to platform_app')",
        "replace('grant select on worlds.card to x', 'x', name)",
        "name || ' \" grant '",
        "format('grant %s to %I', 'worlds_app', name)",
        "format('%*s', 3, 'grant')",
    ],
)
def test_dynamic_grants_that_cannot_be_computed_are_found(expression: str) -> None:
    assert found(in_do(f"execute {expression};", declare="name text;")) == [(Rule.DYNAMIC_SQL_GRANT, 4)]


@pytest.mark.parametrize(
    "expression",
    [
        "'grant select on worlds.card to worlds_app'",
        "format('grant select on worlds.%I to worlds_app', name)",
        "format('grant spectral_owner to %I', current_user)",
        "format('revoke all on %s from %I', name, name)",
        "format('revoke grant option for select on %s from %I', name, name)",
        "'revoke grant option for ' || name || name",
        "'select ''grant'', 100 %' || name",
        "format('select 100 %% %L', 'grant')",
        "format('comment on table %I is ''may grant''', name)",
        "name",
        "'select granted from ' || name",
    ],
)
def test_harmless_dynamic_sql_is_silent(expression: str) -> None:
    assert found(in_do(f"execute {expression};", declare="name text;")) == []


@pytest.mark.parametrize(
    "statement",
    [
        "for r in execute {} loop null; end loop;",
        "open c for execute {};",
        "execute {} into r using 1;",
    ],
)
def test_every_form_of_execute_is_read(statement: str) -> None:
    sql = in_do(statement.format(f"'{BAD_GRANT}'"), declare="r record; c refcursor;")
    assert found(sql) == [(Rule.CROSS_CONTEXT_GRANT, 4)]


def test_return_query_execute_is_read() -> None:
    header = "create function worlds.f() returns setof int language plpgsql as $$ begin return query execute"
    assert found(f"{header} '{BAD_GRANT}'; end $$") == [(Rule.CROSS_CONTEXT_GRANT, 1)]


def test_a_grant_that_travels_through_a_variable_is_found_where_it_is_written() -> None:
    assigned = in_do("q := 'grant select on ' || q;", "execute q;", declare="q text;")
    assert found(assigned) == [(Rule.DYNAMIC_SQL_GRANT, 4)]
    declared = in_do("execute q;", declare="q text := 'grant select on worlds.card to platform_app';")
    assert found(declared) == [(Rule.DYNAMIC_SQL_GRANT, 2)]
    selected = in_do(
        "for r in select format('grant %s', 1) as q", "loop", "execute r.q;", "end loop;", declare="r record;"
    )
    assert found(selected) == [(Rule.DYNAMIC_SQL_GRANT, 4)]
    only_said = in_do("raise exception 'grant %', q using hint = 'grant it';", "execute q;", declare="q text;")
    assert found(only_said) == []


def test_an_expression_too_deep_to_compute_is_searched_for_grants() -> None:
    chain = " || ".join(["name"] * 2_000)
    assert found(in_do(f"execute 'grant ' || {chain};", declare="name text;")) == [(Rule.DYNAMIC_SQL_GRANT, 4)]
    assert found(in_do(f"execute 'revoke ' || {chain};", declare="name text;")) == []
