"""Cards: what is said of a world model in public."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How the world model did in one benchmark."""

    benchmark: str
    score: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CardDraft:
    """A card as its author hands it in; publishing it gives it a revision and a time."""

    title: str
    summary: str
    capabilities: tuple[str, ...] = ()
    limitations: tuple[str, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
