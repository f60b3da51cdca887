"""What is wrong with the relay, judged from one look: pure functions, as in `verdict_rules`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spectral.core.operations import growth
from spectral.core.operations import verdict_words as words
from spectral.core.operations.verdict_values import Finding, Level
from spectral.core.operations.verdict_words import spoken

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spectral.core.operations.insights_values import Snapshot
    from spectral.core.operations.verdict_values import Limits


def find_missing_relay(snapshot: Snapshot, _: Limits) -> Iterator[Finding]:
    """Workers wait for a broker to which nobody sends."""
    if snapshot.relaying is not None and growth.lacks_a_relay(snapshot):
        mode = snapshot.relaying.mode
        yield Finding(
            "relay_missing",
            Level.ATTENTION,
            f"Workers take events from {mode}, and no relay is alive that sends them there",
            "Workers find events by themselves, half a minute late; without a broker they are prompt again:"
            " spectral relay switch postgres",
            words.start_relay(mode),
        )


def find_relay_lag(snapshot: Snapshot, limits: Limits) -> Iterator[Finding]:
    """A relay is there and does not keep up, or its broker takes no more."""
    if snapshot.relaying is not None and growth.relay_lags(snapshot, limits):
        yield Finding(
            "relay_lag",
            Level.ATTENTION,
            f"Events wait to be sent to {snapshot.relaying.mode}, the oldest for {spoken(growth.relay_lag(snapshot))}",
            "The broker is away, full or slow, or workers do not keep up; they look for themselves after half a minute",
            words.RELAY_STATUS,
        )
