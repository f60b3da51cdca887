"""What a worker process sets up of OpenTelemetry and Sentry: only what is asked for, never in the way, never a secret.

Providers are set once in a process, so each of these is a process of its own.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from textwrap import dedent
from typing import Any

import pytest

from spectral_workers.telemetry import _METRICS, _TRACES

NOWHERE = "http://127.0.0.1:9"  # nothing is sent before the test has ended, and there would be nobody
CREDENTIALS = {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=canary"}
PREPARE = """
import json, os, sys, time, warnings
warnings.simplefilter("error")
import structlog
from spectral.core.events.settings import Identity
structlog.configure(processors=[structlog.processors.JSONRenderer()],
                    logger_factory=structlog.WriteLoggerFactory(sys.stderr))

def answer(**found):
    print(json.dumps(found))

def configure():
    from spectral_workers.telemetry import configure_telemetry
    return configure_telemetry(Identity(generation=3, service="shop", environment="tests"), os.environ)
"""


class Done:
    """How a script ended: what it answered, and what it said on stderr."""

    def __init__(self, script: str, variables: dict[str, str]) -> None:
        done = subprocess.run(
            [sys.executable, "-c", PREPARE + dedent(script)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            env={"PATH": os.environ["PATH"], **variables},
        )
        assert done.returncode == 0, done.stderr
        self.text = done.stderr
        self.said: list[dict[str, Any]] = [json.loads(line) for line in done.stderr.splitlines()]
        for line in self.said:
            who = {name: line.pop(name) for name in ("service", "environment", "generation", "trace_id")}
            assert who == {"service": "shop", "environment": "tests", "generation": 3, "trace_id": None}
        self.found: dict[str, Any] = json.loads(done.stdout or "{}")


LOOK = """
from opentelemetry import metrics, trace
answer(sdk="opentelemetry.sdk" in sys.modules, sentry="sentry_sdk" in sys.modules,
       traces=type(trace.get_tracer_provider()).__module__.split(".")[1],
       metrics=type(metrics.get_meter_provider()).__module__.split(".")[1])
"""


@pytest.mark.parametrize(
    ("variables", "traces", "metrics"),
    [
        ({}, (), ()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": NOWHERE}, ("otlp",), ("otlp",)),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": NOWHERE}, ("otlp",), ()),
        ({"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": NOWHERE}, (), ("otlp",)),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": NOWHERE, "OTEL_METRICS_EXPORTER": "None"}, ("otlp",), ()),
        ({"OTEL_TRACES_EXPORTER": "otlp, console"}, ("otlp", "console"), ()),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " ", "OTEL_TRACES_EXPORTER": " "}, (), ()),
    ],
)
def test_exporters_are_those_named_or_otlp_if_there_is_an_endpoint(
    variables: dict[str, str], traces: tuple[str, ...], metrics: tuple[str, ...]
) -> None:
    assert (_TRACES.exporters(variables), _METRICS.exporters(variables)) == (traces, metrics)


@pytest.mark.parametrize(
    ("variables", "is_set_up"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": NOWHERE}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": NOWHERE, "OTEL_SDK_DISABLED": "True"}, False),
    ],
    ids=["nothing", "everything", "disabled"],
)
def test_only_what_is_asked_for_is_set_up(variables: dict[str, str], is_set_up: bool) -> None:  # noqa: FBT001  what is expected
    done = Done("configure()" + LOOK, variables)
    assert done.found == {
        "sdk": is_set_up,
        "sentry": False,
        "traces": "lean_spans" if is_set_up else "trace",
        "metrics": "kept_histograms" if is_set_up else "metrics",
    }
    assert done.said == []


def test_spans_that_our_encoder_does_not_write_are_the_sdk_s_own() -> None:
    assert Done("configure()" + LOOK, {"OTEL_TRACES_EXPORTER": "console"}).found["traces"] == "sdk"


@pytest.mark.parametrize(
    ("variables", "queued", "sent"),
    [
        ({}, 16_384, 2_048),
        ({"OTEL_BSP_MAX_QUEUE_SIZE": "1000"}, 1_000, 512),
        ({"OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "100"}, 2_048, 100),
    ],
)
def test_as_many_spans_wait_and_are_sent_at_once_as_the_environment_says(
    variables: dict[str, str], queued: int, sent: int
) -> None:
    script = """
    configure()
    from opentelemetry import trace
    spans, heaps = trace.get_tracer_provider()._active_span_processor._span_processors
    batches = spans._batch_processor
    answer(spans=[batches._max_queue_size, batches._max_export_batch_size], heaps=heaps.limits)
    """
    found = Done(script, {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_BSP_SCHEDULE_DELAY": "700", **variables}).found
    assert found == {"spans": [queued, sent], "heaps": [queued, sent, 0.7]}


def test_the_resource_says_who_speaks() -> None:
    script = """
    configure()
    from opentelemetry import trace
    answer(**trace.get_tracer_provider().resource.attributes)
    """
    done = Done(script, {"OTEL_EXPORTER_OTLP_ENDPOINT": NOWHERE, "OTEL_RESOURCE_ATTRIBUTES": "team=a"})
    said = {
        "service.name": "shop",
        "deployment.environment.name": "tests",
        "spectral.generation": 3,
        "team": "a",
    }
    assert said.items() <= done.found.items()
    assert "service.version" not in done.found, "it is the project's to say"
    assert done.found["service.instance.id"]
    owned = Done(script, {"OTEL_EXPORTER_OTLP_ENDPOINT": NOWHERE, "OTEL_RESOURCE_ATTRIBUTES": "service.version=9.9"})
    assert owned.found["service.version"] == "9.9"


def test_what_the_project_has_set_up_is_left_alone() -> None:
    script = """
    from opentelemetry import metrics, trace
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.trace import TracerProvider
    import sentry_sdk
    traces, measures = TracerProvider(), MeterProvider()
    trace.set_tracer_provider(traces)
    metrics.set_meter_provider(measures)
    sentry_sdk.init(dsn="http://key@127.0.0.1:9/1", release="theirs", default_integrations=False)
    configure()()
    answer(traces=trace.get_tracer_provider() is traces, metrics=metrics.get_meter_provider() is measures,
           release=sentry_sdk.get_client().options["release"], active=sentry_sdk.get_client().is_active())
    """
    done = Done(script, {"OTEL_EXPORTER_OTLP_ENDPOINT": NOWHERE, "SENTRY_DSN": "http://key@127.0.0.1:9/2"})
    assert done.found == {"traces": True, "metrics": True, "release": "theirs", "active": True}


def test_what_is_not_installed_is_said_with_the_command_that_installs_it() -> None:
    script = """
    sys.modules["opentelemetry.sdk.resources"] = sys.modules["sentry_sdk"] = None  # as if they were not there
    configure()()
    """
    done = Done(script, {"OTEL_EXPORTER_OTLP_ENDPOINT": NOWHERE, "SENTRY_DSN": "http://canary@127.0.0.1:9/1"})
    assert done.said == [
        {"event": "telemetry is off", "signal": "traces", "remedy": "pip install 'spectral-events[otel]'"},
        {"event": "telemetry is off", "signal": "metrics", "remedy": "pip install 'spectral-events[otel]'"},
        {"event": "error reports are off", "remedy": "pip install 'spectral-events[sentry]'"},
    ]


@pytest.mark.parametrize(
    ("variables", "remedy"),
    [
        ({"OTEL_TRACES_EXPORTER": "pigeon"}, "check OTEL_TRACES_EXPORTER"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_BSP_SCHEDULE_DELAY": "-1"}, "check OTEL_TRACES_EXPORTER"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "PROTOCOL=http/protobuf"),
        ({"SENTRY_DSN": "canary"}, "check SENTRY_DSN"),
    ],
    ids=["exporter", "variable", "protocol", "dsn"],
)
def test_what_makes_no_sense_is_said_and_costs_nothing(variables: dict[str, str], remedy: str) -> None:
    done = Done("configure()()", variables | CREDENTIALS)
    (said,) = done.said
    assert said["event"] in {"telemetry is off", "error reports are off"}
    assert remedy in said["remedy"]
    assert "canary" not in done.text


def test_headers_that_cannot_be_read_are_not_shown() -> None:
    variables = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": NOWHERE, "OTEL_EXPORTER_OTLP_HEADERS": "authorization:canary"}
    done = Done("configure()()", variables)
    assert [said["event"] for said in done.said] == ["telemetry is in trouble"]
    assert "canary" not in done.text


@pytest.fixture
def refusing() -> Iterator[str]:
    """Where a collector refuses everything."""

    class Refuse(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_error(401, "canary")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Refuse) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://user:canary@127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


FAIL_OFTEN = """
from opentelemetry import trace
close = configure()
for _ in range(20):
    trace.get_tracer("tests").start_span("work").end()
    trace.get_tracer_provider().force_flush()
close()
"""


def test_a_collector_that_refuses_costs_a_line_without_credentials(refusing: str) -> None:
    done = Done(FAIL_OFTEN, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{refusing}/?key=canary"} | CREDENTIALS)
    (said,) = done.said
    assert (said["event"], said["part"].split(".")[0]) == ("telemetry is in trouble", "opentelemetry")
    assert "401" in said["said"]
    assert "canary" not in done.text


def test_a_collector_that_is_down_costs_a_line_without_credentials() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, but nobody listens
        endpoint = f"http://user:canary@127.0.0.1:{closed.getsockname()[1]}/?key=canary"
        variables = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_TIMEOUT": "0.05"}
        done = Done(FAIL_OFTEN, variables | CREDENTIALS)
    (said,) = done.said
    assert said["event"] == "telemetry is in trouble"
    assert "canary" not in done.text


def test_closing_does_not_wait_for_a_collector_that_hangs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:  # connections are taken, and nothing ever answers
        port = mute.getsockname()[1]
        script = """
        from opentelemetry import metrics, trace
        import sentry_sdk
        close = configure()
        trace.get_tracer("tests").start_span("work").end()
        metrics.get_meter("tests").create_counter("work").add(1)
        sentry_sdk.capture_message("work")
        began = time.monotonic()
        close()
        took = time.monotonic() - began
        close()
        answer(took=took, again=time.monotonic() - began - took)
        """
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
        done = Done(script, variables | {"SENTRY_DSN": f"http://key@127.0.0.1:{port}/1"})
    # Two seconds are promised; a busy machine may be late, but by default the SDK would wait for ten and more.
    assert done.found["took"] < 4
    assert done.found["again"] < 1


def test_sentry_is_told_no_values_and_nothing_of_the_machine() -> None:
    script = """
    configure()
    import sentry_sdk
    client = sentry_sdk.get_client()
    names = ("environment", "release", "server_name", "include_local_variables", "default_integrations",
             "traces_sample_rate", "max_breadcrumbs")
    answer(integrations=sorted(client.integrations), personal=client.should_send_default_pii(),
           **{name: client.options[name] for name in names})
    """
    done = Done(script, {"SENTRY_DSN": "http://key@127.0.0.1:9/1"})
    found = done.found
    assert done.said == []
    assert "spectral" not in str(found.pop("release")), "it is the project's: of its checkout, if there is one"
    assert found == {
        "environment": "tests",
        "server_name": "",
        "include_local_variables": False,
        "personal": False,
        "default_integrations": False,
        "traces_sample_rate": None,
        "max_breadcrumbs": 20,
        "integrations": [],
    }
