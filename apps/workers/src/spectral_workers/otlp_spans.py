"""Spans as OTLP has them on the wire, for the exporter that the worker sets up.

OpenTelemetry's own encoder makes an object for each attribute, copies all of them three times and hashes the resource
for each span: with it, to encode a span takes longer than to make, end and queue it. Most spans are alike: a few
attributes, of which nearly all repeat, one link, no events. Those are written here, byte by byte, as protobuf would;
everything else about them, and every span with anything more to it, is left to OpenTelemetry's encoder.
"""

from __future__ import annotations

from binascii import hexlify, unhexlify
from struct import Struct, error, pack_into
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import UUID
from weakref import WeakKeyDictionary

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as encode_any_spans
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.trace import SpanKind, StatusCode

from spectral.core.events.infrastructure.observability.lean import ATTEMPT, MESSAGE_ID, OUTCOME, WELL, Shape, Sort
from spectral_workers.lean_spans import FirstSpan, first_sort

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import Link, SpanContext

    from spectral_workers.lean_spans import KeptSpan, LeanTracer

_MAX_KNOWN: Final = 2_000
_UNIQUE: Final = frozenset({MESSAGE_ID})
"""Attributes that are not worth remembering."""

# Each with its tag before it: the number of the field in the .proto file, and how it is encoded.
_IDS: Final = Struct("<BB16sBB8s").pack
_TIMES: Final = Struct("<BBBQBQ").pack
_LINK: Final = Struct("<BBBB16sBB8sBI").pack
_KEY, _VALUE, _SPAN, _NAME, _ATTRIBUTE, _TEXT = b"\x0a", b"\x12", b"\x12", b"\x2a", b"\x4a", b"\x0a"
_RESOURCE_SPANS, _SCOPE_SPANS = b"\x0a", b"\x12"
_NO_STATUS: Final = b"\x7a\x00"
_FLAGS: Final = b"\x85\x01"
_KNOWS_WHERE: Final = 0x100
_ELSEWHERE: Final = 0x300
_FLAGS_OF: Final = {flags: _FLAGS + flags.to_bytes(4, "little") for flags in (_KNOWS_WHERE, _ELSEWHERE)}
_SHORT: Final = 0x80


class Encoded:
    """Stands for a message of protobuf, already serialised."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializePartialToString(self) -> bytes:  # noqa: N802  protobuf's name
        """The bytes."""
        return self._data

    SerializeToString = SerializePartialToString

    def __getattr__(self, name: str) -> object:
        """Whatever else an exporter may ask a message for; none does today."""
        return getattr(ExportTraceServiceRequest.FromString(self._data), name)


class Written(NamedTuple):
    """Lean spans of a tracer as they go over the wire, and how many they are."""

    tracer: LeanTracer
    data: bytearray
    spans: int


def write_spans(spans: Sequence[KeptSpan]) -> list[Written]:
    """What is sent of lean spans; the same that OpenTelemetry's encoder makes of them, if not in the same order.

    One that cannot be written is left out.
    """
    tracers = {span.tracer for span in spans}
    if len(tracers) > 1:
        return [each for one in tracers for each in write_spans([span for span in spans if span.tracer is one])]
    # All of it into one piece of memory, and in one loop: it is done for each event.
    data, at, written = bytearray(), 0, 0
    kind = target = handler = generation = known = None
    first, form = _NO_SORT, _NO_FORM
    for number, span in enumerate(spans):
        if type(span) is FirstSpan:
            # By position: to ask a tuple for its fields by name takes longer.
            delivery, name = span.act
            event_id, parent = delivery[1], delivery[10]
            sort, link = first, parent
            if (
                name is not handler
                or delivery[2] is not kind
                or delivery[6] is not target
                or delivery[13] != generation
            ):
                kind, target, handler, generation = delivery[2], delivery[6], name, delivery[13]
                sort = first = first_sort(span.act)
        else:
            sort, parent, link, event_id = span.facts()
        if sort is not known:  # mostly they are all alike
            known, form = sort, _form(sort)
            data = _with_room(data, at + form.length * (len(spans) - number))
        length, pack_into, to_trace, to_parent, to_began, to_message, to_link, to_link_span, to_end = form
        try:
            if link is parent and parent is not None:  # as nearly always
                trace_id, parent_id = unhexlify(parent[3:35]), unhexlify(parent[36:52])
                linked_trace, linked_span = trace_id, parent_id
            else:
                trace_id, parent_id = (unhexlify(span.root_trace_id), b"") if parent is None else _ids(parent)
                linked_trace, linked_span = (b"", b"") if link is None else _ids(link)
            # With a dash after every fourth digit: three of them are too many.
            message = hexlify(event_id.int.to_bytes(16, "big"), b"-", 2)
            pack_into(
                data, at, to_trace, trace_id, _TO_SPAN, span.span_id.to_bytes(8, "big"), to_parent, parent_id,
                to_began, span.began, _TO_ENDED, span.ended, to_message, message, message[5:], message[30:],
                message[35:], to_link, linked_trace, to_link_span, linked_span, to_end,
            )  # fmt: skip
        except (ValueError, error):  # a trace context that is none, from elsewhere than the outbox
            continue
        at += length
        written += 1
    del data[at:]
    return [Written(tracer, data, written) for tracer in tracers if written]


def _with_room(data: bytearray, length: int) -> bytearray:
    """For so much; the first time without a copy."""
    if not data:
        return bytearray(length)
    data += bytes(max(0, length - len(data)))
    return data


def _ids(traceparent: str) -> tuple[bytes, bytes]:
    """The trace's and the span's."""
    return unhexlify(traceparent[3:35]), unhexlify(traceparent[36:52])


def have_it_asked() -> None:
    """Have the exporter use this encoder: it looks there for it, and cannot be told in any other way."""
    if "encode_spans" in vars(trace_exporter):
        vars(trace_exporter)["encode_spans"] = encode_spans


def is_asked() -> bool:
    """Whether it does. One that looks elsewhere is as slow as it was, and can do nothing with what is written here."""
    return vars(trace_exporter).get("encode_spans") is encode_spans


def encode_spans(spans: Sequence[ReadableSpan | Written]) -> Encoded:
    """A request to take these spans; the same that OpenTelemetry's encoder makes of them, if not in the same order."""
    # By identity: equal ones may be sent twice, but to compare them takes as long as to encode a span.
    groups: dict[tuple[int, int], tuple[tuple[bytes, bytes], list[bytes | bytearray]]] = {}
    lean: dict[LeanTracer, list[bytes | bytearray]] = {}
    for span in spans:
        if isinstance(span, Written):
            lean.setdefault(span.tracer, []).append(span.data)
            continue
        key = (id(span.resource), id(span.instrumentation_scope))
        if key not in groups:
            groups[key] = _around(span), []
        groups[key][1].append(_field(_SPAN, _span(span)))
    for tracer, alike in lean.items():
        key = (id(tracer.resource), id(tracer.scope))
        if key in groups:
            groups[key][1].extend(alike)
        else:
            groups[key] = _around_lean(tracer), alike
    parts: list[bytes | bytearray] = []
    for (outer, inner), written in groups.values():
        # All of it is put together once: copies of half a megabyte have the system look for memory each time.
        before = _before(_SCOPE_SPANS, len(inner) + sum(map(len, written)))
        length = len(outer) + len(before) + len(inner) + sum(map(len, written))
        parts += (_before(_RESOURCE_SPANS, length), outer, before, inner)
        parts += written
    return Encoded(b"".join(parts))


def _around(span: ReadableSpan) -> tuple[bytes, bytes]:
    """The resource and the scope of a span."""
    (around,) = encode_any_spans([span]).resource_spans
    (scope,) = around.scope_spans
    del scope.spans[:]
    inner = scope.SerializePartialToString()
    around.ClearField("scope_spans")
    return around.SerializePartialToString(), inner


_arounds: WeakKeyDictionary[LeanTracer, tuple[Resource, tuple[bytes, bytes]]] = WeakKeyDictionary()


def _around_lean(tracer: LeanTracer) -> tuple[bytes, bytes]:
    """The same of all the spans of a tracer, for as long as it has the same resource."""
    known = _arounds.get(tracer)
    if known is None or known[0] is not tracer.resource:
        known = _arounds[tracer] = tracer.resource, _around(tracer.example())
    return known[1]


class _Form(NamedTuple):
    """What the spans have in common that are alike but for ids and times, and what puts the two together."""

    length: int
    pack_into: Callable[..., None]
    to_trace: bytes
    to_parent: bytes
    to_began: bytes
    to_message: bytes
    to_link: bytes
    to_link_span: bytes
    to_end: bytes


_NO_SORT: Final = Sort(Shape("", SpanKind.INTERNAL, {}), is_child=False, is_linked=False)
_NO_FORM: Final = _Form(0, pack_into, *[b""] * 7)
_TO_SPAN: Final = b"\x12\x08"
_TO_ENDED: Final = b"\x41"


def _form(sort: Sort) -> _Form:
    known: _Form | None = sort.written
    if known is None:
        known = sort.written = _form_of(sort)
    return known


def _form_of(sort: Sort) -> _Form:
    """The form of the spans of a sort; each has the same length."""
    shape, has_parent, has_link = sort.shape, sort.is_child, sort.is_linked
    attributes = (_attribute(key, value) or b"" for key, value in {**shape.attributes, OUTCOME: WELL}.items())
    attempt = b"" if sort.attempt is None else _attribute(ATTEMPT, sort.attempt) or b""
    flags = _FLAGS_OF[_ELSEWHERE if has_parent and not sort.is_local else _KNOWS_WHERE]
    parts = [
        b"\x0a\x10",
        b"\x22\x08" if has_parent else b"",
        b"".join((_text(_NAME, shape.name), *attributes, b"\x30", bytes([shape.kind.value + 1]), b"\x39")),
        _MESSAGE_ID_BEFORE,
        attempt + (b"\x6a\x21\x0a\x10" if has_link else b""),
        _TO_SPAN if has_link else b"",
        (b"\x35" + _ELSEWHERE.to_bytes(4, "little") if has_link else b"") + _NO_STATUS + flags,
    ]
    variable = 16 + 8 + 8 * has_parent + 8 + 8 + len(_ANY_ID) + 24 * has_link
    length = variable + sum(map(len, parts)) + len(_TO_SPAN) + len(_TO_ENDED)
    parts[0] = _before(_SPAN, length) + parts[0]
    sizes = [len(part) for part in parts]
    layout = Struct(
        f"<{sizes[0]}s16s2s8s{sizes[1]}s{8 * has_parent}s{sizes[2]}sQ1sQ{sizes[3]}s4s24s4s4s"
        f"{sizes[4]}s{16 * has_link}s{sizes[5]}s{8 * has_link}s{sizes[6]}s"
    )
    return _Form(layout.size, layout.pack_into, *parts)


def _span(span: ReadableSpan) -> bytes:
    try:
        written = _plain_span(span)
    except Exception:  # noqa: BLE001  a value that is none; the other encoder knows what to leave out
        written = None
    if written is None:
        written = encode_any_spans([span]).resource_spans[0].scope_spans[0].spans[0].SerializePartialToString()
    return written


def _plain_span(span: ReadableSpan) -> bytes | None:
    """None if there is more to it."""
    context, parent, attributes = span.context, span.parent, span.attributes
    if (
        context is None
        or context.trace_state
        or span.events
        or span.status.status_code is not StatusCode.UNSET
        or span.dropped_attributes
        or span.dropped_events
        or span.dropped_links
    ):
        return None
    parts = [_IDS(0x0A, 16, context.trace_id.to_bytes(16, "big"), 0x12, 8, context.span_id.to_bytes(8, "big"))]
    if parent is not None:
        parts.append(b"\x22\x08" + parent.span_id.to_bytes(8, "big"))
    parts.append(_text(_NAME, span.name))
    parts.append(_TIMES(0x30, span.kind.value + 1, 0x39, span.start_time, 0x41, span.end_time))
    # A copy is an ordinary dict. To go through what the SDK has takes a few calls for each of them.
    copied: Callable[[], Mapping[str, object]] = getattr(attributes, "copy", lambda: attributes or {})
    for key, value in copied().items():
        encoded = _attribute(key, value)
        if encoded is None:
            return None
        parts.append(encoded)
    for link in span.links:
        if link.attributes or link.dropped_attributes:
            return None
        parts.append(_link(link))
    parts.append(_NO_STATUS)
    parts.append(_FLAGS_OF[_flags(parent)])
    return b"".join(parts)


def _link(link: Link) -> bytes:
    trace_id, span_id = link.context.trace_id.to_bytes(16, "big"), link.context.span_id.to_bytes(8, "big")
    return _LINK(0x6A, 33, 0x0A, 16, trace_id, 0x12, 8, span_id, 0x35, _flags(link.context))


def _flags(context: SpanContext | None) -> int:
    return _ELSEWHERE if context is not None and context.is_remote else _KNOWS_WHERE


_known: dict[tuple[str, type, object], bytes] = {}


def _attribute(key: str, value: object) -> bytes | None:
    """None if the value is not a simple one."""
    if key in _UNIQUE and isinstance(value, str):
        return _attribute_of(key, _text(_TEXT, value))
    asked = (key, type(value), value)  # the kind too, for True equals 1
    known = _known.get(asked)
    if known is None:
        if isinstance(value, str):
            known = _attribute_of(key, _text(_TEXT, value))
        elif isinstance(value, bool):
            known = _attribute_of(key, AnyValue(bool_value=value).SerializeToString())
        elif isinstance(value, int):
            known = _attribute_of(key, AnyValue(int_value=value).SerializeToString())
        else:
            return None
        if len(_known) >= _MAX_KNOWN:
            _known.clear()
        _known[asked] = known
    return known


def _attribute_of(key: str, value: bytes) -> bytes:
    return _field(_ATTRIBUTE, _text(_KEY, key) + _field(_VALUE, value))


def _text(tag: bytes, text: str) -> bytes:
    return _field(tag, text.encode())


def _field(tag: bytes, data: bytes) -> bytes:
    """Data of any length, with its length before it."""
    length = len(data)
    return b"%b%c%b" % (tag, length, data) if length < _SHORT else _before(tag, length) + data


def _before(tag: bytes, length: int) -> bytes:
    """What is before data of this length."""
    digits = bytearray(tag)
    while length >= _SHORT:
        digits.append(length & 0x7F | _SHORT)
        length >>= 7
    digits.append(length)
    return bytes(digits)


_ANY_ID: Final = str(UUID(int=0))
_MESSAGE_ID_BEFORE: Final = _attribute_of(MESSAGE_ID, _text(_TEXT, _ANY_ID)).removesuffix(_ANY_ID.encode())
"""The attribute without its value, which is as long for each event."""
