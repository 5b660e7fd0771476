"""The signals of OTLP that are received: where each is sent to, and how it is decoded, observed and answered."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple, TypeAlias

from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from refold.agents.adapters.otlp.observed import observe_span
from refold.agents.adapters.otlp.observed_logs import observe_log
from refold.agents.adapters.otlp.requests import SentLog, SentSpan, decode, decode_logs
from refold.agents.importers.model import Observe

Sent: TypeAlias = SentSpan | SentLog


class Recorded(NamedTuple):
    """How many items of a request were recorded and rejected, and why the first was; `why` may be empty."""

    items: int
    rejected: int
    why: str


class Signal(NamedTuple):
    """One signal.

    Attributes:
        name: What its items are called, in the plural.
        path: The path of its requests over HTTP.
        service: The name of its service over gRPC.
        decode: Returns the items of a body, and how many others have no valid ids.
        answer: Returns what OTLP answers when the items are recorded.
    """

    name: str
    path: str
    service: str
    decode: Callable[[bytes, str], tuple[list[Sent], int]]
    answer: Callable[[int, str], Message]

    def response(self, without_id: int, recorded: Recorded) -> Message:
        """Return OTLP's answer to a request whose items are recorded.

        Args:
            without_id: How many of its items were rejected because their ids are not valid.
            recorded: What was recorded of the others.
        """
        said = [f"{without_id} {self.name} have no valid ids"] if without_id else []
        said += [recorded.why] if recorded.why else []
        return self.answer(without_id + recorded.rejected, "; ".join(said))


def observe_sent(sent: Sent, observe: Observe, known: Collection[str] = ()) -> str:
    """Observe one item.

    Args:
        sent: A span or a log record.
        observe: A log's `observe`.
        known: The origins of spans that this process recorded.

    Returns:
        The span's origin; empty for a log record.

    Raises:
        InputError: A value of it cannot be observed.
    """
    if isinstance(sent, SentSpan):
        return observe_span(sent, observe, known)
    observe_log(sent, observe)
    return ""


def _spans(body: bytes, content_type: str) -> tuple[list[Sent], int]:
    spans, rejected = decode(body, content_type)
    return [*spans], rejected


def _logs(body: bytes, content_type: str) -> tuple[list[Sent], int]:
    return [*decode_logs(body, content_type)], 0


def _of_spans(rejected: int, why: str) -> Message:
    response = ExportTraceServiceResponse()
    if rejected:
        response.partial_success.rejected_spans, response.partial_success.error_message = rejected, why
    return response


def _of_logs(rejected: int, why: str) -> Message:
    response = ExportLogsServiceResponse()
    if rejected:
        response.partial_success.rejected_log_records, response.partial_success.error_message = rejected, why
    return response


_COLLECTOR = "opentelemetry.proto.collector"
TRACES = Signal("spans", "/v1/traces", f"{_COLLECTOR}.trace.v1.TraceService", _spans, _of_spans)
LOGS = Signal("log records", "/v1/logs", f"{_COLLECTOR}.logs.v1.LogsService", _logs, _of_logs)
SIGNALS = (TRACES, LOGS)
