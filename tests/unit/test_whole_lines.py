"""Lines that several processes write to one pipe arrive whole, and nobody who says one waits for that."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from spectral_workers import whole_lines
from spectral_workers.logs import LineWriter, PatientWriter
from spectral_workers.whole_lines import shared_descriptor, write_whole

PATIENCE = 60.0
_SET_SIZE = 1031  # F_SETPIPE_SZ; fcntl does not name it everywhere
LENGTHS = (10, 400, 4_000, 4_200, 400, 9_000, 150_000)

WRITING = f"""
import json, sys, threading
from spectral.core.events.infrastructure.observability.outlet import flush_all
from spectral_workers.logs import LineWriter, PatientWriter

who, patient, plain = sys.argv[1], PatientWriter(sys.stderr), LineWriter(sys.stderr)
lines = [json.dumps({{"who": who, "number": number, "said": who * length}})
         for number, length in enumerate(10 * {LENGTHS})]
sys.stdin.readline()
half = threading.Thread(target=lambda: [plain.msg(line) for line in lines[::2]])
half.start()
for line in lines[1::2]:
    patient.msg(line)
half.join()
assert flush_all({PATIENCE})
"""


@pytest.fixture(autouse=True)
def nobody_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_lines, "_is_given_up", False)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A narrow one: whoever writes more than a page has to wait in the midst of it."""
    reading, writing = os.pipe()
    if sys.platform == "linux":
        fcntl.fcntl(writing, _SET_SIZE, select.PIPE_BUF)
    yield reading, writing
    for descriptor in (reading, writing):
        try:
            os.close(descriptor)
        except OSError as error:
            assert error.errno == errno.EBADF, "the test has closed it"  # noqa: PT017  of the fixture itself


def read_slowly(reading: int) -> bytes:
    """Until nobody has the other end any more."""
    parts = []
    while part := os.read(reading, 700):
        parts.append(part)
    return b"".join(parts)


def test_lines_of_several_processes_arrive_whole_however_long_they_are(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    names = "abc"
    children = [
        subprocess.Popen([sys.executable, "-c", WRITING, who], stdin=subprocess.PIPE, stderr=writing) for who in names
    ]
    os.close(writing)
    try:
        for child in children:
            start(child.stdin)
        lines = [json.loads(line) for line in read_slowly(reading).decode().splitlines()]
    finally:
        for child in children:
            child.kill()
            child.communicate()
    assert Counter(line["who"] for line in lines) == dict.fromkeys(names, 10 * len(LENGTHS))
    for line in lines:
        assert line["said"] == line["who"] * LENGTHS[line["number"] % len(LENGTHS)]


def start(child: IO[bytes] | None) -> None:
    assert child is not None
    child.write(b"go\n")
    child.flush()


@contextmanager
def somebody_with_the_lock(writing: int) -> Iterator[subprocess.Popen[bytes]]:
    """Another process, which has it for as long as it lives."""
    script = "import fcntl, os, time; fcntl.lockf(2, fcntl.LOCK_EX); print(flush=True); time.sleep(600)"
    other = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=writing)
    try:
        assert other.stdout is not None
        assert other.stdout.readline()
        yield other
    finally:
        other.send_signal(signal.SIGKILL)
        other.communicate()


def test_who_says_a_line_goes_on_while_another_process_does_not_end_its_own(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.write(writing, b"x" * select.PIPE_BUF)  # nobody reads, so nobody gets on
    with open(writing, "w", encoding="utf-8", closefd=False) as stream, somebody_with_the_lock(writing) as other:
        writer = PatientWriter(stream)
        writer.msg("mine")  # comes back
        assert not writer._outlet.flush(0.2), "it takes its turn"
        other.send_signal(signal.SIGKILL)
        other.wait(PATIENCE)
        assert os.read(reading, select.PIPE_BUF) == b"x" * select.PIPE_BUF
        assert writer._outlet.flush(PATIENCE), "the dead do not hold it"
    assert os.read(reading, 100) == b"mine\n"


def test_who_is_stopped_in_the_midst_of_a_line_does_not_silence_the_others(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = pipe
    with somebody_with_the_lock(writing):
        write_whole(writing, b"said\n")
        assert os.read(reading, 100) == b"said\n"
        monkeypatch.setattr(whole_lines, "_STOPPED_AFTER", 600.0)
        write_whole(writing, b"again\n")  # is not waited for once more
        assert os.read(reading, 100) == b"again\n"
    write_whole(writing, b"said\n")  # where there is a lock to be had again
    assert not whole_lines._is_given_up
    assert os.read(reading, 100) == b"said\n"


def test_who_waits_for_the_reader_is_waited_for(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    _, writing = pipe
    monkeypatch.setattr(whole_lines, "_STOPPED_AFTER", 0.0)
    asked = list[int]()
    taken = OSError(errno.EAGAIN, "taken")

    def refuse_often(_: int, operation: int) -> None:
        asked.append(operation)
        if operation != fcntl.LOCK_UN and len(asked) < 20:
            raise taken

    monkeypatch.setattr(fcntl, "lockf", refuse_often)
    os.write(writing, b"x" * select.PIPE_BUF)
    monkeypatch.setattr(whole_lines, "_write", lambda _descriptor, _piece: asked.append(-1))
    write_whole(writing, b"said\n")
    assert asked == [fcntl.LOCK_EX | fcntl.LOCK_NB] * 20 + [-1, fcntl.LOCK_UN]


def test_lines_go_out_in_pieces_that_nobody_can_tear(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    pieces = list[bytes]()
    write = os.write

    def noted(descriptor: int, piece: memoryview) -> int:
        pieces.append(bytes(piece))
        return write(descriptor, piece)

    monkeypatch.setattr(os, "write", noted)
    lines = b"".join(b"%d" % (number % 10) * 399 + b"\n" for number in range(64)) + b"x" * 5_000 + b"\nlast\n"
    write_whole(writing, lines)
    os.close(writing)
    assert read_slowly(reading) == b"".join(pieces) == lines
    os.close(reading)
    assert [len(piece) for piece in pieces] == [4_000] * 6 + [1_600, 5_001, 5]


def test_a_pipe_whose_writers_do_not_wait_has_whole_lines_too(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.set_blocking(writing, False)
    line = b"x" * 100_000 + b"\n"
    read = list[bytes]()
    reader = threading.Thread(target=lambda: read.append(read_slowly(reading)))
    reader.start()
    write_whole(writing, line)
    os.close(writing)
    reader.join(PATIENCE)
    assert read == [line]


@pytest.mark.parametrize("refused", [errno.EAGAIN, errno.EINVAL], ids=["later", "never"])
def test_a_lock_that_is_refused_keeps_nothing_from_being_written(
    refused: int, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[int]()

    def refuse_once(_: int, operation: int) -> None:
        asked.append(operation)
        if len(asked) == 1:
            raise OSError(refused, os.strerror(refused))

    monkeypatch.setattr(fcntl, "lockf", refuse_once)
    write_whole(pipe[1], b"said\n")
    assert os.read(pipe[0], 100) == b"said\n"
    again = [fcntl.LOCK_EX | fcntl.LOCK_NB, fcntl.LOCK_UN] if refused == errno.EAGAIN else []
    assert asked == [fcntl.LOCK_EX | fcntl.LOCK_NB, *again]


# Newer interpreters warn of a fork beside threads, which is what this is about.
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_child_of_a_fork_does_not_wait_for_a_thread_it_does_not_have(pipe: tuple[int, int]) -> None:
    with whole_lines._one:
        child = os.fork()
        if child == 0:
            signal.alarm(int(PATIENCE))
            write_whole(pipe[1], b"said\n")
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(pipe[0], 100) == b"said\n"


def test_what_is_in_the_stream_already_comes_first(pipe: tuple[int, int]) -> None:
    with open(pipe[1], "w", encoding="utf-8", closefd=False) as stream:
        stream.write("before ")
        LineWriter(stream).msg("said")
    assert os.read(pipe[0], 100) == b"before said\n"


def test_only_what_others_may_write_to_is_written_in_turns(tmp_path: Path, pipe: tuple[int, int]) -> None:
    with (tmp_path / "log").open("w", encoding="utf-8") as file:
        assert shared_descriptor(file) is None
    with pytest.raises(ValueError, match="closed"):
        shared_descriptor(file)
    assert shared_descriptor(io.StringIO()) is None
    assert shared_descriptor(io.TextIOWrapper(io.BytesIO())) is None
    with open(pipe[1], "w", encoding="utf-8", closefd=False) as stream:
        assert shared_descriptor(stream) == pipe[1]
