"""`/metrics` on the worker's health port: a scrape, over real HTTP, that can hold up nobody."""

from __future__ import annotations

import json
import threading

import pytest
from prometheus_client.parser import text_string_to_metric_families

from spectral.core.events.delivery.health import State
from spectral.core.events.infrastructure.observability.health_samples import health_samples
from spectral.core.events.infrastructure.observability.prometheus import exposition
from spectral_workers import health as served_health
from spectral_workers.health import Address, health_endpoint
from tests.unit.test_worker_process import IDLE, fetch

ANY = Address("127.0.0.1", 0)


def test_a_scrape_is_answered_in_the_text_format() -> None:
    with health_endpoint(ANY, lambda: IDLE, lambda: exposition(health_samples(IDLE))) as served:
        answer, body = fetch(served, "/metrics?collect=all")
        head, nothing = fetch(served, "/metrics", "HEAD")
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert int(answer.headers["Content-Length"]) == len(body)
    states = {
        sample.labels["state"]: sample.value
        for family in text_string_to_metric_families(body.decode())
        if family.name == "spectral_worker_state"
        for sample in family.samples
    }
    assert states == {state: float(state is State.IDLE) for state in State}
    assert (head.status, nothing) == (200, b"")


def test_without_the_extra_a_scrape_is_told_what_to_install() -> None:
    with health_endpoint(ANY, lambda: IDLE) as served:
        answer, body = fetch(served, "/metrics")
    assert (answer.status, answer.headers["Content-Type"]) == (404, "application/json")
    assert "pip install 'spectral-events[metrics]'" in json.loads(body)["error"]


def test_an_unknown_path_is_told_where_the_metrics_are() -> None:
    with health_endpoint(ANY, lambda: IDLE) as served:
        assert "/metrics" in json.loads(fetch(served, "/metric")[1])["error"]


def test_a_scrape_that_fails_shows_no_more_than_the_kind_of_its_error() -> None:
    def fails() -> bytes:
        raise ValueError("canary-7f3a")

    with health_endpoint(ANY, lambda: IDLE, fails) as served:
        for _ in range(2):
            answer, body = fetch(served, "/metrics")
            assert answer.status == 500
            assert json.loads(body) == {"error": "the metrics could not be read (ValueError)"}
        assert fetch(served, "/live")[0].status == 200


def test_a_scrape_that_hangs_holds_up_neither_health_nor_the_next_scrape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_health, "_SECONDS_FOR_A_REQUEST", 0.01)
    hangs, may_end = threading.Event(), threading.Event()
    before = threading.active_count()

    def metrics() -> bytes:
        hangs.set()
        assert may_end.wait(30)
        return b"spectral_emitter_up 1\n"

    with health_endpoint(ANY, lambda: IDLE, metrics) as served:
        answers: list[bytes] = []
        first = threading.Thread(target=lambda: answers.append(fetch(served, "/metrics")[1]))
        first.start()
        assert hangs.wait(10)
        assert {fetch(served, path)[0].status for path in ("/live", "/ready", "/health")} == {200}
        assert [fetch(served, "/metrics")[0].status for _ in range(5)] == [503] * 5
        assert threading.active_count() <= before + 4, "the scrapes that were refused left nothing behind"
        may_end.set()
        first.join(10)
        assert answers == [b"spectral_emitter_up 1\n"]
        assert fetch(served, "/metrics")[0].status == 200
