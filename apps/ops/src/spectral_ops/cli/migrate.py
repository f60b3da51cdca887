"""`spectral migrate`: the runner's verbs, one command each. What they do is decided in `spectral.core.migrations`."""

from __future__ import annotations

from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spectral_ops.cli.database import environment, resolve_dsn
from spectral_ops.cli.errors import ExitCode
from spectral_ops.cli.output import emit_json, emit_table, note

if TYPE_CHECKING:
    from collections.abc import Callable

    from spectral.core.migrations import Progress

migrate = typer.Typer(
    help="Bring the database's schema forward, and see how it stands.",
    epilog="Example: spectral migrate up",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Directory = Annotated[
    list[Path] | None,
    typer.Option(
        "--directory", "-d", metavar="DIR", help="A directory of migrations of your own, beside Spectral's; repeatable."
    ),
]
Bundled = Annotated[bool, typer.Option("--bundled/--no-bundled", help="Whether Spectral's own migrations take part.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout instead of a table.")]


@migrate.command(epilog="Example: spectral migrate up --dry-run")
def up(
    directory: Directory = None,
    bundled: Bundled = True,
    lock_timeout: Annotated[
        float, typer.Option(min=0.001, help="Seconds that one wait for a lock may take; it is tried five times.")
    ] = 5.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be applied, and change nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Accepted for scripts; up never asks.")] = False,  # noqa: ARG001  see help
    as_json: AsJson = False,
) -> None:
    """Apply what is pending, one transaction per file.

    Files are applied in the order of their versions. Safe to run twice and by several processes at once. It never
    asks: a pending file is expected to be safe, and a drifted one is refused. When a file fails it is rolled back
    whole, and the files before it stay applied.
    """
    from spectral.core import migrations  # noqa: PLC0415  psycopg; --help must not pay for it
    from spectral_ops.cli.views import up_document, up_summary  # noqa: PLC0415  as above

    dsn = resolve_dsn(environment())
    database = migrations.describe_database(dsn)
    options = migrations.UpOptions(lock_timeout=timedelta(seconds=lock_timeout), dry_run=dry_run)
    report = migrations.up(
        dsn, directories=_directories(directory, bundled=bundled), options=options, on_progress=_progress_line()
    )
    if as_json:
        emit_json(up_document(database, report, dry_run=dry_run))
        return
    if dry_run:
        adopt = [("adopt", each.filename) for each in report.adopted]
        emit_table(("step", "file"), [*adopt, *(("apply", each.filename) for each in report.applied)])
    note(f"{database}: {up_summary(report, dry_run=dry_run)}")


@migrate.command(epilog="Example: spectral migrate status --json")
def status(directory: Directory = None, bundled: Bundled = True, as_json: AsJson = False) -> None:
    """List every migration: applied, pending or drifted."""
    from spectral.core import migrations  # noqa: PLC0415  psycopg; --help must not pay for it
    from spectral_ops.cli.views import status_document, status_rows  # noqa: PLC0415  as above

    dsn = resolve_dsn(environment())
    database = migrations.describe_database(dsn)
    found = migrations.status(dsn, directories=_directories(directory, bundled=bundled))
    if as_json:
        emit_json(status_document(database, found))
        return
    emit_table(("file", "state"), status_rows(found))
    for each in found.drift:
        note(f"drift: {each.message}")
    note(f"{database}: {len(found.applied)} applied, {len(found.pending)} pending, {len(found.drift)} drifted")


@migrate.command(epilog="Example: spectral migrate plan")
def plan(directory: Directory = None, bundled: Bundled = True, as_json: AsJson = False) -> None:
    """Show what up would do, in order, without doing it."""
    from spectral.core import migrations  # noqa: PLC0415  psycopg; --help must not pay for it
    from spectral_ops.cli.views import plan_document  # noqa: PLC0415  as above

    dsn = resolve_dsn(environment())
    database = migrations.describe_database(dsn)
    steps = migrations.plan(dsn, directories=_directories(directory, bundled=bundled))
    if as_json:
        emit_json(plan_document(database, steps))
        return
    emit_table(("step", "file"), [(step.action.value, step.migration.filename) for step in steps])
    note(f"{database}: {len(steps)} step(s)" if steps else f"{database}: nothing to do")


@migrate.command(epilog="Example: spectral migrate verify && echo clean")
def verify(directory: Directory = None, bundled: Bundled = True, as_json: AsJson = False) -> None:
    """Check files, ledger and schema against each other.

    Clean means: nothing is pending, no applied file was edited, nothing in the schema was changed by hand. Exits with
    4 when something was found.
    """
    from spectral.core import migrations  # noqa: PLC0415  psycopg; --help must not pay for it
    from spectral_ops.cli.views import verify_document, verify_findings  # noqa: PLC0415  as above

    dsn = resolve_dsn(environment())
    database = migrations.describe_database(dsn)
    found = migrations.verify(dsn, directories=_directories(directory, bundled=bundled))
    if as_json:
        emit_json(verify_document(database, found))
    else:
        emit_table(("finding",), [(line,) for line in verify_findings(found)])
    if found.clean:
        note(f"{database}: clean")
        return
    waiting = found.pending or found.adoptable
    note(f"{database}: not clean\n  try: {'spectral migrate up' if waiting else 'spectral migrate status'}")
    raise typer.Exit(ExitCode.UNHEALTHY)


@migrate.command(epilog="Example: spectral migrate sql --all > schema.sql")
def sql(
    directory: Directory = None,
    bundled: Bundled = True,
    everything: Annotated[
        bool, typer.Option("--all", help="All migrations, for an empty database; none is connected to.")
    ] = False,
) -> None:
    """Print what is pending as one script for a DBA.

    The script holds the transactions, the lock and the ledger's rows: after psql has run it, verify is clean.
    """
    from spectral.core import migrations  # noqa: PLC0415  psycopg; --help must not pay for it

    dsn = None if everything else resolve_dsn(environment())
    typer.echo(migrations.script(dsn, directories=_directories(directory, bundled=bundled)), nl=False)


@migrate.command(epilog="Example: spectral migrate lint supabase/migrations")
def lint(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[PATH]...", exists=True, help="Files or directories; Spectral's own by default."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check migration files; needs no database.

    Finds grants and statements that do not belong in a migration. Your contexts are those of SPECTRAL_CONTEXTS
    (comma-separated). Exits with 1 when something was found.
    """
    if find_spec("pglast") is None:
        raise ModuleNotFoundError(name="pglast")
    from spectral.core import migrations  # noqa: PLC0415  psycopg; --help must not pay for it
    from spectral.core.events.settings import CONTEXTS_VARIABLE, parse_contexts  # noqa: PLC0415  as above
    from spectral.core.migrations.lint import LintSettings, lint_files  # noqa: PLC0415  needs an extra package

    given = paths or [migrations.bundled_directory()]
    files = [file for path in given for file in (sorted(path.glob("*.sql")) if path.is_dir() else [path])]
    contexts = parse_contexts(environment().get(CONTEXTS_VARIABLE)) | {"core"}
    findings = lint_files(files, LintSettings(contexts=contexts))
    if as_json:
        shown = [
            {"rule": each.rule, "path": str(each.path), "line": each.line, "message": each.message} for each in findings
        ]
        emit_json({"files": len(files), "findings": shown})
    else:
        rows = [(f"{each.path}:{each.line}", str(each.rule), each.message) for each in findings]
        emit_table(("where", "rule", "finding"), rows)
    note(f"{len(files)} file(s), {len(findings)} finding(s)")
    if findings:
        raise typer.Exit(ExitCode.FAILED)


def _directories(own: list[Path] | None, *, bundled: bool) -> list[Path]:
    from spectral.core.migrations import bundled_directory  # noqa: PLC0415  psycopg; --help must not pay for it

    return [*([bundled_directory()] if bundled else []), *(own or [])]


def _progress_line() -> Callable[[Progress], None]:
    """A reporter that writes what happens to stderr, one line per event."""
    from spectral.core.migrations import Adopted, Applied, Applying, Overwriting, Skipped, Waiting  # noqa: PLC0415  as above

    def show(event: Progress) -> None:
        match event:
            case Applying(migration, position, total):
                note(f"[{position}/{total}] {migration.filename}")
            case Applied(_, duration):
                note(f"        applied in {duration / timedelta(milliseconds=1):.0f} ms")
            case Skipped():
                note("        skipped: another process applied it")
            case Adopted(migration):
                note(f"adopted {migration.filename}: the Supabase CLI had applied it")
            case Waiting(subject, attempt, attempts, pause):
                note(f"        {subject} waits for a lock (attempt {attempt} of {attempts}), again in {pause}")
            case Overwriting(objects):
                note(f"warning: {'; '.join(each.message for each in objects)}; recorded as it is now")

    return show
