"""The embedded Postgres as its users meet it: real servers, as whoever runs the tests."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psycopg
import pytest

from spectral.core.embedded import (
    FAST_AND_UNSAFE,
    Binaries,
    EmbeddedPostgres,
    EmbeddedPostgresError,
    ServerOptions,
    database_of,
    persistent_directory,
    postgres_from,
    server,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

FAST = ServerOptions(settings=FAST_AND_UNSAFE)
IS_ROOT = os.geteuid() == 0


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """Unlike `tmp_path`, which is closed to others, a directory that the server's user can reach when we are root."""
    with tempfile.TemporaryDirectory(prefix="spectral-open-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def running() -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(options=FAST) as started:
        yield started


def value_of(dsn: str, query: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(query.encode()).fetchone()
        return row[0] if row else None


def execute(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement.encode())


def kept_in(directory: Path) -> ServerOptions:
    return ServerOptions(directory=directory, settings=FAST_AND_UNSAFE)


def modes_on_the_way_to(path: Path) -> dict[Path, tuple[int, int]]:
    on_the_way = [path, *path.parents]
    return {each: (each.stat().st_mode, each.stat().st_uid) for each in on_the_way if each.exists()}


def test_it_answers_on_its_socket_and_on_loopback(running: EmbeddedPostgres) -> None:
    assert value_of(running.dsn, "select inet_server_addr()") is None
    assert str(value_of(running.dsn, "show listen_addresses")) == "127.0.0.1"
    assert str(value_of(running.tcp_dsn, "select host(inet_server_addr())")) == "127.0.0.1"
    assert value_of(running.dsn, "show server_version_num") == value_of(running.tcp_dsn, "show server_version_num")


def test_text_is_utf8_in_code_point_order_and_time_is_utc(running: EmbeddedPostgres) -> None:
    assert value_of(running.dsn, "show server_encoding") == "UTF8"
    assert value_of(running.dsn, "show timezone") == "UTC"
    assert value_of(running.dsn, "select 'Z' < 'a' and upper('ä') = 'Ä'") is True


def test_settings_reach_the_server(running: EmbeddedPostgres) -> None:
    assert value_of(running.dsn, "show fsync") == "off"


def test_tcp_wants_the_password(running: EmbeddedPostgres) -> None:
    password = urlsplit(running.tcp_dsn).password
    assert password
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(running.tcp_dsn.replace(password, "guess"))
    without = running.tcp_dsn.replace(f":{password}@", "@")
    with pytest.raises(psycopg.OperationalError, match="no password supplied"):
        psycopg.connect(without, passfile="/dev/null")


def test_the_password_is_shown_to_nobody_else(running: EmbeddedPostgres) -> None:
    password = urlsplit(running.tcp_dsn).password
    assert password
    assert password not in repr(running)
    assert password not in running.dsn
    file = running.home / "password"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.stat().st_uid == os.geteuid()
    others = [path for path in running.home.rglob("*") if path.is_file() and path != file]
    assert not [path for path in others if password.encode() in path.read_bytes()]


def test_nobody_else_can_reach_the_data_or_the_socket(running: EmbeddedPostgres) -> None:
    for name in ("data", "run"):
        status = (running.home / name).stat()
        assert stat.S_IMODE(status.st_mode) == 0o700
        assert (status.st_uid == os.geteuid()) is not IS_ROOT
    assert stat.S_IMODE(running.home.stat().st_mode) == (0o711 if IS_ROOT else 0o700)
    assert Path("/proc", str(running.pid)).stat().st_uid != 0


def test_a_database_comes_whole_from_a_template(running: EmbeddedPostgres) -> None:
    calls: list[str] = []

    def prepare(dsn: str) -> None:
        calls.append(dsn)
        execute(dsn, "create table planet as select * from (values (1, 'Mercury'), (2, 'Venus')) as planet (id, name)")

    running.create_template("planets", prepare)
    running.create_template("planets", prepare)
    assert len(calls) == 1
    first = running.create_database(template="planets")
    second = running.create_database('odd "name" é', template="planets")
    execute(first, "delete from planet")
    assert value_of(first, "select count(*) from planet") == 0
    assert value_of(second, "select string_agg(name, ',' order by id) from planet") == "Mercury,Venus"
    with psycopg.connect(second):  # a session that is still open does not keep the database
        running.drop_database(second)
    running.drop_database(database_of(first))
    running.drop_database("was never there")
    names = str(value_of(running.dsn, "select string_agg(datname, ' ') from pg_database"))
    assert "planets" in names
    assert database_of(first) not in names
    assert "odd" not in names
    with pytest.raises(psycopg.OperationalError, match="not currently accepting connections"):
        psycopg.connect(running.dsn.replace("/postgres?", "/planets?"))


def test_a_template_that_could_not_be_prepared_is_not_there(running: EmbeddedPostgres) -> None:
    def fail(dsn: str) -> None:
        execute(dsn, "create table half ()")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        running.create_template("half", fail)
    assert value_of(running.dsn, "select count(*) from pg_database where datname like 'half%'") == 0
    running.create_template("half", lambda _dsn: None)
    running.drop_database(running.create_database(template="half"))


def test_a_database_that_cannot_be_made_says_why(running: EmbeddedPostgres) -> None:
    with pytest.raises(EmbeddedPostgresError, match='template database "no such" does not exist'):
        running.create_database(template="no such")
    with pytest.raises(EmbeddedPostgresError, match='database "postgres" already exists'):
        running.create_database("postgres")


def test_a_throw_away_server_leaves_nothing() -> None:
    launcher = EmbeddedPostgres(options=FAST)
    with launcher:
        home, pid = launcher.home, launcher.pid
        with pytest.raises(EmbeddedPostgresError, match="already runs"):
            launcher.start()
    assert not home.exists()
    assert not Path("/proc", str(pid)).exists()
    assert "not running" in repr(launcher)
    launcher.stop()


def test_kept_data_survives_a_restart_and_has_one_user_at_a_time(open_directory: Path) -> None:
    directory = open_directory / "made" / "cluster"
    before = modes_on_the_way_to(directory)
    with EmbeddedPostgres(options=kept_in(directory)) as first:
        execute(first.dsn, "create table kept as select 42 as answer")
        password = urlsplit(first.tcp_dsn).password
        assert str(directory) in first.dsn
        with pytest.raises(EmbeddedPostgresError, match=f"already in use by process {os.getpid()}; use that one"):
            EmbeddedPostgres(options=kept_in(directory)).start()
        assert value_of(first.dsn, "select answer from kept") == 42
    with EmbeddedPostgres(options=kept_in(directory)) as second:
        assert value_of(second.tcp_dsn, "select answer from kept") == 42
        assert urlsplit(second.tcp_dsn).password == password
    (directory / "data" / "PG_VERSION").write_text("12\n")
    with pytest.raises(EmbeddedPostgresError, match=r"made by Postgres 12 and .* are 18.*pg_upgrade"):
        EmbeddedPostgres(options=kept_in(directory)).start()
    assert modes_on_the_way_to(directory).items() >= before.items()


def test_a_directory_behind_a_closed_door_is_left_closed(open_directory: Path) -> None:
    closed = open_directory / "closed"
    closed.mkdir(mode=0o700)
    directory = closed / "cluster"
    before = modes_on_the_way_to(directory)
    launcher = EmbeddedPostgres(options=kept_in(directory))
    if IS_ROOT:
        with pytest.raises(EmbeddedPostgresError, match=f"cannot enter {closed}.*such as /var/lib/spectral-postgres/"):
            launcher.start()
        assert persistent_directory(directory).is_relative_to("/var/lib/spectral-postgres")
    else:
        with launcher:
            assert value_of(launcher.dsn, "select 1") == 1
        assert persistent_directory(directory) == directory
    assert modes_on_the_way_to(directory).items() >= before.items()


def test_an_odd_path_and_no_tcp(open_directory: Path) -> None:
    directory = open_directory / 'it\'s, a \\ "long" path' / ("d" * 100)
    options = ServerOptions(directory=directory, settings=FAST_AND_UNSAFE, tcp=False)
    with EmbeddedPostgres(options=options) as launcher:
        sockets = value_of(launcher.dsn, "show unix_socket_directories")
        assert value_of(launcher.dsn, "show listen_addresses") == ""
        with pytest.raises(EmbeddedPostgresError, match="started without TCP"):
            _ = launcher.tcp_dsn
    assert not Path(str(sockets)).parent.exists()
    assert (directory / "data" / "PG_VERSION").exists()


def test_a_port_that_is_taken_in_between_is_left_to_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        ports = iter([taken, server.free_port()])
        monkeypatch.setattr(server, "free_port", lambda: next(ports))
        with EmbeddedPostgres(options=FAST) as launcher:
            assert urlsplit(launcher.tcp_dsn).port != taken
            assert value_of(launcher.tcp_dsn, "select 1") == 1


def test_a_chosen_port_is_used_or_reported_as_taken() -> None:
    port = server.free_port()
    with EmbeddedPostgres(options=ServerOptions(settings=FAST_AND_UNSAFE, port=port)) as launcher:
        assert urlsplit(launcher.tcp_dsn).port == port
        with pytest.raises(EmbeddedPostgresError, match=f"port {port} is taken"):
            EmbeddedPostgres(options=ServerOptions(settings=FAST_AND_UNSAFE, port=port)).start()


def test_a_server_that_does_not_start_shows_its_log(open_directory: Path) -> None:
    options = ServerOptions(directory=open_directory / "cluster", settings={"shared_buffers": "plenty"})
    with pytest.raises(EmbeddedPostgresError, match=r'(?s)did not start.*invalid value for parameter "shared_buffers"'):
        EmbeddedPostgres(options=options).start()
    with EmbeddedPostgres(options=kept_in(open_directory / "cluster")) as launcher:  # what failed left no lock behind
        assert value_of(launcher.dsn, "select 1") == 1


def test_an_initdb_that_fails_is_quoted_and_leaves_nothing_half_made(open_directory: Path) -> None:
    programs = open_directory / "bin"
    programs.mkdir()
    says = {"postgres": "echo 'postgres (PostgreSQL) 18.1'", "initdb": "echo 'No space left on device'; exit 1"}
    for name, line in says.items():
        (programs / name).write_text(f"#!/bin/sh\n{line}\n")
        (programs / name).chmod(0o755)
    broken = Binaries.from_system(programs)
    with pytest.raises(EmbeddedPostgresError, match=r"(?s)make room on that disk.*No space left on device"):
        EmbeddedPostgres(broken, kept_in(open_directory / "cluster")).start()
    assert not (open_directory / "cluster" / "data").exists()
    with EmbeddedPostgres(options=kept_in(open_directory / "cluster")) as launcher:
        assert value_of(launcher.dsn, "select 1") == 1


def test_the_systems_own_server_serves_as_well() -> None:
    try:
        launcher = postgres_from("system", FAST)
    except EmbeddedPostgresError as error:
        assert "apt-get install postgresql" in str(error)  # noqa: PT017  a system without a server is fine, in words
        return
    with launcher:
        assert value_of(launcher.tcp_dsn, "show server_encoding") == "UTF8"
        launcher.create_template("empty", lambda _dsn: None)
        launcher.drop_database(launcher.create_database(template="empty"))
