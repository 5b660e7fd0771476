"""Decode a request of OTLP over HTTP to spans in the form of OTLP JSON, as importers read them (agents/importers).

Protobuf and JSON become the same spans, so an agent may change the encoding without a trace of it in the log:

1. JSON is parsed within bounds of depth and size, and its ids, which are hex, are written as protobuf's JSON has them.
2. Both become OpenTelemetry's message. What it does not know is left out, as OTLP asks of a receiver.
3. Each span is taken from the message with its resource and its scope. A span without a valid id is rejected alone.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from refold.avro import strict_json
from refold.avro.errors import InputError

PROTOBUF, JSON = "application/x-protobuf", "application/json"
DEPTH_MAX = 256
_IDS = ("traceId", "spanId", "parentSpanId")
_LISTS = (("resourceSpans", "resource_spans"), ("scopeSpans", "scope_spans"), ("spans",))


class SentSpan(NamedTuple):
    """A span as OTLP JSON. trace_id, span_id: lower-case hex. resource, scope: as in the request; both may be empty."""

    trace_id: str
    span_id: str
    resource: dict[str, Any]
    scope: dict[str, Any]
    span: dict[str, Any]


def decode(body: bytes, content_type: str) -> tuple[list[SentSpan], int]:
    """Decode the body of a request.

    Args:
        body: The body, decompressed.
        content_type: PROTOBUF or JSON.

    Returns:
        The spans, and how many others have no valid ids.

    Raises:
        InputError: The body is not a request; the message does not contain any of it.
    """
    request = _parsed(body, content_type)
    spans: list[SentSpan] = []
    rejected = 0
    for of_resource in request.resource_spans:
        resource = _dict(of_resource.resource)
        for of_scope in of_resource.scope_spans:
            scope = _dict(of_scope.scope)
            for span in of_scope.spans:
                if len(span.trace_id) != 16 or len(span.span_id) != 8 or not (any(span.trace_id) and any(span.span_id)):
                    rejected += 1
                    continue
                trace_id, span_id = span.trace_id.hex(), span.span_id.hex()
                spans.append(SentSpan(trace_id, span_id, resource, scope, _span(span, trace_id, span_id)))
    return spans, rejected


def _span(span: Any, trace_id: str, span_id: str) -> dict[str, Any]:
    found = _dict(span) | {"traceId": trace_id, "spanId": span_id}
    if span.parent_span_id:
        found["parentSpanId"] = span.parent_span_id.hex()
    for link, sent in zip(found.get("links", ()), span.links, strict=False):
        link |= {"traceId": sent.trace_id.hex(), "spanId": sent.span_id.hex()}
    return found


def _dict(message: Any) -> dict[str, Any]:
    made: dict[str, Any] = MessageToDict(message, use_integers_for_enums=True)
    return made


def _parsed(body: bytes, content_type: str) -> Any:
    request = ExportTraceServiceRequest()
    try:
        if content_type == PROTOBUF:
            request.ParseFromString(body)
            return request
        tree = strict_json.loads(body.decode(), depth_max=DEPTH_MAX)
        if not isinstance(tree, dict):
            raise InputError("the body is not a JSON object")
        for span in _spans_in(tree):
            _write_ids(span)
        return ParseDict(tree, request, ignore_unknown_fields=True)
    except InputError:
        raise
    except strict_json.JsonRefused as error:
        raise InputError(f"the body is JSON beyond a bound: {type(error).__name__}") from None
    except (DecodeError, ParseError, ValueError, RecursionError, TypeError, AttributeError, OverflowError) as error:
        # The text of these errors may quote the body.
        raise InputError(f"the body is not an ExportTraceServiceRequest: {type(error).__name__}") from None


def _spans_in(tree: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    found: list[Any] = [tree]
    for names in _LISTS:
        found = [
            inner for each in found if isinstance(each, dict) for name in names
            if isinstance(some := each.get(name), list) for inner in some
        ]  # fmt: skip
    for span in found:
        if isinstance(span, dict):
            yield span
            links = span.get("links")
            yield from (each for each in (links if isinstance(links, list) else ()) if isinstance(each, dict))


def _write_ids(span: dict[str, Any]) -> None:
    """Write ids in base64. An id that is not hex becomes empty, which no span's id may be."""
    for name in _IDS:
        given = span.get(name)
        if isinstance(given, str):
            try:
                span[name] = base64.b64encode(binascii.unhexlify(given)).decode()
            except ValueError:
                span[name] = ""
