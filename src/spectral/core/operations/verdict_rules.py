"""What is wrong with delivery, judged from one look: pure functions, each of which knows one kind of trouble."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

from spectral.core.events.channels import DEFAULT_CHANNEL
from spectral.core.operations import verdict_words as words
from spectral.core.operations.insights_values import EVERY_CONTEXT, NOTHING
from spectral.core.operations.verdict_relay import find_missing_relay, find_relay_lag
from spectral.core.operations.verdict_values import Finding, Level
from spectral.core.operations.verdict_words import listed, several, spoken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from spectral.core.operations.insights_values import Amount, Backlog, Snapshot, Stray
    from spectral.core.operations.verdict_values import Limits

    Rule = Callable[[Snapshot, Limits], Iterator[Finding]]

_GONE: Final = (None, "retired")


def delivery_findings(snapshot: Snapshot, limits: Limits) -> list[Finding]:
    """Everything that keeps events from being delivered, the worst first."""
    found = [finding for rule in RULES for finding in rule(snapshot, limits)]
    return sorted(found, key=lambda finding: -finding.severity.rank)


def find_no_live_generation(snapshot: Snapshot, _: Limits) -> Iterator[Finding]:
    """Nothing was ever promoted, or what was live is being drained."""
    if snapshot.live_generation is not None:
        return
    yield Finding(
        "live_generation",
        Level.UNHEALTHY if any(backlog.due for backlog in snapshot.backlogs) else Level.ATTENTION,
        "No generation is live",
        "Dead letters have no generation to be replayed into, and publishers that name none are refused",
        _have_a_live_one(snapshot),
    )


def _have_a_live_one(snapshot: Snapshot) -> str:
    """The first worker of an empty database sees to it by itself; after that a person says which."""
    if not snapshot.deployments:
        return words.start_worker(None)
    ready = [each.generation for each in snapshot.deployments if each.status in {"allocated", "draining"}]
    return f"spectral generations promote {max(ready)}" if ready else "spectral generations allocate"


def find_brakes(snapshot: Snapshot, _: Limits) -> Iterator[Finding]:
    """Somebody has stopped the claiming, on purpose."""
    for brake in snapshot.brakes:
        held = _sum(each.due for each in snapshot.backlogs if snapshot.brake_on(each.context) is brake)
        who = "Every context" if brake.context == EVERY_CONTEXT else brake.context
        waiting = several(held, "event waits", "events wait") if held else "nothing waits"
        yield Finding(
            "brake",
            Level.ATTENTION,
            f"{who} is braked, by {brake.pulled_by} {spoken(snapshot.taken_at - brake.pulled_at)} ago"
            f" ({brake.reason}); {waiting}",
            "Nothing of it is claimed until the brake is let go; publishing goes on",
            words.release(brake.context),
        )


def find_lost_generations(snapshot: Snapshot, _: Limits) -> Iterator[Finding]:
    """Rows that no worker can ever take, for their generation is retired or was never allocated."""
    for generation, rows in _by_generation(snapshot, lost=True).items():
        status = next(each.generation_status for each in snapshot.backlogs if each.generation == generation)
        yield Finding(
            "lost_generation",
            Level.UNHEALTHY,
            f"{several(rows, 'event waits', 'events wait')} in generation {generation},"
            f" which {'is retired' if status == 'retired' else 'was never allocated'}",
            "No worker runs that generation; a publisher still stamps it (its SPECTRAL_GENERATION)",
            words.hand_over(generation, snapshot.live_generation),
        )


def find_nobody(snapshot: Snapshot, _: Limits) -> Iterator[Finding]:
    """The live generation has no worker, though nothing of it waits yet."""
    live = snapshot.live_generation
    waits = any(backlog.generation == live for backlog in _claimable(snapshot))
    if live is not None and not waits and not snapshot.servants(None, live):
        yield Finding(
            "nobody",
            Level.ATTENTION,
            f"Generation {live} is live and has no worker",
            "What is published from now on waits",
            words.start_worker(live),
        )


def find_unserved(snapshot: Snapshot, limits: Limits) -> Iterator[Finding]:
    """Contexts with something due and no worker alive that takes it."""
    for backlog in _claimable(snapshot):
        if backlog.context is None or snapshot.servants(backlog.context, backlog.generation):
            continue
        vanished = sum(
            backlog.generation in worker.generations and backlog.context in worker.contexts
            for worker in snapshot.vanished
        )
        fix = words.start_worker(backlog.generation)
        if backlog.generation_status == "draining":
            fix = words.hand_over(backlog.generation, snapshot.live_generation)
        gone = f" ({several(vanished, 'worker')} vanished)" if vanished else ""
        yield Finding(
            "no_worker",
            _severity(backlog.oldest_due, limits.patience),
            f"{_standing(backlog)}, and no worker of generation {backlog.generation} is alive for it{gone}",
            "Nothing of it is delivered until one runs",
            fix,
        )


def find_unheard_classes(snapshot: Snapshot, limits: Limits) -> Iterator[Finding]:
    """Processing classes that the workers of a context do not serve."""
    for lane in snapshot.unheard():
        if not lane.due or snapshot.brake_on(lane.context) or lane.generation_status in _GONE:
            continue
        prefix = f"outbox_gen_{lane.generation}_"
        processing_class = lane.channel.removeprefix(prefix) if lane.channel.startswith(prefix) else None
        yield Finding(
            "unheard_class",
            _severity(lane.oldest_due, limits.patience),
            f"{several(lane.due, 'event')} for {lane.context or 'every context'}"
            f" {'waits' if lane.due.value == 1 else 'wait'} on {lane.channel}, the oldest for"
            f" {spoken(lane.oldest_due)}, and no worker alive serves that channel",
            "The workers of this context run, but not for this processing class",
            words.start_worker(lane.generation, processing_class=processing_class),
        )


def find_waiting_broadcasts(snapshot: Snapshot, limits: Limits) -> Iterator[Finding]:
    """Broadcasts that nobody has split: any worker of their generation would."""
    for backlog in _claimable(snapshot):
        served = snapshot.servants(None, backlog.generation)
        if backlog.context is not None or (served and (backlog.oldest_due or timedelta()) < limits.patience):
            continue
        yield Finding(
            "broadcasts",
            _severity(backlog.oldest_due, limits.patience),
            f"{several(backlog.due, 'broadcast')} of generation {backlog.generation} not split yet,"
            f" the oldest for {spoken(backlog.oldest_due)}",
            "No context has its share of them",
            words.DOCTOR if served else words.start_worker(backlog.generation),
        )


def find_late(snapshot: Snapshot, limits: Limits) -> Iterator[Finding]:
    """Workers run and do not keep up."""
    for backlog in _claimable(snapshot):
        servants = snapshot.servants(backlog.context, backlog.generation)
        unheard = {lane.context for lane in snapshot.unheard() if lane.generation == backlog.generation}
        late = (backlog.oldest_due or timedelta()) >= limits.patience
        if backlog.context is None or not servants or not late or backlog.context in unheard:
            continue
        severity = _severity(backlog.oldest_due, limits.late)
        stray = _oldest_stray(snapshot, backlog)
        if stray is not None and all(worker.subscribes for worker in servants):
            yield _waiting_for_nobody(backlog, stray, severity)
            continue
        yield Finding(
            "late",
            severity,
            f"{_standing(backlog)}, though {several(len(servants), 'worker is', 'workers are')} alive for it",
            "More is published than handled, or handlers hang: see who holds what",
            "spectral top",
        )


def _oldest_stray(snapshot: Snapshot, backlog: Backlog) -> Stray | None:
    """The stray rows of this backlog, if what has been due longest in it is one of them."""
    strays = (
        stray for stray in snapshot.strays if (stray.context, stray.generation) == (backlog.context, backlog.generation)
    )
    return next((stray for stray in strays if stray.oldest_due == backlog.oldest_due), None)


def _waiting_for_nobody(backlog: Backlog, stray: Stray, severity: Level) -> Finding:
    rest = (
        "" if stray.rows >= backlog.due.value else "; of the others, more is published than handled, or handlers hang"
    )
    return Finding(
        "late",
        severity,
        f"{_standing(backlog)}: no handler of {stray.context} is on record for {listed(stray.event_types)}"
        f" in generation {stray.generation}",
        f"Nobody runs them, and {words.GIVEN_UP} after they were due they go to the DLQ as NoHandlerError; replay them"
        f" from there when a release handles them{rest}",
        words.list_pending(stray.context, stray.event_types[0]),
    )


def find_stale_claims(snapshot: Snapshot, _: Limits) -> Iterator[Finding]:
    """Claims of workers that are gone and that nobody has taken back yet."""
    stale = _sum(backlog.stale for backlog in snapshot.backlogs)
    if stale:
        reaped = bool(snapshot.living)
        yield Finding(
            "stale_claims",
            Level.ATTENTION,
            f"{several(stale, 'claim is', 'claims are')} held by workers that show no sign of life",
            "A living worker takes them back within seconds" if reaped else "Nobody is there to take them back",
            words.psql("select * from core.outbox_reap()") if reaped else words.start_worker(snapshot.live_generation),
        )


def find_dead_letters(snapshot: Snapshot, _: Limits) -> Iterator[Finding]:
    """The DLQ is not empty."""
    failed = _sum(backlog.failed for backlog in snapshot.backlogs)
    lately = _sum(backlog.failed_lately for backlog in snapshot.backlogs)
    if failed:
        part = "all" if lately == failed else str(lately) if lately else "none"
        yield Finding(
            "dead_letters",
            Level.ATTENTION,
            f"{several(failed, 'dead letter')}, {part} of them within the last hour",
            "Each is an event that was not handled; none is retried or swept by itself",
            words.DEAD_LETTERS,
        )


def find_default_channel(snapshot: Snapshot, _: Limits) -> Iterator[Finding]:
    """Rows that somebody inserted without a channel."""
    rows = snapshot.on_default_channel()
    if rows:
        yield Finding(
            "default_channel",
            Level.ATTENTION,
            f"{several(rows, 'event waits', 'events wait')} on {DEFAULT_CHANNEL}",
            "Nobody listens there, so the safety poll finds them, up to 15 s late: have whoever inserts them say"
            " channel = 'outbox_gen_<generation>', or call core.outbox_publish()",
            words.psql(
                "select source, event_type, count(*) from core.outbox"
                " where channel = 'outbox_default' and status = 'pending' group by source, event_type"
            ),
        )


RULES: Final[tuple[Rule, ...]] = (
    find_no_live_generation,
    find_brakes,
    find_lost_generations,
    find_nobody,
    find_unserved,
    find_unheard_classes,
    find_waiting_broadcasts,
    find_late,
    find_missing_relay,
    find_relay_lag,
    find_stale_claims,
    find_dead_letters,
    find_default_channel,
)


def _claimable(snapshot: Snapshot) -> Iterator[Backlog]:
    """What is due, not braked, and of a generation that workers may run."""
    for backlog in snapshot.backlogs:
        if backlog.due and snapshot.brake_on(backlog.context) is None and backlog.generation_status not in _GONE:
            yield backlog


def _by_generation(snapshot: Snapshot, *, lost: bool) -> dict[int, Amount]:
    sums: dict[int, Amount] = {}
    for backlog in snapshot.backlogs:
        rows = backlog.due + backlog.waiting + backlog.in_flight
        if rows and (backlog.generation_status in _GONE) is lost:
            sums[backlog.generation] = sums.get(backlog.generation, NOTHING) + rows
    return sums


def _standing(backlog: Backlog) -> str:
    events = several(backlog.due, "event waiting", "events waiting")
    return f"{backlog.context} has {events}, the oldest for {spoken(backlog.oldest_due)}"


def _severity(age: timedelta | None, limit: timedelta) -> Level:
    return Level.UNHEALTHY if age is not None and age >= limit else Level.ATTENTION


def _sum(amounts: Iterator[Amount]) -> Amount:
    return sum(amounts, NOTHING)
