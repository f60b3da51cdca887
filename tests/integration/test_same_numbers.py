"""Whoever asks, and however: the emitter's gauges, `status`, `top` and `doctor` say the same of one database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import psycopg
import pytest

from spectral.core.events import DatabaseSettings, metrics
from spectral.core.events.infrastructure.observability.log_writer import process_logger
from spectral.core.events.infrastructure.observability.outlet import flush_all
from spectral.core.events.metrics import Metric, Sample
from spectral.core.operations.doctor import examine
from spectral.core.operations.verdict import Limits
from spectral.core.operations.verdict_words import spoken
from spectral_workers.emitter import Emitter
from tests.acceptance.test_cli_status import spectral
from tests.acceptance.worker_process import PATIENCE, eventually
from tests.integration.test_insights import AGO, failed, in_flight, publish, sign_in
from tests.unit.log_notes import WHO

Connection = psycopg.Connection[Any]
OFTEN: Final = timedelta(seconds=0.1)
PLATFORM: Final = ("platform", "1")
BROADCASTS: Final = ("*", "1")
LOG: Final = process_logger("spectral.worker", WHO).bind(worker="worker-1")
CLOSE: Final = 1.0
"""Seconds by which two looks may differ over when something began."""

A_LITTLE: Final = 0.05
"""By which the NOTIFY queue may grow from one look to the next: the doctor sends itself a notification."""


@dataclass(frozen=True)
class Standing:
    """What is said of one context and generation; two looks differ a little over since when."""

    due: float = 0
    waiting: float = 0
    in_flight: float = 0
    stale: float = 0
    failed: float = 0
    failed_lately: float = 0
    due_since: float | None = field(default=None, compare=False)


def by_gauges(samples: list[Sample]) -> tuple[dict[tuple[str, ...], Standing], float]:
    """By context and generation; and how full the NOTIFY queue is."""

    def of(metric: Metric) -> dict[tuple[str, ...], float]:
        return {each.labels: each.value for each in samples if each.metric is metric}

    taken_at, oldest = of(metrics.EMITTER_TIMESTAMP)[()], of(metrics.BACKLOG_OLDEST_SECONDS)
    standings = {
        labels: Standing(
            due=of(metrics.BACKLOG)[labels],
            waiting=of(metrics.BACKLOG_WAITING)[labels],
            in_flight=of(metrics.IN_FLIGHT)[labels],
            stale=of(metrics.STALE_CLAIMS)[labels],
            failed=of(metrics.DLQ)[labels],
            failed_lately=of(metrics.DLQ_RECENT)[labels],
            due_since=taken_at - age if age else None,
        )
        for labels, age in oldest.items()
    }
    return standings, of(metrics.NOTIFY_QUEUE_USAGE)[()]


def by_document(document: dict[str, Any]) -> tuple[dict[tuple[str, ...], Standing], float]:
    """The same, of what `status` and `top` print."""
    snapshot = document["snapshot"]
    taken_at = datetime.fromisoformat(snapshot["taken_at"]).timestamp()
    standings: dict[tuple[str, ...], Standing] = {}
    for backlog in snapshot["backlogs"]:
        age = backlog["oldest_due"]
        since = None if age is None else taken_at - age
        names = ("due", "waiting", "in_flight", "stale", "failed", "failed_lately")
        amounts = {name: backlog[name]["value"] for name in names}
        standings[backlog["context"] or "*", str(backlog["generation"])] = Standing(**amounts, due_since=since)
    return standings, snapshot["notify_queue"]


@contextmanager
def filling_queue(database: str, connection: Connection) -> Iterator[None]:
    """A listener that reads nothing, for it is in a transaction, and a thousand pages of notifications before it."""
    with psycopg.connect(database, autocommit=True) as listener:
        listener.execute("listen anything")
        with listener.transaction():
            listener.execute("select 1")
            connection.execute(
                "select pg_notify('anything', repeat('x', 7000) || n) from generate_series(1, 1000) as n"
            )
            yield


@pytest.fixture
def contents(database: str, connection: Connection) -> Iterator[None]:
    """Something of everything that is counted, and a worker that is gone."""
    now = datetime.now(UTC)
    sign_in(connection, "lives")
    publish(connection, 3)
    publish(connection, 2, next_attempt_at=now + timedelta(hours=1))
    publish(connection, 1, target=None)
    publish(connection, 2, target="worlds")
    publish(connection, 4, **failed(now))
    publish(connection, 1, **failed(now - timedelta(hours=3)))
    for worker in ("lives", "gone", "gone"):
        publish(connection, 1, **in_flight(worker))
    with filling_queue(database, connection):
        yield


@pytest.fixture
def measured(database: str, contents: None) -> list[Sample]:  # noqa: ARG001  it has to be there before
    """The emitter's gauges, as a scrape would read them."""
    with Emitter(DatabaseSettings(dsn=database), LOG, OFTEN) as emitter:
        eventually(emitter.samples, "the emitter's first look")
        samples = emitter.samples()
    # Its lines are written by a thread, to wherever a log is configured; not into what a command prints next.
    assert flush_all(PATIENCE)
    return samples


def test_the_gauges_count_what_is_there(measured: list[Sample]) -> None:
    """So that the others are not compared with nothing."""
    standings, queue = by_gauges(measured)
    assert standings[PLATFORM] == Standing(due=3, waiting=2, in_flight=3, stale=2, failed=5, failed_lately=4)
    assert standings[BROADCASTS] == Standing(due=1)
    assert standings[PLATFORM].due_since == pytest.approx((datetime.now(UTC) - AGO).timestamp(), abs=PATIENCE)
    assert queue > 0


@pytest.mark.parametrize("command", [("status", "--json"), ("top", "--json", "--once", "--interval", "0.1")])
def test_status_and_top_say_what_the_gauges_say(
    database: str, measured: list[Sample], command: tuple[str, ...]
) -> None:
    standings, queue = by_document(json.loads(spectral(database, *command).stdout))
    expected, expected_queue = by_gauges(measured)
    assert standings == expected
    for labels, standing in expected.items():
        assert standings[labels].due_since == pytest.approx(standing.due_since, abs=CLOSE)
    assert queue == pytest.approx(expected_queue, rel=A_LITTLE)


def test_the_doctor_says_what_the_gauges_say(database: str, measured: list[Sample]) -> None:
    findings = json.loads(spectral(database, "doctor", "--json").stdout)["findings"]
    found = {each["check"]: each["what"] for each in findings}
    standings, _ = by_gauges(measured)
    platform, age = standings[PLATFORM], spoken(AGO)
    assert found["late"].startswith(f"platform has {platform.due:.0f} events waiting, the oldest for {age}")
    assert found["broadcasts"].startswith(f"{standings[BROADCASTS].due:.0f} broadcast of generation 1")
    assert found["stale_claims"].startswith(f"{platform.stale:.0f} claims are held")
    assert found["dead_letters"] == (
        f"{platform.failed:.0f} dead letters, {platform.failed_lately:.0f} of them within the last hour"
    )


def test_who_is_there_to_take_it_is_said_alike(database: str, measured: list[Sample]) -> None:
    serving = {each.labels: each.value for each in measured if each.metric is metrics.WORKERS_SERVING}
    assert serving == {PLATFORM: 1, BROADCASTS: 1, ("worlds", "1"): 0}
    findings = json.loads(spectral(database, "doctor", "--json").stdout)["findings"]
    (nobody,) = [each["what"] for each in findings if each["check"] == "no_worker"]
    assert nobody.startswith("worlds has 2 events waiting")
    assert nobody.endswith("and no worker of generation 1 is alive for it")


@pytest.mark.parametrize(("share", "is_found"), [(1 - A_LITTLE, True), (1 + A_LITTLE, False)])
async def test_the_doctor_s_notify_queue_is_that_of_the_gauge(
    database: str, measured: list[Sample], share: float, *, is_found: bool
) -> None:
    """Which it says in percent only, and from a quarter on: so it is asked from where on it does."""
    _, queue = by_gauges(measured)
    found = await examine(database, limits=Limits(queue=queue * share))
    assert ("notify_queue" in {each.check for each in found.findings}) is is_found
