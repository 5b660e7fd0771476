"""Decode a request of OTLP to spans or log records in the form of OTLP JSON, as importers read them (agents/importers).

Protobuf and JSON become the same, so an agent may change the encoding without a trace of it in the log:

1. JSON is parsed within bounds of depth and size, and its ids, which are hex, are written as protobuf's JSON has them.
2. Both become OpenTelemetry's message. What it does not know is left out, as OTLP asks of a receiver.
3. Each span or record is taken from the message with its resource and its scope, which all of a list share. A span
   without a valid id is rejected alone. A log record without valid ids belongs to no span, as OTLP says; it is taken.
4. Spans in protobuf become text at once where the native kernel can decode them; steps 2 and 3 give the same text.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import msgspec
from google.protobuf.json_format import ParseDict, ParseError
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from refold.agents.adapters.otlp.trees import tree_of
from refold.agents.importers.messages import text_of
from refold.agents.importers.otlp import FORMAT
from refold.agents.importers.spans import attributes_of
from refold.avro import strict_json
from refold.avro.canonical import JsonText, json_text
from refold.avro.errors import InputError
from refold.avro.kernel import SpanText, find_kernel

PROTOBUF, JSON = "application/x-protobuf", "application/json"
DEPTH_MAX = 256
_IDS = ("traceId", "spanId", "parentSpanId")
_SPAN_LISTS = (("resourceSpans", "resource_spans"), ("scopeSpans", "scope_spans"), ("spans",))
_LOG_LISTS = (("resourceLogs", "resource_logs"), ("scopeLogs", "scope_logs"), ("logRecords", "log_records"))
_Request = TypeVar("_Request", bound=Message)


class JsonPart:
    """A part of a request as OTLP JSON, as a tree and as canonical text. Each is made from the other, once."""

    def __init__(self, tree: dict[str, Any] | None = None, text: str = "{}") -> None:
        """Create it from its tree, or from its text.

        Args:
            tree: Its members, which may be empty; None if only the text is there.
            text: Its canonical text, as `json_text` returns it. It is used only if there is no tree.
        """
        if tree is None:
            self.json = JsonText(text)
        else:
            self.tree = tree

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JsonPart) and self.json.text == other.json.text

    def __hash__(self) -> int:
        return hash(self.json.text)

    @cached_property
    def tree(self) -> dict[str, Any]:
        """Its members."""
        found: dict[str, Any] = msgspec.json.decode(self.json.text)
        return found

    @cached_property
    def json(self) -> JsonText:
        """Its canonical text.

        Raises:
            InputError: A value cannot be observed.
        """
        return JsonText(json_text(self.tree))

    @cached_property
    def service(self) -> str:
        """The name of the service, if this is a resource that has one."""
        return text_of(attributes_of(self.tree).get("service.name")) or FORMAT


class SentSpan(NamedTuple):
    """A span as OTLP JSON. All spans of a list have the same resource and scope.

    Attributes:
        trace_id, span_id: The ids of the trace and of the span, in lower-case hex.
    """

    trace_id: str
    span_id: str
    resource: JsonPart
    scope: JsonPart
    span: JsonPart


class SentLog(NamedTuple):
    """A log record as OTLP JSON.

    Attributes:
        trace_id, span_id: The ids of its trace and of its span, in lower-case hex; empty if it names none.
    """

    trace_id: str
    span_id: str
    resource: JsonPart
    scope: JsonPart
    log: dict[str, Any]


def decode(body: bytes, content_type: str) -> tuple[list[SentSpan], int]:
    """Decode the body of a request with spans.

    Args:
        body: The body, decompressed.
        content_type: PROTOBUF or JSON.

    Returns:
        The spans, and how many others have no valid ids.

    Raises:
        InputError: The body is not a request; the message does not contain any of it.
    """
    spans: list[SentSpan] = []
    if content_type == PROTOBUF and (decoded := _decoded(body)) is not None:
        scopes, rejected = decoded
        for each in scopes:
            spans += sent_spans(*each)
        return spans, rejected
    request = _parsed(ExportTraceServiceRequest(), _SPAN_LISTS, body, content_type)
    rejected = 0
    for resource, scope, span in _items(request, "resource_spans", "scope_spans", "spans"):
        trace_id, span_id = _hex(span.trace_id, 16), _hex(span.span_id, 8)
        if trace_id and span_id:
            spans.append(SentSpan(trace_id, span_id, resource, scope, JsonPart(_span(span, trace_id, span_id))))
        else:
            rejected += 1
    return spans, rejected


def sent_spans(resource: str, scope: str, spans: Iterable[SpanText]) -> Iterator[SentSpan]:
    """Yield the spans of one scope, as the kernel decoded them.

    Args:
        resource: The canonical JSON of the resource.
        scope: That of the scope.
        spans: The spans.
    """
    shared = JsonPart(text=resource), JsonPart(text=scope)
    return (SentSpan(trace, span, *shared, JsonPart(text=text)) for trace, span, text in spans)


def _decoded(body: bytes) -> tuple[list[tuple[str, str, list[SpanText]]], int] | None:
    kernel = find_kernel().kernel
    return None if kernel is None else kernel.spans_of(body)


def decode_logs(body: bytes, content_type: str) -> list[SentLog]:
    """Decode the body of a request with log records.

    Args:
        body: The body, decompressed.
        content_type: PROTOBUF or JSON.

    Raises:
        InputError: As for `decode`.
    """
    request = _parsed(ExportLogsServiceRequest(), _LOG_LISTS, body, content_type)
    logs: list[SentLog] = []
    for resource, scope, log in _items(request, "resource_logs", "scope_logs", "log_records"):
        trace_id, span_id = _hex(log.trace_id, 16), _hex(log.span_id, 8)
        ids = {name: each for name, each in (("traceId", trace_id), ("spanId", span_id)) if each}
        given = {name: each for name, each in tree_of(log).items() if name not in _IDS}
        logs.append(SentLog(trace_id, span_id if trace_id else "", resource, scope, given | ids))
    return logs


def _items(request: Any, resources: str, scopes: str, items: str) -> Iterator[tuple[JsonPart, JsonPart, Any]]:
    """Yield each item of a request with its resource and its scope. The names are those of the message's lists."""
    for of_resource in getattr(request, resources):
        resource = JsonPart(tree_of(of_resource.resource))
        for of_scope in getattr(of_resource, scopes):
            scope = JsonPart(tree_of(of_scope.scope))
            for each in getattr(of_scope, items):
                yield resource, scope, each


def _hex(identity: bytes, size: int) -> str:
    """Return an id in hex; empty if it is not valid."""
    return identity.hex() if len(identity) == size and any(identity) else ""


def _span(span: Any, trace_id: str, span_id: str) -> dict[str, Any]:
    found = tree_of(span)
    found |= {"traceId": trace_id, "spanId": span_id}
    if span.parent_span_id:
        found["parentSpanId"] = span.parent_span_id.hex()
    for link, sent in zip(found.get("links", ()), span.links, strict=False):
        link |= {"traceId": sent.trace_id.hex(), "spanId": sent.span_id.hex()}
    return found


def _parsed(request: _Request, lists: tuple[tuple[str, ...], ...], body: bytes, content_type: str) -> _Request:
    try:
        if content_type == PROTOBUF:
            request.ParseFromString(body)
            return request
        tree = strict_json.loads(body.decode(), depth_max=DEPTH_MAX)
        if not isinstance(tree, dict):
            raise InputError("the body is not a JSON object")
        for each in _listed_in(tree, lists):
            _write_ids(each)
        return ParseDict(tree, request, ignore_unknown_fields=True)
    except InputError:
        raise
    except strict_json.JsonRefused as error:
        raise InputError(f"the body is JSON beyond a bound: {type(error).__name__}") from None
    except (DecodeError, ParseError, ValueError, RecursionError, TypeError, AttributeError, OverflowError) as error:
        # The text of these errors may quote the body.
        raise InputError(f"the body is not an {type(request).__name__}: {type(error).__name__}") from None


def _listed_in(tree: Mapping[str, Any], lists: tuple[tuple[str, ...], ...]) -> Iterator[dict[str, Any]]:
    """Yield the spans or log records of a request in JSON, and the links of spans: what has ids."""
    found: list[Any] = [tree]
    for names in lists:
        found = [
            inner for each in found if isinstance(each, dict) for name in names
            if isinstance(some := each.get(name), list) for inner in some
        ]  # fmt: skip
    for each in found:
        if isinstance(each, dict):
            yield each
            links = each.get("links")
            yield from (link for link in (links if isinstance(links, list) else ()) if isinstance(link, dict))


def _write_ids(span: dict[str, Any]) -> None:
    """Write ids in base64. An id that is not hex becomes empty, which no span's id may be."""
    for name in _IDS:
        given = span.get(name)
        if isinstance(given, str):
            try:
                span[name] = base64.b64encode(binascii.unhexlify(given)).decode()
            except ValueError:
                span[name] = ""
