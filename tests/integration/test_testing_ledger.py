"""The ledger: what publishers say they did, kept by any number of threads and processes, whatever happens to them."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from spectral.core.events import EventEnvelope, new_event_id
from spectral.core.events.testing import Ledger, Publish
from spectral.core.events.testing.ledger import Entry

EVENT = new_event_id()


@pytest.fixture(params=["memory", "file"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "ledger.jsonl" if request.param == "file" else None)


def state(ledger: Ledger) -> Publish:
    return ledger.entries()[EVENT].state


def test_an_empty_ledger_has_no_entries(ledger: Ledger) -> None:
    assert ledger.entries() == {}


def test_an_attempt_ends_as_it_is_told(ledger: Ledger) -> None:
    first, second, third = new_event_id(), new_event_id(), new_event_id()
    ledger.attempt(first).ok()
    ledger.attempt(second).failed()
    ledger.attempt(third).unknown()
    states = {event_id: entry.state for event_id, entry in ledger.entries().items()}
    assert states == {first: Publish.OK, second: Publish.FAILED, third: Publish.UNKNOWN}


def test_an_attempt_without_an_end_is_unknown(ledger: Ledger) -> None:
    ledger.attempt(EVENT)
    assert state(ledger) is Publish.UNKNOWN


def test_the_key_is_the_id_unless_told(ledger: Ledger) -> None:
    ledger.attempt(EVENT)
    other = new_event_id()
    ledger.attempt(other, "order-1")
    entries = ledger.entries()
    assert (entries[EVENT].key, entries[other].key) == (str(EVENT), "order-1")


def test_an_envelope_says_all_there_is_to_say(ledger: Ledger) -> None:
    envelope = EventEnvelope(event_type="worlds.scan.completed", source="worlds", target="platform")
    ledger.attempt_of(envelope, generation=3).ok()
    assert ledger.entries() == {
        envelope.event_id: Entry(
            event_id=envelope.event_id,
            key=envelope.idempotency_key,
            state=Publish.OK,
            event_type="worlds.scan.completed",
            target="platform",
            generation=3,
        )
    }


def test_a_block_that_ends_well_is_ok(ledger: Ledger) -> None:
    with ledger.attempt(EVENT):
        pass
    assert state(ledger) is Publish.OK


def test_a_block_that_an_error_leaves_is_unknown_unless_somebody_knows_better(ledger: Ledger) -> None:
    with pytest.raises(ConnectionError), ledger.attempt(EVENT):
        raise ConnectionError
    assert state(ledger) is Publish.UNKNOWN
    other = new_event_id()
    with suppress(ConnectionError), ledger.attempt(other) as attempt:
        attempt.failed()
        raise ConnectionError
    assert ledger.entries()[other].state is Publish.FAILED


@pytest.mark.parametrize(
    ("ends", "expected"),
    [
        (["failed", "ok"], Publish.OK),
        (["ok", "failed"], Publish.OK),
        (["unknown", "failed"], Publish.UNKNOWN),
        (["failed", "failed"], Publish.FAILED),
    ],
)
def test_of_several_attempts_the_best_decides(ledger: Ledger, ends: list[str], expected: Publish) -> None:
    for end in ends:
        getattr(ledger.attempt(EVENT), end)()
    assert state(ledger) is expected


PUBLISHER = """
import os, signal, sys
from uuid import UUID
from spectral.core.events.testing import Ledger

path, *event_ids, last = sys.argv[1:]
ledger = Ledger(path)
for event_id in event_ids:
    ledger.attempt(UUID(event_id)).ok()
ledger.attempt(UUID(last))
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_several_processes_share_one_file_and_may_be_killed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    shares = [[new_event_id() for _ in range(200)] for _ in range(2)]
    processes = [
        subprocess.Popen([sys.executable, "-c", PUBLISHER, str(path), *(str(each) for each in share)])
        for share in shares
    ]
    assert [process.wait(timeout=60) for process in processes] == [-signal.SIGKILL] * 2
    states = {event_id: entry.state for event_id, entry in Ledger.load(path).entries().items()}
    for *finished, last in shares:
        assert {states[event_id] for event_id in finished} == {Publish.OK}
        assert states[last] is Publish.UNKNOWN


def test_files_are_merged(tmp_path: Path) -> None:
    paths = [tmp_path / "one.jsonl", tmp_path / "two.jsonl"]
    Ledger(paths[0]).attempt(EVENT).failed()
    Ledger(paths[1]).attempt(EVENT).ok()
    assert state(Ledger.load(*paths)) is Publish.OK


def test_a_last_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    Ledger(path).attempt(EVENT).ok()
    path.write_text(path.read_text() + '{"attempt": "12')
    assert state(Ledger.load(path)) is Publish.OK


def test_a_line_in_the_middle_that_makes_no_sense_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text("nonsense\n")
    with pytest.raises(ValueError, match="Expecting value"):
        Ledger.load(path)
