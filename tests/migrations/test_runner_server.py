"""Servers and roles that cannot be migrated, and what is said about a connection string."""

from __future__ import annotations

import dataclasses
import uuid
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import conninfo, sql

from spectral.core.events.failure import ConfigurationError
from spectral.core.migrations import UnsupportedServerError, describe_database, status, up, verify
from spectral.core.migrations.server import ServerFacts, require_supported, require_writable

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

FACTS = ServerFacts(
    version=180000, recovering=False, read_only=False, may_create=True, has_ledger=False, role="me", database="db"
)


def write(directory: Path, **files: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (directory / f"{name.removeprefix('v')}.sql").write_text(text)
    return directory


@pytest.mark.parametrize("version", [90624, 140012, 149999])
def test_a_server_older_than_15_is_refused(version: int) -> None:
    with pytest.raises(UnsupportedServerError, match=f"is Postgres {version // 10000}; Spectral needs 15 or newer"):
        require_supported(version)


@pytest.mark.parametrize("version", [150000, 180006])
def test_15_and_newer_will_do(version: int) -> None:
    require_supported(version)


def test_a_standby_is_refused() -> None:
    with pytest.raises(UnsupportedServerError, match="connect to the primary"):
        require_writable(dataclasses.replace(FACTS, recovering=True))


def test_a_role_that_may_not_create_schemas_needs_a_ledger_already() -> None:
    with pytest.raises(UnsupportedServerError, match='grant create on database "db" to "me"'):
        require_writable(dataclasses.replace(FACTS, may_create=False))
    require_writable(dataclasses.replace(FACTS, may_create=False, has_ledger=True))


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgresql://me:canary@db.example:6432/app?sslmode=require", "db.example:6432/app"),
        ("host=/run/postgresql dbname=app password=canary", "/run/postgresql:5432/app"),
    ],
)
def test_a_connection_string_is_described_without_user_and_password(dsn: str, shown: str) -> None:
    assert describe_database(dsn) == shown


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://me:can@ary@db/app",  # the host would be ary@db
        "postgresql://me:can/ary@db/app",  # the port would be can
        "me:canary",
        "password='canary",
        "postgresql://me:canary@db:port/app",
    ],
)
def test_a_broken_connection_string_is_not_quoted(dsn: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        describe_database(dsn)
    assert "can" not in str(caught.value).replace("cannot", "")
    assert "ary" not in str(caught.value)


@pytest.mark.database
def test_a_read_only_session_is_refused_but_may_look(empty_database: str, tmp_path: Path) -> None:
    directory = write(tmp_path / "files", v20250101000000_a="create table a ()")
    read_only = conninfo.make_conninfo(empty_database, options="-c default_transaction_read_only=on")
    assert len(status(read_only, directories=[directory]).pending) == 1
    with pytest.raises(UnsupportedServerError, match="read-only"):
        up(read_only, directories=[directory])


@pytest.fixture
def login(empty_database: str) -> Generator[tuple[str, sql.Identifier]]:
    """A role that is no superuser, as managed Postgres hands out: its DSN and its name."""
    name = f"login_{uuid.uuid4().hex[:12]}"
    role = sql.Identifier(name)
    with psycopg.connect(empty_database, autocommit=True) as admin:
        admin.execute(sql.SQL("create role {} login createrole password 'canary'").format(role))
        yield conninfo.make_conninfo(empty_database, user=name, password="canary"), role
        admin.execute(sql.SQL("drop owned by {0} cascade; drop role {0}").format(role))


@pytest.mark.database
def test_a_role_without_superuser_migrates(
    empty_database: str, login: tuple[str, sql.Identifier], tmp_path: Path
) -> None:
    dsn, role = login
    grantee = f"reader_{uuid.uuid4().hex[:12]}"
    directory = write(
        tmp_path / "files",
        v20250101000000_a=f"create schema core;\ncreate table core.t (id int);\ncreate role {grantee};",
        v20250102000000_b=f"drop role {grantee};",
    )
    with psycopg.connect(empty_database, autocommit=True) as admin:
        database = sql.Identifier(admin.info.dbname)
        admin.execute(sql.SQL("grant create on database {} to {}").format(database, role))
    assert len(up(dsn, directories=[directory]).applied) == 2
    assert up(dsn, directories=[directory]).applied == ()
    assert verify(dsn, directories=[directory]).clean


@pytest.mark.database
def test_a_role_that_may_not_create_is_told_which_grant_it_needs(
    login: tuple[str, sql.Identifier], tmp_path: Path
) -> None:
    dsn, _ = login
    directory = write(tmp_path / "files", v20250101000000_a="create table a ()")
    with pytest.raises(UnsupportedServerError, match="grant create on database"):
        up(dsn, directories=[directory])
