"""The state of delivery in words, from one look: tells delivering from idle, from draining, from braked, from down."""

from __future__ import annotations

from typing import TYPE_CHECKING

from spectral.core.operations import verdict_words as words
from spectral.core.operations.insights_values import NOTHING
from spectral.core.operations.verdict_rules import delivery_findings
from spectral.core.operations.verdict_values import Finding, Level, Limits, Sentence, Verdict, worst
from spectral.core.operations.verdict_words import listed, name_holder, several, spoken

if TYPE_CHECKING:
    from collections.abc import Iterator

    from spectral.core.operations.insights_values import Snapshot

__all__ = ["Finding", "Level", "Limits", "Sentence", "Verdict", "judge"]


def judge(snapshot: Snapshot, limits: Limits | None = None) -> Verdict:
    """What a person woken at 3 am has to know: the headline, then the worst first. The same look, the same words."""
    limits = limits or Limits()
    troubles = [
        Sentence(f"{finding.what}.", finding.severity, finding.fix) for finding in delivery_findings(snapshot, limits)
    ]
    pressure = list(_pressure(snapshot, limits))
    level = worst([each.level for each in (*troubles, *pressure)])
    sentences = (_headline(snapshot, level), *troubles, *pressure, *_goings_on(snapshot))
    return Verdict(Level.OK if level is Level.NOTICE else level, sentences)


def _headline(snapshot: Snapshot, level: Level) -> Sentence:
    due = [backlog for backlog in snapshot.backlogs if backlog.due]
    in_flight = sum((backlog.in_flight for backlog in snapshot.backlogs), NOTHING)
    later = sum((backlog.waiting for backlog in snapshot.backlogs), NOTHING)
    counts = [
        several(sum((each.due for each in due), NOTHING), "event waits", "events wait") if due else "",
        f"{in_flight} in flight" if in_flight else "",
        f"{later} due later" if later else "",
    ]
    work = ", ".join(part for part in counts if part) or "nothing waits"
    if not snapshot.living:
        return Sentence(f"Down: no worker is alive; {work}.", worst([level, Level.ATTENTION]))
    generations = sorted({worker.generation for worker in snapshot.living}, reverse=True)
    crew = f"{several(len(snapshot.living), 'worker')} of generation {listed(generations)}"
    draining = {each.generation for each in snapshot.deployments if each.status == "draining"}
    if snapshot.brake_on(None) or (due and all(snapshot.brake_on(each.context) for each in due)):
        doing = "Braked"
    elif due and not in_flight and not any(snapshot.is_heard(lane) for lane in snapshot.lanes if lane.due):
        doing = "Held up"
    elif draining.issuperset(generations):
        doing = "Draining"
    else:
        doing = "Delivering" if due or in_flight else "Idle"
    return Sentence(f"{doing}: {crew}, {work}.", level)


def _is_served(snapshot: Snapshot, generation: int) -> bool:
    return any(generation in worker.generations for worker in snapshot.living)


def _pressure(snapshot: Snapshot, limits: Limits) -> Iterator[Sentence]:
    """What will hold delivery up if it goes on."""
    if snapshot.notify_queue >= limits.queue:
        level = Level.UNHEALTHY if snapshot.notify_queue >= limits.queue_full else Level.ATTENTION
        yield Sentence(f"The NOTIFY queue is {snapshot.notify_queue:.0%} full.", level, words.DOCTOR)
    for holder in snapshot.holders[:1]:
        if holder.since is not None and holder.since >= limits.transaction:
            text = f"{name_holder(holder)} has been open for {spoken(holder.since)} and keeps dead rows from vacuum."
            yield Sentence(text, Level.ATTENTION, words.DOCTOR)


def _goings_on(snapshot: Snapshot) -> Iterator[Sentence]:
    """What is as it should be, and still worth a sentence."""
    if snapshot.vanished:
        names = listed(f"{worker.name} on {worker.host}" for worker in snapshot.vanished)
        yield Sentence(f"{several(len(snapshot.vanished), 'worker')} vanished without signing out: {names}.")
    for deployment in snapshot.deployments:
        if deployment.status != "draining":
            continue
        left = [backlog for backlog in snapshot.backlogs if backlog.generation == deployment.generation]
        rows = sum((backlog.due + backlog.waiting + backlog.in_flight for backlog in left), NOTHING)
        name = f"Generation {deployment.generation}"
        if rows:
            yield Sentence(f"{name} is draining: {several(rows, 'event')} left.")
        elif not _is_served(snapshot, deployment.generation):
            given_up = words.retire(deployment.generation)
            yield Sentence(f"{name} has drained, and can still be rolled back to; to give that up: {given_up}")
    if snapshot.relaying is not None and snapshot.relaying.is_on and snapshot.relaying.relays:
        # Alive is what can be seen from here, and for which broker; not whether it gets there.
        relays = several(snapshot.relaying.relays, "relay is", "relays are")
        yield Sentence(f"Workers take events from {snapshot.relaying.mode}; {relays} alive.")
    if snapshot.lanes_capped:
        yield Sentence(f"Only the first {len(snapshot.lanes)} lanes (generation, channel, context) were counted.")
