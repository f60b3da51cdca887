"""What an earlier server left in a data directory: told apart from one that is still running.

Invariant: a `postmaster.pid` is only ever removed when no process works in the data directory. Postgres itself
recognises a file whose process is gone, and looks for survivors in shared memory by it, so that file is left alone;
what Postgres cannot know is that the number belongs to an unrelated process by now (after a reboot, say), and then it
refuses to start for ever. Every process of a server has the data directory as its working directory: that is the proof.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from spectral.core.embedded.failure import EmbeddedPostgresError

_PROCESSES = Path("/proc")
_GRACE_SECONDS = 10.0
_STATUS_LINE = 7  # miscadmin.h: LOCK_FILE_LINE_PM_STATUS, counted from 0 here


def clear_leftovers(data: Path) -> None:
    """Make way for a new server, after the old one's processes are gone.

    Raises:
        EmbeddedPostgresError: processes of a server still work in the directory.
    """
    lines = _pid_file_lines(data)
    if not lines:
        return
    wait_until_unused(data)
    if lines[0].isdigit() and (_PROCESSES / lines[0]).exists():
        (data / "postmaster.pid").unlink(missing_ok=True)


def wait_until_unused(data: Path) -> None:
    """Give the processes of an ending or killed server the moment they need to go.

    Raises:
        EmbeddedPostgresError: they do not go, because that server was not told to.
    """
    deadline = time.monotonic() + _GRACE_SECONDS
    while survivors := _processes_in(data):
        if time.monotonic() > deadline:
            raise EmbeddedPostgresError(
                f"a Postgres server still works in {data}: process {', '.join(map(str, survivors))}; "
                "stop it (kill -INT the first of them) and start again"
            )
        time.sleep(0.02)


def is_ready(data: Path, pid: int) -> bool:
    """Whether the server with this process id accepts connections: it says so in its `postmaster.pid`."""
    lines = _pid_file_lines(data)
    return len(lines) > _STATUS_LINE and lines[0] == str(pid) and lines[_STATUS_LINE] == "ready"


def version_of(data: Path) -> str:
    """The major version a data directory was made by."""
    return _read(data / "PG_VERSION").strip()


def _pid_file_lines(data: Path) -> list[str]:
    try:
        return [line.strip() for line in _read(data / "postmaster.pid").splitlines()]
    except FileNotFoundError:
        return []


def _read(path: Path) -> str:
    """A small file in the account's directory: not through a link and not from a pipe, should it have been swapped."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 4096).decode(errors="replace")
    finally:
        os.close(descriptor)


def _processes_in(directory: Path) -> list[int]:
    real = os.path.realpath(directory)
    return sorted(int(entry.name) for entry in _PROCESSES.glob("[0-9]*") if _working_directory(entry) == real)


def _working_directory(process: Path) -> str | None:
    try:
        return os.readlink(process / "cwd")  # noqa: PTH115  a kernel link whose text may say "(deleted)": no path
    except OSError:
        return None  # gone by now, or somebody else's: not our account, so not our server
