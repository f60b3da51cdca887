"""Draining in a test: a real worker, until nothing is due, and what it did."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from spectral.core.events.bootstrap import worker
from spectral.core.events.envelope import DEFAULT_CONTEXTS
from spectral.core.events.outcome import AlreadyHandled, DeadLetter, Handled, Outcome, Retry
from spectral.core.events.probe import Finished, Note, Reaped, Unhandled
from spectral.core.events.settings import DatabaseSettings, WorkerSettings
from spectral.core.events.testing.notes import RecordingProbe

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from spectral.core.events.consumer import Consumer


@dataclass(frozen=True, slots=True)
class Drained:
    """What a drain did, note by note."""

    notes: tuple[Note, ...]

    @property
    def finished(self) -> list[Finished]:
        """Every execution, in the order in which they were settled."""
        return [note for note in self.notes if isinstance(note, Finished)]

    @property
    def outcomes(self) -> dict[UUID, list[Outcome]]:
        """What became of each event, execution by execution."""
        outcomes: dict[UUID, list[Outcome]] = {}
        for note in self.finished:
            outcomes.setdefault(note.delivery.event_id, []).append(note.outcome)
        return outcomes

    @property
    def handled(self) -> list[Finished]:
        """Executions after which the event was delivered."""
        return [note for note in self.finished if isinstance(note.outcome, Handled | AlreadyHandled)]

    @property
    def retries(self) -> list[Finished]:
        """Executions that failed and may be tried again."""
        return [note for note in self.finished if isinstance(note.outcome, Retry)]

    @property
    def dead_letters(self) -> list[Finished]:
        """Executions after which the event went to the DLQ."""
        return [note for note in self.finished if isinstance(note.outcome, DeadLetter)]

    def assert_all_handled(self, times: int | None = None) -> None:
        """Raise an `AssertionError` unless something was delivered (exactly so many, if told) and nothing failed."""
        failures = [
            f"{_shown(note)}: {note.outcome.error}"
            for note in self.finished
            if isinstance(note.outcome, Retry | DeadLetter)
        ]
        failures += [f"{note.row_id}: taken back from {note.worker}" for note in self.notes if isinstance(note, Reaped)]
        for note in self.notes:
            if isinstance(note, Unhandled):
                failures += [f"{row.row_id}: nobody in {note.context} handles {row.event_type}" for row in note.dead]
        if failures:
            raise AssertionError("not everything was handled:\n  " + "\n  ".join(failures))
        handled = len({note.delivery.lease.row_id for note in self.handled})
        if not handled and times != 0:
            raise AssertionError(
                "nothing was due: is the event committed, is its target the context of one of these consumers, its "
                "type one they handle, and its generation the one that was drained?"
            )
        if times is not None and handled != times:
            shown = ", ".join(_shown(note) for note in self.handled)
            raise AssertionError(f"{handled} events were handled, not {times}: {shown}")


async def drain(
    *consumers: Consumer,
    dsn: str,
    generation: int = 1,
    contexts: Iterable[str] = (),
    settings: WorkerSettings | None = None,
) -> Drained:
    """Run a real worker until nothing is due and nothing runs, and tell what it did.

    Retries that fall due later are left pending; give the handler a policy without delay to see them here. What earlier
    tests subscribed for these contexts is replaced.

    Args:
        consumers: whose handlers to run.
        dsn: the database.
        generation: the worker's, if there are no settings.
        contexts: what handlers may publish to besides the usual ones and their own, if there are no settings.
        settings: what kind of worker, if the usual will not do.

    Raises:
        ConfigurationError: the worker does not fit this database.
    """
    probe = RecordingProbe()
    if settings is None:
        declared = DEFAULT_CONTEXTS | {consumer.context for consumer in consumers} | set(contexts)
        settings = WorkerSettings(generation=generation, contexts=declared, replace_subscriptions=True)
    listener = worker(*consumers, settings=settings, database=DatabaseSettings(dsn=dsn), probe=probe)
    await listener.run(until="drained")
    return Drained(probe.notes)


def _shown(note: Finished) -> str:
    return f"{note.delivery.event_type} {note.delivery.event_id}"
