"""`spectral catalog build` and `spectral catalog export`: the contracts as pages and as documents.

What stands in them is decided in `spectral_ops.catalogue`.
"""

from __future__ import annotations

import shlex
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from spectral_ops.cli.catalog import DEFAULT_APP, Apps, Packages, catalog, consumers_for, contract_packages
from spectral_ops.cli.errors import ExitCode
from spectral_ops.cli.options import AsJson  # noqa: TC001  typer reads annotations at run time
from spectral_ops.cli.output import emit_json, emit_table, note

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from spectral_ops.catalogue import Catalogue

__all__ = ["catalog"]

DIRECTORY: Final = Path("docs/events")


class Format(StrEnum):
    """What a document is written for."""

    ASYNCAPI = "asyncapi"
    JSONSCHEMA = "jsonschema"
    CLOUDEVENTS = "cloudevents"
    SNAPSHOT = "snapshot"


@catalog.command(epilog="Example: spectral catalog build --output docs/events")
def build(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="Where the pages are.")] = DIRECTORY,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; exit with 1 if a page would change.")] = False,
    package: Packages = None,
    app: Apps = None,
    as_json: AsJson = False,
) -> None:
    """Write the event catalogue, a page per event and per protocol.

    Pages that no contract asks for any more are removed; files that were not written by this command are left alone.
    The same contracts give the same bytes.
    """
    from spectral.core.operations.documents import as_document  # noqa: PLC0415  pydantic; --help must not pay for it
    from spectral.core.retention import POLICY_REGISTRY  # noqa: PLC0415  as above
    from spectral_ops import catalogue  # noqa: PLC0415  as above

    found = catalogue_of(package, app)
    directory = output.resolve()
    pages = catalogue.render_pages(found, directory=directory, root=_root(directory), retention=POLICY_REGISTRY)
    differences = catalogue.compare(directory, pages)
    if not check:
        _write(directory, lambda: catalogue.write(directory, pages, differences))
    if as_json:
        document = {"directory": str(output), "pages": len(pages), "written": not check, "differences": differences}
        emit_json(as_document(document))
    else:
        emit_table(("page", "state"), [(str(output / each.page), each.state) for each in differences])
    if check and differences:
        command = _command(output, package, app)
        note(f"{output}: {len(differences)} page(s) are not as the contracts have them\n  try: {command}")
        raise typer.Exit(ExitCode.FAILED)
    note(
        f"{output}: {len(pages)} page(s), {f'{len(differences)} written or removed' if differences else 'all current'}"
    )


@catalog.command(epilog="Example: spectral catalog export --format asyncapi")
def export(  # noqa: PLR0913, PLR0917  one parameter for each option of the command
    form: Annotated[Format, typer.Option("--format", "-f", help="What the document is for.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to; stdout unless told.")
    ] = None,
    package: Packages = None,
    app: Apps = None,
    title: Annotated[str, typer.Option(help="What an AsyncAPI document calls itself.")] = "Events",
    release: Annotated[str, typer.Option(help="The version that an AsyncAPI document gives itself.")] = "unreleased",
    as_json: Annotated[bool, typer.Option("--json", help="Accepted for scripts; it is JSON in any case.")] = False,  # noqa: ARG001  see help
) -> None:
    """Write all contracts as one document for other tools.

    asyncapi: AsyncAPI 3.0. jsonschema: the payloads, JSON Schema 2020-12. cloudevents: how an envelope becomes a
    CloudEvent 1.0, with examples. snapshot: what a later `spectral catalog diff` compares with.
    """
    text = _text(form, catalogue_of(package, app), title, release)
    if output is None:
        typer.echo(text, nl=False)
        return
    _write(output, lambda: output.write_text(text, encoding="utf-8"))
    note(f"wrote {output}")


def _text(form: Format, found: Catalogue, title: str, release: str) -> str:
    import json  # noqa: PLC0415  --help must not pay for it

    from spectral.core.contracts import Contracts, render_snapshot, snapshot  # noqa: PLC0415  as above
    from spectral_ops import catalogue  # noqa: PLC0415  as above

    match form:
        case Format.ASYNCAPI:
            document = catalogue.asyncapi_document(found, catalogue.Release(title, release))
        case Format.JSONSCHEMA:
            document = catalogue.schemas_document(found)
        case Format.CLOUDEVENTS:
            document = catalogue.cloudevents_document(found)
        case _:
            return render_snapshot(snapshot(Contracts([entry.contract for entry in found.events])))
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def catalogue_of(package: Sequence[str] | None = None, app: Sequence[str] | None = None) -> Catalogue:
    """What these packages promise and these consumers read; Spectral's own contexts come with their consumers."""
    from spectral.core.contracts import discover  # noqa: PLC0415  pydantic; --help must not pay for it
    from spectral_ops.catalogue import collect  # noqa: PLC0415  as above

    packages = contract_packages(package)
    consumers = consumers_for(packages, app)
    names = app or ([DEFAULT_APP] if consumers else [])
    roots = sorted({name.partition(":")[0].partition(".")[0] for name in names})
    return collect(discover(packages), consumers=consumers, packages=packages, apps=roots)


def _root(directory: Path) -> Path:
    """The project that the pages are part of; links lead to files in it."""
    for each in (directory, *directory.parents):
        if (each / "pyproject.toml").exists() or (each / ".git").exists():
            return each
    return Path.cwd()


def _write(path: Path, action: Callable[[], object]) -> None:
    from spectral.core.events.failure import ConfigurationError  # noqa: PLC0415  --help must not pay for it

    try:
        action()
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be written: {error.strerror}; name another with --output") from None


def _command(output: Path, package: list[str] | None, app: list[str] | None) -> str:
    """What writes these pages."""
    given = [] if output == DIRECTORY else ["--output", str(output)]
    for each in package or ():
        given += ["--package", each]
    for each in app or ():
        given += ["--app", each]
    return shlex.join(["spectral", "catalog", "build", *given])
