"""What a relay owes those who have no broker: a ring after the last send, and not too many before."""

from __future__ import annotations

import math

from spectral.core.events.relay.ringing import Ringing


def test_nothing_is_rung_before_something_was_sent() -> None:
    ringing = Ringing()
    assert ringing.due(0.0) == frozenset()
    assert ringing.due_in(0.0) == math.inf


def test_the_first_is_rung_at_once_and_the_next_after_a_quarter_of_a_second() -> None:
    ringing = Ringing()
    ringing.owe("outbox_gen_1")
    assert ringing.due_in(10.0) == 0.0
    ringing.rang(ringing.due(10.0), 10.0)
    ringing.owe("outbox_gen_1")
    ringing.owe("outbox_gen_2")
    assert ringing.due(10.1) == frozenset()
    assert math.isclose(ringing.due_in(10.1), 0.15)
    assert ringing.due(10.25) == {"outbox_gen_1", "outbox_gen_2"}


def test_what_is_sent_while_it_rings_is_rung_for_again() -> None:
    ringing = Ringing()
    ringing.owe("outbox_gen_1")
    rings = ringing.due(10.0)
    ringing.owe("outbox_gen_2")
    ringing.rang(rings, 10.0)
    assert ringing.due(11.0) == {"outbox_gen_2"}


def test_a_ring_that_failed_is_still_owed() -> None:
    ringing = Ringing()
    ringing.owe("outbox_gen_1")
    assert ringing.due(10.0) == ringing.due(10.1) == {"outbox_gen_1"}
