"""The dashboard: loads, asks only for what exists, and leaves nothing out."""

from __future__ import annotations

import json
import re
from itertools import combinations, pairwise
from typing import Any, Final

import pytest

from spectral.core.events import metrics
from spectral.core.events.metrics import METRICS, Kind, prometheus_labels, prometheus_name
from spectral.core.operations.monitoring import dashboard_document
from tests.unit.promql import Scraped, climbing, histogram, nameless, steady
from tests.unit.test_monitoring import exposed_labels, names_in, selectors_in

DASHBOARD: Final[dict[str, Any]] = json.loads(dashboard_document())
PANELS: Final[list[dict[str, Any]]] = [each for each in DASHBOARD["panels"] if each["type"] != "row"]
TARGETS: Final = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]
_SCRAPED: Final = {"instance", "job", "le"}


def filled_in(expression: str) -> str:
    """With values for the variables that Grafana fills in."""
    return expression.replace("$__rate_interval", "5m").replace("$context", ".*")


def titled(panel: dict[str, Any]) -> str:
    return str(panel["title"])


def test_its_rows_are_the_questions_in_the_order_one_asks_them() -> None:
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows == ["Now", "Handlers", "DLQ", "Ears & workers", "Database", "Relay & partitions", "Probe"]


def test_panels_have_ids_and_places_of_their_own() -> None:
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    places = [panel["gridPos"] for panel in DASHBOARD["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    assert not any(overlap(one, other) for one, other in combinations(places, 2))
    assert all(one["y"] <= other["y"] for one, other in pairwise(places))


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
    above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    return not beside and not above


@pytest.mark.parametrize("panel", PANELS, ids=titled)
def test_every_panel_says_what_it_shows_in_which_unit_and_from_where(panel: dict[str, Any]) -> None:
    assert panel["description"].endswith(".")
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["targets"]
    assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    assert {each["datasource"]["uid"] for each in (panel, *panel["targets"])} == {"${datasource}"}


def test_its_variables_are_those_that_it_uses() -> None:
    variables = {each["name"]: each for each in DASHBOARD["templating"]["list"]}
    used = set(re.findall(r"\$\{?([a-z]\w*)\}?", json.dumps(DASHBOARD["panels"])))
    assert used == variables.keys() == {"datasource", "context"}
    assert variables["datasource"]["type"] == "datasource"
    assert variables["context"]["definition"] == f"label_values({prometheus_name(metrics.BACKLOG)}, context)"


@pytest.mark.parametrize(("title", "target"), TARGETS, ids=lambda value: value if isinstance(value, str) else "")
def test_every_query_reads_metrics_and_labels_that_exist(title: str, target: dict[str, Any]) -> None:
    exposed = exposed_labels()
    for selector in selectors_in(filled_in(target["expr"])):
        assert selector.name in exposed, title
        assert {matcher.name for matcher in selector.matchers.matchers} <= exposed[selector.name]


def test_every_metric_of_the_catalogue_is_shown() -> None:
    shown = {name for _, target in TARGETS for name in names_in(filled_in(target["expr"]))}
    assert {re.sub("_(bucket|count|sum)$", "", name) for name in shown} == {prometheus_name(each) for each in METRICS}


@pytest.mark.parametrize(("title", "target"), TARGETS, ids=lambda value: value if isinstance(value, str) else "")
def test_every_query_finds_series_and_calls_them_by_labels_they_have(title: str, target: dict[str, Any]) -> None:
    found = Scraped(everything()).ask(filled_in(target["expr"]), now=3_600.0)
    assert isinstance(found, dict)
    assert found, title
    for labels in found:
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= {name for name, _ in nameless(labels)}


def everything() -> list[Any]:
    """One series of each metric, with every label that it has."""
    series: list[Any] = []
    for metric in METRICS:
        labels = {"instance": "worker-1:8080", **dict.fromkeys(prometheus_labels(metric), "some")}
        name = prometheus_name(metric)
        match metric.kind:
            case Kind.HISTOGRAM:
                rates = {str(bound): 1.0 for bound in metric.buckets} | {"+Inf": 1.0}
                series += histogram(name, rates, **labels)
            case Kind.COUNTER:
                series.append(climbing(name, 1.0, **labels))
            case Kind.GAUGE:
                series.append(steady(name, 1.0, **labels))
    return series


def test_the_error_rate_is_the_share_of_runs_that_failed() -> None:
    (target,) = (target for title, target in TARGETS if title == "Error rate")
    name = prometheus_name(metrics.PROCESS_DURATION)
    runs = {"spectral_handler": "platform.index", "messaging_destination_name": "worlds.scan.completed"}
    series = [
        climbing(f"{name}_count", 9.0, **runs, error_type=""),
        climbing(f"{name}_count", 0.5, **runs, error_type="ValueError"),
        climbing(f"{name}_count", 0.5, **runs, error_type="TimeoutError"),
    ]
    found = Scraped(series).ask(filled_in(target["expr"]), now=3_600.0)
    assert isinstance(found, dict)
    assert found[frozenset({("spectral_handler", "platform.index")})] == pytest.approx(0.1)
