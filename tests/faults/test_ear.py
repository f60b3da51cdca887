"""Notifications are a courtesy: lost, swallowed, forged or never sent, every event is delivered."""

from __future__ import annotations

import time

import psycopg

from tests.faults.crew import eventually
from tests.faults.plan import SHORT_TIMES
from tests.faults.stage import Stage
from tests.faults.wire import Wire

NO_POLL = {"poll": 600.0, "poll_deaf": 600.0}
"""Whoever delivers now was told."""

_RESTS = (
    "select count(*) from pg_stat_activity where application_name like 'spectral claim %%' and state = 'idle'"
    " and clock_timestamp() - state_change > interval '0.5 s'"
)
"""After the last row a worker looks once more from the beginning, within a few hundredths of a second."""


def test_an_ear_that_is_terminated_again_and_again_misses_nothing(stage: Stage) -> None:
    worker = stage.start(times=NO_POLL)
    for round_ in range(1, 6):
        worker.wait_for("EarOpened", count=round_)
        ended = stage.rows(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'spectral ear %%'"
        )
        assert ended
        stage.publish(3)
        worker.wait_for("Finished", count=3 * round_)
    worker.wait_for("EarLost", count=5)
    stage.assert_clean(delivered=15)


def test_a_half_open_ear_is_found_within_fifteen_seconds(stage: Stage, wire: Wire) -> None:
    defaults = {"heartbeat": 5.0, "answer": 8.0, "poll": 1.0}
    worker = stage.start(dsn=stage.dsn, direct_dsn=wire.dsn, times=defaults)
    worker.wait_for("EarOpened")
    wire.freeze("spectral ear")
    frozen_at = time.monotonic()
    stage.publish(3)
    worker.wait_for("Finished", count=3)  # by the poll, which does not know yet
    assert not worker.said("EarLost")
    noticed_at = worker.wait_for("EarLost")["at"]
    assert noticed_at - frozen_at < 15
    worker.wait_for("EarOpened", count=2)
    stage.assert_clean(delivered=3)


def test_swallowed_notifications_are_made_up_for_by_the_safety_poll(stage: Stage, wire: Wire) -> None:
    worker = stage.start(dsn=wire.dsn, times={"poll": 1.0, "poll_deaf": 600.0})
    worker.wait_for("EarOpened")
    wire.swallow_notifications()
    for _ in range(3):
        stage.publish(3)
        stage.assert_clean(delivered=stage.one("select count(*) from core.outbox"))
    assert wire.swallowed_notifications() >= 3
    assert not worker.said("EarLost")


def test_without_its_trigger_the_outbox_is_still_polled(stage: Stage) -> None:
    stage.start(times={"poll": 1.0}).wait_for("EarOpened")
    with psycopg.connect(stage.dsn) as connection:
        connection.execute("alter table core.outbox disable trigger outbox_notify")
    stage.publish(3)
    stage.assert_clean(delivered=3)


def test_what_was_committed_before_the_worker_listened_is_drained(stage: Stage, wire: Wire) -> None:
    # The ear's first words are held back, so that this commits after the worker's first claim and before its LISTEN.
    wire.freeze("spectral ear", new=True)
    stage.publish(1)
    worker = stage.start(dsn=stage.dsn, direct_dsn=wire.dsn, times={**NO_POLL, "answer": SHORT_TIMES["answer"] + 10})
    wire.wait_for("spectral ear")
    worker.wait_for("Finished")  # the keeper lives, so the worker claims, though deaf
    eventually(lambda: stage.one(_RESTS) == 1, "the worker has nothing more to look for")
    stage.publish(1)
    assert stage.statuses() == {"delivered": 1, "pending": 1}
    wire.thaw()
    worker.wait_for("Finished", count=2)
    stage.assert_clean(delivered=2)


def test_forged_notifications_do_no_harm(stage: Stage) -> None:
    worker = stage.start()
    worker.wait_for("EarOpened")
    stage.rows("select pg_notify('outbox_gen_1', n::text || ' and garbage') from generate_series(1, 5000) as n")
    stage.publish(3)
    stage.assert_clean(delivered=3)
    assert not worker.said("EarLost")
