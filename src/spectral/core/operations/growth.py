"""When a database outgrows what it runs on, and how far along the growth plan it is. Pure functions.

The doctor words what these say, the metrics count it: the two do not disagree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import timedelta

    from spectral.core.operations.insights_values import Holder, Snapshot
    from spectral.core.operations.verdict_values import Limits

_OUTBOX: Final = "core.outbox"
_DEDUP: Final = "core.event_handled"


def reasons_to_partition(snapshot: Snapshot, limits: Limits) -> Iterator[str]:
    """What speaks for the first step of the growth plan, monthly partitions; nothing if it is too early, or done."""
    if snapshot.partitioning is not None and snapshot.partitioning.enabled:
        return
    outbox = snapshot.table(_OUTBOX)
    if outbox is not None and outbox.rows > limits.partition:
        yield f"core.outbox has {outbox.rows:,} rows (estimated), more than {limits.partition:,}"


def reasons_to_relay(snapshot: Snapshot, limits: Limits) -> Iterator[str]:
    """What speaks for the second step, a broker; how long acknowledgements took is another one, for whoever knows."""
    if has_broker(snapshot):
        return
    outbox = snapshot.table(_OUTBOX)
    if outbox is not None and outbox.rows > limits.relay:
        yield f"core.outbox has {outbox.rows:,} rows (estimated), more than {limits.relay:,}"
    if snapshot.notify_queue >= limits.queue_full:
        yield f"The NOTIFY queue is {snapshot.notify_queue:.0%} full"


def has_broker(snapshot: Snapshot) -> bool:
    """Whether the second step is done: workers take from a broker."""
    return snapshot.relaying is not None and snapshot.relaying.is_on


def lacks_a_relay(snapshot: Snapshot) -> bool:
    """Whether workers wait for a broker that nobody sends to."""
    return snapshot.relaying is not None and snapshot.relaying.is_on and snapshot.relaying.relays == 0


def relay_lags(snapshot: Snapshot, limits: Limits) -> bool:
    """Whether events wait too long before a relay sends them. Where nobody sends, that is what is wrong, not this."""
    lag = None if snapshot.relaying is None or not snapshot.relaying.relays else relay_lag(snapshot)
    return lag is not None and lag >= limits.relay_lag


def relay_lag(snapshot: Snapshot) -> timedelta | None:
    """For how long the oldest event has been due that should have been sent; a brake is none of the relay's fault."""
    unsent = snapshot.relaying.unsent if snapshot.relaying is not None and snapshot.relaying.is_on else ()
    waits = (each.oldest for each in unsent if snapshot.brake_on(each.context) is None)
    return max((age for age in waits if age is not None), default=None)


def lacks_months(snapshot: Snapshot, limits: Limits) -> bool:
    """Whether the outbox is in months, and too few of those to come have their partition."""
    layout = snapshot.partitioning
    return layout is not None and layout.enabled and layout.ahead < limits.months


def is_partitioned(snapshot: Snapshot, table: str) -> bool:
    """Whether this table is one in name only: what is set for it is set for its partitions."""
    layout = snapshot.partitioning
    return layout is not None and ((table == _OUTBOX and layout.enabled) or (table == _DEDUP and layout.dedup))


def holds_up(holder: Holder, limits: Limits) -> bool:
    """Whether it has kept dead rows from vacuum for too long; by its age where its time cannot be seen."""
    return (holder.since is not None and holder.since >= limits.transaction) or holder.age >= limits.held
