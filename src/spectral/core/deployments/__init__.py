"""Release generations: allocate, promote, drain, retire, hand over.

Every release has a number. Publishers stamp it on their events, and only workers of the same number run them; so two
releases may work side by side, and neither ever sees the other's events. The database keeps the numbers and enforces
their states (`core.deployment_*`, `core.outbox_hand_over`); here they are read, judged and moved.

Read in this order: `values`, `judging`, `reading`, `steps`, `handing_over`.
"""

from spectral.core.deployments.handing_over import hand_over, preview_hand_over
from spectral.core.deployments.judging import remarks, warnings
from spectral.core.deployments.reading import (
    find_deployment,
    list_blockers,
    list_deployments,
    list_subscriptions,
    live_generation,
    replay_target,
)
from spectral.core.deployments.steps import allocate, drain, promote, retire, rollback
from spectral.core.deployments.values import (
    COUNTED_AT_MOST,
    Allocation,
    Blocker,
    Count,
    Deployment,
    HandedOver,
    HandOver,
    HandOverPreview,
    Promotion,
    Release,
    Remark,
    Status,
    Waiting,
)
from spectral.core.events.consumer import Subscription

__all__ = [
    "COUNTED_AT_MOST",
    "Allocation",
    "Blocker",
    "Count",
    "Deployment",
    "HandOver",
    "HandOverPreview",
    "HandedOver",
    "Promotion",
    "Release",
    "Remark",
    "Status",
    "Subscription",
    "Waiting",
    "allocate",
    "drain",
    "find_deployment",
    "hand_over",
    "list_blockers",
    "list_deployments",
    "list_subscriptions",
    "live_generation",
    "preview_hand_over",
    "promote",
    "remarks",
    "replay_target",
    "retire",
    "rollback",
    "warnings",
]
