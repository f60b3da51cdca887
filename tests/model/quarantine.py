"""A row that kills every process that runs it, its neighbours, and processes that are started anew each time.

A process that dies takes every row it holds back to pending, charged, or to the DLQ when its attempts are used up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.model.search import System

PILL = 0
LOSSES_BEFORE_QUARANTINE = 2


class Row(NamedTuple):
    status: Literal["pending", "in_flight", "delivered", "failed"] = "pending"
    attempts: int = 0


class Scene(NamedTuple):
    rows: tuple[Row, ...]
    held: tuple[frozenset[int], ...]  # by process


@dataclass(frozen=True, slots=True)
class Quarantine:
    """Whether a row that was lost too often is claimed only by a process that holds nothing, and then alone."""

    max_attempts: int
    rows: int = 3
    processes: int = 2
    quarantine: bool = True

    def system(self) -> System[Scene]:
        start = Scene((Row(),) * self.rows, (frozenset(),) * self.processes)
        return System(start, self.steps, self.broken, self.done)

    def steps(self, scene: Scene) -> Iterator[tuple[str, Scene]]:
        for process, held in enumerate(scene.held):
            alone = any(self._is_dangerous(scene.rows[row].attempts - 1) for row in held)
            for number, row in enumerate(scene.rows):
                refused = self.quarantine and (alone or (held and self._is_dangerous(row.attempts)))
                if row.status == "pending" and not refused:
                    taken = row._replace(status="in_flight", attempts=row.attempts + 1)
                    yield f"{process} claims {number}", _changed(scene, process, held | {number}, {number: taken})
            for number in held:
                if number == PILL:
                    lost = {each: self._lost(scene.rows[each]) for each in held}
                    yield f"{process} runs the pill", _changed(scene, process, frozenset(), lost)
                else:
                    done = scene.rows[number]._replace(status="delivered")
                    yield f"{process} delivers {number}", _changed(scene, process, held - {number}, {number: done})

    def _is_dangerous(self, losses: int) -> bool:
        return losses >= LOSSES_BEFORE_QUARANTINE or (losses > 0 and losses + 1 >= self.max_attempts)

    def _lost(self, row: Row) -> Row:
        # The first loss never sends a row to the DLQ.
        return row._replace(status="failed" if row.attempts >= max(2, self.max_attempts) else "pending")

    def broken(self, _before: Scene, _step: str, after: Scene) -> str | None:
        failed = [number for number, row in enumerate(after.rows) if row.status == "failed" and number != PILL]
        return f"row {failed[0]} failed for what its neighbour did" if failed else None

    def done(self, scene: Scene) -> bool:
        return scene.rows[PILL].status == "failed" and all(row.status == "delivered" for row in scene.rows[PILL + 1 :])


def _changed(scene: Scene, process: int, held: frozenset[int], rows: dict[int, Row]) -> Scene:
    return Scene(
        tuple(rows.get(number, row) for number, row in enumerate(scene.rows)),
        (*scene.held[:process], held, *scene.held[process + 1 :]),
    )
