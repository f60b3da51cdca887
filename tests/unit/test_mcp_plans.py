"""Plans of the agent tools: a token is good once, for a while, for what was planned and nothing else."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from spectral.core.database import RefusedError
from spectral_ops.mcp.plans import Action, Plan, PlanBook, PlannedEvent


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def book(clock: Clock) -> PlanBook:
    return PlanBook(clock=clock)


def a_plan(*ids: UUID, action: Action = Action.REPLAY) -> Plan:
    return Plan(action, tuple(PlannedEvent(each, "1") for each in (ids or (uuid4(),))), to_generation=1)


def test_a_token_gives_its_plan_once(book: PlanBook) -> None:
    plan = a_plan()
    token = book.keep(plan)
    assert book.read(token, Action.REPLAY) == plan
    assert book.spend(token, Action.REPLAY) == plan
    with pytest.raises(RefusedError, match="used already") as refused:
        book.spend(token, Action.REPLAY)
    assert refused.value.remedy == "plan_replay(...), then use the token that it answers"


def test_every_plan_has_a_token_of_its_own(book: PlanBook) -> None:
    plan = a_plan()
    first, second = book.keep(plan), book.keep(plan)
    assert first != second
    book.spend(first, Action.REPLAY)
    assert book.spend(second, Action.REPLAY) == plan


def test_a_plan_expires(book: PlanBook, clock: Clock) -> None:
    plan = a_plan()
    token = book.keep(plan)
    clock.now += timedelta(minutes=15).total_seconds() - 1
    assert book.read(token, Action.REPLAY) == plan
    clock.now += 1
    with pytest.raises(RefusedError, match="older than 15 minutes"):
        book.spend(token, Action.REPLAY)


def test_a_token_of_one_plan_does_not_open_another(book: PlanBook) -> None:
    (name, _), (_, code) = (book.keep(a_plan()).split(".") for _ in range(2))
    with pytest.raises(RefusedError, match="no plan with this token"):
        book.spend(f"{name}.{code}", Action.REPLAY)


@pytest.mark.parametrize("forged", ["", ".", "guess", "guess.guess", "\N{SNOWMAN}.\N{SNOWMAN}"])
def test_a_forged_token_opens_nothing(book: PlanBook, forged: str) -> None:
    book.keep(a_plan())
    with pytest.raises(RefusedError, match="no plan with this token"):
        book.spend(forged, Action.REPLAY)


def test_a_token_cut_off_after_its_name_opens_nothing_and_spends_nothing(book: PlanBook) -> None:
    plan = a_plan()
    token = book.keep(plan)
    with pytest.raises(RefusedError, match="no plan with this token"):
        book.spend(token.partition(".")[0], Action.REPLAY)
    assert book.spend(token, Action.REPLAY) == plan


def test_a_token_of_another_process_opens_nothing(book: PlanBook) -> None:
    with pytest.raises(RefusedError, match="no plan with this token"):
        book.spend(PlanBook().keep(a_plan()), Action.REPLAY)


def test_a_plan_to_replay_is_no_plan_to_discard(book: PlanBook) -> None:
    plan = a_plan()
    token = book.keep(plan)
    with pytest.raises(RefusedError, match="a plan to replay, not to discard") as refused:
        book.spend(token, Action.DISCARD)
    assert refused.value.remedy is not None
    assert refused.value.remedy.startswith("plan_discard")
    assert book.spend(token, Action.REPLAY) == plan


def test_the_code_is_made_of_the_events_their_state_the_action_and_the_generation(book: PlanBook) -> None:
    event_id = uuid4()
    events = (PlannedEvent(event_id, "1"),)
    plans = [
        Plan(Action.REPLAY, events, 1),
        Plan(Action.REPLAY, events, 2),
        Plan(Action.DISCARD, events, 1),
        Plan(Action.REPLAY, (PlannedEvent(event_id, "2"),), 1),
        Plan(Action.REPLAY, (PlannedEvent(uuid4(), "1"),), 1),
    ]
    assert len({book._code("name", plan) for plan in plans}) == len(plans)


def test_a_plan_can_be_narrowed_to_one_of_its_events(book: PlanBook) -> None:
    one, other = uuid4(), uuid4()
    plan = book.read(book.keep(a_plan(one, other)), Action.REPLAY)
    assert [each.event_id for each in plan.only(other).events] == [other]
    with pytest.raises(RefusedError, match="not part of this plan"):
        plan.only(uuid4())


def test_only_the_latest_hundred_plans_are_kept(book: PlanBook) -> None:
    plan = a_plan()
    tokens = [book.keep(plan) for _ in range(101)]
    with pytest.raises(RefusedError, match="no plan with this token"):
        book.read(tokens[0], Action.REPLAY)
    assert book.read(tokens[1], Action.REPLAY) == plan
