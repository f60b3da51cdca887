"""`spectral metrics`: the catalogue of metrics, and what Prometheus and Grafana make of it.

What stands in them is decided in `spectral.core.operations.monitoring`.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

import typer

from spectral_ops.cli.options import AsJson  # noqa: TC001  typer reads annotations at run time
from spectral_ops.cli.output import emit_json, emit_table, note

metrics = typer.Typer(
    help="Metrics: the catalogue, alert rules for Prometheus, a dashboard for Grafana.",
    epilog="Example: spectral metrics list",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_LABEL: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")


@metrics.command("list", epilog="Example: spectral metrics list --json")
def list_metrics(as_json: AsJson = False) -> None:
    """Show every metric, by its name in Prometheus and in OpenTelemetry."""
    from spectral.core.events.metrics import METRICS, prometheus_labels, prometheus_name  # noqa: PLC0415  loads the rest
    from spectral.core.operations.documents import as_document  # noqa: PLC0415  pydantic; --help must not pay for it

    if not as_json:
        rows = [(prometheus_name(each), each.kind, ", ".join(prometheus_labels(each)), each.help) for each in METRICS]
        emit_table(("metric", "kind", "labels", "meaning"), rows)
        note(f"{len(METRICS)} metrics")
        return
    found = [
        {
            "prometheus": prometheus_name(each),
            "opentelemetry": each.name,
            "kind": each.kind,
            "unit": each.unit,
            "labels": prometheus_labels(each),
            "help": each.help,
        }
        for each in METRICS
    ]
    emit_json(as_document({"metrics": found}))


@metrics.command(epilog="Example: spectral metrics alerts > spectral-alerts.yml")
def alerts(
    by: Annotated[
        list[str] | None,
        typer.Option(metavar="LABEL", help="A label that tells your databases apart, such as job; repeatable."),
    ] = None,
    runbook: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Where your people read the runbook; rules link to it.", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, which Prometheus reads as well.")] = False,
) -> None:
    """Print alert rules for Prometheus, as YAML; thresholds are those of the doctor."""
    from spectral.core.events.failure import ConfigurationError  # noqa: PLC0415  --help must not pay for it
    from spectral.core.operations import monitoring  # noqa: PLC0415  as above
    from spectral.core.operations.monitoring.alerts import RUNBOOK  # noqa: PLC0415  as above

    wrong = [label for label in by or () if _LABEL.fullmatch(label) is None]
    if wrong:
        raise ConfigurationError(f"{wrong[0][:80]!r} is no label of Prometheus; name one such as --by job")
    found = monitoring.alerts(by=tuple(dict.fromkeys(by or ())))
    page = runbook or RUNBOOK
    if as_json:
        emit_json(monitoring.rule_groups(found, page))
    else:
        typer.echo(monitoring.alerts_document(found, page), nl=False)
    note(f"{len(found)} alerts; check them with: promtool check rules <file>")


@metrics.command(epilog="Example: spectral metrics dashboard > spectral-dashboard.json")
def dashboard(
    as_json: Annotated[bool, typer.Option("--json", help="Accepted for scripts; it is JSON in any case.")] = False,  # noqa: ARG001  see help
) -> None:
    """Print a dashboard for Grafana, as the JSON that it imports."""
    from spectral.core.operations import monitoring  # noqa: PLC0415  --help must not pay for it

    typer.echo(monitoring.dashboard_document(), nl=False)
