"""The oracle is not blind: for each thing it counts there is evidence in which it counts it, and one in which not."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest

from spectral.core.events import new_event_id
from spectral.core.events.testing import Fault, Ledger, Subscribed, Verdict
from spectral.core.events.testing.evidence import Effect, Evidence, Move, Row
from spectral.core.events.testing.oracle import judge
from spectral.core.events.testing.owed import child_id

TYPE = "worlds.scan.completed"
HANDLER = "platform.project"
NOON = datetime(2026, 11, 15, 12, tzinfo=UTC)
LATER = NOON + timedelta(minutes=1)
SUBSCRIPTION = Subscribed(1, "platform", TYPE, HANDLER)


def row(event_id: UUID, /, **given: Any) -> Row:  # noqa: ANN401  any of its fields
    usual = Row(event_id, event_id, TYPE, "platform", str(event_id), 1, "delivered", NOON, 0, "")
    return usual._replace(**given)


def effect(event_id: UUID, /, **given: Any) -> Effect:  # noqa: ANN401  any of its fields
    return Effect(
        HANDLER, str(event_id), event_id, "worker-1", 1, "platform", external=False, recorded_at=NOON
    )._replace(**given)


def published(event_id: UUID, *, target: str | None = "platform", key: str | None = None) -> Ledger:
    ledger = Ledger()
    ledger.attempt(event_id, key, event_type=TYPE, target=target, generation=1).ok()
    return ledger


def delivered(event_id: UUID) -> Evidence:
    """Evidence of an event that went as it should."""
    return Evidence(
        rows=(row(event_id),),
        effects=(effect(event_id),),
        handled=frozenset({(HANDLER, str(event_id))}),
        subscriptions=(SUBSCRIPTION,),
    )


def faults(verdict: Verdict) -> dict[str, int]:
    return {fault.value: count for fault in Fault if (count := verdict.as_dict()[fault.value])}


EVENT = new_event_id()
OTHER = new_event_id()


def test_an_event_that_was_handled_once_is_clean() -> None:
    verdict = judge(published(EVENT).entries(), delivered(EVENT))
    assert verdict.clean
    assert verdict.problems() == []
    counts = {"published": 1, "delivered": 1, "handled": 1, "dead_lettered": 0, "replayed": 0, "external_duplicates": 0}
    assert verdict.as_dict() == counts | dict.fromkeys((fault.value for fault in Fault), 0)
    verdict.assert_clean()


def test_a_verdict_on_nothing_shows_nothing() -> None:
    verdict = judge({}, Evidence())
    assert verdict.clean
    with pytest.raises(AssertionError, match="only 0 events were published"):
        verdict.assert_clean()


# lost


def test_delivered_without_an_effect_is_lost_although_the_dedup_log_has_it() -> None:
    verdict = judge(published(EVENT).entries(), replace(delivered(EVENT), effects=()))
    assert faults(verdict) == {"lost": 1}
    assert verdict.problems() == [f"lost: event {EVENT} is delivered, but {HANDLER} did not handle it"]
    with pytest.raises(AssertionError, match=f"(?s)'lost': 1.*{EVENT}"):
        verdict.assert_clean()


def test_a_silent_handler_is_believed_by_its_dedup_record() -> None:
    evidence = replace(delivered(EVENT), effects=())
    assert judge(published(EVENT).entries(), evidence, silent=[HANDLER]).clean
    without_record = replace(evidence, handled=frozenset())
    assert faults(judge(published(EVENT).entries(), without_record, silent=[HANDLER])) == {"lost": 1}


def test_an_event_without_row_and_effect_is_lost() -> None:
    assert faults(judge(published(EVENT).entries(), Evidence(subscriptions=(SUBSCRIPTION,)))) == {"lost": 1}
    bare = Ledger()
    bare.attempt(EVENT).ok()
    assert faults(judge(bare.entries(), Evidence())) == {"lost": 1}
    assert judge(bare.entries(), Evidence(effects=(effect(EVENT),))).clean


def test_an_event_whose_row_was_swept_is_judged_by_its_effects() -> None:
    assert judge(published(EVENT).entries(), replace(delivered(EVENT), rows=())).clean


def test_an_event_that_was_discarded_and_swept_is_not_lost() -> None:
    swept = Evidence(subscriptions=(SUBSCRIPTION,))
    assert faults(judge(published(EVENT).entries(), swept)) == {"lost": 1}
    assert judge(published(EVENT).entries(), replace(swept, discarded=frozenset({EVENT}))).clean
    bare = Ledger()
    bare.attempt(EVENT).ok()
    assert judge(bare.entries(), Evidence(discarded=frozenset({EVENT}))).clean
    # one that was discarded, replayed after all and delivered to nobody is
    undelivered = replace(delivered(EVENT), effects=(), discarded=frozenset({EVENT}))
    assert faults(judge(published(EVENT).entries(), undelivered)) == {"lost": 1}


def test_a_share_of_a_broadcast_that_was_discarded_and_swept_is_not_lost() -> None:
    worlds = Subscribed(1, "worlds", TYPE, "worlds.index")
    swept = replace(delivered(EVENT), rows=(), subscriptions=(SUBSCRIPTION, worlds))
    ledger = published(EVENT, target=None)
    assert faults(judge(ledger.entries(), swept)) == {"lost": 1}
    for context, clean in (("worlds", True), ("platform", False)):
        discarded = replace(swept, discarded=frozenset({child_id(EVENT, context)}))
        assert judge(ledger.entries(), discarded).clean == clean


def test_a_silent_handler_is_believed_when_row_and_record_were_swept() -> None:
    swept = Evidence(subscriptions=(SUBSCRIPTION,))
    assert judge(published(EVENT).entries(), swept, silent=[HANDLER]).clean


def test_every_handler_that_was_subscribed_is_owed_the_event() -> None:
    second = SUBSCRIPTION._replace(handler_name="platform.index")
    evidence = replace(delivered(EVENT), subscriptions=(SUBSCRIPTION, second))
    assert faults(judge(published(EVENT).entries(), evidence)) == {"lost": 1}
    came_later = second._replace(since=LATER)
    assert judge(published(EVENT).entries(), replace(evidence, subscriptions=(SUBSCRIPTION, came_later))).clean
    elsewhere = [second._replace(generation=2), second._replace(context="worlds"), second._replace(event_type="a.b.c")]
    assert judge(published(EVENT).entries(), replace(evidence, subscriptions=(SUBSCRIPTION, *elsewhere))).clean


def test_every_context_that_was_subscribed_is_owed_its_share_of_a_broadcast() -> None:
    worlds = Subscribed(1, "worlds", TYPE, "worlds.index")
    parent = row(EVENT, target=None)
    share = row(OTHER, event_id=EVENT, key=str(EVENT))
    evidence = replace(delivered(EVENT), rows=(parent, share), subscriptions=(SUBSCRIPTION, worlds))
    ledger = published(EVENT, target=None)
    verdict = judge(ledger.entries(), evidence)
    assert verdict.problems() == [f"lost: event {EVENT} is gone, but worlds.index did not handle it"]
    came_later = replace(evidence, subscriptions=(SUBSCRIPTION, worlds._replace(since=LATER)))
    assert judge(ledger.entries(), came_later).clean
    both = replace(evidence, effects=(effect(EVENT), effect(EVENT, handler="worlds.index", context="worlds")))
    assert judge(ledger.entries(), both).clean
    nobody = Evidence(rows=(parent,))
    assert judge(ledger.entries(), nobody).clean


def test_a_broadcast_is_counted_by_its_shares() -> None:
    rows = row(EVENT, target=None), row(OTHER, event_id=EVENT), row(new_event_id(), event_id=EVENT, target="worlds")
    effects = effect(EVENT), effect(EVENT, handler="worlds.index", context="worlds")
    verdict = judge(published(EVENT, target=None).entries(), Evidence(rows=rows, effects=effects))
    assert (verdict.clean, verdict.published, verdict.delivered) == (True, 1, 2)


def test_a_share_is_owed_even_if_its_subscription_was_struck_off_afterwards() -> None:
    evidence = Evidence(rows=(row(EVENT, target=None), row(OTHER, event_id=EVENT, target="worlds")))
    verdict = judge(published(EVENT, target=None).entries(), evidence)
    assert verdict.problems() == [f"lost: event {EVENT} is delivered, but nobody in worlds handled it"]


def test_a_broadcast_is_owed_to_the_subscribers_of_the_generation_it_was_split_in() -> None:
    evidence = Evidence(rows=(row(EVENT, target=None, generation=2),), subscriptions=(SUBSCRIPTION,))
    assert judge(published(EVENT, target=None).entries(), evidence).clean
    in_second = replace(evidence, subscriptions=(SUBSCRIPTION._replace(generation=2),))
    assert faults(judge(published(EVENT, target=None).entries(), in_second)) == {"lost": 1}


def test_without_subscriptions_some_handler_of_the_context_will_do() -> None:
    evidence = replace(delivered(EVENT), subscriptions=())
    assert judge(published(EVENT).entries(), evidence).clean
    assert faults(judge(published(EVENT).entries(), replace(evidence, effects=(), handled=frozenset()))) == {"lost": 1}


def test_a_dead_letter_is_not_lost() -> None:
    evidence = Evidence(rows=(row(EVENT, status="failed", delivered_at=None),), subscriptions=(SUBSCRIPTION,))
    verdict = judge(published(EVENT).entries(), evidence)
    assert verdict.clean
    assert (verdict.delivered, verdict.dead_lettered) == (0, 1)


# unknown


def test_an_unknown_publish_may_be_there_or_not_but_not_be_lost() -> None:
    ledger = Ledger()
    ledger.attempt(EVENT, event_type=TYPE, target="platform", generation=1).unknown()
    absent = judge(ledger.entries(), Evidence(subscriptions=(SUBSCRIPTION,)))
    assert (absent.clean, absent.published) == (True, 0)
    present = judge(ledger.entries(), delivered(EVENT))
    assert (present.clean, present.published) == (True, 1)
    assert faults(judge(ledger.entries(), replace(delivered(EVENT), effects=()))) == {"lost": 1}
    swept = judge(ledger.entries(), replace(delivered(EVENT), rows=()))
    assert (swept.clean, swept.published) == (True, 1)


# phantom, ghost


def test_an_effect_of_an_event_nobody_tried_to_publish_is_a_phantom() -> None:
    evidence = delivered(EVENT)
    verdict = judge(published(EVENT).entries(), replace(evidence, effects=(*evidence.effects, effect(OTHER))))
    assert faults(verdict) == {"phantom": 1}
    assert str(OTHER) in verdict.problems()[0]


def test_a_dedup_record_of_a_key_nobody_published_is_a_phantom() -> None:
    evidence = delivered(EVENT)
    verdict = judge(published(EVENT).entries(), replace(evidence, handled=evidence.handled | {(HANDLER, "stray")}))
    assert verdict.problems() == [f"phantom: key stray was never published, but {HANDLER} is on record for it"]


def rolled_back(event_id: UUID, key: str | None = None) -> Ledger:
    ledger = Ledger()
    ledger.attempt(event_id, key, event_type=TYPE, target="platform", generation=1).failed()
    return ledger


@pytest.mark.parametrize(
    "evidence",
    [
        Evidence(effects=(effect(EVENT),)),
        Evidence(effects=(effect(EVENT, external=True),)),
        Evidence(rows=(row(EVENT),)),
        Evidence(handled=frozenset({(HANDLER, str(EVENT))})),
    ],
    ids=["effect", "external effect", "row", "dedup record"],
)
def test_any_trace_of_a_rolled_back_publish_is_a_ghost(evidence: Evidence) -> None:
    verdict = judge(rolled_back(EVENT).entries(), evidence)
    assert faults(verdict) == {"ghost": 1}
    assert str(EVENT) in verdict.problems()[0]


def test_a_rolled_back_publish_that_left_nothing_is_no_ghost() -> None:
    verdict = judge(rolled_back(EVENT).entries(), Evidence(subscriptions=(SUBSCRIPTION,)))
    assert (verdict.clean, verdict.published) == (True, 0)


def test_a_key_that_was_rolled_back_once_and_published_later_is_no_ghost() -> None:
    ledger = rolled_back(OTHER, key="order-1")
    ledger.attempt(EVENT, "order-1", event_type=TYPE, target="platform", generation=1).ok()
    evidence = replace(
        delivered(EVENT),
        rows=(row(EVENT, key="order-1"),),
        effects=(effect(EVENT, key="order-1"),),
        handled=frozenset({(HANDLER, "order-1")}),
    )
    assert judge(ledger.entries(), evidence).clean


# duplicated


def test_a_second_transactional_effect_of_a_handler_and_key_is_a_duplicate() -> None:
    twice = (effect(EVENT), effect(EVENT, worker="worker-2"))
    verdict = judge(published(EVENT).entries(), replace(delivered(EVENT), effects=twice))
    assert faults(verdict) == {"duplicated": 1}
    assert "2 times in platform.project, by worker-1, worker-2" in verdict.problems()[0]


def test_two_events_of_one_key_take_effect_once() -> None:
    ledger = published(EVENT, key="order-1")
    ledger.attempt(OTHER, "order-1", event_type=TYPE, target="platform", generation=1).ok()
    rows = row(EVENT, key="order-1"), row(OTHER, key="order-1")
    once = replace(delivered(EVENT), rows=rows, effects=(effect(EVENT, key="order-1"),), handled=frozenset())
    assert judge(ledger.entries(), once).clean
    twice = replace(once, effects=(*once.effects, effect(OTHER, key="order-1")))
    assert faults(judge(ledger.entries(), twice)) == {"duplicated": 1}


def test_repeated_external_effects_are_counted_and_allowed() -> None:
    evidence = replace(delivered(EVENT), effects=(effect(EVENT, external=True),) * 3)
    verdict = judge(published(EVENT).entries(), evidence)
    assert (verdict.clean, verdict.external_duplicates) == (True, 2)


# stuck, false dead letters


@pytest.mark.parametrize("status", ["pending", "in_flight"])
def test_a_row_that_is_not_at_its_end_is_stuck_whoever_published_it(status: str) -> None:
    evidence = Evidence(
        rows=(row(EVENT, status=status, delivered_at=None, last_error="TimeoutError: slow"),),
        subscriptions=(SUBSCRIPTION,),
    )
    verdict = judge(published(EVENT).entries(), evidence)
    assert verdict.problems() == [f"stuck: row {EVENT} of {TYPE} is still {status} (TimeoutError: slow)"]
    assert faults(judge({}, evidence)) == {"stuck": 1}


def test_a_broadcast_that_was_never_split_is_stuck_and_not_lost() -> None:
    evidence = Evidence(
        rows=(row(EVENT, target=None, status="pending", delivered_at=None),), subscriptions=(SUBSCRIPTION,)
    )
    assert faults(judge(published(EVENT, target=None).entries(), evidence)) == {"stuck": 1}


def failed(event_id: UUID) -> Evidence:
    return replace(delivered(event_id), rows=(row(event_id, status="failed", delivered_at=None, last_error="E: x"),))


def test_a_dead_letter_that_every_handler_took_effect_for_is_false() -> None:
    verdict = judge(published(EVENT).entries(), failed(EVENT))
    assert faults(verdict) == {"false_dead_letters": 1}
    by_record = replace(failed(EVENT), effects=())
    assert faults(judge(published(EVENT).entries(), by_record)) == {"false_dead_letters": 1}


def test_a_dead_letter_that_one_handler_failed_for_is_true() -> None:
    second = SUBSCRIPTION._replace(handler_name="platform.index")
    evidence = replace(failed(EVENT), subscriptions=(SUBSCRIPTION, second))
    assert judge(published(EVENT).entries(), evidence).clean


def test_a_dead_letter_that_nobody_was_subscribed_to_is_true() -> None:
    evidence = replace(failed(EVENT), subscriptions=(), effects=(), handled=frozenset())
    assert judge(published(EVENT).entries(), evidence).clean


def test_an_external_effect_alone_does_not_make_a_dead_letter_false() -> None:
    evidence = replace(failed(EVENT), effects=(effect(EVENT, external=True),), handled=frozenset())
    assert judge(published(EVENT).entries(), evidence).clean


# wrong context, wrong generation


def test_an_effect_by_a_context_the_event_was_not_for_is_wrong() -> None:
    stray = effect(EVENT, handler="worlds.index", context="worlds")
    verdict = judge(published(EVENT).entries(), replace(delivered(EVENT), effects=(effect(EVENT), stray)))
    assert verdict.problems() == [
        f"wrong_context: event {EVENT} was for platform, but took effect in worlds.index",
    ]


def test_an_effect_by_a_worker_of_another_generation_is_wrong_unless_it_accepts_that_generation() -> None:
    evidence = replace(delivered(EVENT), effects=(effect(EVENT, generation=2),))
    verdict = judge(published(EVENT).entries(), evidence)
    assert faults(verdict) == {"wrong_generation": 1}
    assert "by worker-1 of generation 2" in verdict.problems()[0]
    assert judge(published(EVENT).entries(), evidence, accept={2: {1}}).clean
    assert faults(judge(published(EVENT).entries(), evidence, accept={3: {1}})) == {"wrong_generation": 1}


def replayed(event_id: UUID, *effects: Effect) -> Evidence:
    """An event of generation 1 that failed, and was replayed into generation 2 at noon."""
    return Evidence(
        rows=(row(event_id, generation=2, cycles=1, delivered_at=LATER),),
        effects=effects,
        subscriptions=(SUBSCRIPTION, SUBSCRIPTION._replace(generation=2)),
        moves=(Move(event_id, NOON, 2),),
    )


def test_a_replayed_event_belongs_to_the_generation_it_was_of_at_the_time() -> None:
    before, after = NOON - timedelta(seconds=1), NOON + timedelta(seconds=1)
    ledger = published(EVENT)

    def verdict(generation: int, recorded_at: datetime, *, external: bool = False) -> Verdict:
        of = effect(EVENT, generation=generation, recorded_at=recorded_at, external=external)
        return judge(ledger.entries(), replayed(EVENT, of))

    assert verdict(2, after).clean
    assert verdict(2, after).replayed == 1
    assert verdict(1, before).clean
    assert faults(verdict(1, after)) == {"wrong_generation": 1}
    assert faults(verdict(2, before)) == {"wrong_generation": 1}
    assert verdict(1, after, external=True).clean
    assert faults(verdict(3, after, external=True)) == {"wrong_generation": 1}


def test_a_replayed_event_is_owed_to_the_handlers_of_its_new_generation() -> None:
    renamed = SUBSCRIPTION._replace(generation=2, handler_name="platform.renamed")
    evidence = replace(
        replayed(EVENT, effect(EVENT, recorded_at=NOON - timedelta(seconds=1))), subscriptions=(SUBSCRIPTION, renamed)
    )
    verdict = judge(published(EVENT).entries(), evidence)
    assert verdict.problems() == [f"lost: event {EVENT} is delivered, but platform.renamed did not handle it"]


def test_a_replayed_event_of_unknown_origin_may_have_been_of_any_generation_before() -> None:
    ledger = Ledger()
    ledger.attempt(EVENT).ok()
    assert judge(ledger.entries(), replayed(EVENT, effect(EVENT, recorded_at=NOON - timedelta(seconds=1)))).clean


def test_an_event_that_was_handed_over_and_swept_belongs_to_where_it_went() -> None:
    renamed = SUBSCRIPTION._replace(generation=2, handler_name="platform.renamed")
    moved = replace(replayed(EVENT), rows=(), subscriptions=(SUBSCRIPTION, renamed))
    after = effect(EVENT, generation=2, handler="platform.renamed", recorded_at=LATER)
    assert judge(published(EVENT).entries(), replace(moved, effects=(after,))).clean
    stayed = after._replace(generation=1)
    assert faults(judge(published(EVENT).entries(), replace(moved, effects=(stayed,)))) == {"wrong_generation": 1}
    nobody = judge(published(EVENT).entries(), moved)
    assert nobody.problems() == [f"lost: event {EVENT} is gone, but platform.renamed did not handle it"]


def test_a_broadcast_that_was_handed_over_is_owed_to_those_who_subscribe_where_it_was_split() -> None:
    """Whether its rows are still there or not; a share may have been handed over once more."""
    worlds = Subscribed(2, "worlds", TYPE, "worlds.index")
    child = child_id(EVENT, "worlds")
    parent = row(EVENT, target=None, generation=2)
    share = row(child, event_id=EVENT, key=str(EVENT), target="worlds", generation=2)
    took = effect(EVENT, generation=2, handler="worlds.index", context="worlds", recorded_at=LATER)
    ledger = published(EVENT, target=None)
    split = Evidence(subscriptions=(SUBSCRIPTION, worlds), moves=(Move(EVENT, NOON, 2),), effects=(took,))
    for rows in ((parent, share), ()):
        assert judge(ledger.entries(), replace(split, rows=rows)).clean
        stayed = replace(split, rows=rows, effects=(took._replace(generation=1),))
        assert faults(judge(ledger.entries(), stayed)) == {"wrong_generation": 1}
    again = (Move(EVENT, NOON, 2), Move(child, NOON, 3))
    subscriptions = (*split.subscriptions, worlds._replace(generation=3))
    before = effect(
        EVENT, generation=2, handler="worlds.count", context="worlds", recorded_at=NOON - timedelta(seconds=1)
    )
    effects = (before, took._replace(generation=3))
    went_on = replace(split, moves=again, subscriptions=subscriptions, effects=effects)
    for rows in ((parent, share._replace(generation=3)), ()):
        assert judge(ledger.entries(), replace(went_on, rows=rows)).clean
