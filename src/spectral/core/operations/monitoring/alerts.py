"""What should wake somebody, as alert rules for Prometheus. Thresholds are the doctor's: the two do not disagree."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Final, cast

from spectral.core.operations.monitoring.alert import Alert, Group, Severity
from spectral.core.operations.monitoring.queries import Queries, duration
from spectral.core.operations.monitoring.rules_delivery import delivery_alerts
from spectral.core.operations.monitoring.rules_machinery import (
    database_alerts,
    growth_alerts,
    watch_alerts,
    worker_alerts,
)
from spectral.core.operations.monitoring.rules_steps import broker_alerts, partition_alerts, relay_alerts
from spectral.core.operations.verdict_values import Limits

__all__ = ["RUNBOOK", "Alert", "Group", "Severity", "alerts", "alerts_document", "rule_groups"]

RUNBOOK: Final = "docs/runbooks/event-substrate.md"
_HEAD: Final = "# Alert rules of Spectral, written by `spectral metrics alerts`. Load it with rule_files.\n"
_SLOW: Final = "1h"
"""How often the rules of growth are evaluated: they read a week, and nothing hurries."""
_HELD: Final = timedelta(minutes=3)
"""For how long the last numbers count while nobody measures. Else each change of the emitter would begin the wait of
every alert anew: it takes 33 s until the next one stands for election and up to 25 to connect and look, and between
the scrapes of both lie two intervals more, which are a minute each where nobody has said otherwise."""


def alerts(limits: Limits | None = None, *, by: tuple[str, ...] = ()) -> tuple[Alert, ...]:
    """Every alert. `by`: labels that tell databases apart, where one Prometheus watches several, such as `job`."""
    queries, known = Queries(by, held=_HELD), limits or Limits()
    return (
        *delivery_alerts(queries, known),
        *worker_alerts(queries),
        *broker_alerts(queries),
        *watch_alerts(queries),
        *database_alerts(queries, known),
        *relay_alerts(queries, known),
        *partition_alerts(queries, known),
        *growth_alerts(queries, known),
    )


def rule_groups(given: tuple[Alert, ...], runbook: str = RUNBOOK) -> dict[str, object]:
    """The document that Prometheus reads, as plain values; `runbook` is where the page can be read."""
    groups: list[dict[str, object]] = []
    for group in Group:
        rules = [_rule(alert, runbook) for alert in given if alert.group is group]
        pace = {"interval": _SLOW} if group is Group.GROWTH else {}
        if rules:
            groups.append({"name": str(group), **pace, "rules": rules})
    return {"groups": groups}


def alerts_document(given: tuple[Alert, ...], runbook: str = RUNBOOK) -> str:
    """The same as YAML."""
    return _HEAD + "".join(f"{line}\n" for line in _lines(rule_groups(given, runbook)))


def _rule(alert: Alert, runbook: str) -> dict[str, object]:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        **({"for": duration(alert.for_)} if alert.for_ else {}),
        "labels": {"severity": str(alert.severity)},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook_url": f"{runbook}#{alert.runbook}",
        },
    }


def _lines(value: object) -> list[str]:
    """Maps, lists and texts as YAML. A text in JSON is YAML too; one with quotes is easier to read as a block."""
    if isinstance(value, dict):
        entries = cast("dict[str, object]", value)
        return [line for name, each in entries.items() for line in _entry(f"{name}:", each)]
    if isinstance(value, list):
        items = (_lines(each) for each in cast("list[object]", value))
        return [f"{'  ' if number else '- '}{line}" for item in items for number, line in enumerate(item)]
    text = str(value)
    return ["|-", text] if '"' in text else [json.dumps(text, ensure_ascii=False)]


def _entry(name: str, value: object) -> list[str]:
    first, *rest = lines = _lines(value)
    if isinstance(value, dict | list):
        return [name, *(f"  {line}" for line in lines)]
    return [f"{name} {first}", *(f"  {line}" for line in rest)]
