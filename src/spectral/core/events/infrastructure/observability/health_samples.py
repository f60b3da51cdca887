"""What is read about a worker or a relay, not told: how it is, and what the tools that watch it have missed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spectral.core.events import metrics
from spectral.core.events.broker_settings import NO_BROKER
from spectral.core.events.delivery.health import State
from spectral.core.events.metrics import Sample

if TYPE_CHECKING:
    from collections.abc import Mapping

    from spectral.core.events.delivery.health import Health
    from spectral.core.events.relay.health import RelayHealth


def health_samples(health: Health) -> list[Sample]:
    """How a worker is, as gauges."""
    return [
        Sample(metrics.WORKER_HELD, (), health.held),
        Sample(metrics.WORKER_RUNNING, (), health.running),
        *(Sample(metrics.WORKER_STATE, (state,), float(health.state is state)) for state in State),
        Sample(metrics.WORKER_GENERATION, (), health.generation),
        Sample(metrics.EAR_CONNECTED, (), float(health.listening)),
        Sample(metrics.EAR_DOWN_SECONDS, (), health.ear_down_seconds),
        Sample(metrics.LOOP_BLOCKED_SECONDS, (), health.loop_blocked_seconds),
        *_broker(health.takes_from != NO_BROKER or health.has_fallen_back, not health.has_fallen_back),
    ]


def relay_samples(health: RelayHealth) -> list[Sample]:
    """How a relay is, as gauges. While it has nothing to send it has no broker, and needs none."""
    return _broker(health.mode == health.broker, health.connected)


def _broker(is_needed: bool, answers: bool) -> list[Sample]:  # noqa: FBT001  what it says
    return [Sample(metrics.BROKER_CONNECTED, (), float(answers))] if is_needed else []


def trouble_samples(troubles: Mapping[str, tuple[int, int]]) -> list[Sample]:
    """What the tools that watch have missed: how many notes each has dropped, and on how many it failed."""
    return [
        Sample(metric, (tool,), counts[index])
        for index, metric in enumerate((metrics.PROBE_DROPPED, metrics.PROBE_FAILED))
        for tool, counts in troubles.items()
    ]
