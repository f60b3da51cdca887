"""OpenTelemetry and Sentry of the worker process, if the environment asks for them and nobody came first.

Whatever is wrong here costs a line in the log and never the worker: a package that is missing, a variable that makes no
sense, a collector that is down, refuses or hangs. What the SDK of OpenTelemetry complains of is said once a minute, and
without the values it complains about: an address may have credentials in it.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from opentelemetry import metrics, trace

from spectral.core.events.infrastructure.observability.log_writer import process_logger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from opentelemetry.sdk.metrics.export import MetricExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

    from spectral.core.events.settings import Identity
    from spectral_workers.span_queue import SpanQueue

_LAST_WORDS: Final = 1.8
"""Seconds for everything that has not been sent yet; with the rest of it, closing takes less than two."""

_BATCHES: Final = ("OTEL_BSP_MAX_QUEUE_SIZE", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE")
_QUEUED: Final = 16_384
_SENT: Final = 2_048
"""Spans: a megabyte in a request, of which collectors take twenty; and eight that wait."""

_PROTOCOL: Final = "http/protobuf"
_QUIET: Final = 60.0
_BREADCRUMBS: Final = 20
_UNSET: Final = "unset"
_LOGGER: Final = "spectral.telemetry"


def configure_telemetry(identity: Identity, environ: Mapping[str, str]) -> Callable[[], None]:
    """Set up what the environment asks for; the answer sends what is left and closes it, within two seconds.

    Call it after the project's modules are imported and the log is set up. `environ` says whether to export; where to
    and how, the SDK reads from the process's own environment, by OpenTelemetry's names. A provider or client that the
    project has set is left alone, and so is its end.
    """
    closers = [*_opentelemetry(identity, environ), *_sentry(identity, environ)]

    def close() -> None:
        deadline = time.monotonic() + _LAST_WORDS
        # Each in a thread of its own, which does not keep the process: one that hangs must not cost the others.
        threads = [threading.Thread(target=_quietly, args=(closer,), daemon=True) for closer in closers]
        closers.clear()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    return close


def _quietly(closer: Callable[[], object]) -> None:
    with suppress(Exception):  # there is nobody left to tell
        closer()


# OpenTelemetry


@dataclass(frozen=True, slots=True)
class _Signal:
    """One of the two kinds of telemetry, and how it is set up."""

    name: str
    is_taken: Callable[[], bool]
    set_up: Callable[[Iterable[str], Resource], Callable[[], object]]

    def exporters(self, environ: Mapping[str, str]) -> tuple[str, ...]:
        """By which exporters it is asked for: those named, or `otlp` if there is an endpoint for it."""
        named = environ.get(f"OTEL_{self.name}_EXPORTER", "").strip().lower()
        if named:
            return tuple(part for part in map(str.strip, named.split(",")) if part not in {"", "none"})
        endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{self.name}_ENDPOINT")
        return ("otlp",) if any(environ.get(variable, "").strip() for variable in endpoints) else ()

    def protocol(self, environ: Mapping[str, str]) -> str:
        """What the collector is to be spoken to in."""
        variables = (f"OTEL_EXPORTER_OTLP_{self.name}_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
        named = (environ.get(variable, "").strip().lower() for variable in variables)
        return next(filter(None, named), _PROTOCOL)


def _opentelemetry(identity: Identity, environ: Mapping[str, str]) -> list[Callable[[], object]]:
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return []
    closers: list[Callable[[], object]] = []
    wanted = [(signal, signal.exporters(environ)) for signal in (_TRACES, _METRICS) if not signal.is_taken()]
    if any(exporters for _, exporters in wanted):
        _calm_the_sdk(identity)  # first, for it complains of headers that it cannot read, and shows them
    for signal, exporters in wanted:
        if not exporters:
            continue
        log = process_logger(_LOGGER, identity).bind(signal=signal.name.lower())
        if "otlp" in exporters and signal.protocol(environ) != _PROTOCOL:
            port = "and name the endpoint that speaks it, mostly port 4318"
            log.warning("telemetry is off", remedy=f"set OTEL_EXPORTER_OTLP_PROTOCOL={_PROTOCOL} {port}")
            continue
        try:
            closers.append(signal.set_up(exporters, _resource(identity)))
        except ImportError:
            log.warning("telemetry is off", remedy="pip install 'spectral-events[otel]'")
        except Exception as error:  # noqa: BLE001  a variable that makes no sense must not cost the worker
            remedy = f"check OTEL_{signal.name}_EXPORTER and the other OTEL_ variables"
            log.warning("telemetry is off", error=type(error).__name__, remedy=remedy)
    return closers


def _resource(identity: Identity) -> Resource:
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415  an extra

    certain: dict[str, str | int] = {"service.name": identity.service, "spectral.generation": identity.generation}
    if identity.environment != _UNSET:
        certain["deployment.environment.name"] = identity.environment
    # Its version is the project's to say, in OTEL_RESOURCE_ATTRIBUTES: ours is the scope's.
    return Resource.create(certain)


def _set_up_traces(exporters: Iterable[str], resource: Resource) -> Callable[[], object]:
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415  an extra

    from spectral_workers.span_queue import SpanQueue  # noqa: PLC0415  as above

    names = tuple(exporters)
    queued, sent = _batches()
    queues = [SpanQueue(exporter, queued, sent) for exporter in [_span_exporter(name) for name in names]]
    provider = _lean_provider(resource, queues[0]) if names == ("otlp",) else None
    if provider is None:
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)  # its own way to end would wait for ever
        for queue in queues:
            provider.add_span_processor(queue)
    trace.set_tracer_provider(provider)
    return provider.shutdown


def _lean_provider(resource: Resource, spans: SpanQueue) -> TracerProvider | None:
    """One of lean spans, if what is to send them is as we know it; they mean nothing to anybody else."""
    from spectral_workers.lean_spans import LeanProvider  # noqa: PLC0415  an extra
    from spectral_workers.otlp_spans import is_asked, write_spans  # noqa: PLC0415  as above
    from spectral_workers.span_heaps import HeapQueue  # noqa: PLC0415  as above

    if not is_asked():
        return None
    return LeanProvider(resource, spans, HeapQueue(_span_exporter("otlp"), spans.limits), write_spans)


def _batches() -> tuple[int | None, int | None]:
    """How many spans may wait, and how many are sent at once; none: what the environment says, or the SDK by itself.

    The SDK's own numbers are spans of a fifth of a second, and requests many times a second, for a busy worker.
    """
    if any(variable in os.environ for variable in _BATCHES):  # noqa: TID251  where the SDK reads them
        return None, None
    return _QUEUED, _SENT


def _span_exporter(name: str) -> SpanExporter:
    if name == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter  # noqa: PLC0415  an extra

        return ConsoleSpanExporter()
    _require_otlp(name)
    from opentelemetry.exporter.otlp.proto.http import trace_exporter  # noqa: PLC0415  an extra

    from spectral_workers.otlp_spans import have_it_asked  # noqa: PLC0415  as above

    have_it_asked()
    return trace_exporter.OTLPSpanExporter()


def _set_up_metrics(exporters: Iterable[str], resource: Resource) -> Callable[[], object]:
    from spectral_workers.kept_histograms import provider_for  # noqa: PLC0415  an extra

    provider = provider_for([_metric_exporter(name) for name in exporters], resource)
    metrics.set_meter_provider(provider)
    return provider.shutdown


def _metric_exporter(name: str) -> MetricExporter:
    if name == "console":
        from opentelemetry.sdk.metrics.export import ConsoleMetricExporter  # noqa: PLC0415  an extra

        return ConsoleMetricExporter()
    _require_otlp(name)
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415  an extra

    return OTLPMetricExporter()


def _require_otlp(name: str) -> None:
    if name != "otlp":
        raise ValueError(f"no exporter is called {name!r}")


def _traces_are_taken() -> bool:
    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def _metrics_are_taken() -> bool:
    # The proxy that stands in until a provider is set has no public name.
    return type(metrics.get_meter_provider()).__name__ != "_ProxyMeterProvider"


_TRACES: Final = _Signal("TRACES", _traces_are_taken, _set_up_traces)
_METRICS: Final = _Signal("METRICS", _metrics_are_taken, _set_up_metrics)


# what the SDK says


def _calm_the_sdk(identity: Identity) -> None:
    """Have its complaints said by us; it was set up here, so nobody else waits for them."""
    logger = logging.getLogger("opentelemetry")
    logger.addHandler(_Occasional(identity))
    logger.propagate = False


class _Occasional(logging.Handler):
    """One short line a minute for each part of the SDK that complains, in the worker's own log."""

    def __init__(self, identity: Identity) -> None:
        super().__init__(logging.WARNING)
        self._log = process_logger(_LOGGER, identity)
        self._quiet_until: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Say it, or say nothing."""
        now = time.monotonic()
        if now < self._quiet_until.get(record.name, 0.0):
            return
        self._quiet_until[record.name] = now + _QUIET
        with suppress(Exception):  # a log that cannot be written must not end an exporter
            self._log.warning("telemetry is in trouble", part=record.name, said=_harmless(record))


def _harmless(record: logging.LogRecord) -> str:
    """What was said, with numbers and classes of errors but without texts."""
    if record.args and isinstance(record.args, tuple):
        with suppress(TypeError, ValueError):
            return str(record.msg) % tuple(map(_without_text, record.args))
    return record.funcName or record.module


def _without_text(value: object) -> object:
    if value is None or isinstance(value, int | float):
        return value
    return type(value).__name__ if isinstance(value, BaseException) else "..."


# Sentry


def _sentry(identity: Identity, environ: Mapping[str, str]) -> list[Callable[[], object]]:
    log = process_logger(_LOGGER, identity)
    dsn = environ.get("SENTRY_DSN", "").strip()
    if not dsn:
        return []
    try:
        import sentry_sdk  # noqa: PLC0415  an extra
    except ImportError:
        log.warning("error reports are off", remedy="pip install 'spectral-events[sentry]'")
        return []
    if sentry_sdk.get_client().is_active():
        return []
    try:
        sentry_sdk.init(
            dsn=dsn,
            environment=identity.environment if identity.environment != _UNSET else environ.get("SENTRY_ENVIRONMENT"),
            release=environ.get("SENTRY_RELEASE"),  # else what the SDK finds, which is the project's
            server_name="",  # nothing would make it look for the host's
            default_integrations=False,  # they report arguments, modules, and every error that is logged
            auto_enabling_integrations=False,
            include_local_variables=False,
            # send_default_pii is left out: unset is no, and whoever says so is warned that the option is old
            max_breadcrumbs=_BREADCRUMBS,
            traces_sample_rate=None,
        )
    except Exception as error:  # noqa: BLE001  a DSN that is none must not cost the worker, nor be shown
        log.warning("error reports are off", error=type(error).__name__, remedy="check SENTRY_DSN")
        return []
    return [lambda: sentry_sdk.get_client().close(timeout=_LAST_WORDS)]
