"""`spectral retention`: how long things are kept. What it does is decided in `spectral.core.retention`."""

from __future__ import annotations

import os
import select
import signal
import sys
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Final

import typer

from spectral_ops.cli.asking import confirm
from spectral_ops.cli.database import environment
from spectral_ops.cli.errors import ExitCode
from spectral_ops.cli.events_options import plain
from spectral_ops.cli.options import AsJson, By, DryRun, Yes, actor
from spectral_ops.cli.output import emit_json, emit_table, note
from spectral_ops.cli.running import with_database

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from spectral.core.database import Database
    from spectral.core.retention import OnProgress, Registry, SweepOptions, SweepProgress, SweepReport, SweepState

retention = typer.Typer(
    help="How long events and dedup records are kept, and the sweep.",
    epilog="Example: spectral retention show",
    no_args_is_help=True,
    rich_markup_mode=None,
)

# One call of the sweep: less than the lease, which the next call renews.
_CALL: Final = timedelta(seconds=60)
# How soon a sweep that could not be done is tried again, if the next one is not due sooner.
_AGAIN: Final = 60.0
_STEPS: Final = 10  # lines at most for each table where there is no terminal
_TABLES: Final = {"outbox_row": "events", "event_handled": "dedup records"}


@retention.command(epilog="Example: spectral retention show --json")
def show(as_json: AsJson = False) -> None:
    """Show how long things are kept, when they were last swept, and whether that is overdue."""
    from spectral.core.operations.documents import as_document  # noqa: PLC0415  pydantic; --help must not pay for it
    from spectral.core.retention import last_sweep, overdue, policies_from  # noqa: PLC0415  psycopg

    policies = policies_from(environment())
    state = with_database("retention", last_sweep)
    lateness = overdue(state, policies)
    if as_json:
        shown = {"policies": list(policies.values()), "sweep": state, "lateness": lateness}
        emit_json(as_document(shown))
        return
    rows = [
        (_TABLES[each.subject], _days(each.active), _days(each.grace) if each.hard_delete else "for ever")
        for each in policies.values()
    ]
    emit_table(("kept", "active", "then put away"), rows)
    for line in _state_lines(state):
        note(line)
    note(f"overdue: {lateness.because}\n  try: spectral retention run" if lateness.overdue else lateness.because)


@retention.command(epilog="Example: spectral retention run --dry-run")
def run(
    every: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=1,
            help="Go on for ever: sweep when the last sweep, whoever did it, is this long ago.",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[int, typer.Option(min=1, max=100_000, help="Rows that one transaction deletes at most.")] = 5000,
    dry_run: DryRun = False,
    yes: Yes = False,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Put away what is over and delete, for good, what was put away long enough ago.

    Never what is still to be delivered, nor what failed and was not discarded. While another sweeper is at work nothing
    is done, and that is no error. It may be stopped and run again at any time. The login has to be a member of
    spectral_retention.
    """
    from spectral.core.retention import SweepOptions, policies_from  # noqa: PLC0415  psycopg; --help must not pay for it

    if every is not None and (dry_run or as_json):
        raise typer.BadParameter("--every goes neither with --dry-run nor with --json")
    policies = policies_from(environment())
    options = SweepOptions(by=actor(by), batch=batch, dry_run=dry_run)
    if not dry_run:
        confirm(_intention(policies), yes=yes)
    with _told_to_stop() as stop:
        if every is not None:
            _run_for_ever(policies, options, every, stop)
            return
        report = with_database(
            "retention", lambda database: _sweep(database, policies, options, stop), statement_timeout=_CALL
        )
    if as_json:
        from spectral.core.operations.documents import as_document  # noqa: PLC0415  as above

        emit_json(as_document(report))
    else:
        _show_counts(report)
    note(_summary(report))
    if report.ended == "stopped":
        raise typer.Exit(ExitCode.FAILED)


async def _sweep(database: Database, policies: Registry, options: SweepOptions, stop: Stop) -> SweepReport:
    from spectral.core.retention import sweep  # noqa: PLC0415  psycopg

    with _progress() as tell:
        return await sweep(database, policies, options, on_progress=tell, stop=stop.is_set)


def _run_for_ever(policies: Registry, options: SweepOptions, every: float, stop: Stop) -> None:
    """Sweep whenever it is due, on a connection for each; one that cannot be done is told, and tried again."""
    from spectral.core.database import OperationError  # noqa: PLC0415  psycopg
    from spectral.core.retention import due_in, in_words, last_sweep  # noqa: PLC0415  as above

    async def when_due(database: Database) -> float:
        wait = due_in(await last_sweep(database), timedelta(seconds=every))
        if wait > timedelta(0):
            note(f"swept not long ago; the next sweep is due in {in_words(wait)}")
            return wait.total_seconds()
        report = await _sweep(database, policies, options, stop)
        note(_summary(report))
        return every if report.ended == "complete" else min(every, _AGAIN)

    while not stop.is_set():
        try:
            wait = with_database("retention", when_due, statement_timeout=_CALL)
        except OperationError as error:
            note(f"not swept: {error}" + (f"; try: {error.remedy}" if error.remedy else ""))
            wait = min(every, _AGAIN)
        stop.wait(wait)


class Stop:
    """Set by the handler of a signal, which may interrupt this thread anywhere, in its own `wait` too.

    So there is no lock in it, as there is in an event: a pipe that is readable from then on.
    """

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        self._is_set = False

    def set(self) -> None:
        """From now on nobody waits."""
        if not self._is_set:
            self._is_set = True
            os.write(self._writer, b".")

    def is_set(self) -> bool:
        """Whether it is time to end."""
        return self._is_set

    def wait(self, seconds: float) -> None:
        """Until it is, but no longer than this."""
        select.select([self._reader], [], [], seconds)

    def close(self) -> None:
        """Give the pipe back."""
        os.close(self._reader)
        os.close(self._writer)


@contextmanager
def _told_to_stop() -> Generator[Stop]:
    """Set by the first SIGTERM or SIGINT, for the sweep to end in good order; a second one ends the process."""
    told = Stop()
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) for number in numbers}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def tell(_number: int, _frame: object) -> None:
        told.set()
        restore()

    for number in numbers:
        signal.signal(number, tell)
    try:
        yield told
    finally:
        restore()
        told.close()


@contextmanager
def _progress() -> Generator[OnProgress]:
    """A bar for each table on a terminal, a few lines elsewhere; on stderr."""
    if not sys.stderr.isatty():
        yield _progress_lines()
        return
    from rich.console import Console  # noqa: PLC0415  slow to import, and only a terminal needs it
    from rich.progress import Progress  # noqa: PLC0415  as above

    with Progress(console=Console(stderr=True), transient=True) as bars:
        tasks = {subject: bars.add_task(table, total=None, start=False) for subject, table in _TABLES.items()}

        def tell(progress: SweepProgress) -> None:
            task = tasks[progress.subject]
            bars.start_task(task)
            bars.update(task, total=progress.blocks_total, completed=progress.blocks_done)

        yield tell


def _progress_lines() -> OnProgress:
    told: dict[str, int] = {}

    def tell(progress: SweepProgress) -> None:
        step = progress.blocks_done * _STEPS // progress.blocks_total
        if step > told.get(progress.subject, 0):
            told[progress.subject] = step
            swept = progress.swept
            table = _TABLES[progress.subject]
            note(f"{table}: {step * 100 // _STEPS} %, {swept.put_away} put away, {swept.deleted} deleted")

    return tell


def _intention(policies: Registry) -> str:
    from spectral.core.retention import Subject, policy_for  # noqa: PLC0415  psycopg

    outbox = policy_for(policies, Subject.OUTBOX_ROW)
    handled = policy_for(policies, Subject.EVENT_HANDLED)
    return (
        f"delete for good what was put away {_days(outbox.grace)} ago (dedup records: {_days(handled.grace)}), "
        f"and put away what was delivered {_days(outbox.active)} ago (dedup records: {_days(handled.active)})"
    )


def _show_counts(report: SweepReport) -> None:
    if report.ended == "busy":
        return
    would = "would be " if report.dry_run else ""
    rows = [
        (table, str(swept.put_away), str(swept.deleted))
        for table, swept in (("events", report.outbox), ("dedup records", report.event_handled))
    ]
    emit_table(("", f"{would}put away", f"{would}deleted"), rows)


def _summary(report: SweepReport) -> str:
    from spectral.core.retention import Ended  # noqa: PLC0415  psycopg

    other = report.other
    who = f"{plain(other.name)}, since {other.started_at:%Y-%m-%d %H:%M:%S} UTC" if other is not None else "another one"
    deleted = report.outbox.deleted + report.event_handled.deleted
    put_away = report.outbox.put_away + report.event_handled.put_away
    match report.ended:
        case Ended.BUSY:
            return f"nothing to do: a sweeper is at work ({who})"
        case Ended.TAKEN_OVER:
            return f"another sweeper has taken over ({who}); this one was silent for too long"
        case Ended.STOPPED:
            return "stopped; what is done is done\n  try: spectral retention run"
        case Ended.COMPLETE if report.dry_run:
            return "nothing was changed"
        case Ended.COMPLETE:
            return f"swept in {report.seconds:g} s: {put_away} put away, {deleted} deleted"


def _state_lines(state: SweepState) -> Iterator[str]:
    if state.sweeping is not None:
        since, heard = state.sweeping.started_at, state.sweeping.renewed_at
        name = plain(state.sweeping.name)
        yield f"sweeping: {name}, since {since:%Y-%m-%d %H:%M:%S} UTC, last heard of {heard:%H:%M:%S}"
    if state.last is not None:
        last = state.last
        swept = f"{last.outbox.deleted} events and {last.event_handled.deleted} dedup records deleted"
        yield f"last sweep: {last.finished_at:%Y-%m-%d %H:%M:%S} UTC, {swept if last.complete else 'not complete'}"


def _days(span: timedelta) -> str:
    return f"{span / timedelta(days=1):g} days"
