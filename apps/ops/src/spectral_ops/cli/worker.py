"""`spectral worker`: runs consumers until it is told to stop. What it does is decided in `spectral_workers`."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from spectral_ops.cli.database import environment

if TYPE_CHECKING:
    from spectral_workers.process import Order

_PROGRAM = "from spectral_ops.cli import main; main()"


def worker(  # noqa: PLR0913, PLR0917  one parameter for each option of the command
    ctx: typer.Context,
    apps: Annotated[
        list[str], typer.Argument(metavar="APP", help="module:attribute of a Consumer, or of a list of them.")
    ],
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Plain handlers at once; 50 unless told.", show_default=False)
    ] = None,
    lanes: Annotated[
        int | None,
        typer.Option(min=1, help="Transactions at once, one connection each; 4 unless told.", show_default=False),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=1, help="Rows that share a commit at most; 200 unless told.", show_default=False),
    ] = None,
    processes: Annotated[int, typer.Option(min=1, max=256, help="Worker processes under one parent.")] = 1,
    classes: Annotated[
        list[str] | None,
        typer.Option("--class", metavar="NAME", help="A processing class to serve too; repeatable."),
    ] = None,
    accept_generations: Annotated[
        str | None, typer.Option(metavar="N,N", help="Run these generations' rows too, to drain them.")
    ] = None,
    grace: Annotated[
        float | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            max=86400,
            help="What running handlers get when it stops; 30 unless told.",
            show_default=False,
        ),
    ] = None,
    health_port: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=65535,
            help="Serve /live, /ready, /health and /metrics; 0: any free port. Process i takes port + i.",
        ),
    ] = None,
    health_host: Annotated[str, typer.Option(help="The address to serve them on.")] = "127.0.0.1",
    once: Annotated[bool, typer.Option("--once", help="Claim once, finish that, and end.")] = False,
    drain: Annotated[bool, typer.Option("--drain", help="End when nothing is due any more.")] = False,
    replace_subscriptions: Annotated[
        bool,
        typer.Option("--replace-subscriptions", help="Forget handlers on record that this worker does not have."),
    ] = False,
) -> None:
    """Deliver events to the handlers of these consumers.

    Runs until SIGTERM or SIGINT: then it claims no more, finishes what runs within the grace and gives back the rest; a
    second signal gives back everything at once. SPECTRAL_GENERATION is required; SPECTRAL_CONTEXTS,
    SPECTRAL_CLASSES, SPECTRAL_ACCEPT_GENERATIONS and SPECTRAL_DIRECT_URL are read too, and SPECTRAL_RELAY and
    SPECTRAL_BROKER_URL, which name a broker to take events from once `spectral relay switch` says so. Logs to stderr,
    as JSON unless that is a terminal; SPECTRAL_LOG_LEVEL says from which level on. Exit code 0 when stopped, 1 when it
    crashed, 2 when it cannot start, 75 when with --once or --drain the database was not there within a minute.
    """
    from spectral.core.events import settings as options  # noqa: PLC0415  pydantic comes with it
    from spectral_workers.health import Address  # noqa: PLC0415  as above
    from spectral_workers.process import Order, run_worker  # noqa: PLC0415  as above

    if once and drain:
        raise typer.BadParameter("--once and --drain exclude each other; choose one")
    variables = dict(environment())
    if classes:
        variables[options.CLASSES_VARIABLE] = ",".join(classes)
    if accept_generations is not None:
        variables[options.ACCEPT_VARIABLE] = accept_generations
    settings = options.WorkerSettings.from_environ(variables)
    settings = replace(
        settings,
        lanes=lanes or settings.lanes,
        batch=batch or settings.batch,
        concurrency=concurrency or settings.concurrency,
        replace_subscriptions=replace_subscriptions,
        times=settings.times if grace is None else replace(settings.times, stop=timedelta(seconds=grace)),
    )
    order = Order(
        apps=tuple(apps),
        settings=settings,
        database=options.DatabaseSettings.from_environ(variables),
        environ=variables,
        until="once" if once else "drained" if drain else "stopped",
        health=None if health_port is None else Address(health_host, health_port),
        debug=variables.get("SPECTRAL_DEBUG") == "1",
    )
    raise typer.Exit(run_worker(order) if processes == 1 else _run_several(ctx, order, processes))


def _run_several(ctx: typer.Context, order: Order, processes: int) -> int:
    from spectral.core.events.settings import Identity  # noqa: PLC0415  pydantic comes with it
    from spectral_workers.logs import SERVICE, configure_logs  # noqa: PLC0415  structlog
    from spectral_workers.process import patience_of  # noqa: PLC0415  as above
    from spectral_workers.supervise import Supervisor  # noqa: PLC0415  as above

    configure_logs(Identity.from_environ(order.environ, order.settings.generation, SERVICE), order.environ)
    commands = [
        [sys.executable, "-c", _PROGRAM, "worker", *_arguments(ctx, order.apps, _of_process(order, number))]
        for number in range(processes)
    ]
    ends_by_itself = order.until != "stopped"
    return Supervisor(commands, patience=patience_of(order.settings), ends_by_itself=ends_by_itself).run()


def _of_process(order: Order, number: int) -> dict[str, object]:
    """What differs from the parent's own arguments."""
    port = order.health.port if order.health is not None else None
    return {"processes": 1, "health_port": port + number if port else port}


def _arguments(ctx: typer.Context, apps: tuple[str, ...], changed: dict[str, object]) -> list[str]:
    """The command's arguments again, from what was parsed."""
    given: list[str] = []
    for parameter in ctx.command.params:
        value = changed.get(parameter.name or "", ctx.params.get(parameter.name or ""))
        if value is True:
            given.append(parameter.opts[0])
        elif value is not None and value is not False and parameter.param_type_name == "option":
            several = value if isinstance(value, list | tuple) else [value]
            given += [part for each in several for part in (parameter.opts[0], str(each))]
    return [*given, "--", *apps]
