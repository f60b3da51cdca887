"""Who may get what: every spelling of a grant across contexts is found, and its harmless twin is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from spectral.core.migrations.lint import Rule, lint_sql


def broken_rules(sql: str) -> list[Rule]:
    return [finding.rule for finding in lint_sql(sql, path=Path("m.sql"))]


CROSS_CONTEXT = [
    "grant select on worlds.card to platform_app",
    "grant select on table worlds.card to platform_app with grant option",
    "grant select (id, name), update (name) on worlds.card to platform_app",
    "grant all privileges on worlds.card to platform",
    "grant select on worlds.card to public",
    "grant select on platform.seat, worlds.card to platform_app",
    "grant select on worlds.card to worlds_app, platform_app",
    'grant select on "worlds"."card" to "platform_app"',
    "GRANT SELECT ON WORLDS.card TO Platform_App",
    "grant usage on schema worlds to platform_app",
    "grant usage, create on schema core to public",
    "grant usage on sequence worlds.card_id_seq to platform_app",
    "grant execute on function worlds.deal(int) to platform_app",
    "grant execute on procedure worlds.deal to platform_app",
    "grant execute on routine worlds.deal to platform_app",
    "grant usage on type worlds.suit to platform_app",
    "grant usage on domain worlds.suit to platform_app",
    "grant select on db.worlds.card to platform_app",
    "grant select on core.outbox to platform_app",
    "grant select on worlds.card to spectral_worker",
    "grant worlds_app to platform_app",
    "grant worlds_app, platform_worker to platform_app with admin option",
    "grant platform_app to spectral_worker",
    "grant core_app to platform_app",
    "grant spectral_owner to platform_app",
    "grant pg_read_all_data to platform_app",
    "create role platform_x in role worlds_app",
    "create user platform_x in group worlds_app",
    "create role worlds_x role platform_app",
    "create role worlds_x admin platform_app",
    "create role platform_x superuser",
    "alter role platform_x superuser",
    "alter group worlds_app add user platform_app",
    "alter table worlds.card owner to platform_app",
    "alter view worlds.hand owner to platform_app",
    "alter sequence worlds.s owner to platform_app",
    "alter function worlds.deal(int) owner to platform_app",
    "alter schema worlds owner to platform_app",
    "alter type worlds.suit owner to platform_app",
    "alter operator class worlds.c using btree owner to platform_app",
    "create schema worlds authorization platform_x",
    "create schema worlds create table t (id int) grant select on t to platform_app",
    "reassign owned by worlds_app to platform_app",
    "reassign owned by spectral_publisher to platform_app",
]

HARMLESS = [
    "grant select on worlds.card, worlds.hand to worlds_app, worlds_worker, worlds",
    "grant select on worlds.card to worlds_app with grant option",
    "grant usage on schema core to spectral_publisher, spectral_worker",
    "grant execute on function core.outbox_claim(int) to spectral_worker",
    "grant spectral_publisher to platform_app",
    "grant spectral_owner to current_user",
    "grant worlds_reader to worlds_app",
    "grant connect on database spectral to platform_app",
    "grant select on worlds.card to authenticated",
    "grant select on audit.entry to platform_app",
    "create role platform_x login in role spectral_publisher, platform_app",
    "create role platform_x nosuperuser",
    "alter group worlds_app drop user platform_app",
    "alter table core.outbox owner to spectral_owner",
    "alter table worlds.card owner to worlds_owner",
    "create schema worlds authorization worlds_owner",
    "create schema worlds create table t (id int) grant select on t to worlds_app",
    "reassign owned by worlds_old to worlds_app",
    "revoke all on worlds.card from platform_app, public",
    "revoke all on all tables in schema worlds from platform_app",
    "revoke grant option for select on worlds.card from platform_app",
    "revoke worlds_app from platform_app",
    "revoke select on card from platform_app",
]


@pytest.mark.parametrize("sql", CROSS_CONTEXT)
def test_power_across_contexts_is_found(sql: str) -> None:
    assert set(broken_rules(sql)) == {Rule.CROSS_CONTEXT_GRANT}


@pytest.mark.parametrize("sql", HARMLESS)
def test_power_within_a_context_is_silent(sql: str) -> None:
    assert broken_rules(sql) == []


def test_each_pair_of_object_and_role_is_a_finding_of_its_own() -> None:
    sql = "grant select on worlds.card, worlds.hand to platform_app, platform_worker, worlds_app"
    messages = [finding.message for finding in lint_sql(sql, path=Path("m.sql"))]
    assert len(messages) == 4
    assert "grants table worlds.card of context worlds to platform_app of context platform" in messages[0]
    assert len(set(messages)) == 4


def test_the_way_to_core_is_a_group_role() -> None:
    (finding,) = lint_sql("grant select on core.outbox to platform_app", path=Path("m.sql"))
    assert "group role (spectral_...)" in finding.message


@pytest.mark.parametrize("kind", ["tables", "sequences", "functions", "procedures", "routines"])
def test_schema_wide_grants_are_found_even_within_a_context(kind: str) -> None:
    assert broken_rules(f"grant all on all {kind} in schema worlds to worlds_app") == [Rule.SCHEMA_WIDE_GRANT]
    assert broken_rules(f"grant all on all {kind} in schema audit to auditor") == [Rule.SCHEMA_WIDE_GRANT]
    assert set(broken_rules(f"grant all on all {kind} in schema worlds, platform to platform_app")) == {
        Rule.SCHEMA_WIDE_GRANT,
        Rule.CROSS_CONTEXT_GRANT,
    }


def test_default_privileges_are_found_and_their_revocation_is_not() -> None:
    assert broken_rules("alter default privileges grant select on tables to worlds_app") == [Rule.DEFAULT_PRIVILEGES]
    within = "alter default privileges for role worlds_owner in schema worlds grant select on tables to worlds_app"
    assert broken_rules(within) == [Rule.DEFAULT_PRIVILEGES]
    for where in ("in schema worlds", "for role worlds_owner"):
        across = f"alter default privileges {where} grant select on tables to platform_app"
        assert set(broken_rules(across)) == {Rule.DEFAULT_PRIVILEGES, Rule.CROSS_CONTEXT_GRANT}
    assert broken_rules("alter default privileges revoke execute on functions from public") == []


@pytest.mark.parametrize(
    "sql",
    [
        "grant select on card to worlds_app",
        "grant usage on sequence s to worlds_app",
        "grant execute on function deal(int) to worlds_app",
        "grant usage on type suit to worlds_app",
        "alter table card owner to worlds_app",
    ],
)
def test_unqualified_names_are_found(sql: str) -> None:
    assert broken_rules(sql) == [Rule.UNQUALIFIED_GRANT]


def test_quoted_names_that_differ_by_case_only_are_found() -> None:
    assert broken_rules('grant select on "Worlds".card to worlds_app') == [Rule.MIXED_CASE_NAME]
    assert broken_rules('grant select on worlds.card to "Worlds_App"') == [Rule.MIXED_CASE_NAME]
    assert broken_rules('grant select on worlds.card to "worlds_App"') == []
    assert set(broken_rules('grant select on worlds.card to "Platform_App"')) == {
        Rule.MIXED_CASE_NAME,
        Rule.CROSS_CONTEXT_GRANT,
    }
    assert broken_rules('grant "Worlds_app" to worlds_x') == [Rule.MIXED_CASE_NAME]


@pytest.mark.parametrize(
    "sql",
    [
        "create table platform.seat (card_id uuid references worlds.card (id))",
        "create table platform.seat (card_id uuid, foreign key (card_id) references worlds.card)",
        "create table platform.seat (id int) inherits (worlds.card)",
        "alter table platform.seat add foreign key (card_id) references worlds.card",
        "alter table platform.seat add column card_id uuid references worlds.card",
        "create schema platform create table seat (card_id uuid references worlds.card)",
        "create view platform.hand as select * from platform.seat join (select * from worlds.card) as card using (id)",
        "create materialized view platform.hand as select * from worlds.card",
        "create policy mine on worlds.card to platform_app using (true)",
        "alter policy mine on worlds.card to worlds_app, platform_app",
        "create policy mine on core.outbox to platform_app using (true)",
    ],
)
def test_ties_between_contexts_are_found(sql: str) -> None:
    assert broken_rules(sql) == [Rule.CROSS_CONTEXT_REFERENCE]


@pytest.mark.parametrize(
    "sql",
    [
        "create table worlds.hand (card_id uuid references worlds.card (id), foreign key (id) references worlds.x)",
        "create table worlds.hand (id int references public.country)",
        "alter table worlds.hand add foreign key (card_id) references worlds.card",
        "create view worlds.v as select * from worlds.card",
        "create policy mine on worlds.card using (true)",
        "create policy mine on core.outbox to spectral_worker using (true)",
    ],
)
def test_ties_within_a_context_are_silent(sql: str) -> None:
    assert broken_rules(sql) == []
