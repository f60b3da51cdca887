"""Scans: what was found in a world model, and the terms it is found again by."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class Severity(StrEnum):
    """How bad a finding is."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a scan found."""

    term: str
    severity: Severity


def index_terms(findings: Iterable[Finding]) -> Mapping[str, int]:
    """How often each term occurs, however it was written."""
    return Counter(finding.term.strip().casefold() for finding in findings)
