"""What the tour did, and what must be nothing."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Final

MUST_BE_NOTHING: Final = {
    "lost": "published, but neither handled nor in the DLQ",
    "phantom": "handled, but never published",
    "ghost": "handled, though it was rolled back",
    "duplicated": "took effect twice in the database",
    "stuck": "neither delivered nor in the DLQ in the end",
    "false_dead_letters": "in the DLQ, though it was handled",
    "wrong_generation": "handled by another release",
    "wrong_context": "handled by a context it was not for",
    "left_in_dlq": "failed again after the replay",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """The oracle's numbers and what the tour saw beside them; `problems` are the oracle's findings in words.

    decided: rows of the business, each in one transaction with its event.
    scans, projected: the scans among them, and the projections that a handler made of them.
    """

    published: int
    rolled_back: int
    broadcasts: int
    delivered: int
    handled: int
    handled_by_generation: dict[int, int]
    taken_over: int
    dead_lettered: int
    replayed: int
    external_duplicates: int
    decided: int
    scans: int
    projected: int
    lost: int
    phantom: int
    ghost: int
    duplicated: int
    stuck: int
    false_dead_letters: int
    wrong_generation: int
    wrong_context: int
    left_in_dlq: int
    seconds: float
    problems: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Nothing happened that must not, the business comes out even, and the tour has shown what it promises."""
        return not any(getattr(self, name) for name in MUST_BE_NOTHING) and self._is_even() and self._is_shown()

    def _is_even(self) -> bool:
        # A broadcast is published once and delivered to both contexts.
        shares = self.published + self.broadcasts
        return self.decided == self.published and shares == self.delivered == self.handled and self._is_projected()

    def _is_projected(self) -> bool:
        return self.scans == self.projected

    def _is_shown(self) -> bool:
        replayed_all = self.dead_lettered == self.replayed > 0
        return replayed_all and min(self.rolled_back, self.broadcasts, self.taken_over) > 0 and self._both_generations()

    def _both_generations(self) -> bool:
        return len(self.handled_by_generation) > 1

    def as_dict(self) -> dict[str, object]:
        """`spectral demo --json`. Keys are only ever added."""
        return {"clean": self.clean, **asdict(self)}
