"""Exhaustive search: every state a small system can reach, and the shortest way to one that must not be."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Violation:
    """What broke, and the steps that led there."""

    what: str
    steps: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.what}, after: {' → '.join(self.steps)}"


@dataclass(frozen=True, slots=True)
class System(Generic[S]):
    """`steps` gives every next state with its name; `broken` says what is wrong with a step, if anything.

    `done` tells the states in which everything has come to its end: from every reachable state one must be reachable.
    """

    start: S
    steps: Callable[[S], Iterable[tuple[str, S]]]
    broken: Callable[[S, str, S], str | None]
    done: Callable[[S], bool]


@dataclass(frozen=True, slots=True)
class Result:
    """How much was looked at, and the first thing that was wrong."""

    states: int
    violation: Violation | None


def explore(system: System[S]) -> Result:
    """Look at every reachable state, nearest first, so that the first violation has the shortest way to it."""
    came_from: dict[S, tuple[S, str] | None] = {system.start: None}
    leads_to: dict[S, list[S]] = {}
    waiting = deque([system.start])
    while waiting:
        state = waiting.popleft()
        leads_to[state] = []
        for name, following in system.steps(state):
            wrong = system.broken(state, name, following)
            if wrong is not None:
                return Result(len(came_from), Violation(wrong, (*_way(came_from, state), name)))
            leads_to[state].append(following)
            if following not in came_from:
                came_from[following] = (state, name)
                waiting.append(following)
    stuck = next(_never_done(leads_to, system.done), None)
    violation = None if stuck is None else Violation("stuck: the end cannot be reached", tuple(_way(came_from, stuck)))
    return Result(len(came_from), violation)


def _way(came_from: dict[S, tuple[S, str] | None], state: S) -> list[str]:
    names: list[str] = []
    while (step := came_from[state]) is not None:
        state, name = step
        names.append(name)
    return names[::-1]


def _never_done(leads_to: dict[S, list[S]], done: Callable[[S], bool]) -> Iterator[S]:
    """The states from which no end can be reached, nearest to the start first."""
    comes_from: dict[S, list[S]] = {state: [] for state in leads_to}
    for state, following in leads_to.items():
        for each in following:
            comes_from[each].append(state)
    hopeful = {state for state in leads_to if done(state)}
    waiting = deque(hopeful)
    while waiting:
        for state in comes_from[waiting.popleft()]:
            if state not in hopeful:
                hopeful.add(state)
                waiting.append(state)
    return (state for state in leads_to if state not in hopeful)
