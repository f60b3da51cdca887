"""What is said of a partition, by its time and by what is left in it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from spectral.core.database import RefusedError
from spectral.core.partitions import Keep, PartitionKind, Step, judging

NOW = datetime(2026, 11, 15, tzinfo=UTC)
OVER = NOW - timedelta(days=52)
KEEP = Keep()


def state(**changes: object) -> judging.State:
    facts: dict[str, object] = dict.fromkeys(
        ("partitioned", "dedup_partitioned", "prepared", "indexed", "bound", "reversible"), False
    )
    return judging.State(**{"now": NOW, "boundary": None, "bound_until": None, **facts, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("upper", "left", "keep", "words"),
    [
        (OVER, (0, 0), KEEP, "nothing in it is left to do"),
        (OVER + timedelta(seconds=1), (0, 0), KEEP, "its time is over on 2026-11-15"),
        (OVER, (1, 0), KEEP, "1 of its rows are pending or in flight"),
        (OVER, (0, 10_001), KEEP, "10,000+ of its rows are in the DLQ"),
        (OVER, (0, 0), Keep(grace=None), "kept for ever"),
        (None, (0, 0), KEEP, "the default partition stays"),
    ],
)
def test_a_partition_goes_when_its_time_is_over_and_nothing_is_left(
    upper: datetime | None, left: tuple[int, int], keep: Keep, words: str
) -> None:
    kind = PartitionKind.DEFAULT if upper is None else PartitionKind.MONTH
    may_go, because = judging.droppable(kind, upper, left, keep, NOW)
    assert words in because
    assert may_go == ("nothing in it" in because)


@pytest.mark.parametrize(
    ("last", "ahead"),
    [((2027, 3), 3), ((2027, 1), 1), ((2026, 12), 0), ((2026, 11), 0), ((2026, 2), 0), (None, 0)],
)
def test_months_ahead_are_those_after_the_current_one(last: tuple[int, int] | None, ahead: int) -> None:
    uppers = [None] if last is None else [None, datetime(*last, 1, tzinfo=UTC)]
    assert judging.months_ahead(uppers, NOW) == ahead


def test_the_next_step_is_the_first_that_is_not_behind_us() -> None:
    assert judging.next_step(state()) is Step.PREPARE
    assert judging.next_step(state(prepared=True, bound=True)) is Step.INDEX
    assert judging.steps_done(state(indexed=True)) == (Step.INDEX,)
    assert judging.next_step(state(prepared=True, indexed=True, bound=True, partitioned=True)) is None


def test_obstacles_are_named_and_a_way_back_is_not_made_up() -> None:
    judging.require_no_obstacles([])
    with pytest.raises(RefusedError, match=r"view public\.mine"):
        judging.require_no_obstacles(["view public.mine"])
    judging.require_reversible(state())
    judging.require_reversible(state(partitioned=True, reversible=True))
    with pytest.raises(RefusedError, match="no way back"):
        judging.require_reversible(state(partitioned=True))
