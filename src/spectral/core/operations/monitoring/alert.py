"""An alert, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import timedelta


class Severity(StrEnum):
    """What it asks for: somebody now, somebody today, or a plan."""

    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


class Group(StrEnum):
    """Rules that are evaluated together."""

    DELIVERY = "spectral-delivery"
    WORKERS = "spectral-workers"
    DATABASE = "spectral-database"
    GROWTH = "spectral-growth"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One rule.

    expr: PromQL; whatever it finds for as long as `for_` fires. summary, description: with Prometheus's templates.
    runbook: the section of the runbook that goes on from here, as the anchor of a link.
    """

    name: str
    group: Group
    expr: str
    for_: timedelta
    severity: Severity
    summary: str
    description: str
    runbook: str
