"""Our own migrations: from empty, twice, by two at once, by a role that is no superuser; and what they leave behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from spectral.core.embedded import FAST_AND_UNSAFE, PostgresServer, ServerOptions, database_of, postgres_from
from spectral.core.migrations import MigrationFailedError, discover, status, up, verify
from spectral.core.migrations.transaction import LOCK_KEY
from tests.memory import running
from tests.migrations.schema import Connection, role, value

pytestmark = pytest.mark.database

GROUPS = ("spectral_publisher", "spectral_worker", "spectral_operator", "spectral_retention", "spectral_readonly")
ROLES = ("spectral_owner", *GROUPS)

# Everything in the schema that belongs to somebody.
OWNERS = """\
select 'relation ' || relname, relowner::regrole::text from pg_class where relnamespace = 'core'::regnamespace
union all
select 'function ' || proname, proowner::regrole::text from pg_proc where pronamespace = 'core'::regnamespace
union all
select 'type ' || typname, typowner::regrole::text from pg_type where typnamespace = 'core'::regnamespace
union all
select 'schema ' || nspname, nspowner::regrole::text from pg_namespace where nspname = 'core'"""


# from empty


def test_from_empty_every_file_is_applied_and_the_record_is_clean(empty_database: str) -> None:
    report = up(empty_database)
    assert report.applied == tuple(discover())
    assert (report.adopted, report.skipped) == ((), ())
    assert verify(empty_database).clean


def test_the_second_time_nothing_is_applied(empty_database: str) -> None:
    up(empty_database)
    before = status(empty_database).applied
    report = up(empty_database)
    assert (report.applied, report.adopted, report.skipped) == ((), (), ())
    assert status(empty_database).applied == before


def test_two_processes_at_once_apply_each_file_once(empty_database: str) -> None:
    command = [sys.executable, "-c", "from spectral_ops.cli import main; main()", "migrate", "up", "--json"]
    with psycopg.connect(empty_database) as holder:
        # Both have to queue for the lock before either may have it.
        holder.execute("select pg_advisory_xact_lock(%s)", [LOCK_KEY])
        both = [
            subprocess.Popen(
                [*command, "--lock-timeout", "0.5"],
                env={"SPECTRAL_DATABASE_URL": empty_database},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(2)
        ]
        for process in both:
            assert process.stderr is not None
            assert "waits for a lock" in process.stderr.readline()
        holder.rollback()
    outputs = [process.communicate(timeout=90) for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    applied = [each["version"] for stdout, _ in outputs for each in json.loads(stdout)["applied"]]
    assert sorted(applied) == [each.version for each in discover()]
    assert verify(empty_database).clean


# by a role that is no superuser, on a server of its own: roles belong to the whole server


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    source = os.environ.get("SPECTRAL_TEST_POSTGRES", "wheel")
    if "=" in source or "://" in source:
        source = "wheel"  # a server given by DSN is not ours to take roles from
    with running(postgres_from(source, ServerOptions(settings=FAST_AND_UNSAFE))) as server:
        yield server


@pytest.fixture
def bare_database(own_server: PostgresServer) -> Iterator[str]:
    """The superuser's DSN of an empty database on a server that has never heard of our roles."""
    dsn = own_server.create_database()
    yield dsn
    own_server.drop_database(dsn)
    with psycopg.connect(own_server.dsn, autocommit=True) as superuser:
        for name in ROLES:
            superuser.execute(sql.SQL("drop role if exists {}").format(sql.Identifier(name)))


@pytest.fixture
def migrator(bare_database: str) -> Iterator[str]:
    """The DSN of a role as managed services hand it out: it may create roles, and schemas in this database."""
    with role(bare_database, "createrole") as dsn:
        grant(bare_database, "create on database {}", database_of(bare_database), dsn)
        yield dsn
        with psycopg.connect(bare_database, autocommit=True) as superuser:
            superuser.execute("drop schema if exists core, spectral_migrations cascade")
            # On 16 and later the one who created a role stands behind its memberships.
            superuser.execute(sql.SQL("reassign owned by {} to current_user").format(name_in(dsn)))
            for name in ROLES:
                superuser.execute(sql.SQL("drop role if exists {}").format(sql.Identifier(name)))


def name_in(dsn: str) -> sql.Identifier:
    return sql.Identifier(str(psycopg.conninfo.conninfo_to_dict(dsn)["user"]))


def grant(superuser_dsn: str, privilege: str, on: str, to_dsn: str) -> None:
    with psycopg.connect(superuser_dsn, autocommit=True) as superuser:
        what = sql.SQL(privilege).format(sql.Identifier(on))
        superuser.execute(sql.SQL("grant {} to {}").format(what, name_in(to_dsn)))


def create_roles(superuser_dsn: str) -> None:
    with psycopg.connect(superuser_dsn, autocommit=True) as superuser:
        for name in ROLES:
            superuser.execute(sql.SQL("create role {} nologin").format(sql.Identifier(name)))


def owners(dsn: str) -> set[str]:
    with psycopg.connect(dsn) as connection:
        return {owner for _, owner in connection.execute(OWNERS)}


def assert_whole(migrator: str, superuser_dsn: str) -> None:
    """The schema is there, all of it the owner's, and it works for somebody who has only the publisher's rights."""
    assert verify(migrator).clean
    assert owners(superuser_dsn) == {"spectral_owner"}
    with role(superuser_dsn, groups=("spectral_publisher",)) as own, psycopg.connect(own) as publisher:
        publisher.execute("select core.outbox_publish('worlds.scan.completed', 'worlds', p_generation => 1)")
        assert value(publisher, "select count(*) from core.outbox") == 1


def test_a_role_that_is_no_superuser_migrates_a_server_without_our_roles(bare_database: str, migrator: str) -> None:
    report = up(migrator)
    assert len(report.applied) == len(discover())
    assert_whole(migrator, bare_database)
    assert up(migrator).applied == ()


def test_a_role_that_is_no_superuser_meets_roles_somebody_else_created(bare_database: str, migrator: str) -> None:
    create_roles(bare_database)
    with psycopg.connect(bare_database) as connection:
        version = connection.info.server_version
    if version >= 160000:  # since then, creating roles is no longer a right over everybody else's
        with pytest.raises(MigrationFailedError, match="grant spectral_owner to ") as refused:
            up(migrator)
        assert (refused.value.sqlstate, refused.value.filename) == ("42501", discover()[0].filename)
        grant(bare_database, "{}", "spectral_owner", migrator)
    up(migrator)
    assert_whole(migrator, bare_database)


def test_a_role_that_may_not_create_roles_migrates_when_everything_was_prepared_for_it(bare_database: str) -> None:
    create_roles(bare_database)
    with role(bare_database, groups=("spectral_owner",)) as plain:
        grant(bare_database, "create on database {}", database_of(bare_database), plain)
        up(plain)
        assert_whole(plain, bare_database)
        with psycopg.connect(bare_database, autocommit=True) as superuser:
            superuser.execute("drop schema core, spectral_migrations cascade")


def test_a_second_database_of_one_server_is_migrated_by_another_role_of_the_same_kind(
    own_server: PostgresServer, bare_database: str, migrator: str
) -> None:
    up(migrator)
    other = own_server.create_database()
    try:
        with role(other, groups=("spectral_owner",)) as second:
            grant(other, "create on database {}", database_of(other), second)
            up(second)
            assert_whole(second, other)
    finally:
        own_server.drop_database(other)
    assert_whole(migrator, bare_database)


# what they leave behind


def test_everything_in_the_schema_belongs_to_the_owner(connection: Connection) -> None:
    others = [found for found in connection.execute(OWNERS) if found[1] != "spectral_owner"]
    assert others == []


def test_constraints_are_named_by_table_and_kind(connection: Connection) -> None:
    kinds = {"p": "_pkey", "u": "_[a-z0-9_]+_key", "c": "_[a-z0-9_]+_check", "f": "_[a-z0-9_]+_fkey"}
    kinds |= {"x": "_[a-z0-9_]+_excl", "t": "_[a-z0-9_]+"}  # a constraint trigger by what it requires
    found = connection.execute(
        "select conrelid::regclass::text, conname, contype::text from pg_constraint"
        " where connamespace = 'core'::regnamespace and contype <> 'n'"  # 18 also lists columns that are not null
    ).fetchall()
    assert found
    for table, name, kind in found:
        assert re.fullmatch(table.removeprefix("core.") + kinds[kind], name), name


def test_indexes_are_named_by_table_and_kind(connection: Connection) -> None:
    found = connection.execute(
        "select t.relname, i.relname, x.indisprimary, x.indisunique from pg_index x"
        " join pg_class i on i.oid = x.indexrelid join pg_class t on t.oid = x.indrelid"
        " where i.relnamespace = 'core'::regnamespace"
    ).fetchall()
    assert found
    for table, name, primary, unique in found:
        pattern = rf"{table}_pkey" if primary else rf"{table}_[a-z0-9_]+_{'key' if unique else 'idx'}"
        assert re.fullmatch(pattern, name), name


def test_triggers_and_policies_are_named_by_their_table(connection: Connection) -> None:
    found = connection.execute(
        "select c.relname, t.tgname from pg_trigger t join pg_class c on c.oid = t.tgrelid"
        " where c.relnamespace = 'core'::regnamespace and not t.tgisinternal"
        " union all select tablename, policyname from pg_policies where schemaname = 'core'"
    ).fetchall()
    assert found
    assert [name for table, name in found if not re.fullmatch(rf"{table}_[a-z_]+", name)] == []


def test_functions_are_named_by_what_they_are_about(connection: Connection) -> None:
    found = connection.execute(
        "select proname, proargnames, pronargs from pg_proc where pronamespace = 'core'::regnamespace"
    ).fetchall()
    general = {"uuid7", "current_workspace", "require_parallel", "require_distinct", "require_role"}
    general |= {"require_sweep_range", "require_handler_names"}
    about = "outbox|event_handled|deployment|audit|worker|brake|bell|sweep|insight|emitter|relay|partitions?"
    subjects = rf"({about})_[a-z0-9_]+"
    assert [name for name, *_ in found if name not in general and not re.fullmatch(subjects, name)] == []
    # Arguments say that they are: a column of the same name is never meant by mistake.
    for name, arguments, count in found:
        assert all(argument.startswith("p_") for argument in (arguments or [])[:count]), name
