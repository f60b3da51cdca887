"""Faults from a line of text: what is armed happens where and when it says, and nonsense is refused by name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psycopg
import pytest

from spectral.core.events import ConfigurationError, Consumer, EventEnvelope, SubstrateLostError
from spectral.core.events.bootstrap import publisher_for
from spectral.core.events.delivery.publish import Publishing
from spectral.core.events.failpoints import NAMES, reached
from spectral.core.events.probe import SubstrateLost
from spectral.core.events.testing import InjectedFaultError, arm, arm_from, disarm, drain, injected


@pytest.fixture(autouse=True)
def _disarmed() -> Iterator[None]:
    yield
    disarm()


def outcomes(place: str, times: int) -> list[str]:
    """What happens each time the place is reached."""
    seen = []
    for _ in range(times):
        try:
            reached(place)
        except (InjectedFaultError, SubstrateLostError) as error:
            seen.append(type(error).__name__)
        else:
            seen.append("-")
    return seen


RAISED = "InjectedFaultError"
LOST = "SubstrateLostError"


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("raise", [RAISED] * 5),
        ("raise:2", [RAISED, RAISED, "-", "-", "-"]),
        ("raise@3", ["-", "-", RAISED, "-", "-"]),
        ("raise:2@3", ["-", "-", RAISED, RAISED, "-"]),
        ("lose:1", [LOST, "-", "-", "-", "-"]),
    ],
)
def test_errors_happen_as_often_as_told(fault: str, expected: list[str]) -> None:
    arm(f"claim.after={fault}")
    assert outcomes("claim.after", 5) == expected


def test_places_are_counted_apart() -> None:
    arm("claim.after=raise@2; settle.before = lose@1".replace(" = ", "="))
    assert outcomes("settle.before", 2) == [LOST, "-"]
    assert outcomes("claim.after", 2) == ["-", RAISED]
    assert outcomes("claim.before", 2) == ["-", "-"]


def test_one_place_may_have_several_faults() -> None:
    arm("claim.after=raise@1;claim.after=lose@2")
    assert outcomes("claim.after", 3) == [RAISED, LOST, "-"]


def test_a_delay_holds_the_process() -> None:
    arm("handle.before=delay:0.2@2")
    started = time.monotonic()
    reached("handle.before")
    undelayed = time.monotonic() - started
    reached("handle.before")
    assert time.monotonic() - started >= 0.2 > undelayed


PROCESS = """
import os
from spectral.core.events.failpoints import reached
from spectral.core.events.testing import arm_from
assert arm_from(os.environ)
reached("commit.before")
reached("commit.before")
print("survived")
"""


def start(faults: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROCESS],
        env={**os.environ, "SPECTRAL_FAILPOINTS": faults},
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize(
    ("fault", "code"), [("kill", -signal.SIGKILL), ("exit", 1), ("exit:7@2", 7), ("kill@3", 0)], ids=str
)
def test_a_process_ends_where_it_is_told(fault: str, code: int) -> None:
    process = start(f"commit.before={fault}")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == code
    assert output == ("survived\n" if code == 0 else "")


def test_a_process_stands_still_once_and_goes_on_when_told() -> None:
    process = start("commit.before=stop")
    _, status = os.waitpid(process.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    process.send_signal(signal.SIGCONT)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output) == (0, "survived\n")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("claim.sideways=kill", r"'claim\.sideways' is no failpoint; there are claim\.before, claim\.after"),
        ("claim.after=explode", "'explode' is no action; there are raise, lose, delay, stop, kill, exit"),
        ("claim.after", "is no fault: write"),
        ("claim.after=kill@0", "is no fault: write"),
        ("claim.after=delay", "delay cannot be given ''"),
        ("claim.after=delay:soon", "delay cannot be given 'soon'"),
        ("claim.after=raise:0", "raise cannot be given '0'"),
        ("claim.after=kill:9", "kill cannot be given '9'"),
    ],
)
def test_nonsense_is_refused_and_changes_nothing(text: str, complaint: str) -> None:
    arm("claim.before=raise")
    with pytest.raises(ConfigurationError, match=complaint):
        arm(f"claim.after=raise;{text}")
    assert outcomes("claim.before", 1) == [RAISED]
    assert outcomes("claim.after", 1) == ["-"]


@pytest.mark.parametrize("place", NAMES)
def test_every_place_can_be_armed(place: str) -> None:
    with injected(f"{place}=raise"), pytest.raises(InjectedFaultError, match=place):
        reached(place)
    reached(place)


def test_without_the_variable_nothing_is_armed() -> None:
    assert not arm_from({})
    assert not arm_from({"SPECTRAL_FAILPOINTS": " "})
    arm("")
    assert outcomes("claim.after", 1) == ["-"]


async def test_a_worker_survives_a_database_that_is_lost_for_a_moment(database: str, publishing: Publishing) -> None:
    platform = Consumer("platform")

    @platform.on("worlds.scan.completed")
    async def project(envelope: EventEnvelope) -> None:
        assert envelope.payload == {}

    with psycopg.connect(database) as connection, connection.transaction():
        publisher_for(connection, publishing).publish(
            EventEnvelope(event_type="worlds.scan.completed", source="worlds", target="platform")
        )
    with injected("claim.before=lose:1"):
        drained = await drain(platform, dsn=database)
    drained.assert_all_handled(times=1)
    assert [note.doing for note in drained.notes if isinstance(note, SubstrateLost)] == ["claim"]
