"""`spectral demo`, as `make demo` runs it: a process of its own that needs nothing and leaves nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest

from tests.acceptance.worker_process import PATIENCE, eventually

SPECTRAL = Path(sys.executable).with_name("spectral")
NOTHING = ("lost", "phantom", "ghost", "duplicated", "stuck", "wrong_generation", "wrong_context", "left_in_dlq")


@pytest.mark.timeout(300)
def test_the_demo_comes_out_even(tmp_path: Path) -> None:
    done = subprocess.run(
        [SPECTRAL, "demo", "--json"],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    assert counts["clean"] is True
    assert {counts[name] for name in NOTHING} == {0}
    assert counts["published"] + counts["broadcasts"] == counts["delivered"] == counts["handled"]
    assert counts["published"] == counts["decided"] > 3_000
    assert (counts["rolled_back"], counts["broadcasts"]) == (100, 32)
    assert counts["taken_over"] > 0
    assert counts["dead_lettered"] == counts["replayed"] == 10
    assert counts["handled_by_generation"].keys() == {"1", "2"}
    assert sum(counts["handled_by_generation"].values()) == counts["handled"]
    assert counts["seconds"] > 0
    assert list(tmp_path.iterdir()) == []
    steps = done.stderr.splitlines()
    assert [step.split()[1] for step in steps[:-1]] == ["s"] * (len(steps) - 1)
    assert steps[-1].startswith("clean in ")
    assert any("kill -9" in step for step in steps)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_demo_that_is_ended_leaves_nothing_running(tmp_path: Path, number: signal.Signals) -> None:
    mark = f"DEMO_MARK={uuid4()}"
    with started(tmp_path, mark) as demo:
        assert demo.stderr is not None
        for line in demo.stderr:
            if "Publishing" in line:
                break
        demo.send_signal(signal.SIGSTOP)  # on a machine that is busy, it might be over before it is looked at
        assert len(processes(mark)) >= 3
        demo.send_signal(number)
        demo.send_signal(signal.SIGCONT)
        assert demo.wait(PATIENCE) != 0
    eventually(lambda: not processes(mark), "all processes have ended")
    if number is not signal.SIGKILL:
        assert list(tmp_path.iterdir()) == []


@contextmanager
def started(directory: Path, mark: str) -> Iterator[subprocess.Popen[str]]:
    name, _, value = mark.partition("=")
    with subprocess.Popen(
        [SPECTRAL, "demo"],
        cwd=directory,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(directory), name: value},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def processes(mark: str) -> list[str]:
    """The processes that were started with this variable."""
    found = []
    for variables in Path("/proc").glob("[0-9]*/environ"):
        try:
            if mark.encode() in variables.read_bytes().split(b"\0"):
                found.append(variables.parent.name)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found
