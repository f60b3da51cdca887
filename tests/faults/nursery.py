"""Where worker processes come from: a process that has imported everything already and forks on request.

A worker is a real process, killed by real signals; only the half second of imports is saved each time. When the test
process is gone, however it went, the nursery kills its children and ends.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from contextlib import suppress
from typing import Final, NoReturn

from tests.faults import worker_process

_PR_SET_PDEATHSIG: Final = 1
_MAX_REQUEST: Final = 1 << 16


def main(control: socket.socket) -> None:
    """Fork whatever is asked for, and tell how each child ends."""
    wake_reader, wake_writer = socket.socketpair()
    wake_writer.setblocking(False)  # noqa: FBT003  the socket's own signature
    signal.set_wakeup_fd(wake_writer.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    selector.register(wake_reader, selectors.EVENT_READ)
    children: set[int] = set()
    gc.freeze()
    while True:
        ready = {key.fileobj for key, _ in selector.select()}
        if wake_reader in ready:
            wake_reader.recv(4096)
            for pid, status in _ended(children):
                _tell(control, {"ended": pid, "code": os.waitstatus_to_exitcode(status)})
        if control in ready:
            request, descriptors, _, _ = socket.recv_fds(control, _MAX_REQUEST, 1)
            if not request:
                break
            pid = os.fork()
            if pid == 0:
                _be_born(request.decode(), descriptors[0], (control, wake_reader, wake_writer))
            os.close(descriptors[0])
            children.add(pid)
            _tell(control, {"born": pid})
    for pid in children:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _ended(children: set[int]) -> list[tuple[int, int]]:
    ended: list[tuple[int, int]] = []
    for pid in tuple(children):
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            children.discard(pid)
            ended.append((pid, status))
    return ended


def _tell(control: socket.socket, message: dict[str, int]) -> None:
    control.sendall(json.dumps(message).encode() + b"\n")


def _be_born(plan: str, channel: int, parents: tuple[socket.socket, ...]) -> NoReturn:
    """In the child: leave everything of the nursery behind, and be a worker."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for each in parents:
        each.close()
    code = 1
    try:
        code = worker_process.main(plan, socket.socket(fileno=channel))
    except BaseException:  # noqa: BLE001  whatever it is, it must not return into the nursery
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))
