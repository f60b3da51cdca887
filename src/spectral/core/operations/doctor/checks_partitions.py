"""The outbox in months: a conversion that was interrupted, months that are missing, rows that fit none."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spectral.core.operations import growth
from spectral.core.operations import verdict_words as words
from spectral.core.operations.verdict_values import Finding, Level
from spectral.core.operations.verdict_words import several, spoken

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spectral.core.operations.doctor.facts import Facts
    from spectral.core.operations.verdict_values import Limits


def find_half_done_partitions(facts: Facts, limits: Limits) -> Iterator[Finding]:
    """Somebody has begun to partition the outbox, and was interrupted or has not gone on."""
    layout = facts.snapshot.partitioning if facts.snapshot is not None else None
    if layout is None or not layout.unfinished:
        return
    left = layout.refuses_in
    yield Finding(
        "partitions_unfinished",
        Level.UNHEALTHY if left is not None and left <= limits.promise else Level.NOTICE,
        "Partitioning the outbox has begun and has not ended"
        + ("" if left is None else f"; if it does not go on, publishing fails in {spoken(left)}"),
        "It goes on where it stopped; spectral partitions disable takes it back",
        words.PARTITION,
    )


def find_missing_months(facts: Facts, limits: Limits) -> Iterator[Finding]:
    """The months to come have no partition: what is published then lands in the default one."""
    snapshot = facts.snapshot
    if snapshot is not None and snapshot.partitioning is not None and growth.lacks_months(snapshot, limits):
        ahead = snapshot.partitioning.ahead
        months = several(ahead, "month") if ahead else "No month"
        yield Finding(
            "partitions_ahead",
            Level.ATTENTION,
            f"{months} after this one {'has' if ahead <= 1 else 'have'} a partition",
            "What is published then lands in the default partition, from where it has to be moved",
            words.MAINTAIN,
        )


def find_stray_rows(facts: Facts, _: Limits) -> Iterator[Finding]:
    """The default partition is not empty."""
    layout = facts.snapshot.partitioning if facts.snapshot is not None else None
    if layout is not None and layout.default_rows:
        yield Finding(
            "default_partition",
            Level.ATTENTION,
            f"{several(layout.default_rows, 'row is', 'rows are')} in the default partition of core.outbox",
            "They are delivered like others, but no month can be made where they are, and none of them is dropped",
            words.MAINTAIN,
        )
