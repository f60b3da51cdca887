"""The bell: publishers stay silent while a worker is awake. Two publishers, two workers, and no safety poll.

A publisher locks (shared), looks for a lease, inserts and commits. A worker that has a lease polls; before it waits for
its ear it withdraws the lease, sees that nobody holds the lock, rings for the others and looks once more. One worker
may die at any time. In a newcomer's scene the second worker comes later, with a type that the first one does not have:
from then on the first takes no lease any more, but publishers may have trusted the last one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

from tests.model.search import System

Lease: TypeAlias = Literal["none", "stands", "expired"]
Silent: TypeAlias = bool | None  # not decided yet


class Publisher(NamedTuple):
    at: Literal["idle", "halfway", "open", "committed", "gone"] = "idle"
    locks: bool = False
    silent: Silent = None


class Worker(NamedTuple):
    at: Literal["absent", "waits", "awake", "first", "second", "looks", "dead"] = "waits"
    lease: Lease = "none"
    heard: bool = False


class Scene(NamedTuple):
    publishers: tuple[Publisher, ...] = (Publisher(), Publisher())
    workers: tuple[Worker, ...] = (Worker(), Worker())
    delivered: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Bell:
    """Each rule can be left out."""

    publisher_locks: bool = True
    lock_before_lease: bool = True
    withdraws: bool = True
    withdraw_before_quiet: bool = True
    waits_for_quiet: bool = True
    looks_once_more: bool = True
    rings_for_others: bool = True
    lease_expires: bool = True
    mends: bool = True
    mends_when_quiet: bool = True
    newcomer: bool = False

    def system(self) -> System[Scene]:
        workers = (Worker(), Worker("absent" if self.newcomer else "waits"))
        return System(Scene(workers=workers), self.steps, lambda *_: None, _is_done)

    def steps(self, scene: Scene) -> Iterator[tuple[str, Scene]]:
        for number, publisher in enumerate(scene.publishers):
            yield from self._publish(scene, number, publisher)
        for number, worker in enumerate(scene.workers):
            yield from self._work(scene, number, worker)
            yield from self._lapse(scene, number, worker)

    def _publish(self, scene: Scene, number: int, publisher: Publisher) -> Iterator[tuple[str, Scene]]:
        name = f"publisher {number}"
        match publisher.at:
            case "idle" | "halfway":
                first = publisher.at == "idle"
                following: Literal["halfway", "open"] = "halfway" if first else "open"
                if first == self.lock_before_lease:
                    told = publisher._replace(at=following, locks=self.publisher_locks)
                    yield f"{name} locks", _published(scene, number, told)
                else:
                    awake = any(worker.lease == "stands" for worker in scene.workers)
                    told = publisher._replace(at=following, silent=awake)
                    yield f"{name} sees a lease: {awake}", _published(scene, number, told)
            case "open":
                ended = _published(scene, number, Publisher("committed"))
                yield f"{name} commits", ended if publisher.silent else _ring(ended)
                yield f"{name} rolls back", _published(scene, number, Publisher("gone"))

    def _work(self, scene: Scene, number: int, worker: Worker) -> Iterator[tuple[str, Scene]]:
        name = f"worker {number}"
        match worker.at:
            case "absent":
                yield f"{name} comes and looks", _worked(self._drain(scene, number), number, Worker())
            case "waits":
                if worker.heard:
                    drained = self._drain(scene, number)
                    yield f"{name} wakes and looks", _worked(drained, number, worker._replace(heard=False))
                    if self._may_take_a_lease(scene):
                        busy = worker._replace(at="awake", lease="stands", heard=False)
                        yield f"{name} wakes, looks and takes a lease", _worked(drained, number, busy)
            case "awake":
                yield f"{name} polls", self._drain(scene, number)
                if worker.lease == "expired" and self._may_take_a_lease(scene):
                    yield f"{name} renews its lease", _worked(scene, number, worker._replace(lease="stands"))
                yield f"{name} falls asleep", _worked(scene, number, worker._replace(at="first"))
            case _:
                yield from self._fall_asleep(scene, number, worker)

    def _fall_asleep(self, scene: Scene, number: int, worker: Worker) -> Iterator[tuple[str, Scene]]:
        name = f"worker {number}"
        lease: Lease
        match worker.at:
            case "first" | "second":
                yield f"{name} polls", self._drain(scene, number)
                following: Literal["second", "looks"] = "second" if worker.at == "first" else "looks"
                if (worker.at == "first") == self.withdraw_before_quiet:
                    # The row stays, expired, until it is quiet: others see what was promised.
                    left: Lease = "expired" if worker.at == "first" else "none"
                    lease = left if self.withdraws and worker.lease != "none" else worker.lease
                    yield f"{name} withdraws its lease", _worked(scene, number, Worker(following, lease))
                elif _is_quiet(scene) or not self.waits_for_quiet:
                    lease = "none" if self.withdraws and worker.at == "second" else worker.lease
                    told = _ring(scene) if self.rings_for_others else scene
                    # Its own ear may be deaf just now.
                    yield f"{name} sees that it is quiet", _worked(told, number, Worker(following, lease))
            case "looks":
                looked = self._drain(scene, number) if self.looks_once_more else scene
                yield f"{name} looks and waits", _worked(looked, number, worker._replace(at="waits"))

    def _may_take_a_lease(self, scene: Scene) -> bool:
        """Only who has all types of the context."""
        return not self.newcomer or scene.workers[1].at == "absent"

    def _drain(self, scene: Scene, number: int) -> Scene:
        """What is committed, and of a type that the worker has."""
        mine = {1} if self.newcomer and number == 1 else {0} if self.newcomer else {0, 1}
        return scene._replace(delivered=scene.delivered | (_committed(scene) & mine))

    def _lapse(self, scene: Scene, number: int, worker: Worker) -> Iterator[tuple[str, Scene]]:
        name = f"worker {number}"
        if worker.lease == "stands" and self.lease_expires:
            yield f"the lease of {name} expires", _worked(scene, number, worker._replace(lease="expired"))
        # Somebody else finds an expired lease: whoever promised to look may be dead, so everybody has to.
        somebody = any(
            scene.workers[each].at not in {"dead", "absent"} for each in range(len(scene.workers)) if each != number
        )
        if worker.lease == "expired" and self.mends and somebody and (_is_quiet(scene) or not self.mends_when_quiet):
            yield f"the lease of {name} is mended", _ring(_worked(scene, number, worker._replace(lease="none")))
        if number == 0 and worker.at != "dead" and not self.newcomer:  # who else has its type?
            yield f"{name} dies", _worked(scene, number, Worker("dead", worker.lease))


def _published(scene: Scene, number: int, publisher: Publisher) -> Scene:
    publishers = (*scene.publishers[:number], publisher, *scene.publishers[number + 1 :])
    return scene._replace(publishers=publishers)


def _worked(scene: Scene, number: int, worker: Worker) -> Scene:
    return scene._replace(workers=(*scene.workers[:number], worker, *scene.workers[number + 1 :]))


def _ring(scene: Scene) -> Scene:
    workers = tuple(each if each.at in {"dead", "absent"} else each._replace(heard=True) for each in scene.workers)
    return scene._replace(workers=workers)


def _committed(scene: Scene) -> frozenset[int]:
    return frozenset(number for number, each in enumerate(scene.publishers) if each.at == "committed")


def _is_quiet(scene: Scene) -> bool:
    """Whether the exclusive lock would be granted."""
    return not any(publisher.locks for publisher in scene.publishers)


def _is_done(scene: Scene) -> bool:
    ended = all(publisher.at in {"committed", "gone"} for publisher in scene.publishers)
    return ended and _committed(scene) == scene.delivered
