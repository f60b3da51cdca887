"""Changing dead letters from the command line, few by their ids or many by a filter; replay and discard alike."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from spectral.core.database import NotFoundError, OperationError, RefusedError
from spectral.core.operations.dead_letters import states_of
from spectral.core.operations.documents import as_document
from spectral.core.operations.replay import ReplayReport, preview
from spectral_ops.cli.asking import confirm
from spectral_ops.cli.errors import ExitCode
from spectral_ops.cli.events_options import command_line
from spectral_ops.cli.output import emit_json, note

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from spectral.core.database import Database
    from spectral.core.operations.dead_letters import DeadLetterFilter
    from spectral.core.operations.discard import Discarded, DiscardReport
    from spectral.core.operations.replay import Preview, Progress, Replayed

    Few = Callable[[Sequence[UUID]], Awaitable[Sequence[Replayed | Discarded]]]
    Many = Callable[
        [DeadLetterFilter, Callable[[Progress], None], Callable[[], bool]], Awaitable[ReplayReport | DiscardReport]
    ]


_ENDINGS: Final = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class Deed:
    """What is done, in words, and how it is done to few and to many."""

    do: str
    done: str
    where: str
    few: Few
    many: Many


@dataclass(frozen=True, slots=True)
class Manner:
    """How the person wants it done."""

    yes: bool
    dry_run: bool
    as_json: bool


async def change_few(database: Database, deed: Deed, ids: Sequence[UUID], manner: Manner) -> ExitCode:
    """Do it to these. Each that it cannot be done to is told, with the reason."""
    states = await states_of(database, ids)
    failed = [event_id for event_id, state in states.items() if state == "failed"]
    answered: dict[UUID, object] = {event_id: {"id": event_id, "refusal": state} for event_id, state in states.items()}
    refused = {event_id: state for event_id, state in states.items() if state != "failed"}
    if manner.dry_run:
        answered |= {event_id: {"id": event_id, "refusal": None} for event_id in failed}
    elif failed:
        confirm(f"{deed.do} {_events(len(failed))}{deed.where}", yes=manner.yes)
        outcome = await deed.few(failed)
        answered |= {each.id: each for each in outcome}
        # somebody else may have been quicker
        refused |= {each.id: each.refusal for each in outcome if each.refusal is not None}
    if manner.as_json:
        emit_json({"dry_run": manner.dry_run, "events": as_document(list(answered.values()))})
    for event_id, refusal in refused.items():
        what = "there is no such event" if refusal == "unknown" else f"it is {refusal.replace('_', ' ')}"
        note(f"{event_id}: not {deed.done}, {what}")
    if len(states) > len(refused):
        would = "would be " if manner.dry_run else ""
        note(f"{_events(len(states) - len(refused))} {would}{deed.done}{deed.where}")
    return _code(set(refused.values()))


async def change_many(
    database: Database, deed: Deed, wanted: DeadLetterFilter, options: Mapping[str, object], manner: Manner
) -> ExitCode:
    """Do it to all that the filter means, in batches; what was not done can be done later by the same options."""
    planned = await preview(database, wanted)
    any_at_all = planned.count > 0 or planned.capped
    what = f"{counted(planned.count, capped=planned.capped)} event(s)"
    report = None
    if any_at_all and not manner.dry_run:
        confirm(f"{deed.do} {what}{deed.where}", yes=manner.yes)
        report = await _do(deed, replace(wanted, failed_before=planned.failed_before), options, planned)
    if manner.as_json:
        emit_json(as_document({"dry_run": manner.dry_run, "preview": planned, "report": report}))
    if report is None:
        note(f"{what} would be {deed.done}{deed.where}" if any_at_all else f"nothing to {deed.do}")
        return ExitCode.OK
    count = report.replayed if isinstance(report, ReplayReport) else report.discarded
    left = counted(report.remaining, capped=report.remaining_capped)
    refused = f", {report.refused:,} changed meanwhile" if report.refused else ""
    note(f"{_events(count)} {deed.done}{deed.where}{refused}; {left} left of those that were there")
    if not report.stopped:
        return ExitCode.OK
    note(_going_on(deed, options, report.failed_before))
    return ExitCode.FAILED


async def _do(
    deed: Deed, fixed: DeadLetterFilter, options: Mapping[str, object], planned: Preview
) -> ReplayReport | DiscardReport:
    with _progress(deed.done, planned) as tell, _interrupted() as stop:
        try:
            return await deed.many(fixed, tell, stop)
        except (NotFoundError, RefusedError):
            raise  # the same command would be refused again
        except OperationError:
            note(_going_on(deed, options, planned.failed_before))
            raise


def _going_on(deed: Deed, options: Mapping[str, object], failed_before: datetime) -> str:
    """The command that does the rest, of the same set."""
    again = command_line(f"dlq {deed.do}", {**options, "--failed-before": failed_before, "--yes": True})
    return f"ended before it was done; what is done is done\n  go on: {again}"


def counted(count: int, *, capped: bool) -> str:
    """A number as it is shown."""
    return f"at least {count:,}" if capped else f"{count:,}"


def _events(count: int) -> str:
    return "1 event" if count == 1 else f"{count:,} events"


def _code(refusals: Collection[str]) -> ExitCode:
    if "unknown" in refusals:
        return ExitCode.NOT_FOUND
    return ExitCode.FAILED if refusals else ExitCode.OK


@contextmanager
def _progress(verb: str, planned: Preview) -> Generator[Callable[[Progress], None]]:
    """How far it is: a bar on a terminal, else a line for each twentieth of it; on stderr."""
    if not sys.stderr.isatty():
        yield _progress_lines(verb, planned)
        return
    from rich.console import Console  # noqa: PLC0415  slow to import, and only a terminal needs it
    from rich.progress import MofNCompleteColumn  # noqa: PLC0415  as above
    from rich.progress import Progress as Bar  # noqa: PLC0415  as above

    with Bar(*Bar.get_default_columns(), MofNCompleteColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(verb, total=None if planned.capped else planned.count)
        yield lambda so_far: bar.update(task, completed=so_far.done + so_far.refused)


def _progress_lines(verb: str, planned: Preview) -> Callable[[Progress], None]:
    total, step, told = counted(planned.count, capped=planned.capped), max(1, planned.count // 20), 0

    def tell(so_far: Progress) -> None:
        nonlocal told
        if so_far.done // step > told:
            told = so_far.done // step
            note(f"{verb} {so_far.done:,} of {total}")

    return tell


@contextmanager
def _interrupted() -> Generator[Callable[[], bool]]:
    """Whether somebody pressed Ctrl-C or ended it: the batch at hand is finished first. Twice ends it where it is."""
    loop, pressed = asyncio.get_running_loop(), asyncio.Event()

    def press() -> None:
        pressed.set()
        let_go()

    def let_go() -> None:
        for number in _ENDINGS:
            loop.remove_signal_handler(number)

    for number in _ENDINGS:
        loop.add_signal_handler(number, press)
    try:
        yield pressed.is_set
    finally:
        let_go()
