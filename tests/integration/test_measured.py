"""A worker inside a program: its numbers, its publishers' and the database's, for whoever reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta

import psycopg
import pytest
from opentelemetry import metrics as otel
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client.parser import text_string_to_metric_families

from spectral.core.events import ConfigurationError, Consumer, EventEnvelope
from spectral.core.events.bootstrap import publisher_for, publishing, worker
from spectral.core.events.probe import NoteTaker
from spectral_workers.measured import measured
from tests.integration.delivery.platform_worker import COMPLETED, until

OFTEN = timedelta(seconds=0.1)
SENT = f"messaging_client_sent_messages_total/{COMPLETED}"
CONSUMED = f"messaging_client_consumed_messages_total/platform/{COMPLETED}"


@pytest.fixture
def environ(database: str, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    named = {"SPECTRAL_DATABASE_URL": database, "SPECTRAL_GENERATION": "1"}
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    return named


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemoryMetricReader]:
    """What a provider collects that is, for this test, the program's own."""
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    monkeypatch.setattr(otel, "get_meter_provider", lambda: provider)
    yield reader
    provider.shutdown()


def scraped(text: bytes) -> dict[str, float]:
    """By name and the values of labels, in their order."""
    return {
        "/".join([sample.name, *sorted(sample.labels.values())]): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def collected(reader: InMemoryMetricReader) -> dict[str, float]:
    data = reader.get_metrics_data()
    return {
        metric.name: point.value
        for resource in (data.resource_metrics if data else ())
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
        if hasattr(point, "value")
    }


def counting() -> tuple[Consumer, list[int]]:
    platform, seen = Consumer("platform"), list[int]()

    @platform.on(COMPLETED)
    async def count(event: EventEnvelope) -> None:
        seen.append(event.payload["number"])

    return platform, seen


async def publish(database: str, *numbers: int) -> None:
    async with await psycopg.AsyncConnection.connect(database) as connection, connection.transaction():
        for number in numbers:
            envelope = EventEnvelope(
                event_type=COMPLETED, source="worlds", target="platform", payload={"number": number}
            )
            await publisher_for(connection, publishing()).publish(envelope)


async def test_prometheus_is_given_what_the_worker_and_the_publishers_count_and_how_the_database_is(
    database: str, environ: Mapping[str, str]
) -> None:
    platform, seen = counting()
    delivering = worker(platform)
    with measured(delivering, environ=environ, every=OFTEN) as metrics:
        await publish(database, 1, 2, 3)
        async with delivering:
            await until(lambda: len(seen) == 3)
            await until(lambda: scraped(metrics()).get(CONSUMED) == 3)
            await until(lambda: "spectral_emitter_up" in scraped(metrics()))
            await until(lambda: scraped(metrics())["spectral_ear_connected"] == 1)
            found = scraped(metrics())
    assert found["spectral_emitter_up"] == 1
    assert found["spectral_worker_generation"] == 1
    assert found["spectral_ear_connected"] == 1
    assert found[SENT] == 3
    assert any(name.startswith("spectral_notify_queue_usage") for name in found)
    assert any(name.startswith("spectral_probe_failed_total") for name in found)


async def test_the_program_s_meter_provider_is_given_the_gauges_as_long_as_the_block_runs(
    environ: Mapping[str, str], reader: InMemoryMetricReader
) -> None:
    for _ in range(2):  # as a server does that is started again
        delivering = worker(counting()[0], environ=environ)
        with measured(delivering, every=OFTEN):
            async with delivering:
                await until(lambda: collected(reader).get("spectral.emitter.up") == 1)
                await until(lambda: collected(reader)["spectral.ear.connected"] == 1)  # which may be later
        assert "spectral.emitter.up" not in collected(reader)
        assert "spectral.ear.connected" not in collected(reader)


async def test_what_is_logged_of_the_measuring_names_the_worker_and_who_speaks(
    environ: Mapping[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "spectral")
    delivering = worker(counting()[0], environ=environ)
    who = {"SPECTRAL_SERVICE": "shop", "SPECTRAL_ENVIRONMENT": "test"}
    with measured(delivering, environ={**environ, **who}, every=OFTEN):
        async with delivering:
            await until(lambda: "this worker measures the database" in caplog.text)
    fields = next(vars(each)["spectral"] for each in caplog.records if "measures the database" in each.getMessage())
    said = {name: fields[name] for name in ("service", "environment", "generation", "trace_id", "worker")}
    name = delivering.health().worker
    assert said == {"service": "shop", "environment": "test", "generation": 1, "trace_id": None, "worker": name}


async def test_publishes_are_counted_no_more_when_the_block_is_over(database: str, environ: Mapping[str, str]) -> None:
    with measured(worker(counting()[0]), environ=environ) as metrics:
        await publish(database, 1)
        metrics()
    await publish(database, 2, 3)
    assert scraped(metrics())[SENT] == 1


async def test_of_two_blocks_each_may_end_first(database: str, environ: Mapping[str, str]) -> None:
    one, another = (measured(worker(counting()[0]), environ=environ) for _ in range(2))
    first, second = one.__enter__(), another.__enter__()
    await publish(database, 1)
    one.__exit__(None, None, None)
    await publish(database, 2)
    assert scraped(second())[SENT] == 2, "of several, the last one counts what is published"
    another.__exit__(None, None, None)
    assert SENT not in scraped(first())


async def test_of_a_worker_with_a_probe_of_its_own_it_is_told_how_it_is(environ: Mapping[str, str]) -> None:
    delivering = worker(counting()[0], probe=NoteTaker())
    with measured(delivering, environ=environ, every=OFTEN) as metrics:
        async with delivering:
            await until(lambda: "spectral_emitter_up" in scraped(metrics()))
            assert scraped(metrics())["spectral_worker_state/idle"] == 1


async def test_without_a_database_it_is_said_what_to_set(environ: Mapping[str, str]) -> None:
    delivering = worker(counting()[0], environ=environ)
    with pytest.raises(ConfigurationError, match="SPECTRAL_DATABASE_URL"), measured(delivering, environ={}):
        raise AssertionError("never")
