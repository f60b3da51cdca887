"""Lines that arrive whole, although several processes write to one pipe, as those of one supervisor do.

What is written to a pipe at once stays together up to PIPE_BUF bytes; what others write meanwhile may come between the
parts of more than that. So lines go out in pieces of whole lines that are no longer, whoever else writes there. A line
that is longer by itself can only be kept whole by all who write taking turns: the lock for that is on the pipe itself,
which they have in common anyhow, and the kernel frees it when its holder dies. Whoever waits for his turn would wait
for whoever reads the pipe, else; but not for somebody who is stopped.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import select
import stat
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final, TextIO

if TYPE_CHECKING:
    from collections.abc import Iterator

_TURN: Final = 65_536
"""Bytes, about: a process that has much to say lets the others in between."""

_ASK_AGAIN: Final = 0.005  # seconds
_STOPPED_AFTER: Final = 1.0
"""Seconds for which somebody has the lock, and there is room for what he has to write."""

_TAKEN: Final = (errno.EAGAIN, errno.EACCES)
# The lock on a pipe is the process's; its threads need one of their own.
_one = threading.Lock()
_is_given_up = False
"""Whether whoever had the lock last time did not go on."""


def shared_descriptor(stream: TextIO) -> int | None:
    """Where the stream writes, if that is a pipe or a socket, which others may write to; else writing it will do.

    Raises:
        ValueError: the stream is closed.
        OSError: its descriptor is.
    """
    if not isinstance(stream, io.TextIOWrapper):  # what somebody made himself may do more than to write it there
        return None
    try:
        descriptor = stream.fileno()
    except io.UnsupportedOperation:
        return None
    mode = os.fstat(descriptor).st_mode
    return descriptor if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else None


def write_whole(descriptor: int, lines: bytes) -> None:
    """Write them, each of them whole, however long that takes.

    Raises:
        OSError: nobody is there any more.
    """
    at = 0
    while at < len(lines):
        with _turn(descriptor):
            until = min(at + _TURN, len(lines))
            while at < until:
                end = _end_of_piece(lines, at)
                _write(descriptor, lines[at:end])
                at = end
        if at < len(lines):
            time.sleep(2 * _ASK_AGAIN)  # for the others ask only now and then


def _end_of_piece(lines: bytes, start: int) -> int:
    """Of as many whole lines as stay together by themselves, or of the one that does not."""
    end = lines.rfind(b"\n", start, start + select.PIPE_BUF) + 1
    return end or lines.find(b"\n", start) + 1 or len(lines)


def _write(descriptor: int, piece: bytes) -> None:
    rest = memoryview(piece)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # somebody who has the same pipe does not want to be kept waiting; here it is no matter
            waiting = select.poll()
            waiting.register(descriptor, select.POLLOUT)
            waiting.poll()


@contextmanager
def _turn(descriptor: int) -> Iterator[None]:
    with _one:
        is_locked = _lock(descriptor)
        try:
            yield
        finally:
            if is_locked:
                with suppress(OSError):
                    fcntl.lockf(descriptor, fcntl.LOCK_UN)


def _lock(descriptor: int) -> bool:
    """Wait for it; false if such a thing cannot be locked here, or whoever has it does not go on.

    What stays together by itself does so nevertheless. Whoever waits for the reader goes on; whoever was stopped in the
    midst of a line, by a signal or a debugger, must not silence all the others until somebody lets him.
    """
    global _is_given_up  # noqa: PLW0603  a second for each turn would silence us all the same
    give_up_at: float | None = None
    while True:
        try:
            # Not the lock that waits: nobody could give that up.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _TAKEN:
                return False
        else:
            _is_given_up = False
            return True
        if not _has_room(descriptor):
            give_up_at = None
        elif _is_given_up:
            return False
        elif give_up_at is None:
            give_up_at = time.monotonic() + _STOPPED_AFTER
        elif time.monotonic() >= give_up_at:
            _is_given_up = True
            return False
        time.sleep(_ASK_AGAIN)


def _has_room(descriptor: int) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, select.POLLOUT)
    return bool(waiting.poll(0))


def _after_fork() -> None:
    global _one  # noqa: PLW0603  whoever held it may be missing here
    _one = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
