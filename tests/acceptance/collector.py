"""A collector of OpenTelemetry for tests: takes OTLP over HTTP on this machine and keeps the spans."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from tests.acceptance.worker_process import PATIENCE


@dataclass(frozen=True)
class CollectedSpan:
    """One span as it came over the wire; ids as hexadecimal digits, no parent is no digits."""

    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    links: tuple[tuple[str, str], ...]
    attributes: Mapping[str, object]
    status: tuple[int, str]
    resource: Mapping[str, object]
    scope: str
    began: int


class Collector:
    """What has come so far, and a way to wait for more."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.paths: set[str] = set()
        self._spans: list[CollectedSpan] = []
        self._news = threading.Condition()

    def take(self, path: str, body: bytes) -> None:
        """Called by the server."""
        with self._news:
            self.paths.add(path)
            if path == "/v1/traces":
                self._spans += _spans(ExportTraceServiceRequest.FromString(body))
            self._news.notify_all()

    def spans(self, name: str) -> list[CollectedSpan]:
        with self._news:
            return [span for span in self._spans if span.name == name]

    def wait_for(self, name: str, wanted: Callable[[CollectedSpan], bool] = lambda _: True) -> CollectedSpan:
        """The only span of this name that is wanted; waits until there is one."""
        with self._news:
            seen = self._news.wait_for(lambda: any(map(wanted, self.spans(name))), timeout=PATIENCE)
            assert seen, f"no {name} among {[span.name for span in self._spans]}"
        (found,) = filter(wanted, self.spans(name))
        return found


@contextmanager
def open_collector() -> Iterator[Collector]:
    """A collector that listens while the block runs."""

    class Request(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.take(self.path, self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Request) as server:
        collector = Collector(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


def _spans(request: ExportTraceServiceRequest) -> list[CollectedSpan]:
    return [
        CollectedSpan(
            name=span.name,
            kind=span.kind,
            trace_id=span.trace_id.hex(),
            span_id=span.span_id.hex(),
            parent_id=span.parent_span_id.hex(),
            links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
            attributes=_values(span.attributes),
            status=(span.status.code, span.status.message),
            resource=_values(group.resource.attributes),
            scope=scope.scope.name,
            began=span.start_time_unix_nano,
        )
        for group in request.resource_spans
        for scope in group.scope_spans
        for span in scope.spans
    ]


def _values(pairs: Iterable[KeyValue]) -> dict[str, object]:
    values: dict[str, object] = {}
    for pair in pairs:
        kind = pair.value.WhichOneof("value")
        values[pair.key] = None if kind is None else getattr(pair.value, kind)
    return values
