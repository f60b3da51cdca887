"""Rows that meet: one key twice, and rows that are older than what has passed already."""

from __future__ import annotations

import time

import psycopg
import pytest

from tests.faults.crew import eventually
from tests.faults.handlers import PLAIN, TRANSACTIONAL
from tests.faults.plan import Trap
from tests.faults.publishers import ChangedItsMindError
from tests.faults.stage import Stage, envelope_of


@pytest.mark.parametrize("event_type", [TRANSACTIONAL, PLAIN], ids=["transactional", "plain"])
def test_many_rows_with_one_key_take_effect_once(stage: Stage, event_type: str) -> None:
    for number in range(20):
        stage.publish(4, event_type, key=f"key {number}", payload={"do": "sleep", "seconds": 0.01})
    for _ in range(2):
        stage.start()
    verdict = stage.assert_clean(delivered=80)
    assert verdict.handled == 20


def test_the_second_of_two_rows_with_one_key_waits_for_the_first_and_concedes(stage: Stage) -> None:
    stage.publish(1, key="one")
    first = stage.start("first", trap=Trap(at="handle.after", action="hold"), times={"stop": 30})
    first.wait_for("Trapped")  # the key is inserted, and not committed
    stage.publish(1, key="one")
    second = stage.start("second")
    second.wait_for("Finished", outcome="Released", seconds=20)  # busy for too long: given back, and tried again
    assert not second.said("Finished", outcome="AlreadyHandled")
    first.go_on()
    # Whoever comes first to the row that was given back.
    eventually(lambda: any(each.said("Finished", outcome="AlreadyHandled") for each in (first, second)), "one concedes")
    verdict = stage.assert_clean(delivered=2)
    assert verdict.handled == 1


def test_an_early_row_that_commits_late_is_delivered_though_later_ones_have_passed(stage: Stage) -> None:
    worker = stage.start()
    worker.wait_for("EarOpened")
    early = [envelope_of(TRANSACTIONAL), envelope_of(PLAIN), envelope_of(TRANSACTIONAL, target=None)]
    with psycopg.connect(stage.dsn) as connection, stage.publishing(connection, early):
        opened_at = time.monotonic()
        passed = 0
        while time.monotonic() < opened_at + 4:
            stage.publish(10)
            stage.publish(10, PLAIN)
            passed += 20
            eventually(lambda: stage.statuses().get("delivered") == passed, "later rows pass")  # noqa: B023  now
    stage.assert_clean(delivered=passed + 3)


def test_a_publish_that_was_rolled_back_to_a_savepoint_is_never_delivered(stage: Stage) -> None:
    stage.start().wait_for("EarOpened")
    kept, undone = envelope_of(TRANSACTIONAL), envelope_of(TRANSACTIONAL)
    with (
        psycopg.connect(stage.dsn) as connection,
        stage.publishing(connection, [kept]),
        pytest.raises(ChangedItsMindError),
        stage.publishing(connection, [undone]),
    ):
        raise ChangedItsMindError
    stage.assert_clean(delivered=1)
