"""Least privilege: each context's role does its own work and is refused the other's tables."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import psycopg
import pytest

from spectral.core.embedded import PostgresServer
from spectral.core.events.outcome import DeadLetter
from spectral.core.events.testing import drain
from spectral.core.migrations import bundled_directory, up, verify
from spectral.platform.infrastructure.failures import PostgresFailureSamples
from spectral.worlds.domain.scans import Finding, Severity
from spectral_workers.event_consumers import build_rule_proposing_consumer
from tests.integration.contexts_stage import DIRECTORIES, DRAFT, Stage, open_stage

CONTEXTS = ("platform", "worlds")


@pytest.fixture
async def stage(postgres: PostgresServer) -> AsyncIterator[Stage]:
    async with open_stage(postgres) as opened:
        yield opened


async def test_no_role_of_one_context_may_do_anything_with_the_other(stage: Stage) -> None:
    """Asked of the database itself, for every table and every privilege; membership in between included."""
    tables = await stage.rows("select schemaname, tablename from pg_tables where schemaname in ('platform', 'worlds')")
    assert {schema for schema, _ in tables} == set(CONTEXTS)
    allowed = await stage.rows(
        "select context.name, class.relname, privilege.name"
        " from unnest(array['platform', 'worlds']) as context (name)"
        " cross join (values ('select'), ('insert'), ('update'), ('delete'), ('truncate'), ('references'))"
        "   as privilege (name)"
        " join pg_class as class on class.relkind in ('r', 'v', 'm', 'S')"
        " join pg_namespace as space on space.oid = class.relnamespace"
        "   and space.nspname in ('platform', 'worlds') and space.nspname <> context.name"
        " where has_table_privilege(context.name || '_app', class.oid, privilege.name)"
        "   or (class.relkind <> 'S' and privilege.name in ('select', 'insert', 'update', 'references')"
        "     and has_any_column_privilege(context.name || '_app', class.oid, privilege.name))"
        "   or has_schema_privilege(context.name || '_app', space.oid, 'usage')"
    )
    assert allowed == []


@pytest.mark.parametrize("context", CONTEXTS)
async def test_a_context_deletes_nothing_and_owns_nothing(stage: Stage, context: str) -> None:
    found = await stage.rows(
        "select class.relname from pg_class as class"
        " join pg_namespace as space on space.oid = class.relnamespace"
        " join pg_roles as role on role.rolname = space.nspname || '_app'"
        " where space.nspname = %s and class.relkind = 'r'"
        " and (class.relowner = role.oid or has_table_privilege(role.oid, class.oid, 'delete, truncate'))",
        context,
    )
    assert found == []


@pytest.mark.parametrize("context", CONTEXTS)
async def test_the_role_of_a_context_is_a_group_of_publishers_and_workers(stage: Stage, context: str) -> None:
    assert await stage.rows(
        "select role.rolcanlogin, role.rolsuper, role.rolcreaterole, role.rolcreatedb, role.rolbypassrls,"
        " array(select roleid::regrole::text from pg_auth_members where member = role.oid order by 1)"
        " from pg_roles as role where rolname = %s",
        f"{context}_app",
    ) == [(False, False, False, False, False, ["spectral_publisher", "spectral_worker"])]


async def test_each_login_is_refused_the_tables_of_the_other(stage: Stage) -> None:
    for connection, statement in (
        (stage.platform, "select * from worlds.model_cards"),
        (stage.platform, "insert into worlds.rules (candidate_id, curation_id, rule) values (%s, %s, 'mine')"),
        (stage.worlds, "select * from platform.system_card_snapshots"),
        (stage.worlds, "update platform.curations set status = 'refused' where curation_id in (%s, %s)"),
    ):
        parameters = [uuid4(), uuid4()] if "%s" in statement else None
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="permission denied for schema"):
            await connection.execute(statement.encode(), parameters)


async def test_each_login_is_refused_what_its_own_context_has_no_use_for(stage: Stage) -> None:
    world_model_id = await stage.world_model()
    await stage.cards.publish(world_model_id, DRAFT)
    for connection, statement in (
        (stage.worlds, "update worlds.model_cards set title = 'other'"),
        (stage.worlds, "delete from worlds.model_cards"),
        (stage.worlds, "update core.outbox set status = 'delivered'"),
        (stage.worlds, "select * from core.event_handled"),
        (stage.platform, "update platform.system_card_snapshots set card = '{}'"),
        (stage.platform, "delete from platform.decisions"),
    ):
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            await connection.execute(statement.encode())


async def test_a_caller_without_the_callees_login_is_refused_until_it_is_composed_rightly(stage: Stage) -> None:
    """The protocol is composed with platform's login. With that of worlds there is no way to the samples."""
    await stage.cluster(await stage.world_model())
    wrong = build_rule_proposing_consumer(PostgresFailureSamples(lambda: stage.worlds_dsn))
    (dead_letter,) = (await drain(wrong, dsn=stage.worlds_dsn)).dead_letters
    assert isinstance(dead_letter.outcome, DeadLetter)
    assert "permission denied for schema platform" in dead_letter.outcome.error
    assert await stage.rows("select count(*) from worlds.rule_candidates") == [(0,)]

    await stage.change("select core.outbox_replay(id, 1, 'ada') from core.outbox where status = 'failed'")
    (await stage.drain()).assert_all_handled(times=1)
    assert await stage.rows("select samples from worlds.rule_candidates") == [(["crane 1", "crane 2"],)]


async def test_the_tables_hold_what_the_domain_says(stage: Stage) -> None:
    world_model_id, scan_id = await stage.world_model(), uuid4()
    await stage.scans.start(scan_id, world_model_id)
    await stage.scans.complete(scan_id, [Finding("fog", Severity.LOW)])
    model, scan = f"'{world_model_id}'", f"'{scan_id}'"
    for table, values in (
        ("worlds.model_cards", "gen_random_uuid(), 1, 't', '', '{}', '{}', '[]', now()"),
        ("worlds.model_cards", f"{model}, 0, 't', '', '{{}}', '{{}}', '[]', now()"),
        ("worlds.model_cards", f"{model}, 1, 't', '', '{{}}', '{{}}', '{{}}', now()"),
        ("worlds.findings", f"{scan}, 2, 'fog', 'dreadful'"),
        ("worlds.findings", f"{scan}, 1, 'fog', 'low'"),
        ("platform.system_card_snapshots", "gen_random_uuid(), 1, null, gen_random_uuid(), '[]', now()"),
        ("platform.decision_totals", "current_date, 'perhaps', 1"),
    ):
        with pytest.raises(psycopg.errors.IntegrityError):
            await stage.change(f"insert into {table} values ({values})")  # noqa: S608  written above


async def test_the_migrations_of_the_contexts_are_clean_beside_the_cores(stage: Stage) -> None:
    assert up(stage.dsn, directories=DIRECTORIES).applied == ()
    assert verify(stage.dsn, directories=DIRECTORIES).clean
    assert not any("platform" in each.name or "worlds" in each.name for each in bundled_directory().glob("*.sql"))
