"""What a worker has received and not claimed, and how far a relay is with a lane."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from spectral.core.events.broker import BrokerLane, Received, Reference
from spectral.core.events.broker_settings import RelaySettings
from spectral.core.events.relay.buffer import Buffer
from spectral.core.events.relay.ports import Taken
from spectral.core.events.relay.progress import Progress

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def received(number: int, kind: str = "a.b.c", context: str = "platform", receipt: object = None) -> Received:
    lane = BrokerLane(1, "outbox_gen_1", context)
    return Received(Reference(UUID(int=number), UUID(int=number), kind, lane, 0, 0), receipt)


def numbers(taken: list[Received]) -> list[int]:
    return [each.reference.row_id.int for each in taken]


def test_references_are_taken_in_the_order_they_came() -> None:
    buffer = Buffer()
    buffer.add([received(3), received(1), received(2)], 0.0)
    assert numbers(buffer.take("platform", None, 2)) == [3, 1]
    assert numbers(buffer.take("platform", None, 2)) == [2]
    assert len(buffer) == 0


def test_if_one_only_is_asked_for_it_is_what_was_attempted_most_often() -> None:
    """A row that must run alone waits until the worker holds nothing, and is then asked for by itself."""
    buffer = Buffer()
    suspect = received(2)
    suspect = suspect._replace(reference=suspect.reference._replace(attempts=2))
    buffer.add([received(1), suspect, received(3)], 0.0)
    assert numbers(buffer.take("platform", None, 1)) == [2]
    assert numbers(buffer.take("platform", None, 1)) == [1]


def test_only_what_is_asked_for_is_taken() -> None:
    buffer = Buffer()
    buffer.add([received(1, "a.b.c"), received(2, "a.b.d"), received(3, "a.b.d", "worlds")], 0.0)
    assert buffer.has("platform", ("a.b.d",))
    assert numbers(buffer.take("platform", ("a.b.d",), 5)) == [2]
    assert not buffer.has("platform", ("a.b.d",))
    assert not buffer.has("core", None)
    assert len(buffer) == 2


def test_a_message_that_is_handed_out_again_replaces_the_one_before() -> None:
    buffer = Buffer()
    buffer.add([received(1, receipt="first")], 0.0)
    buffer.add([received(1, receipt="second")], 5.0)
    assert len(buffer) == 1
    assert numbers(buffer.drop_older(1.0)) == [1]  # as old as when it first came
    buffer.add([received(1, receipt="first")], 0.0)
    buffer.add([received(1, receipt="second")], 0.0)
    assert [each.receipt for each in buffer.take("platform", None, 5)] == ["second"]


def test_what_was_taken_for_nothing_is_first_again() -> None:
    buffer = Buffer()
    buffer.add([received(1), received(2), received(3), received(4, context="worlds")], 0.0)
    taken = buffer.take("platform", None, 2)
    buffer.restore(taken, 1.0)
    assert len(buffer) == 4
    assert numbers(buffer.take("platform", None, 5)) == [1, 2, 3]


def test_what_has_waited_too_long_is_dropped() -> None:
    buffer = Buffer()
    buffer.add([received(1)], 0.0)
    buffer.add([received(2)], 2.0)
    assert numbers(buffer.drop_older(1.0)) == [1]
    assert numbers(buffer.clear()) == [2]
    assert len(buffer) == 0


def test_a_lane_gets_a_batch_until_so_many_wait() -> None:
    progress = Progress(RelaySettings(batch=10, most_waiting=25))
    progress.counted(0, 0.0)
    assert progress.room(0.0) == 10
    progress.took(Taken([], NOON, None, 0, 0.0), 20, 0.0)
    assert progress.room(0.0) == 5
    progress.counted(40, 1.0)
    assert progress.room(1.0) == 0


def test_a_broker_that_has_refused_is_left_alone_for_a_moment() -> None:
    progress = Progress(RelaySettings())
    progress.refused(10.0)
    assert progress.room(10.5) == 0
    assert progress.room(11.1) == RelaySettings().batch


def test_the_broker_is_asked_now_and_then_how_much_waits() -> None:
    progress = Progress(RelaySettings())
    assert progress.must_count(0.0)
    progress.counted(3, 0.0)
    assert not progress.must_count(0.05)
    assert progress.must_count(0.2)


def test_little_patience_with_a_lane_of_which_nothing_waits() -> None:
    progress = Progress(RelaySettings(grace=timedelta(seconds=5), lost=timedelta(minutes=5)))
    progress.counted(0, 0.0)
    assert progress.lost() == timedelta(seconds=5)
    progress.took(Taken([], NOON, None, 0, 0.0), 1, 0.0)
    assert progress.lost() == timedelta(minutes=5)


def test_a_busy_relay_starts_where_it_was_and_looks_back_now_and_then() -> None:
    progress = Progress(RelaySettings())
    assert progress.start(100.0, is_busy=True) is None
    progress.took(Taken([], NOON, NOON - timedelta(seconds=9), 0, 0.0), 0, 0.001)
    assert progress.start(100.1, is_busy=True) == NOON - timedelta(seconds=9.1)
    progress.took(Taken([], NOON, None, 0, 0.0), 0, 0.001)
    assert progress.start(100.2, is_busy=True) == NOON - timedelta(seconds=0.1)
    assert progress.start(100.3, is_busy=False) is None
    assert progress.start(101.0, is_busy=True) is None


def test_looks_back_get_a_share_of_the_time() -> None:
    progress = Progress(RelaySettings())
    assert progress.start(100.0, is_busy=True) is None
    progress.took(Taken([], NOON, None, 0, 0.0), 0, seconds := 1.0)
    assert progress.start(100.0 + 10 * seconds, is_busy=True) is not None
    assert progress.start(100.0 + 21 * seconds, is_busy=True) is None


def test_a_look_from_the_beginning_may_be_asked_for() -> None:
    progress = Progress(RelaySettings())
    progress.start(100.0, is_busy=True)
    progress.took(Taken([], NOON, None, 0, 0.0), 0, 0.0)
    progress.begin_anew()
    assert progress.start(100.01, is_busy=True) is None
