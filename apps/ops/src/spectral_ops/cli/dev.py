"""`spectral dev`: a database and a worker for whoever writes handlers. It is made in `spectral_ops.dev`."""

from __future__ import annotations

import signal
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spectral_ops.cli.database import environment
from spectral_ops.cli.output import note

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_FOREIGN = ("SPECTRAL_DIRECT_URL", "PG")
"""Variables, or how they begin, that would lead the worker to another database."""


def dev(
    apps: Annotated[
        list[str], typer.Argument(metavar="APP", help="module:attribute of a Consumer, or of a list of them.")
    ],
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="Throw the data away at the end instead of keeping it in .spectral/.")
    ] = False,
    directory: Annotated[
        list[Path] | None,
        typer.Option(
            "--directory", "-d", metavar="DIR", help="A directory of migrations of your own; repeatable.", exists=True
        ),
    ] = None,
    grace: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, max=86400, help="What running handlers get before a restart.")
    ] = 5.0,
) -> None:
    """Run a worker on a Postgres of its own, and start it again whenever a *.py file changes.

    Needs no database and never touches the one that the environment names. Prints what another terminal has to export
    to publish to it; that holds no secret. Generation SPECTRAL_GENERATION, or 1, is made the live one. Ctrl-C ends the
    worker in good order and the server with it; a second one does not wait for handlers.
    """
    import asyncio  # noqa: PLC0415  --help needs none of these
    from shlex import quote  # noqa: PLC0415  as above

    from spectral.core.events.settings import GENERATION_VARIABLE, parse_generation  # noqa: PLC0415  pydantic
    from spectral_ops.dev.reload import Job, Reloader  # noqa: PLC0415  as above
    from spectral_ops.dev.stage import development_server, prepare  # noqa: PLC0415  psycopg and the launcher
    from spectral_ops.dev.watch import Watch, places_of  # noqa: PLC0415  as above

    generation = parse_generation(environment().get(GENERATION_VARIABLE) or "1")
    watch = Watch(places_of(apps))
    with _obeying_signals(), development_server(Path.cwd(), ephemeral=ephemeral) as server:
        applied = prepare(server, generation, directory or [])
        note(f"dev: Postgres in {server.home}, {applied} migration(s) applied; in another terminal:")
        exports = {"SPECTRAL_DATABASE_URL": server.dsn, GENERATION_VARIABLE: str(generation)}
        for name, value in exports.items():
            typer.echo(f"export {name}={quote(value)}")
        job = Job(
            arguments=("--replace-subscriptions", "--grace", f"{grace:g}", "--", *apps),
            variables={**_inherited(environment()), **exports, "DATABASE_URL": server.dsn},
            grace=grace,
        )
        asyncio.run(Reloader(job, watch, note).run())
    note("dev: ended")


def _inherited(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if not name.startswith(_FOREIGN)}


@contextmanager
def _obeying_signals() -> Iterator[None]:
    """Have SIGTERM and a closed terminal obeyed as a Ctrl-C is: everything is ended, and that is no error."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    with suppress(KeyboardInterrupt):
        yield
