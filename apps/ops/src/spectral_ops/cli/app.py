"""The tree of commands; each group is a module of its own."""

from __future__ import annotations

from typing import Annotated

import typer

from spectral_ops.cli.agent_tasks import agent_tasks
from spectral_ops.cli.audit import audit
from spectral_ops.cli.bell import bell
from spectral_ops.cli.brake import brake
from spectral_ops.cli.catalog_build import catalog
from spectral_ops.cli.demo import demo
from spectral_ops.cli.dev import dev
from spectral_ops.cli.dlq import dlq
from spectral_ops.cli.doctor import doctor
from spectral_ops.cli.events import events
from spectral_ops.cli.generations import generations
from spectral_ops.cli.mcp import mcp
from spectral_ops.cli.metrics import metrics
from spectral_ops.cli.migrate import migrate
from spectral_ops.cli.partitions import partitions
from spectral_ops.cli.relay import relay
from spectral_ops.cli.retention import retention
from spectral_ops.cli.status import status
from spectral_ops.cli.tail import tail
from spectral_ops.cli.top import top
from spectral_ops.cli.worker import worker

# Plain help text: drawing it with rich would cost more than everything else `--help` does.
app = typer.Typer(
    name="spectral",
    epilog="Example: spectral migrate status",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
app.add_typer(migrate, name="migrate")
app.add_typer(events, name="events")
app.add_typer(dlq, name="dlq")
app.add_typer(generations, name="generations")
app.add_typer(retention, name="retention")
app.add_typer(partitions, name="partitions")
app.add_typer(relay, name="relay")
app.add_typer(brake, name="brake")
app.add_typer(bell, name="bell")
app.add_typer(agent_tasks, name="agent-tasks")
app.add_typer(catalog, name="catalog")
app.add_typer(metrics, name="metrics")
app.command(epilog="Example: spectral status")(status)
app.command(epilog="Example: spectral top --once")(top)
app.command(epilog="Example: spectral tail --last 20 --once")(tail)
app.command(epilog="Example: spectral audit --action replay")(audit)
app.command(epilog="Example: spectral doctor")(doctor)
app.command(epilog="Example: spectral demo --json")(demo)
app.command(epilog="Example: spectral dev shop.events:billing")(dev)
app.command(epilog="Example: spectral worker shop.events:billing --health-port 8080")(worker)
app.command(epilog="Example: spectral mcp --allow-writes")(mcp)


def _show_version(wanted: bool) -> None:  # noqa: FBT001  typer calls it with the flag's value
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """The event substrate on Postgres, from the command line.

    The database is named by SPECTRAL_DATABASE_URL, DATABASE_URL or the PG* variables. Exit codes: 0 ok, 1 failed,
    2 usage, 3 not found, 4 unhealthy, 5 needs confirmation, 75 database unavailable,
    130 interrupted.
    """


@app.command(epilog="Example: spectral version")
def version() -> None:
    """Show the version of this installation."""
    from importlib.metadata import version as distribution_version  # noqa: PLC0415  slow, and only needed here

    typer.echo(f"spectral {distribution_version('spectral-events')}")
