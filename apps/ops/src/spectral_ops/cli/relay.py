"""`spectral relay`: a broker between the outbox and the workers. What that means is decided in `spectral.core`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from spectral_ops.cli.asking import confirm
from spectral_ops.cli.database import environment
from spectral_ops.cli.events_options import plain
from spectral_ops.cli.options import AsJson, By, DryRun, Reason, Yes, actor
from spectral_ops.cli.output import emit_json, emit_table, note
from spectral_ops.cli.running import with_database

if TYPE_CHECKING:
    from spectral.core.database import Database
    from spectral.core.operations.relay import RelayCrew, RelayLane, RelayState

relay = typer.Typer(
    help="A broker under the same handlers: send to it, see how it goes, switch to it and back.",
    epilog="Example: spectral relay status",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class From(StrEnum):
    """As `spectral.core.operations.relay.Mode`, which costs the import of a driver."""

    POSTGRES = "postgres"
    NATS = "nats"
    REDIS = "redis"


_SPOKEN: Final = {
    From.POSTGRES: "workers claim from Postgres",
    From.NATS: "workers that know NATS take events from there, the others claim from Postgres",
    From.REDIS: "workers that know Redis take events from there, the others claim from Postgres",
}

Wanted = Annotated[From, typer.Argument(metavar="MODE", help="postgres, nats or redis.", show_default=False)]


@relay.command(epilog="Example: spectral relay run --health-port 8080")
def run(
    health_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, help="Serve /live, /ready, /health and /metrics; 0: any free port."),
    ] = None,
    health_host: Annotated[str, typer.Option(help="The address to serve them on.")] = "127.0.0.1",
) -> None:
    """Tell the broker which events are due, until it is stopped.

    SPECTRAL_RELAY (nats or redis) and SPECTRAL_BROKER_URL say which broker; the login is a member of spectral_worker.
    It sends while the mode is its broker's (`spectral relay switch`), and stands still otherwise. Several may run: they
    share the work. Stops on SIGTERM or SIGINT after it has sent what it has taken. Logs to stderr, as a worker does.
    Exit code 0 when stopped, 1 when it crashed, 2 when it cannot start.
    """
    from spectral.core.events.settings import DatabaseSettings  # noqa: PLC0415  pydantic; --help must not pay for it
    from spectral_workers.health import Address  # noqa: PLC0415  as above
    from spectral_workers.relay import RelayOrder, run_relay  # noqa: PLC0415  as above

    variables = environment()
    order = RelayOrder(
        database=DatabaseSettings.from_environ(variables),
        environ=variables,
        health=None if health_port is None else Address(health_host, health_port),
        debug=variables.get("SPECTRAL_DEBUG") == "1",
    )
    raise typer.Exit(run_relay(order))


@relay.command(epilog="Example: spectral relay status --json")
def status(as_json: AsJson = False) -> None:
    """Show from where workers take events, how many relays are alive, and what is due and not sent yet."""
    from spectral.core.operations.documents import as_document  # noqa: PLC0415  pydantic; --help must not pay for it
    from spectral.core.operations.relay import show_relay  # noqa: PLC0415  psycopg

    state = with_database("relay status", show_relay)
    if as_json:
        emit_json(as_document(state))
        return
    columns = ("generation", "channel", "context", "not sent", "oldest", "sent, not claimed", "oldest")
    emit_table(columns, [_row(each) for each in state.lanes] if state.mode != From.POSTGRES else [])
    note(_said(state))


@relay.command(epilog="Example: spectral relay switch nats --reason 'NOTIFY is too slow' --yes")
def switch(
    mode: Wanted,
    reason: Reason = None,
    by: By = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: AsJson = False,
) -> None:
    """Have all workers take events from a broker, or from Postgres again.

    It holds at once, under any load, in both directions: nothing is lost, and nothing takes effect twice. Start relays
    and workers that know the broker first. A reason is required.
    """
    from spectral.core.operations.documents import as_document  # noqa: PLC0415  pydantic; --help must not pay for it
    from spectral.core.operations.relay import Mode, show_relay, switch_relay  # noqa: PLC0415  psycopg

    if not (reason or "").strip():
        raise typer.BadParameter("say why, with --reason; it is kept in the audit")

    async def change(database: Database) -> tuple[RelayState, bool]:
        before = await show_relay(database)
        if mode is not From.POSTGRES and not before.relays_for(mode):
            note(f"no relay for {mode} is alive: until one is, events wait for half a minute\n  try: {_start(mode)}")
        if dry_run or before.mode == mode:
            return before, False
        confirm(f"switch from {before.mode} to {mode}: {_SPOKEN[mode]}", yes=yes)
        return before, await switch_relay(database, Mode(mode), by=actor(by), reason=reason or "")

    before, done = with_database("relay switch", change)
    if as_json:
        emit_json({"before": as_document(before), "mode": str(mode), "changed": done, "dry_run": dry_run})
    if done:
        note(f"{mode}: {_SPOKEN[mode]}\n  take it back: spectral relay switch {before.mode} --reason <why>")
    elif before.mode == mode:
        note(f"{mode} already, by {plain(before.switched_by)}: {plain(before.reason or 'no reason')}")
    else:
        note(f"{mode}: would be switched" if dry_run else f"{mode}: somebody else has switched meanwhile")


def _start(mode: str) -> str:
    from spectral.core.operations.verdict_words import start_relay  # noqa: PLC0415  as above

    return start_relay(mode)


def _row(lane: RelayLane) -> tuple[str, ...]:
    from spectral.core.operations.verdict_words import spoken  # noqa: PLC0415  as above

    ages = ["" if age is None else spoken(age) for age in (lane.oldest_unsent, lane.oldest_sent)]
    return str(lane.generation), lane.channel, lane.context, str(lane.unsent), ages[0], str(lane.sent), ages[1]


def _said(state: RelayState) -> str:
    since = f"since {state.switched_at:%Y-%m-%d %H:%M} UTC, by {plain(state.switched_by)}"
    said = f"{state.mode}: {_SPOKEN[From(state.mode)]} ({since}); {_alive(state)}"
    if state.mode != From.POSTGRES and not state.relays_for(state.mode):
        return f"{said}\n  try: {_start(state.mode)}"
    return said


def _alive(state: RelayState) -> str:
    """Who runs, and for which broker."""
    from spectral.core.operations.verdict_words import several  # noqa: PLC0415  as above

    others = ", ".join(f"{crew.relays:,} for {crew.broker}" for crew in state.crews if _counts(crew, state.mode))
    here = state.relays_for(state.mode)
    if state.mode == From.POSTGRES:
        said = f"{several(here, 'relay is', 'relays are') if here else 'no relay is'} alive"
        return f"{said}: {others}" if others else said
    for_it = f"for {state.mode}"
    said = f"{several(here, f'relay {for_it} is', f'relays {for_it} are') if here else f'no relay {for_it} is'} alive"
    return f"{said}, {others}" if others else said


def _counts(crew: RelayCrew, mode: str) -> bool:
    """Whether it is worth a word: for another broker than the one in use."""
    return crew.relays > 0 and crew.broker != mode
