"""What the stages of one worker share: the rows it holds, what is to be settled, and who is told.

Here lives the bound on memory: a row is held from its claim to its settlement, and nobody claims beyond the room there
is. `held` is read by the thread that renews leases; everything else belongs to the worker's loop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from datetime import timedelta
from typing import TYPE_CHECKING, Final, Protocol

from spectral.core.events.delivery import runs
from spectral.core.events.delivery.entry import Entry
from spectral.core.events.delivery.runs import Run
from spectral.core.events.delivery.telling import Telling
from spectral.core.events.delivery.tray import Tray
from spectral.core.events.delivery.trust import Sharing, Trust
from spectral.core.events.outcome import Released, Retry
from spectral.core.events.ports import Conclusion
from spectral.core.events.probe import Conflicted, Handle, KeptApart, LeaseWasLost, LeftInDoubt
from spectral.core.events.protocols import DeliveryContext, Logger

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from uuid import UUID

    from spectral.core.events.consumer import Handler
    from spectral.core.events.lease import Delivery, Lease
    from spectral.core.events.outcome import Outcome
    from spectral.core.events.probe import Activity, Probe
    from spectral.core.events.routes import Line, Routes
    from spectral.core.events.settings import WorkerSettings


class LoggerFor(Protocol):
    """Makes the logger a handler is given."""

    def __call__(self, delivery: Delivery, handler_name: str, traceparent: str | None) -> Logger:
        """A logger with the event's fields on every line."""
        ...


_MAX_GIVEN_UP: Final = 1_000

CONFLICTS: Final = 5
"""So often others are to blame for a transaction that cannot be committed beside theirs, and not the row."""


def _ignore(*_: object) -> None:
    """Until somebody wants to know."""


class Desk:
    """The state of one worker.

    `stopping` says that no handler is to be begun any more; `quiet` is set while nothing is held; `on_change` is called
    when a row is no longer held, `on_due_again` when one will fall due after a while.
    """

    def __init__(
        self, settings: WorkerSettings, routes: Routes, probe: Probe, logger_for: LoggerFor, random: Callable[[], float]
    ) -> None:
        self.settings = settings
        self.routes = routes
        self.probe = probe
        self._telling = Telling(probe)
        self.random = random
        self.to_settle = Tray()
        self.trust = Trust()
        self.on_change: Callable[[], None] = _ignore
        self.on_due_again: Callable[[timedelta], None] = _ignore
        self.quiet = asyncio.Event()
        self.quiet.set()
        self.stopping = False
        self._given_up: set[Lease] = set()
        self._held = 0
        self._held_of: Counter[int] = Counter()  # by line
        self._held_types: dict[int, Counter[str]] = {}  # by line, for those that have several
        self.finished: Counter[bool] = Counter()  # rows no longer held, of transactional lines and of the others
        self._logger_for = logger_for
        # By the delivery itself, not by row: a worker may be given a row again while it still works on a claim it has
        # lost. By identity: it is asked for many times, and to hash two ids costs more than all else here.
        self._entries: dict[int, Entry] = {}
        self._lock = threading.Lock()

    # what is held

    def hold(self, deliveries: Collection[Delivery], line: Line) -> None:
        """Rows were claimed."""
        now = time.monotonic()
        with self._lock:
            for delivery in deliveries:
                self._entries[id(delivery)] = Entry(delivery, line, now)
        if deliveries:
            self._held += len(deliveries)
            self._held_of[id(line)] += len(deliveries)
            if line.event_types is None or len(line.event_types) > 1:
                types = self._held_types.setdefault(id(line), Counter())
                types.update(delivery.event_type for delivery in deliveries)
            self.quiet.clear()

    def held(self, line: Line | None = None) -> int:
        """How many rows are held, in all or of one line."""
        return self._held if line is None else self._held_of[id(line)]

    def holds(self, delivery: Delivery) -> bool:
        """Whether this one is held still."""
        return id(delivery) in self._entries

    def held_types(self, line: Line) -> Mapping[str, int]:
        """How many rows of each type of a line that has several."""
        return self._held_types.get(id(line), {})

    def running(self) -> int:
        """In how many of them a handler runs."""
        with self._lock:
            return sum(entry.running for entry in self._entries.values())

    def leases(self, held_for: timedelta = timedelta(0)) -> list[Lease]:
        """What has been held for as long as this at least."""
        before = time.monotonic() - held_for.total_seconds()
        with self._lock:
            return [entry.delivery.lease for entry in self._entries.values() if entry.since <= before]

    def known(self) -> list[Lease]:
        """The leases this worker knows of: what it holds, and what it could not settle and leaves to the reaper."""
        return [*self.leases(), *self._given_up]

    def give_up(self, delivery: Delivery) -> None:
        """Its outcome cannot be written: hold it no longer, and let its lease run out."""
        if len(self._given_up) >= _MAX_GIVEN_UP:
            self._given_up.clear()
        self._given_up.add(delivery.lease)
        self.forget(delivery)

    def begin(self, delivery: Delivery, cancel: Callable[[Delivery], object] | None = None) -> bool:
        """A handler starts on it; `cancel` ends it when its lease is lost. False if it is known to be lost already."""
        entry = self._entries.get(id(delivery))
        if entry is None:
            return False
        if not entry.doubts:
            self._start(entry)
        entry.running = True
        entry.cancel = cancel
        return not entry.lost

    def _start(self, entry: Entry) -> None:
        if entry.runs:  # it is run again
            runs.take_back(entry.taken_runs())
        entry.started = time.monotonic()
        entry.seconds = entry.outside

    def isolate(self, delivery: Delivery) -> None:
        """Have it run in a transaction of its own from now on."""
        entry = self._entries.get(id(delivery))
        if entry is not None:
            entry.alone = True
            entry.running = False

    def count_disconnection(self, delivery: Delivery) -> int:
        """The connection was lost under its handler or its commit; answers how often by now."""
        entry = self._entries.get(id(delivery))
        if entry is None:
            return 0
        entry.disconnections += 1
        return entry.disconnections

    def met_a_conflict(self, handler_name: str, *, although_apart: bool) -> None:
        """See `Trust`; and tell, for it will be slower."""
        apart = self.trust.met_a_conflict(handler_name, although_apart=although_apart)
        if apart is not None:
            one_group = apart.sharing is Sharing.ONE_GROUP
            keeps = timedelta(seconds=apart.until - self.trust.clock())
            self.probe.tell(KeptApart(handler_name, keeps, one_group=one_group))

    def may_run_again(self, delivery: Delivery) -> bool:
        """Its transaction was refused because of others': whether it may be run once more, at once and uncharged.

        Not too often, and not if its lease, which nobody can renew while its row is locked, might run out before it is
        through: it may take twice as long as it did.
        """
        entry = self._entries.get(id(delivery))
        if entry is None:
            return False
        now, times = time.monotonic(), self.settings.times
        started = now if entry.started is None else entry.started
        if not entry.conflicts:
            entry.conflicting_since = started
        entry.conflicts += 1
        through_at = now + 2 * (now - started) - entry.conflicting_since
        if entry.conflicts > CONFLICTS or through_at >= (times.lease - times.grace).total_seconds():
            return False
        self.probe.tell(Conflicted(delivery, entry.conflicts))
        return True

    def count_refusal(self, delivery: Delivery) -> int | None:
        """Its outcome could not be written; answers how often by now, or nothing if it is not held any more."""
        entry = self._entries.get(id(delivery))
        if entry is None:
            return None
        entry.refusals += 1
        return entry.refusals

    def may_renew_for(self, delivery: Delivery) -> bool:
        """Whether its handler may be run once more on a new connection, for the first time: then never again."""
        entry = self._entries.get(id(delivery))
        if entry is None or entry.renewed:
            return False
        entry.renewed = True
        return True

    def is_isolated(self, delivery: Delivery) -> bool:
        """Whether it has to run in a transaction of its own."""
        entry = self._entries.get(id(delivery))
        return entry is not None and entry.alone

    def lose(self, leases: Collection[Lease]) -> None:
        """These leases no longer stand: whatever is done for them is in vain."""
        gone = set(leases)
        for entry in [each for each in self._entries.values() if each.delivery.lease in gone]:
            entry.lost = True
            if entry.cancel is not None:
                entry.cancel(entry.delivery)

    def is_lost(self, delivery: Delivery) -> bool:
        """Whether its lease is known to be lost."""
        entry = self._entries.get(id(delivery))
        return entry is None or entry.lost

    # what becomes of it

    def took_effect(self, delivery: Delivery, handler_name: str) -> None:
        """A plain handler has succeeded: whatever becomes of the row, that has to be recorded."""
        entry = self._entries.get(id(delivery))
        if entry is not None:
            entry.done = (*entry.done, handler_name)

    def took_no_effect(self, delivery: Delivery, handler: Handler, error: BaseException) -> None:
        """A plain handler has failed: until the next attempt it is not to run again, whatever becomes of the others."""
        entry = self._entries.get(id(delivery))
        if entry is not None:
            entry.failed = (*entry.failed, (handler, error))

    def run_before(self, delivery: Delivery) -> tuple[tuple[str, ...], tuple[tuple[Handler, BaseException], ...]]:
        """The plain handlers that have run in this attempt: those that took effect, and those that failed, and why."""
        entry = self._entries.get(id(delivery))
        return ((), ()) if entry is None else (entry.done, entry.failed)

    def conclusion(
        self, delivery: Delivery, outcome: Outcome, ran: tuple[str, ...] = (), done: tuple[str, ...] | None = None
    ) -> Conclusion:
        """What is to be written of a delivery: the outcome, and the plain handlers that took effect.

        done: those, if nobody has said so before.
        """
        entry = self._entries.get(id(delivery))
        if entry is not None:
            entry.running = False
            entry.cancel = None  # whoever ran it may be busy with another row by now
            if entry.seconds is None and entry.started is not None and (ran or isinstance(outcome, Released)):
                # By somebody who does nothing else between; or they were cut off.
                entry.seconds = time.monotonic() - entry.started
            if done is None:
                done = entry.done
        # As `Conclusion(...)`, without the call in between.
        return tuple.__new__(Conclusion, (delivery, outcome, done or (), ran))  # pyright: ignore[reportUnknownMemberType]

    def conclude(
        self, delivery: Delivery, outcome: Outcome, ran: tuple[str, ...] = (), done: tuple[str, ...] | None = None
    ) -> None:
        """Have it written by the settler; what its handlers wrote in a transaction is not kept."""
        entry = self._entries.get(id(delivery))
        if entry is not None and entry.runs and not entry.doubts:
            runs.fail(entry.taken_runs())
        self.to_settle.put(self.conclusion(delivery, outcome, ran, done))

    def release(self, deliveries: Collection[Delivery], delay: timedelta = timedelta(0)) -> None:
        """Give these back as if they had never been claimed; nobody is to have them before the delay is over."""
        for delivery in deliveries:
            entry = self._entries.get(id(delivery))
            if entry is not None and not entry.doubts:
                runs.take_back(entry.taken_runs())
            self.conclude(delivery, Released(delay))

    def doubt(self, conclusions: Iterable[Conclusion]) -> None:
        """These were sent, and nobody knows whether they stand: the answer is lost."""
        for conclusion in conclusions:
            entry = self._entries.get(id(conclusion.delivery))
            if entry is not None and all(each is not conclusion for each in entry.doubts):
                if not entry.doubts:
                    entry.doubted_runs = entry.runs
                entry.doubts = (*entry.doubts, conclusion)

    def doubted(self, deliveries: Iterable[Delivery]) -> list[Conclusion]:
        """What was sent of these and not answered."""
        entries = [self._entries.get(id(delivery)) for delivery in deliveries]
        return [each for entry in entries if entry is not None for each in entry.doubts]

    def dispel(self, delivery: Delivery) -> None:
        """The row is this worker's still, so nothing that was sent of it stands: it starts anew."""
        entry = self._entries.get(id(delivery))
        if entry is not None and entry.doubts:
            entry.doubts, entry.doubted_runs = (), ()
            self._start(entry)

    def leave_open(self) -> None:
        """The worker ends, and nobody here will know what became of what is still held: the reaper sees to it.

        Not if it was settled, and only the answer was lost: then nobody would ever tell of it.
        """
        for entry in self._entries.values():
            runs.take_back(entry.taken_runs())
            if entry.doubts:
                self.probe.tell(LeftInDoubt(entry.delivery))

    def settled_together(
        self, conclusions: Sequence[Conclusion], lost: AbstractSet[UUID], stood: Mapping[UUID, Conclusion]
    ) -> None:
        """They are written, or their leases had been lost: either way the rows are no longer this worker's.

        lost: the rows whose lease had been. stood: of those, what was written of them before, and not answered.
        """
        entries = self._forget([each.delivery for each in conclusions])
        for conclusion in self._telling.settled(conclusions, entries, lost, stood):
            self._falls_due_again(conclusion.outcome)

    def _falls_due_again(self, outcome: Outcome) -> None:
        if isinstance(outcome, Retry) or (isinstance(outcome, Released) and outcome.delay):
            self.on_due_again(outcome.delay)

    def lost(self, delivery: Delivery) -> None:
        """The gate said that the row is no longer this worker's."""
        self.forget(delivery)
        self.probe.tell(LeaseWasLost(delivery))

    def forget(self, delivery: Delivery) -> None:
        """Hold it no longer."""
        for entry in self._forget([delivery]):
            if entry is not None:
                runs.take_back(entry.taken_runs())

    def _forget(self, deliveries: Sequence[Delivery]) -> list[Entry | None]:
        """Hold them no longer; answers what was known of each."""
        with self._lock:
            entries = [self._entries.pop(id(delivery), None) for delivery in deliveries]
        for line, held in _by_line(entries):
            self._held -= len(held)
            self._held_of[id(line)] -= len(held)
            self.finished[line.transactional] += len(held)
            types = self._held_types.get(id(line))
            if types is not None:
                types -= Counter(entry.delivery.event_type for entry in held)  # which drops those of which none is left
        if not self._entries:
            self.quiet.set()
        self.on_change()
        return entries

    # what a handler is told

    def watch(self, delivery: Delivery, handler: Handler) -> Activity:
        """Have whoever watches see the handler begin."""
        # As `Handle(...)`, without the call in between.
        activity = self.probe.begin(tuple.__new__(Handle, (delivery, handler.name)))  # pyright: ignore[reportUnknownMemberType]
        if activity.context is not None or activity.traceparent is not None:
            entry = self._entries.get(id(delivery))
            if entry is not None:
                entry.activity = activity
        return activity

    def watch_many(self, handled: Sequence[tuple[Delivery, Handler]]) -> list[Activity]:
        """The same of handlers that begin together, in a transaction."""
        # As `Handle(...)`, without the call in between.
        acts: list[Handle] = [tuple.__new__(Handle, (delivery, handler.name)) for delivery, handler in handled]  # pyright: ignore[reportUnknownMemberType]
        return self._telling.begin_many(acts)

    def end_many(self, activities: Sequence[Activity]) -> None:
        """These handlers, which have left, did well."""
        self._telling.end_many(activities)

    def left(
        self, delivery: Delivery, handler_name: str, activity: Activity, error: BaseException | None, began: float
    ) -> None:
        """A handler has ended in a transaction; what is told of it waits until it is known whether that is kept."""
        activity.leave()
        entry = self._entries.get(id(delivery))
        if entry is None:
            runs.undo(activity, error)
        else:
            entry.seconds = (entry.seconds or 0.0) + time.monotonic() - began
            # As `Run(...)`, without the call in between.
            entry.activity = activity
            entry.runs = (*entry.runs, tuple.__new__(Run, (handler_name, activity, error)))  # pyright: ignore[reportUnknownMemberType]

    def ended(self, delivery: Delivery, began: float) -> None:
        """A handler has ended that began then, outside of the transaction of its row."""
        entry = self._entries.get(id(delivery))
        if entry is not None:
            seconds = time.monotonic() - began
            entry.seconds = (entry.seconds or 0.0) + seconds
            entry.outside = (entry.outside or 0.0) + seconds

    def blame(self, delivery: Delivery, handler_name: str, error: BaseException) -> None:
        """What this handler wrote is not kept, and that is its failure, whatever it thought of it."""
        entry = self._entries.get(id(delivery))
        if entry is not None:
            entry.runs = tuple(
                run._replace(error=error) if run.handler_name == handler_name else run for run in entry.runs
            )

    def context_for(self, delivery: Delivery, handler: Handler, traceparent: str | None = None) -> DeliveryContext:
        """The delivery as its handler may see it."""
        return DeliveryContext(
            event_id=delivery.event_id,
            event_type=delivery.event_type,
            handler_name=handler.name,
            attempt=delivery.attempts,
            max_attempts=handler.retry.max_attempts,
            generation=self.settings.generation,
            worker=self.settings.name,
            logger=self._logger_for(delivery, handler.name, traceparent),
        )


def _by_line(entries: Iterable[Entry | None]) -> Iterator[tuple[Line, list[Entry]]]:
    """Those that are known, with the others of their line: mostly it is one line, for those that run are alike."""
    known = [entry for entry in entries if entry is not None]
    while known:
        line = known[0].line
        yield line, [entry for entry in known if entry.line is line]
        known = [entry for entry in known if entry.line is not line]
