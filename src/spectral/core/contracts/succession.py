"""Types that are to go and types that follow them: does each know of the other?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spectral.core.contracts.contract import family_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import date

    from spectral.core.contracts.contract import Contracts, EventContract


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a contract; `fails` is false where it is only to be known."""

    event_type: str
    module: str
    what: str
    remedy: str
    fails: bool = True


def check_succession(contracts: Contracts, *, today: date) -> list[Finding]:
    """What is wrong with deprecations and successors."""
    return [finding for contract in contracts.values() for finding in _check(contract, contracts, today)]


def _check(contract: EventContract, contracts: Contracts, today: date) -> Iterator[Finding]:
    event_type, module, going = contract.event_type, contract.module, contract.deprecation
    family, number = family_of(event_type)
    later = [name for name in contracts if family_of(name)[0] == family and family_of(name)[1] > number]
    if later and going is None:
        remedy = f'write DEPRECATION = Deprecation(deadline=..., replaced_by="{later[0]}", reason=...) into {module}'
        yield Finding(event_type, module, f"is succeeded by {later[0]} and has no deadline", remedy)
    if going is None:
        return
    if going.replaced_by is not None and going.replaced_by not in contracts:
        what = f"is replaced by {going.replaced_by}, which has no contract"
        yield Finding(event_type, module, what, "write its module, or name the package it is in: --package ...")
    if going.deadline < today:
        what = f"should be gone: its deadline was {going.deadline.isoformat()}"
        yield Finding(event_type, module, what, f"stop publishing it and remove {module}", fails=False)
