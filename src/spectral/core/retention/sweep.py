"""The sweep: both tables, block by block, the outbox first. Every call is a transaction of its own, and a short one.

    begin   become the sweeper, or learn who it is: there is one at a time, by a lease that every call renews
    walk    the outbox, then the dedup log: a record goes when no event with its key is left
            each partition by itself, where there are any; what is over as a whole is dropped before, not deleted
    finish  write down how it ended, and let the next one begin

What is swept is decided by the functions of the database and by its clock. A sweep that is stopped or killed is begun
again from the start: what was done is done, and looking at a block twice costs no more than looking.
"""

from __future__ import annotations

import json
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from spectral.core.database import DatabaseTooSlowError, NotFoundError, RefusedError
from spectral.core.events import probe
from spectral.core.events.failure import SpectralError
from spectral.core.partitions import maintain
from spectral.core.retention.policy import LONGEST, POLICY_REGISTRY, Subject, checked_registry, keep_of, policy_for
from spectral.core.retention.report import Ended, SweepProgress, SweepReport, Swept
from spectral.core.retention.settings import SweepOptions
from spectral.core.retention.state import last_sweep, result_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import datetime
    from typing import LiteralString

    from spectral.core.database import Database
    from spectral.core.retention.policy import Registry
    from spectral.core.retention.report import OnProgress, Sweeping

_TRIES: Final = 3
_FOR_EVER: Final = 10 * LONGEST
"""The grace of what is never deleted: no tombstone is that old, and the date it leads to still exists."""

_MAY_SWEEP: Final = """
    select quote_ident(current_user), case
        when has_schema_privilege('core', 'usage') then has_function_privilege(
            'core.sweep_outbox(text, bigint, bigint, interval, interval, integer, boolean)', 'execute'
        )
        else false
    end
"""
_IS_PARTITIONED: Final = "select relkind = 'p' from pg_class where oid = 'core.outbox'::regclass"
_LEAVES: Final = "select name, blocks, ending from core.sweep_leaves(%s, %s)"
_TABLES: Final = {Subject.OUTBOX_ROW: "outbox", Subject.EVENT_HANDLED: "event_handled"}
_SWEEP: Final[dict[Subject, LiteralString]] = {
    Subject.OUTBOX_ROW: "select * from core.sweep_outbox_leaf(%s, %s, %s, %s, %s, %s, %s, %s)",
    Subject.EVENT_HANDLED: "select * from core.sweep_handled_leaf(%s, %s, %s, %s, %s, %s, %s, %s)",
}


def ranges(blocks: int, at_once: int) -> Iterator[tuple[int, int]]:
    """The table in pieces: from this block up to, not including, that one."""
    for begin in range(0, blocks, at_once):
        yield begin, min(begin + at_once, blocks)


async def sweep(
    database: Database,
    policies: Registry = POLICY_REGISTRY,
    options: SweepOptions | None = None,
    on_progress: OnProgress | None = None,
    stop: Callable[[], bool] | None = None,
) -> SweepReport:
    """Put away and delete what these policies say. While another sweeper is at work, nothing is done.

    Args:
        database: of a login that is a member of `spectral_retention`.
        policies: see `registry_of`.
        options: how to go about it.
        on_progress: told after every call; what it raises ends the sweep.
        stop: asked before every call; once it says yes, the sweep ends in good order.

    Raises:
        ConfigurationError: the policies do not go together, or the database has no schema.
        RefusedError: this login may not sweep.
        OperationError: the database could not be asked; what was done until then is done.
    """
    options = options or SweepOptions()
    walk = _Walk(
        database=database,
        policies=checked_registry(policies),
        options=options,
        # No two sweepers share a name: the lease is held by it.
        sweeper=f"{options.by} #{secrets.token_hex(4)}",
        on_progress=on_progress,
        stop=stop,
    )
    await _require_role(database)
    if options.dry_run:
        return walk.report(await walk.run())
    other = await _begin(database, walk.sweeper, options)
    if other is not None:
        return walk.report(Ended.BUSY, other)
    ended = Ended.STOPPED
    try:
        report = await _as_the_sweeper(walk)
        ended = report.ended
    finally:
        database.probe.tell(walk.note(ended))
    return report


async def _require_role(database: Database) -> None:
    ((role, may_sweep),) = await database.tuples(_MAY_SWEEP)
    if not may_sweep:
        raise RefusedError(f"the login {role} may not sweep", f"grant spectral_retention to {role}")


async def _begin(database: Database, sweeper: str, options: SweepOptions) -> Sweeping | None:
    """Become the sweeper; if another one is at work, answer which."""
    for _ in range(_TRIES):
        # Too slow: the sweeper at work holds the row while one of its calls runs.
        with suppress(DatabaseTooSlowError):
            if await database.value("select core.sweep_begin(%s, %s)", [sweeper, options.lease]):
                return None
        other = (await last_sweep(database)).sweeping
        if other is not None:  # else it has finished in this moment
            return other
    raise RefusedError("the sweep could not begin, other sweepers come and go", "spectral retention show")


async def _as_the_sweeper(walk: _Walk) -> SweepReport:
    """Walk, and let go whatever happens."""
    database = walk.database
    completed_before: datetime | None = None
    try:
        completed_before = (await last_sweep(database)).completed_at
        ended = await walk.run()
    except BaseException:  # a cancellation too: nobody should have to wait for the lease to run out
        with suppress(SpectralError):
            await _finish(database, walk.report(Ended.STOPPED), completed_before)
        raise
    if ended is not Ended.TAKEN_OVER:
        report = walk.report(ended)
        with suppress(RefusedError):  # it was too long ago that the last call renewed the lease
            await _finish(database, report, completed_before)
            return report
    return walk.report(Ended.TAKEN_OVER, (await last_sweep(database)).sweeping)


async def _finish(database: Database, report: SweepReport, completed_before: datetime | None) -> None:
    result = json.dumps(result_of(report, completed_before=completed_before))
    await database.value("select core.sweep_finish(%s, %s::jsonb)", [report.sweeper, result])


class _Leaf(NamedTuple):
    """What is walked over: a table, or one partition of it."""

    name: str
    blocks: int
    ending: bool


@dataclass(slots=True, kw_only=True)
class _Walk:
    """One sweep on its way: where it is, and what it has done so far."""

    database: Database
    policies: Registry
    options: SweepOptions
    sweeper: str
    on_progress: OnProgress | None
    stop: Callable[[], bool] | None
    began: float = field(default_factory=time.monotonic)
    swept: dict[Subject, Swept] = field(default_factory=lambda: dict.fromkeys(Subject, Swept()))
    kept: frozenset[str] = frozenset()
    dropped: frozenset[str] = frozenset()

    async def run(self) -> Ended:
        """Both tables, each as large as it is when its turn comes: what is added later is too young to be swept."""
        for subject in Subject:
            if subject is Subject.OUTBOX_ROW:
                await self._drop_partitions()
            leaves = await self._leaves(subject)
            done, total = 0, sum(leaf.blocks for leaf in leaves)
            for leaf in leaves:
                for begin, end in ranges(leaf.blocks, self.options.blocks):
                    ended = await self._range(subject, leaf, (begin, end), (done, total))
                    if ended is not None:
                        return ended
                done += leaf.blocks
        return Ended.COMPLETE

    async def _leaves(self, subject: Subject) -> list[_Leaf]:
        policy = policy_for(self.policies, subject)
        found = await self.database.tuples(_LEAVES, [_TABLES[subject], policy.active + policy.grace])
        # after a dry run the dropped ones are still there, and counted already
        return [leaf for leaf in (_Leaf(*row) for row in found) if leaf.name not in self.dropped]

    async def _drop_partitions(self) -> None:
        """Drop what is over as a whole; where it is one table, take back what a conversion has left behind."""
        if not await self.database.value(_IS_PARTITIONED):
            if not self.options.dry_run:
                with suppress(DatabaseTooSlowError):  # somebody is converting it
                    await self.database.value("select core.partitions_unbind()")
            return
        maintained = await maintain(
            self.database, keep_of(self.policies), by=self.sweeper, dry_run=self.options.dry_run
        )
        self.kept = frozenset(each.name for each in maintained.kept)
        self.dropped = frozenset(maintained.dropped)
        self.swept[Subject.OUTBOX_ROW] = Swept(0, maintained.dropped_rows)

    async def _range(
        self, subject: Subject, leaf: _Leaf, blocks: tuple[int, int], done: tuple[int, int]
    ) -> Ended | None:
        """Sweep these blocks until there is no more in them; answers how the sweep ends, if it does."""
        begin, end = blocks
        more = True
        while more:
            if self.stop is not None and self.stop():
                return Ended.STOPPED
            answer = await self._call(subject, leaf, begin, end)
            if answer is None:
                return Ended.TAKEN_OVER
            more = answer
            self._tell(subject, done[0] + (begin if more else end), done[1])
        return None

    async def _call(self, subject: Subject, leaf: _Leaf, begin: int, end: int) -> bool | None:
        """Sweep this range once; answers whether there is more, and none if this is no longer the sweeper."""
        try:
            return await self._sweep(subject, leaf, begin, end)
        except NotFoundError:  # somebody else has dropped the partition
            return False
        except RefusedError:
            if self.options.dry_run or await self._is_the_sweeper():
                raise
            return None

    async def _is_the_sweeper(self) -> bool:
        sweeping = (await last_sweep(self.database)).sweeping
        return sweeping is not None and sweeping.name == self.sweeper

    async def _sweep(self, subject: Subject, leaf: _Leaf, begin: int, end: int) -> bool:
        policy, options = policy_for(self.policies, subject), self.options
        grace = policy.grace if policy.hard_delete and self._is_swept_by_row(leaf) else _FOR_EVER
        ((put_away, deleted, more),) = await self.database.tuples(
            _SWEEP[subject],
            [self.sweeper, leaf.name, begin, end, policy.active, grace, options.batch, options.dry_run],
        )
        before = self.swept[subject]
        self.swept[subject] = Swept(before.put_away + put_away, before.deleted + deleted)
        return bool(more)

    def _is_swept_by_row(self, leaf: _Leaf) -> bool:
        """A month that is ending goes as a whole, soon. If something in it stays, the rest goes row by row."""
        return not leaf.ending or leaf.name in self.kept

    def _tell(self, subject: Subject, done: int, total: int) -> None:
        if self.on_progress is not None:
            swept = self.swept[subject]
            self.on_progress(SweepProgress(subject=subject, blocks_done=done, blocks_total=total, swept=swept))

    def note(self, ended: Ended) -> probe.Swept:
        """The same for whoever watches."""
        swept = self.swept.values()
        put_away, deleted = sum(each.put_away for each in swept), sum(each.deleted for each in swept)
        return probe.Swept(put_away, deleted, time.monotonic() - self.began, ended is Ended.COMPLETE)

    def report(self, ended: Ended, other: Sweeping | None = None) -> SweepReport:
        """What was done until now."""
        return SweepReport(
            sweeper=self.sweeper,
            ended=ended,
            dry_run=self.options.dry_run,
            seconds=round(time.monotonic() - self.began, 3),
            outbox=self.swept[Subject.OUTBOX_ROW],
            event_handled=self.swept[Subject.EVENT_HANDLED],
            other=other,
        )
