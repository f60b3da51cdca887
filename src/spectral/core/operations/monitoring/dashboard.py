"""The dashboard, as the JSON that Grafana imports. What it shows is in `panels`; here is where it stands."""

from __future__ import annotations

import json
from typing import Final

from spectral.core.events.metrics import BACKLOG, prometheus_name
from spectral.core.operations.monitoring.panels import DLQ, HANDLERS, NOW, Panel, Row
from spectral.core.operations.monitoring.panels_machinery import DATABASE, PROBE, RELAY, WORKERS

ROWS: Final[tuple[Row, ...]] = (NOW, HANDLERS, DLQ, WORKERS, DATABASE, RELAY, PROBE)

_SCHEMA: Final = 41  # Grafana 12's; older ones import it too
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_WHOLE: Final = 24
_GRAPH: Final = (12, 8)
_NUMBER: Final = (6, 4)


def dashboard() -> dict[str, object]:
    """The document as plain values."""
    return {
        "uid": "spectral-events",
        "title": "Spectral",
        "description": "Events on Postgres: backlog, handlers, dead letters, workers and the database.",
        "tags": ["spectral"],
        "schemaVersion": _SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": [_datasource_variable(), _context_variable()]},
        "annotations": {"list": []},
        "links": [],
        "panels": _panels(),
    }


def dashboard_document() -> str:
    """The same as JSON."""
    return json.dumps(dashboard(), indent=2, ensure_ascii=False) + "\n"


def _datasource_variable() -> dict[str, object]:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}


def _context_variable() -> dict[str, object]:
    query = f"label_values({prometheus_name(BACKLOG)}, context)"
    return {
        "name": "context",
        "label": "Context",
        "type": "query",
        "datasource": _SOURCE,
        "query": {"query": query, "refId": "context"},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": ["All"], "value": ["$__all"]},
    }


def _panels() -> list[dict[str, object]]:
    """All of them, from the top; each as far left as there is room."""
    placed: list[dict[str, object]] = []
    x, y, height = 0, 0, 0
    for row in ROWS:
        x, y = 0, y + height
        placed.append(_row(row, len(placed) + 1, y))
        y, height = y + 1, 0
        for panel in row.panels:
            width, tall = _NUMBER if panel.is_number else _GRAPH
            if x + width > _WHOLE:
                x, y, height = 0, y + height, 0
            placed.append(_panel(panel, len(placed) + 1, {"x": x, "y": y, "w": width, "h": tall}))
            x, height = x + width, max(height, tall)
    return placed


def _row(row: Row, number: int, y: int) -> dict[str, object]:
    place = {"x": 0, "y": y, "w": _WHOLE, "h": 1}
    return {"id": number, "type": "row", "title": row.title, "collapsed": False, "gridPos": place, "panels": []}


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, object]:
    return {
        "id": number,
        "type": "stat" if panel.is_number else "timeseries",
        "title": panel.title,
        "description": panel.description,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": str(panel.unit), "min": 0}, "overrides": []},
        "options": {"tooltip": {"mode": "multi", "sort": "desc"}} if not panel.is_number else {"graphMode": "area"},
        "targets": [
            {
                "refId": chr(ord("A") + place_in_row),
                "datasource": _SOURCE,
                "expr": target.expr,
                "legendFormat": target.legend,
                "editorMode": "code",
                "range": True,
            }
            for place_in_row, target in enumerate(panel.targets)
        ],
    }
