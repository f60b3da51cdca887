"""When a database outgrows what it runs on: the rules that the doctor words and the metrics count. Pure functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spectral.core.operations.insights_values import Holder, Snapshot
    from spectral.core.operations.verdict_values import Limits

_OUTBOX: Final = "core.outbox"


def reasons_to_partition(snapshot: Snapshot, limits: Limits) -> Iterator[str]:
    """What speaks for the first step of the growth plan, monthly partitions; nothing if it is too early."""
    outbox = snapshot.table(_OUTBOX)
    if outbox is not None and outbox.rows > limits.partition:
        yield f"core.outbox has {outbox.rows:,} rows (estimated), more than {limits.partition:,}"


def reasons_to_relay(snapshot: Snapshot, limits: Limits) -> Iterator[str]:
    """What speaks for the second step, a broker; how long acknowledgements took is another one, for whoever knows."""
    outbox = snapshot.table(_OUTBOX)
    if outbox is not None and outbox.rows > limits.relay:
        yield f"core.outbox has {outbox.rows:,} rows (estimated), more than {limits.relay:,}"
    if snapshot.notify_queue >= limits.queue_full:
        yield f"The NOTIFY queue is {snapshot.notify_queue:.0%} full"


def holds_up(holder: Holder, limits: Limits) -> bool:
    """Whether it has kept dead rows from vacuum for too long; by its age where its time cannot be seen."""
    return (holder.since is not None and holder.since >= limits.transaction) or holder.age >= limits.held
