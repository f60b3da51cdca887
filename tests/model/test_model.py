"""The protocol holds in every state a small system can reach, and each of its rules is needed for that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.delivery import Protocol
from tests.model.plain import Plain
from tests.model.quarantine import Quarantine
from tests.model.search import explore
from tests.model.waking import Waking

ONE_ROW = Protocol(keys=("a",), max_attempts=3)
TWO_ROWS_ONE_KEY = Protocol(keys=("a", "a"))
TWO_KEYS = Protocol(keys=("a", "b"))
POISON = Protocol(keys=("a", "b"), poisoned=frozenset({0}))
COMMITS_ITSELF = Protocol(keys=("a", "a"), handler_commits=True)
TOGETHER = Protocol(keys=("a", "a"), key_at_the_end=True)


@pytest.mark.parametrize("protocol", [ONE_ROW, TWO_ROWS_ONE_KEY, TWO_KEYS, POISON, COMMITS_ITSELF, TOGETHER])
def test_the_protocol_holds_in_every_reachable_state(protocol: Protocol) -> None:
    result = explore(protocol.system())
    assert result.violation is None, str(result.violation)
    assert result.states > 100  # it did look


@pytest.mark.parametrize(
    ("protocol", "what"),
    [
        (replace(ONE_ROW, fenced=False), "no longer held it|was delivered and is"),
        (replace(TWO_ROWS_ONE_KEY, gate_before_handler=False), "the effect of a happened 2 times"),
        (replace(POISON, count_at_claim=False), "row 0 ran 3 times"),
        (replace(ONE_ROW, reaper_respects_locks=False), "no longer held it|was delivered and is"),
        (replace(COMMITS_ITSELF, guarded=False), "no handler came to its end|was handled and is failed"),
        (replace(TOGETHER, all_or_nothing=False), "the effect of a happened 2 times"),
        (replace(TOGETHER, fenced=False), "no longer held it|was delivered and is"),
    ],
    ids=[
        "no fence",
        "gate after the handler",
        "attempts not counted at the claim",
        "reaper ignores locks",
        "no guard against a handler's own commit",
        "a key that is taken is no obstacle to the settlement",
        "no fence for a group",
    ],
)
def test_each_rule_is_needed(protocol: Protocol, what: str) -> None:
    result = explore(protocol.system())
    assert result.violation is not None
    assert result.violation.steps
    assert any(part in str(result.violation) for part in what.split("|")), str(result.violation)


def test_listening_before_draining_misses_nothing() -> None:
    assert explore(Waking().system()).violation is None


def test_draining_before_listening_misses_what_commits_in_between() -> None:
    # A lost connection would make up for it by draining again, so this one is never lost.
    assert explore(Waking(connection_may_be_lost=False).system()).violation is None
    missed = explore(Waking(listen_first=False, connection_may_be_lost=False).system()).violation
    assert missed is not None
    first_drain = missed.steps.index("worker drains")
    assert "publish commits" in missed.steps[first_drain:]


def test_a_plain_handler_is_delivered_only_after_it_ran_and_never_runs_once_its_key_is_known() -> None:
    assert explore(Plain().system()).violation is None


@pytest.mark.parametrize(
    ("plain", "what"),
    [(Plain(fenced=False), "was failed and is delivered"), (Plain(key_after_handler=False), "without an effect")],
    ids=["no fence", "key before the handler"],
)
def test_each_rule_of_plain_handlers_is_needed(plain: Plain, what: str) -> None:
    violation = explore(plain.system()).violation
    assert violation is not None
    assert what in str(violation)


@pytest.mark.parametrize("max_attempts", [1, 2, 3, 4])
def test_a_poison_pill_takes_no_neighbour_along_into_the_dlq(max_attempts: int) -> None:
    result = explore(Quarantine(max_attempts).system())
    assert result.violation is None, str(result.violation)


@pytest.mark.parametrize("max_attempts", [1, 2, 3, 4])
def test_without_quarantine_it_does(max_attempts: int) -> None:
    violation = explore(Quarantine(max_attempts, quarantine=False).system()).violation
    assert violation is not None
    assert "for what its neighbour did" in str(violation)
