"""The delivery oracle, after the idea of Jepsen's queue checker: what was published against what took effect.

Publishers keep a `Ledger`, handlers record their effects (`record_effect`). When all faults are healed and everything
has settled down, `check` counts. It knows nothing of how delivery works, only what is promised of it.

Expected of an event are the handlers that were subscribed to its type in its generation when it was delivered: those of
its target, or of every context if it is a broadcast.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from spectral.core.events.testing.effects import EFFECTS_TABLE
from spectral.core.events.testing.evidence import collect
from spectral.core.events.testing.ledger import Publish
from spectral.core.events.testing.owed import OPEN, Owed
from spectral.core.events.testing.verdict import Fault, Problem, Verdict, counted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from uuid import UUID

    from spectral.core.events.testing.evidence import Effect, Evidence, Row, Subscribed
    from spectral.core.events.testing.ledger import Entry, Ledger
    from spectral.core.events.testing.owed import Share


async def check(
    dsn: str,
    ledger: Ledger,
    *,
    subscriptions: Collection[Subscribed] | None = None,
    accept: Mapping[int, Collection[int]] | None = None,
    silent: Collection[str] = (),
    table: str = EFFECTS_TABLE,
) -> Verdict:
    """Hold what is in the database against the ledger. Call it when everything has settled down.

    Args:
        dsn: of a role that sees everything: a superuser or a member of `spectral_operator`.
        ledger: what publishers attempted; handlers that publish have to log that too.
        subscriptions: who is expected to handle what, instead of what `core.subscriptions` says.
        accept: worker generations that may run other generations' rows, and which (legacy drain).
        silent: handlers that record no effects; for them the dedup log is believed.
        table: where effects are recorded.
    """
    evidence = await collect(dsn, table=table)
    if subscriptions is not None:
        evidence = replace(evidence, subscriptions=tuple(subscriptions))
    return judge(ledger.entries(), evidence, accept=accept, silent=silent)


def judge(
    entries: Mapping[UUID, Entry],
    evidence: Evidence,
    *,
    accept: Mapping[int, Collection[int]] | None = None,
    silent: Collection[str] = (),
) -> Verdict:
    """`check`, of evidence that is at hand: a pure function."""
    case = _Case(entries, evidence, _Leave(accept or {}, frozenset(silent)))
    problems = case.problems()
    shares = case.shares()
    return Verdict(
        published=len(case.published),
        delivered=sum(row.status == "delivered" for row in shares),
        dead_lettered=sum(row.status == "failed" for row in shares),
        replayed=sum(row.cycles > 0 for row in shares),
        handled=len(case.handled),
        external_duplicates=sum(times - 1 for times in case.external.values()),
        found=tuple(problems),
        **counted(problems),
    )


class _Leave(NamedTuple):
    """What is allowed beyond the usual."""

    accept: Mapping[int, Collection[int]]
    silent: frozenset[str]

    def covers(self, effect: Effect, generations: Collection[int]) -> bool:
        """Whether a worker of the effect's generation may run an event of these; of unknown ones it may."""
        may_run = {effect.generation, *self.accept.get(effect.generation, ())}
        return not generations or not may_run.isdisjoint(generations)


class _Case:
    """The evidence, sorted, and one question for each kind of fault."""

    def __init__(self, entries: Mapping[UUID, Entry], evidence: Evidence, leave: _Leave) -> None:
        self._entries = entries
        self._leave = leave
        self._owed = Owed(evidence)
        self._rows = evidence.rows
        self._effects: dict[UUID, list[Effect]] = defaultdict(list)
        self._workers: dict[tuple[str, str], list[str]] = defaultdict(list)
        for effect in evidence.effects:
            self._effects[effect.event_id].append(effect)
            if not effect.external:
                self._workers[effect.handler, effect.key].append(effect.worker)
        self.external = Counter((each.handler, each.key) for each in evidence.effects if each.external)
        self._transactional = frozenset(self._workers)
        self._recorded = evidence.handled
        self.handled = self._transactional | self.external.keys() | self._recorded
        self._contexts_by_key: dict[str, set[str]] = defaultdict(set)
        for handler, key in self.handled:
            self._contexts_by_key[key].add(handler.partition(".")[0])
        seen = self._owed.rows.keys() | self._effects.keys()
        self.published = [
            entry
            for entry in entries.values()
            if entry.state is Publish.OK or (entry.state is Publish.UNKNOWN and entry.event_id in seen)
        ]

    def shares(self) -> list[Row]:
        """The rows by which contexts get what was published: not the broadcasts themselves."""
        rows = (row for entry in self.published for row in self._owed.rows.get(entry.event_id, ()))
        return [row for row in rows if row.target is not None]

    def problems(self) -> list[Problem]:
        """Everything that must not have happened."""
        return [
            *self._uncalled_for(),
            *self._uncalled_for_by_key(),
            *self._duplicated(),
            *self._stuck(),
            *self._undelivered(),
            *self._misdirected(),
        ]

    def _uncalled_for(self) -> Iterator[Problem]:
        """Effects of what was never attempted, or was rolled back; and rows of the latter."""
        for event_id, effects in self._effects.items():
            entry = self._entries.get(event_id)
            by = f"took effect in {_listed(effect.handler for effect in effects)}"
            if entry is None:
                yield Problem(Fault.PHANTOM, f"event {event_id}", f"was never published, but {by}")
            elif entry.state is Publish.FAILED:
                yield Problem(Fault.GHOST, f"event {event_id}", f"was rolled back, but {by}")
        for entry in self._entries.values():
            without_effect = entry.event_id in self._owed.rows and entry.event_id not in self._effects
            if entry.state is Publish.FAILED and without_effect:
                yield Problem(Fault.GHOST, f"event {entry.event_id}", "was rolled back, but its row is there")

    def _uncalled_for_by_key(self) -> Iterator[Problem]:
        """The same by the dedup log, which knows the key only, for handlers that recorded no effect."""
        wanted = {entry.key for entry in self._entries.values() if entry.state is not Publish.FAILED}
        rolled_back = {entry.key for entry in self._entries.values()} - wanted
        for handler, key in sorted(self._recorded - self._transactional - self.external.keys()):
            if key in rolled_back:
                yield Problem(Fault.GHOST, f"key {key}", f"was rolled back, but {handler} is on record for it")
            elif key not in wanted:
                yield Problem(Fault.PHANTOM, f"key {key}", f"was never published, but {handler} is on record for it")

    def _duplicated(self) -> Iterator[Problem]:
        for (handler, key), workers in self._workers.items():
            if len(workers) > 1:
                detail = f"took effect {len(workers)} times in {handler}, by {_listed(workers)}"
                yield Problem(Fault.DUPLICATED, f"key {key}", detail)

    def _stuck(self) -> Iterator[Problem]:
        """Rows that are not at their end, whoever published them."""
        for row in self._rows:
            if row.status in OPEN:
                error = f" ({row.last_error})" if row.last_error else ""
                yield Problem(Fault.STUCK, f"row {row.row_id}", f"of {row.event_type} is still {row.status}{error}")

    def _undelivered(self) -> Iterator[Problem]:
        """Handlers that were owed an event and did not get it; dead letters of events that all of them got."""
        for entry in self.published:
            if self._owed.is_known(entry):
                for share in self._owed.shares(entry):
                    yield from self._judge(share)
            elif entry.event_id not in self._effects and entry.event_id not in self._owed.discarded:
                yield Problem(Fault.LOST, f"event {entry.event_id}", "left neither a row nor an effect")

    def _judge(self, share: Share) -> Iterator[Problem]:
        subject = f"event {share.event_id}"
        handlers = self._owed.handlers(share)
        if share.status in OPEN or (share.row is None and share.row_id in self._owed.discarded):
            return
        if share.status == "failed":
            if handlers and all(self._took_effect(handler, share.key) for handler in handlers):
                detail = f"is in the DLQ of {share.context} although {_listed(handlers)} took effect"
                yield Problem(Fault.FALSE_DEAD_LETTER, subject, detail)
            return
        for handler in handlers:
            # Of what was swept away there is no record any more to believe.
            was_swept = share.row is None and handler in self._leave.silent
            if not was_swept and not self._was_handled(handler, share.key):
                yield Problem(Fault.LOST, subject, f"is {share.status}, but {handler} did not handle it")
        # A listener to everything has subscribed to nothing: some handler of that context will do.
        if not handlers and share.context not in self._contexts_by_key[share.key]:
            yield Problem(Fault.LOST, subject, f"is {share.status}, but nobody in {share.context} handled it")

    def _was_handled(self, handler: str, key: str) -> bool:
        """By its effect: a dedup record without one is how an event gets lost."""
        if handler in self._leave.silent:
            return (handler, key) in self._recorded
        return (handler, key) in self._transactional or (handler, key) in self.external

    def _took_effect(self, handler: str, key: str) -> bool:
        """For good: an external effect alone may be of an execution that failed afterwards."""
        return (handler, key) in self._transactional or (handler, key) in self._recorded

    def _misdirected(self) -> Iterator[Problem]:
        """Effects by a context the event was not for, or by a worker of another generation."""
        for entry in self.published:
            effects = self._effects.get(entry.event_id)
            if not effects or not self._owed.is_known(entry):
                continue
            shares = {share.context: share for share in self._owed.shares(entry)}
            for effect in effects:
                share = shares.get(effect.context)
                if share is None:
                    detail = f"was for {_listed(shares) or 'nobody'}, but took effect in {effect.handler}"
                    yield Problem(Fault.WRONG_CONTEXT, f"event {entry.event_id}", detail)
                elif not self._leave.covers(effect, self._owed.generations(share, effect)):
                    detail = f"took effect in {effect.handler} by {effect.worker} of generation {effect.generation}"
                    yield Problem(Fault.WRONG_GENERATION, f"event {entry.event_id}", detail)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))
