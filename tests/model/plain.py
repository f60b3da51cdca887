"""Plain handlers: no transaction to run in, so the key and the ack are written together after the handler has run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from tests.model.search import System

MAX_ATTEMPTS = 3

Phase: TypeAlias = Literal["idle", "claimed", "ran"]


class Scene(NamedTuple):
    status: Literal["pending", "in_flight", "delivered", "failed"] = "pending"
    attempts: int = 0
    holder: int | None = None  # whose claim stands
    key: bool = False  # whether the key is on record
    effects: int = 0
    at: tuple[Phase, ...] = ("idle", "idle")  # what each worker does


@dataclass(frozen=True, slots=True)
class Plain:
    """One row and two workers; a claim may be taken back at any time, for nothing is locked while the handler runs."""

    fenced: bool = True
    key_after_handler: bool = True

    def system(self) -> System[Scene]:
        return System(Scene(), self.steps, self.broken, lambda scene: scene.status in ("delivered", "failed"))

    def steps(self, scene: Scene) -> Iterator[tuple[str, Scene]]:
        for me, at in enumerate(scene.at):
            if at == "idle" and scene.status == "pending":
                claimed = scene._replace(status="in_flight", attempts=scene.attempts + 1, holder=me)
                yield f"{me} claims", _at(claimed, me, "claimed")
            if at == "claimed":
                if scene.key:
                    yield f"{me} finds the key", _at(scene, me, "ran")
                elif self.key_after_handler:
                    yield f"{me} runs", _at(scene._replace(effects=scene.effects + 1), me, "ran")
                else:
                    yield f"{me} writes the key", scene._replace(key=True)
            if at == "ran":
                yield f"{me} settles", _at(self._settled(scene, me), me, "idle")
            if at != "idle":
                yield f"{me} dies", _at(scene, me, "idle")
        if scene.status == "in_flight":
            exhausted = scene.attempts >= MAX_ATTEMPTS
            yield "reap", scene._replace(status="failed" if exhausted else "pending", holder=None)

    def _settled(self, scene: Scene, me: int) -> Scene:
        if self.fenced and scene.holder != me:
            return scene
        return scene._replace(status="delivered", key=True, holder=None)

    def broken(self, before: Scene, step: str, after: Scene) -> str | None:
        if before.status in ("delivered", "failed") and after.status != before.status:
            return f"was {before.status} and is {after.status} ({step})"
        if after.status == "delivered" and not after.effects:
            return "delivered without an effect"
        if before.key and after.effects > before.effects:
            return "ran although its key was on record"
        return None


def _at(scene: Scene, me: int, at: Phase) -> Scene:
    return scene._replace(at=(*scene.at[:me], at, *scene.at[me + 1 :]))
