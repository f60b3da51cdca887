"""Which operating system account the server runs as, and what that account can reach.

Invariant: Postgres never runs as root. A launcher that is root hands the server to `nobody`; everybody else runs it
as themselves. No account is created and no permission of a directory we did not create is changed: what the account
cannot reach is reported, never opened up.
"""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spectral.core.embedded.failure import EmbeddedPostgresError

if TYPE_CHECKING:
    from pathlib import Path

UNPRIVILEGED_USER = "nobody"

READ = 0o4
SEARCH = 0o1
EXECUTE = READ | SEARCH  # a dynamically linked program is both read and executed


@dataclass(frozen=True, slots=True)
class Account:
    """The user the server runs as. `switched` says that the launcher is root and somebody else runs the server."""

    uid: int
    gid: int
    switched: bool

    @classmethod
    def for_server(cls) -> Account:
        """The account for a server started by this process.

        Raises:
            EmbeddedPostgresError: this is root, and there is no `nobody` to hand the server to.
        """
        if os.geteuid() != 0:
            return cls(uid=os.geteuid(), gid=os.getegid(), switched=False)
        try:
            entry = pwd.getpwnam(UNPRIVILEGED_USER)
        except KeyError:
            raise EmbeddedPostgresError(
                f"Postgres refuses to run as root and this system has no user {UNPRIVILEGED_USER!r} to run it as; "
                "start as a normal user, or use a server that runs elsewhere by giving its DSN"
            ) from None
        return cls(uid=entry.pw_uid, gid=entry.pw_gid, switched=True)

    @property
    def name(self) -> str:
        """The login name, or the number of a user without one."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return f"uid {self.uid}"

    @property
    def has_passwd_entry(self) -> bool:
        """Whether `initdb`, which looks its own user up, can run at all."""
        try:
            pwd.getpwuid(self.uid)
        except KeyError:
            return False
        return True

    def may(self, wanted: int, path: Path) -> bool:
        """Whether the account has the wanted permission bits on this one file or directory.

        For another account this reads the mode bits, as nobody's supplementary groups are empty. Access control lists
        are not read: they can make the answer a "no" too many, which costs a copy or a clear error.
        """
        if not self.switched:
            return os.access(path, wanted)
        try:
            status = path.stat()
        except OSError:
            return False
        if status.st_uid == self.uid:
            granted = status.st_mode >> 6
        elif status.st_gid == self.gid:
            granted = status.st_mode >> 3
        else:
            granted = status.st_mode
        return granted & wanted == wanted

    def first_closed_directory(self, path: Path) -> Path | None:
        """The outermost existing directory on the way to `path` that the account cannot enter; None when it can."""
        resolved = path.resolve()
        for directory in (*reversed(resolved.parents), resolved):
            if directory.is_dir() and not self.may(SEARCH, directory):
                return directory
        return None

    def own(self, path: Path) -> None:
        """Give a file or directory that we have just created to the account."""
        if self.switched:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)


def is_safe_from_others(path: Path, *, writable_bits: int) -> bool:
    """Whether `path` is a real directory of this user in which nobody else can plant files.

    Looks at the directory itself, never through a link: in `/tmp` anybody may have put one there.
    """
    status = path.lstat()
    mine = status.st_uid == os.geteuid()
    return stat.S_ISDIR(status.st_mode) and mine and not status.st_mode & writable_bits
