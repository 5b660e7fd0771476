"""Spans of recorded runs as OTLP requests, by OpenTelemetry's own encoding; bounded in spans and in bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from refold.agents import otel

SPANS_MAX = 512
BYTES_MAX = 1 << 20
_UNKNOWN = "unknown_service"
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)


def resource_of(agent: str) -> Resource:
    """What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say; the service is the agent where they name none."""
    given = Resource.create()
    if str(given.attributes.get(SERVICE_NAME, _UNKNOWN)).startswith(_UNKNOWN):
        return given.merge(Resource({SERVICE_NAME: agent or otel.SCOPE}))
    return given


def readable(span: otel.Span, resource: Resource) -> ReadableSpan:
    """A span as OpenTelemetry's SDK has it once it has ended."""
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id),
        parent=_context(span.trace_id, span.parent_id) if span.parent_id else None,
        resource=resource,
        attributes=span.attributes,
        events=[Event(each.name, each.attributes, each.at * 1000) for each in span.events],
        links=[Link(_context(*span.link, is_remote=True))] if span.link else [],
        kind=SpanKind.CLIENT if span.is_remote else SpanKind.INTERNAL,
        status=Status(StatusCode.UNSET) if span.error is None else Status(StatusCode.ERROR, span.error),
        start_time=span.started_at * 1000,
        end_time=span.ended_at * 1000,
        instrumentation_scope=InstrumentationScope(otel.SCOPE),
    )


def requests_of(spans: Iterable[ReadableSpan]) -> Iterator[ExportTraceServiceRequest]:
    """The spans in order, in requests of at most SPANS_MAX and, but for a single larger span, about BYTES_MAX."""
    some: list[ReadableSpan] = []
    size = 0
    for span in spans:
        own = encode_spans([span]).ByteSize()
        if some and (len(some) == SPANS_MAX or size + own > BYTES_MAX):
            yield encode_spans(some)
            some, size = [], 0
        some.append(span)
        size += own
    if some:
        yield encode_spans(some)


def halves(request: ExportTraceServiceRequest) -> Sequence[ExportTraceServiceRequest]:
    """The same spans in two requests; one span cannot be halved: []."""
    flat = [
        (resource, scope, span)
        for resource in request.resource_spans for scope in resource.scope_spans for span in scope.spans
    ]  # fmt: skip
    if len(flat) < 2:
        return []
    middle = len(flat) // 2
    found = []
    for part in (flat[:middle], flat[middle:]):
        half = ExportTraceServiceRequest()
        for resource, scope, span in part:
            of_resource = half.resource_spans.add(resource=resource.resource, schema_url=resource.schema_url)
            of_resource.scope_spans.add(scope=scope.scope, schema_url=scope.schema_url, spans=[span])
        found.append(half)
    return found


def _context(trace_id: int, span_id: int, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(trace_id, span_id, is_remote, _SAMPLED)
