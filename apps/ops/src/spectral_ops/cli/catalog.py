"""`spectral catalog`: contracts of events, checked and compared. What fits is decided in `spectral.core.contracts`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from spectral_ops.cli.database import environment
from spectral_ops.cli.errors import ExitCode
from spectral_ops.cli.options import AsJson  # noqa: TC001  typer reads the annotation
from spectral_ops.cli.output import emit_json, note

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spectral.core.contracts import Review, Snapshot
    from spectral.core.events import Consumer

PACKAGES_VARIABLE: Final = "SPECTRAL_CONTRACT_PACKAGES"
DEFAULT_PACKAGES: Final = ("spectral.worlds", "spectral.platform")
DEFAULT_APP: Final = "spectral_workers"
"""Where the consumers of Spectral's own reference contexts are declared."""

catalog = typer.Typer(
    help="Contracts of events: checked, compared, kept.",
    epilog="Example: spectral catalog check",
    no_args_is_help=True,
    rich_markup_mode=None,
)

Packages = Annotated[
    list[str] | None,
    typer.Option(
        "--package",
        metavar="NAME",
        help=f"A package with contracts.events; repeatable. {PACKAGES_VARIABLE} (comma-separated), or Spectral's own "
        "reference contexts, unless told.",
        show_default=False,
    ),
]
Apps = Annotated[
    list[str] | None,
    typer.Option(
        "--app",
        metavar="APP",
        help="module:attribute of a Consumer, or of a list of them; repeatable. Spectral's own reference contexts come "
        "with their consumers.",
    ),
]


@catalog.command(epilog="Example: spectral catalog check --app spectral_workers.event_consumers:platform")
def check(package: Packages = None, app: Apps = None, as_json: AsJson = False) -> None:
    """Check that contracts are well-formed and that consumers fit them.

    Every contract module keeps to the convention; every handler of the apps can read what the producers promise, and
    their examples. Exits with 1 when something does not fit, and says what breaks whom. Needs no database.
    """
    from datetime import UTC, datetime  # noqa: PLC0415  cheap, but of no use to --help

    from spectral.core import contracts  # noqa: PLC0415  pydantic comes with it
    from spectral.core.operations.documents import as_document  # noqa: PLC0415  as above

    packages = contract_packages(package)
    found = contracts.discover(packages)
    findings = contracts.check_succession(found, today=datetime.now(tz=UTC).date())
    consumers = consumers_for(packages, app)
    problems = contracts.check_consumers(found, consumers)
    failed = any(each.fails for each in findings) or any(each.breaks for each in problems)
    if as_json:
        emit_json(
            {
                "fits": not failed,
                "packages": list(packages),
                "event_types": list(found),
                "handlers": _count(consumers),
                "findings": as_document(findings),
                "problems": as_document(problems),
            }
        )
    else:
        for text in [*map(contracts.tell_finding, findings), *map(contracts.tell_problem, problems)]:
            typer.echo(text)
    verdict = "something does not fit" if failed else "all fits"
    note(f"{', '.join(packages)}: {len(found)} event type(s), {_checked(consumers, verdict)}")
    if failed:
        raise typer.Exit(ExitCode.FAILED)


@catalog.command(epilog="Example: spectral catalog diff HEAD")
def diff(
    base: Annotated[
        str,
        typer.Argument(
            metavar="BASE",
            help="A git revision, or a file written by snapshot (one that ends in .json is always a file).",
        ),
    ],
    package: Packages = None,
    app: Apps = None,
    allow_new_package: Annotated[
        bool, typer.Option("--allow-new-package", help="A package without contracts in the revision promised nothing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare the contracts with those of an earlier release: additive only.

    Within an event type a producer only adds. Exits with 1 when something else has changed, and says which event type
    and field, whom of the apps it breaks, and what to do instead. The revision's contracts are read in a process of
    their own; the working tree is left alone.
    """
    from datetime import UTC, datetime  # noqa: PLC0415  cheap, but of no use to --help

    from spectral.core import contracts  # noqa: PLC0415  pydantic comes with it

    packages = contract_packages(package)
    now = contracts.snapshot(contracts.discover(packages))
    today = datetime.now(tz=UTC).date()
    consumers = consumers_for(packages, app)
    before = _base(base, packages, allow_new=allow_new_package)
    found = contracts.review(before, now, consumers=consumers, today=today)
    if as_json:
        emit_json({**_diff_document(base, found), "handlers": _count(consumers)})
    else:
        for text in [*map(contracts.tell_change, found.changes), *map(contracts.tell_problem, found.doubts)]:
            typer.echo(text)
    count = len(found.changes)
    verdict = "nothing breaks" if found.compatible else "consumers break"
    note(f"{base}: {count} change(s), {_checked(consumers, verdict)}")
    if not found.compatible:
        raise typer.Exit(ExitCode.FAILED)


@catalog.command(epilog="Example: spectral catalog snapshot > contracts.json")
def snapshot(
    package: Packages = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it there instead of to stdout.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Accepted for scripts; it is JSON in any case.")] = False,  # noqa: ARG001  see help
) -> None:
    """Write down what the contracts promise, for a later diff.

    One JSON document, the same for the same contracts: keep it with a release, and compare the next one with it.
    """
    from spectral.core import contracts  # noqa: PLC0415  pydantic comes with it

    found = contracts.discover(contract_packages(package))
    text = contracts.render_snapshot(contracts.snapshot(found))
    if output is None:
        typer.echo(text, nl=False)
        return
    output.write_text(text, encoding="utf-8")
    note(f"{output}: {len(found)} event type(s)")


def contract_packages(given: Sequence[str] | None) -> tuple[str, ...]:
    """The packages to look at; modules are found from the current directory too."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    named = environment().get(PACKAGES_VARIABLE, "").split(",")
    return tuple(given or [each.strip() for each in named if each.strip()] or DEFAULT_PACKAGES)


def consumers_for(packages: Sequence[str], apps: Sequence[str] | None) -> tuple[Consumer, ...]:
    """The consumers that these names stand for; without any, those of Spectral's own contexts if it is about them."""
    if apps:
        from spectral_workers.locate import locate_consumers  # noqa: PLC0415  pydantic comes with it

        return locate_consumers(apps)
    if set(packages) != set(DEFAULT_PACKAGES):
        return ()
    from spectral_workers.event_consumers import build_declared_consumers  # noqa: PLC0415  as above

    return build_declared_consumers()


def _count(consumers: Sequence[Consumer]) -> int:
    return sum(len(each.handlers) for each in consumers)


def _checked(consumers: Sequence[Consumer], verdict: str) -> str:
    """How many handlers the verdict is about, and what that is worth."""
    count = _count(consumers)
    told = f"{verdict}; {count} handler(s) checked"
    return told if count else f"{told}\n{_NOBODY}"


def _base(base: str, packages: Sequence[str], *, allow_new: bool) -> Snapshot:
    from spectral.core import contracts  # noqa: PLC0415  pydantic comes with it

    file = Path(base)
    # A file that happens to be called like a branch must not hide the branch.
    if file.is_file() and (file.suffix == ".json" or not contracts.is_revision(base, packages)):
        return contracts.parse_snapshot(file.read_text(encoding="utf-8"), source=base)
    return contracts.snapshot_at(base, packages, allow_new=allow_new)


def _diff_document(base: str, found: Review) -> dict[str, object]:
    from spectral.core.operations.documents import as_document  # noqa: PLC0415  pydantic comes with it

    changes = [{**as_document(each.change), "breaks": list(each.breaks)} for each in found.changes]
    return {"base": base, "compatible": found.compatible, "changes": changes, "doubts": as_document(found.doubts)}


_NOBODY: Final = (
    "doubtful: nobody who reads the events was looked at\n  try: name the consumers with --app module:attribute"
)
