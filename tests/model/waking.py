"""How a worker gets to know of a row: LISTEN, drain, wait. Without a safety poll, so that only the order counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from tests.model.search import System

ROWS = 2


class Scene(NamedTuple):
    committed: int = 0  # rows published so far
    delivered: int = 0
    listening: bool = False
    heard: bool = False  # a notification waits to be read
    at: Literal["start", "between", "waiting", "draining"] = "start"


@dataclass(frozen=True, slots=True)
class Waking:
    """A worker that listens before it drains, or the other way round, on a connection that may be lost at any time."""

    listen_first: bool = True
    connection_may_be_lost: bool = True

    def system(self) -> System[Scene]:
        return System(Scene(), self.steps, lambda *_: None, lambda scene: scene.delivered == ROWS)

    def steps(self, scene: Scene) -> Iterator[tuple[str, Scene]]:
        if scene.committed < ROWS:
            heard = scene.heard or scene.listening
            yield "publish commits", scene._replace(committed=scene.committed + 1, heard=heard)
        match scene.at:
            case "start" | "between":
                listens = (scene.at == "start") == self.listen_first
                following: Literal["between", "waiting"] = "between" if scene.at == "start" else "waiting"
                if listens:
                    yield "worker listens", scene._replace(listening=True, at=following)
                else:
                    yield "worker drains", scene._replace(delivered=scene.committed, at=following)
            case "waiting":
                if scene.heard:
                    yield "worker wakes", scene._replace(heard=False, at="draining")
            case "draining":
                yield "worker drains", scene._replace(delivered=scene.committed, at="waiting")
        if self.connection_may_be_lost and scene.at != "start":
            yield "connection is lost", scene._replace(listening=False, heard=False, at="start")
