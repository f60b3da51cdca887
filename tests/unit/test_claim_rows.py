"""What a claim answers, as its worker reads it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from spectral.core.events.infrastructure.postgres.claim_rows import claim_answer

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
TOKEN = uuid4()


def first() -> tuple[Any, ...]:
    """The row that is about the claim."""
    return (None, TOKEN, *[None] * 3, NOW, *[None] * 14)


def claimed(row_id: UUID, due_at: datetime) -> tuple[Any, ...]:
    names = ("worlds.scan.completed", 1, NOW, "worlds", None, "{}", str(row_id), None, "event", "outbox_gen_1")
    return (row_id, None, None, *names, 1, 1, due_at, 0.5, False, 0, [])


def test_what_is_due_first_comes_first_in_whatever_order_it_is_answered() -> None:
    rows = [claimed(UUID(int=number), NOW + timedelta(seconds=number)) for number in range(50)]
    answered = rows[::2][::-1] + rows[1::2]
    answer = claim_answer("platform", [first(), *answered])
    assert [each.lease.row_id.int for each in answer.deliveries] == list(range(50))
    assert {each.lease.token for each in answer.deliveries} == {TOKEN}


def test_what_is_due_at_the_same_time_stays_as_it_was_answered() -> None:
    rows = [claimed(UUID(int=number), NOW) for number in (3, 1, 2)]
    answer = claim_answer("platform", [first(), *rows])
    assert [each.lease.row_id.int for each in answer.deliveries] == [3, 1, 2]
