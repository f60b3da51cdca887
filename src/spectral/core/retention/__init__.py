"""How long things are kept, and the sweep that puts them away and deletes them.

    policies   POLICY_REGISTRY, or your own: registry_of, policies_from
    sweep      do it, once            last_sweep   who does, and how the last one ended
    overdue    judge that             due_in       when the next one is due

Read in this order: `policy`, `settings`, `report`, `state`, `lateness`, `sweep`.
"""

from spectral.core.retention.lateness import OVERDUE_AFTER, Lateness, due_in, in_words, overdue
from spectral.core.retention.policy import (
    EVERY_CLASS,
    POLICY_REGISTRY,
    Registry,
    RetentionPolicy,
    Subject,
    checked_registry,
    keep_of,
    policy_for,
    registry_of,
)
from spectral.core.retention.report import Ended, OnProgress, Sweeping, SweepProgress, SweepReport, Swept
from spectral.core.retention.settings import LEASE, VARIABLES, SweepOptions, policies_from
from spectral.core.retention.state import LastSweep, SweepState, last_sweep
from spectral.core.retention.sweep import sweep

__all__ = [
    "EVERY_CLASS",
    "LEASE",
    "OVERDUE_AFTER",
    "POLICY_REGISTRY",
    "VARIABLES",
    "Ended",
    "LastSweep",
    "Lateness",
    "OnProgress",
    "Registry",
    "RetentionPolicy",
    "Subject",
    "SweepOptions",
    "SweepProgress",
    "SweepReport",
    "SweepState",
    "Sweeping",
    "Swept",
    "checked_registry",
    "due_in",
    "in_words",
    "keep_of",
    "last_sweep",
    "overdue",
    "policies_from",
    "policy_for",
    "registry_of",
    "sweep",
]
