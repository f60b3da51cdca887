"""A cluster's directory: what lies where, who owns it, and who may use it now.

    <home>/            the launcher's, 0700 (0711 when root hands the server to nobody, who has to pass through)
      data/            the server's account, 0700: the data directory, complete or absent
      data.partial/    what initdb is working on; renamed to data/ when it is whole
      run/             the server's account, 0700: the Unix socket
      password         the launcher's, 0600: for TCP
      postgresql.conf  pg_hba.conf: written at every start
      server.log       server.log.previous
      lock             held by the watchdog for as long as anything runs

Invariants: one starter at a time (flock); root never writes inside a directory that belongs to the server's account,
so a server that was broken into cannot make root follow a link; modes are set on what was created here, never on what
was there before.
"""

from __future__ import annotations

import fcntl
import os
import re
import secrets
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spectral.core.embedded.account import Account, is_safe_from_others
from spectral.core.embedded.binaries import CLEAN_ENVIRONMENT
from spectral.core.embedded.failure import EmbeddedPostgresError

if TYPE_CHECKING:
    import signal
    from collections.abc import Sequence

    from spectral.core.embedded.watchdog import Order

_PREFIX = "spectral-pg-"
_PRIVATE = 0o700
_PASSABLE = 0o711
# sun_path holds 107 bytes, of which the server needs some for "/.s.PGSQL.65535.lock".
_LONGEST_SOCKET_DIRECTORY = 85
# Other characters would need quoting, differently so by the server and by each driver.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9/._-]+")
_LOCK_SECONDS = 20.0
_OPEN_PLACE = Path("/var/lib/spectral-postgres")
_TEMPORARY_PLACES = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108  only ever used through mkdtemp


@dataclass(frozen=True, slots=True)
class Home:
    """The paths of one cluster, for one start."""

    path: Path
    account: Account
    throw_away: bool
    sockets: Path

    @classmethod
    def temporary(cls, account: Account) -> Home:
        """A new directory in a temporary place that the account can reach."""
        path = _temporary_directory(account)
        return cls(path, account, throw_away=True, sockets=path / "run")

    @classmethod
    def persistent(cls, path: Path, account: Account) -> Home:
        """A directory that stays; created if it is not there.

        Raises:
            EmbeddedPostgresError: it is somebody else's, holds something else, or cannot be created or reached.
        """
        path = path.absolute()
        if not str(path).isprintable():  # it is written into configuration files, line by line
            raise EmbeddedPostgresError(f"the path {str(path)!r} has a control character; choose another directory")
        try:
            if not path.exists():
                _create(path, account)
            _check(path, account)
            fits = len(os.fsencode(path / "run")) <= _LONGEST_SOCKET_DIRECTORY and _PLAIN_PATH.fullmatch(str(path))
            sockets = (path if fits else _temporary_directory(account)) / "run"
        except OSError as error:
            raise EmbeddedPostgresError(
                f"the directory {path} for the embedded Postgres cannot be used ({error.strerror}); "
                "choose one that this user may create and write to"
            ) from error
        return cls(path, account, throw_away=False, sockets=sockets)

    @property
    def data(self) -> Path:
        """The data directory: complete if it exists."""
        return self.path / "data"

    @property
    def partial_data(self) -> Path:
        """Where initdb works."""
        return self.path / "data.partial"

    @property
    def log(self) -> Path:
        """What the server said since it was last started."""
        return self.path / "server.log"

    @property
    def to_remove(self) -> tuple[Path, ...]:
        """What must not be there any more after the server has ended."""
        outside = () if self.sockets.parent == self.path else (self.sockets.parent,)
        return (self.path, *outside) if self.throw_away else outside

    def lock(self) -> int:
        """Take the cluster for this process and return the descriptor that keeps it.

        Raises:
            EmbeddedPostgresError: another process has it.
        """
        lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            self._wait_for(lock)
            os.truncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(lock)
            raise
        return lock

    def _wait_for(self, lock: int) -> None:
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = os.pread(lock, 32, 0).decode().strip()
                # A launcher that was killed leaves its watchdog stopping the server: that takes a moment.
                if is_alive(holder) or time.monotonic() > deadline:
                    raise EmbeddedPostgresError(
                        f"the embedded Postgres in {self.path} is already in use by process {holder or 'unknown'}; "
                        "use that one, stop it first, or choose another directory"
                    ) from None
                time.sleep(0.02)
            else:
                return

    def rotate_log(self) -> None:
        """Begin a new log and keep the one before it."""
        if self.log.exists():
            self.log.rename(self.log.with_name("server.log.previous"))
        self.log.touch(mode=0o600)

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of the log, for an error that a person reads."""
        try:
            text = self.log.read_text(errors="replace")
        except OSError:
            return "(no log)"
        return "\n".join(text.splitlines()[-lines:]) or "(the log is empty)"

    def renew_password(self) -> None:
        """Make a new random password; the caller gives it to the server through `password_for_initdb`."""
        self.write("password", secrets.token_urlsafe(24), mode=0o600)

    def password(self) -> str:
        """The superuser's password, read when it is needed and kept nowhere."""
        try:
            return (self.path / "password").read_text()
        except OSError as error:
            raise EmbeddedPostgresError(
                f"the password of the embedded Postgres in {self.path} cannot be read ({error.strerror}); "
                "restore that file, connect over the Unix socket, or delete the directory to begin anew"
            ) from error

    def write(self, name: str, content: str, *, mode: int) -> Path:
        """Replace a file of the home in one step, so that a crash leaves the old one or the new one."""
        target = self.path / name
        descriptor, new = tempfile.mkstemp(prefix=f".{name}-", dir=self.path)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(content)
            os.fchmod(descriptor, mode)
            file.flush()
            if not self.throw_away:
                os.fsync(descriptor)
        Path(new).replace(target)
        return target

    def order(self, command: Sequence[str], *, stop_signal: signal.Signals) -> Order:
        """What the watchdog is asked to run: as the account, in a clean environment, writing to the log."""
        return {
            "command": list(command),
            "environment": CLEAN_ENVIRONMENT,
            "user": self.account.uid if self.account.switched else None,
            "group": self.account.gid if self.account.switched else None,
            "log": str(self.log),
            "stop_signal": stop_signal,
        }

    def make_for_account(self, directory: Path) -> None:
        """An empty directory that only the server's account can enter, in place of what was there."""
        if directory.exists():
            shutil.rmtree(directory)
        directory.mkdir(mode=_PRIVATE)
        self.account.own(directory)

    def discard(self) -> None:
        """Remove what must not stay, for a start that failed before there was a watchdog to do so."""
        for directory in self.to_remove:
            shutil.rmtree(directory, ignore_errors=True)


def persistent_directory(preferred: Path) -> Path:
    """A place for data that stays: the preferred one, unless the server's user cannot go there.

    Root in a clone under a closed directory such as `/root` gets one in `/var/lib/spectral-postgres`, the same each
    time; everybody else gets what they prefer.
    """
    if Account.for_server().first_closed_directory(preferred) is None:
        return preferred
    return _OPEN_PLACE / re.sub(r"[^A-Za-z0-9]+", "-", str(preferred.resolve())).strip("-")


def is_alive(pid: str) -> bool:
    """Whether a process of this number runs; one that has ended and was not waited for by its parent does not."""
    try:
        status = Path("/proc", str(int(pid)), "stat").read_text(errors="replace")
    except (OSError, ValueError):
        return False
    return not status.rpartition(")")[2].lstrip().startswith("Z")


def _temporary_directory(account: Account) -> Path:
    for place in map(Path, (tempfile.gettempdir(), *_TEMPORARY_PLACES)):
        short = len(os.fsencode(place)) + len(_PREFIX) + len("12345678/run") <= _LONGEST_SOCKET_DIRECTORY
        plain = _PLAIN_PATH.fullmatch(str(place))
        if short and plain and os.access(place, os.W_OK) and account.first_closed_directory(place) is None:
            directory = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
            if account.switched:
                directory.chmod(_PASSABLE)
            return directory
    raise EmbeddedPostgresError(
        f"no temporary directory can be entered by user {account.name}, who runs the server; "
        "set TMPDIR to a directory with a short path that is open to all, such as /tmp"
    )


def _create(path: Path, account: Account) -> None:
    for missing in [parent for parent in reversed(path.parents) if not parent.exists()]:
        missing.mkdir(exist_ok=True)
        if account.switched:
            missing.chmod(0o755)  # root's umask may be 077, and the server has to pass through
    path.mkdir(mode=_PRIVATE, exist_ok=True)
    path.chmod(_PASSABLE if account.switched else _PRIVATE)


def _check(path: Path, account: Account) -> None:
    closed = account.first_closed_directory(path)
    if closed is not None:
        raise EmbeddedPostgresError(
            f"user {account.name} runs the server and cannot enter {closed}, so {path} is out of reach; choose a "
            f"directory that is open on the whole way, such as {persistent_directory(path)}"
        )
    if not is_safe_from_others(path, writable_bits=0o022 if account.switched else 0o002):
        raise EmbeddedPostgresError(
            f"{path} is not a directory that belongs to this user and that others cannot write to; "
            "choose another directory, or run as the user it belongs to"
        )
    names = {entry.name for entry in path.iterdir()}
    if names and "lock" not in names:
        raise EmbeddedPostgresError(
            f"{path} holds other files and no cluster of ours; choose an empty directory or one that does not exist"
        )
