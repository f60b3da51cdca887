"""The protocol holds in every state a small system can reach, and each of its rules is needed for that."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.model.delivery import Protocol
from tests.model.search import explore
from tests.model.waking import Waking

ONE_ROW = Protocol(keys=("a",), max_attempts=3)
TWO_ROWS_ONE_KEY = Protocol(keys=("a", "a"))
TWO_KEYS = Protocol(keys=("a", "b"))
POISON = Protocol(keys=("a", "b"), poisoned=frozenset({0}))


@pytest.mark.parametrize("protocol", [ONE_ROW, TWO_ROWS_ONE_KEY, TWO_KEYS, POISON], ids=lambda p: "-".join(p.keys))
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
    ],
    ids=["no fence", "gate after the handler", "attempts not counted at the claim", "reaper ignores locks"],
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
