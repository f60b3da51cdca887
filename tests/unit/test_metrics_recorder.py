"""Notes become numbers."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta

import pytest

from spectral.core.events import EventEnvelope, metrics
from spectral.core.events.infrastructure.observability.recorder import Recorder
from spectral.core.events.metrics import Sample
from spectral.core.events.outcome import AlreadyHandled, DeadLetter, Handled, Released, Retry
from spectral.core.events.probe import (
    BrokerBack,
    BrokerLost,
    Claimed,
    Conflicted,
    Crashed,
    Discarded,
    EarLost,
    EarOpened,
    Failure,
    FannedOut,
    Finished,
    Handle,
    HandlerRan,
    HandlerRanAway,
    KeptApart,
    LeaseWasLost,
    LeftInDoubt,
    LoopBlocked,
    Note,
    Publish,
    Published,
    Quarantined,
    Reaped,
    ReferencesVoid,
    Relayed,
    RelaySwitched,
    Replayed,
    SettleGivenUp,
    SettlementWritten,
    Started,
    Stopped,
    Stopping,
    SubstrateLost,
    Swept,
    Unhandled,
)
from tests.unit.log_notes import ROW, dead_row, event_ref, row_ref
from tests.unit.test_routes import COMPLETED, delivery

SECOND = timedelta(seconds=1)


def finished(*, event_type: str = COMPLETED, seconds: float = 0.02) -> Finished:
    return Finished(delivery(event_type), Handled(), ("platform.project",), 0.004, ack_seconds=seconds)


def ran(*, error: str | None = None, seconds: float = 0.004) -> HandlerRan:
    failure = None if error is None else Failure(error, f"{error}: of no interest here")
    return HandlerRan(Handle(delivery(), "platform.project"), seconds, failure, None)


def published(*event_types: str, failure: Failure | None = None) -> Published:
    envelopes = [EventEnvelope(event_type=each, source="worlds", target="platform") for each in event_types]
    return Published(Publish(envelopes, 1), 0.002, failure, None)


def life() -> Iterator[Note]:
    """One of every note there is."""
    one = delivery()
    yield Started("me", 1, ("platform", "worlds"))
    yield EarOpened(("outbox_gen_1",))
    yield published(COMPLETED, COMPLETED, "worlds.scan.failed")
    yield published(COMPLETED, failure=Failure("PublishError", "no"))
    yield Claimed("platform", 4, 0.003, deaf=False)
    yield Claimed("platform", 1, 0.003, deaf=True)
    yield ran()
    yield ran(error="ValueError")
    yield SettlementWritten(3, 0.002)
    yield finished()
    for outcome in (AlreadyHandled(), Retry("E", SECOND), DeadLetter("E"), Released()):
        yield finished()._replace(outcome=outcome)
    yield LeaseWasLost(one)
    yield LeftInDoubt(one)
    yield SettleGivenUp(one, "E")
    yield Reaped(ROW, "pending", "orphaned", "other", 1, event_ref())
    yield Reaped(ROW, "failed", "orphaned", "other", 5, event_ref(), dead_row())
    kinds = ("platform.a.b", "platform.a.b", "platform.a.c")
    yield Unhandled("worlds", [dead_row()._replace(event_type=kind) for kind in kinds])
    yield FannedOut(event_ref(target=None), ("platform", "worlds"))
    yield HandlerRanAway(one, "platform.project")
    yield Quarantined(one)
    yield Conflicted(one, 2)
    yield KeptApart("platform.project", timedelta(minutes=1), one_group=True)
    yield EarLost("gone", SECOND)
    yield SubstrateLost("claim", "gone", SECOND)
    yield LoopBlocked(2.0)
    yield RelaySwitched("nats")
    yield Relayed("nats", 1, "outbox_gen_1", "platform", 9, 2, 1, 0.01, 0.2)
    yield ReferencesVoid("platform", 3)
    yield BrokerLost("nats", "gone", SECOND)
    yield BrokerBack("nats", 1.0)
    yield Replayed([row_ref()], 1, "me", None)
    yield Discarded([row_ref()], "me", None)
    yield Swept(1, 1, 0.1, finished=True)
    yield Stopping(0, SECOND)
    yield Crashed("E")
    yield Stopped()


def told(*notes: Note) -> Recorder:
    recorder = Recorder()
    for note in notes:
        recorder.tell(note)
    return recorder


def counted(recorder: Recorder) -> dict[tuple[str, ...], float]:
    """By name and labels, without the zeros."""
    return {(each.metric.name, *each.labels): each.value for each in recorder.samples() if each.value}


# notes become numbers


def test_a_life_is_counted() -> None:
    assert counted(told(*life())) == {
        ("messaging.client.sent.messages", COMPLETED): 2,
        ("messaging.client.sent.messages", "worlds.scan.failed"): 1,
        ("messaging.client.consumed.messages", COMPLETED, "platform"): 3,
        ("spectral.outcomes", "platform", "delivered"): 1,
        ("spectral.outcomes", "platform", "already_handled"): 1,
        ("spectral.outcomes", "platform", "retry"): 1,
        ("spectral.outcomes", "platform", "failed"): 1,
        ("spectral.outcomes", "platform", "released"): 1,
        ("spectral.retries", "platform", COMPLETED): 1,
        ("spectral.dead_letters", "platform", COMPLETED): 1,
        ("spectral.dead_letters", "worlds", "platform.order.placed"): 1,
        ("spectral.dead_letters", "worlds", "platform.a.b"): 2,
        ("spectral.dead_letters", "worlds", "platform.a.c"): 1,
        ("spectral.leases.lost", "platform"): 1,
        ("spectral.reaped", "pending"): 1,
        ("spectral.reaped", "failed"): 1,
        ("spectral.unhandled", "worlds"): 3,
        ("spectral.fanned_out",): 1,
        ("spectral.settle.given_up", "platform"): 1,
        ("spectral.handlers.ran_away", "platform", "platform.project"): 1,
        ("spectral.quarantined", "platform"): 1,
        ("spectral.conflicts", "platform"): 1,
        ("spectral.handlers.kept_apart", "platform.project"): 1,
        ("spectral.poll.fallbacks", "platform"): 1,
        ("spectral.database.lost", "listen"): 1,
        ("spectral.database.lost", "claim"): 1,
        ("spectral.loop.blocked",): 1,
        ("spectral.relay.sent", "platform"): 9,
        ("spectral.relay.resent", "platform"): 2,
        ("spectral.relay.refused", "platform"): 1,
        ("spectral.relay.void", "platform"): 3,
        ("spectral.broker.lost", "nats"): 1,
    }


def test_durations_are_put_into_buckets() -> None:
    found = {(each.metric.name, *each.labels): each for each in told(*life()).distributions()}
    assert {name: each.count for name, each in found.items()} == {
        ("messaging.client.operation.duration", "publish", "send", ""): 1,
        ("messaging.client.operation.duration", "publish", "send", "PublishError"): 1,
        ("messaging.client.operation.duration", "claim", "receive", ""): 2,
        ("messaging.client.operation.duration", "settle", "settle", ""): 1,
        ("messaging.process.duration", COMPLETED, "platform", "platform.project", ""): 1,
        ("messaging.process.duration", COMPLETED, "platform", "platform.project", "ValueError"): 1,
        ("spectral.ack.duration", "platform"): 2,
    }
    assert found["spectral.ack.duration", "platform"].total == pytest.approx(0.04)


@pytest.mark.parametrize(
    ("seconds", "bound"), [(-0.1, 0.001), (0.001, 0.001), (0.0011, 0.0025), (0.5, 0.5), (300.0, 300.0), (301.0, None)]
)
def test_a_bound_belongs_to_its_bucket(seconds: float, bound: float | None) -> None:
    (found,) = told(finished(seconds=seconds)).distributions()
    bounds = [*metrics.ACK_DURATION.buckets, None]
    assert [bounds[number] for number, count in enumerate(found.counts) if count] == [bound]


@pytest.mark.parametrize("times", [1, 30], ids=["a few", "more than there are buckets"])
def test_a_heap_is_counted_as_its_events_one_by_one(times: int) -> None:
    heap = [
        finished(event_type=event_type, seconds=seconds)
        for event_type in (COMPLETED, "worlds.scan.started", COMPLETED)
        for seconds in (0.0, 0.25, 1e6, 0.375, 0.25, 7.0) * times  # sums of which are exact
    ]
    runs = [
        HandlerRan(Handle(delivery(COMPLETED), name), seconds, None, None)
        for seconds in (0.0, 0.25, 7.0) * times
        for name in ("platform.project", "platform.mail")
    ]
    together, singly = Recorder(), Recorder()
    together.tell(heap[0])  # what is known already, and what is not
    singly.tell(heap[0])
    together.tell_many_at(heap, 0.0)
    together.tell_many_at(runs, 0.0)
    notes: list[Note] = [*heap, *runs]
    for note in notes:
        singly.tell(note)
    assert together.samples() == singly.samples() != []
    assert together.distributions() == singly.distributions() != []


def test_publishes_are_counted_together_as_one_by_one() -> None:
    notes = [
        published(*types)._replace(seconds=seconds)
        for seconds in (0.0, 0.25, 1e6, 0.375)  # sums of which are exact
        for types in ([COMPLETED], ["worlds.card.sent"], [COMPLETED, "worlds.card.sent", COMPLETED])
    ]
    together, singly = Recorder(), Recorder()
    together.tell_published([(note, 0.0) for note in notes])
    for note in notes:
        singly.tell(note)
    assert sorted(map(str, together.samples())) == sorted(map(str, singly.samples())) != []
    assert together.distributions() == singly.distributions() != []


def test_a_worker_that_has_just_started_says_zero_and_not_nothing() -> None:
    samples = told(Started("me", 1, ("platform",))).samples()
    assert {each.value for each in samples} == {0}
    assert Sample(metrics.OUTCOMES, ("platform", "failed"), 0) in samples


def test_many_types_of_events_make_two_hundred_series_and_one() -> None:
    recorder = told(*(finished(event_type=f"worlds.kind_{number}") for number in range(10_000)))
    consumed = [each for each in recorder.samples() if each.metric is metrics.CONSUMED_MESSAGES]
    assert len(consumed) == 201
    assert sum(each.value for each in consumed) == 10_000
    assert consumed[-1].labels == ("_other", "platform")


def test_nothing_is_lost_when_threads_tell_at_the_same_time() -> None:
    recorder, note = Recorder(), finished()

    def tell() -> None:
        for _ in range(3_000):
            recorder.tell(note)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)  # as unfavourable as it gets
    try:
        threads = [threading.Thread(target=tell) for _ in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            recorder.distributions()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert {each.count for each in recorder.distributions()} == {12_000}
    assert {each.value for each in recorder.samples()} == {12_000}


# Newer interpreters warn of a fork beside threads, which is what this is about.
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_the_child_of_a_fork_counts_from_nothing() -> None:
    recorder = Recorder()
    recorder.tell(LoopBlocked(1.0))
    recorder.tell(finished())
    child = os.fork()
    if child == 0:
        is_new = not recorder.samples() and not recorder.distributions()
        recorder.tell(LoopBlocked(1.0))
        recorder.tell(finished())  # where it is counted was known
        counted = {sample.value for sample in recorder.samples()} | {each.count for each in recorder.distributions()}
        os._exit(0 if is_new and counted == {1} else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert {sample.value for sample in recorder.samples()} == {1}, "the parent's are kept"
