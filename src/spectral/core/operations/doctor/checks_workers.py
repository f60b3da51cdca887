"""What is on record of the workers that run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from spectral.core.operations import verdict_words as words
from spectral.core.operations.verdict_values import Finding, Level
from spectral.core.operations.verdict_words import several

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spectral.core.operations.doctor.facts import Facts
    from spectral.core.operations.verdict_values import Limits


def find_missing_subscriptions(facts: Facts, _: Limits) -> Iterator[Finding]:
    """Contexts whose handlers run and are on no record: broadcasts are split by the record.

    Of the workers' own generation only: of one that they drain, a context that is new may have had none.
    """
    snapshot = facts.snapshot
    if snapshot is None:
        return
    retired = {each.generation for each in snapshot.deployments if each.status == "retired"}
    silent = Counter(
        (worker.generation, context)
        for worker in snapshot.living
        if worker.subscribes and worker.generation not in retired
        for context in worker.unsubscribed
    )
    for (generation, context), workers in sorted(silent.items()):
        yield Finding(
            "subscriptions",
            Level.UNHEALTHY,
            f"{context} has no subscription in generation {generation},"
            f" though {several(workers, 'worker is', 'workers are')} alive for it",
            "Broadcasts are split by what is on record: this context gets its share of none, and nobody is told. A"
            " worker records its handlers when it starts",
            words.start_worker(generation),
        )
