"""`refold receive` over gRPC: the real exporter, and OTLP's answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from opentelemetry._logs import LogRecord
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult

import refold
from refold.agents.adapters.otlp.grpc_receiver import GrpcReceiver
from refold.agents.adapters.otlp.intake import OtlpIntake
from refold.agents.adapters.otlp.signals import TRACES
from refold_tests.command import refold_command
from refold_tests.otlp_receiving import FailingLog

pytestmark = pytest.mark.outside

WAIT_S = 120
LARGEST = 100_000


@pytest.fixture
def log(tmp_path: Path) -> FailingLog:
    return FailingLog(tmp_path)


@pytest.fixture
def intake(log: FailingLog) -> Iterator[OtlpIntake]:
    intake = OtlpIntake(log, {}, print)
    yield intake
    intake.close()


@pytest.fixture
def address(intake: OtlpIntake) -> Iterator[str]:
    receiver = GrpcReceiver(intake, "127.0.0.1", 0, LARGEST)
    yield receiver.address
    receiver.close()


def export(address: str, body: bytes, service: str = TRACES.service) -> ExportTraceServiceResponse:
    with grpc.insecure_channel(address) as channel:
        call: Any = channel.unary_unary(
            f"/{service}/Export", response_deserializer=ExportTraceServiceResponse.FromString
        )
        found: ExportTraceServiceResponse = call(body, timeout=WAIT_S)
        return found


def refused(address: str, body: bytes, service: str = TRACES.service) -> Any:
    with pytest.raises(grpc.RpcError) as caught:
        export(address, body, service)
    return caught.value


def request(*spans: tuple[bytes, bytes]) -> bytes:
    message = ExportTraceServiceRequest()
    scope = message.resource_spans.add().scope_spans.add()
    for trace_id, span_id in spans:
        span = scope.spans.add(name="chat", trace_id=trace_id, span_id=span_id)
        span.attributes.add(key="gen_ai.operation.name").value.string_value = "chat"
    return message.SerializeToString()


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip], ids=["plain", "gzip"])
def test_spans_of_the_real_exporter_are_a_run(address: str, log: FailingLog, compression: grpc.Compression) -> None:
    provider = TracerProvider(resource=Resource.create({"service.name": "desk"}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(address, insecure=True, compression=compression)))
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("invoke_agent", attributes={"gen_ai.operation.name": "invoke_agent"}):
        for number in range(2):
            named = {"gen_ai.operation.name": "chat", "gen_ai.request.model": f"m{number}"}
            tracer.start_span(f"chat {number}", attributes=named).end()
    provider.shutdown()
    with refold.open(log.url) as opened:
        [row] = opened.runs()
        assert row.steps == 2
        assert opened.verify().ok


def test_logs_of_the_real_exporter_join_their_span(address: str, log: FailingLog) -> None:
    spans, logs = TracerProvider(), LoggerProvider()
    spans.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(address, insecure=True)))
    logs.add_log_record_processor(SimpleLogRecordProcessor(OTLPLogExporter(address, insecure=True)))
    with spans.get_tracer("test").start_as_current_span("chat", attributes={"gen_ai.operation.name": "chat"}):
        body: Any = {"index": 0, "message": {"role": "assistant", "content": "Hello"}}
        logs.get_logger("test").emit(LogRecord(event_name="gen_ai.choice", body=body))
    spans.shutdown()
    logs.shutdown()
    with refold.open(log.url) as opened:
        [row] = opened.runs()
        assert [each.result for each in opened.recording(row.run).steps] == ["Hello"]


def test_each_request_is_answered_as_otlp_says(address: str, log: FailingLog, intake: OtlpIntake) -> None:
    good = (b"1" * 16, b"2" * 8)
    assert export(address, request(good)) == ExportTraceServiceResponse()
    partial = export(address, request(good, (b"1" * 16, b"2" * 7))).partial_success
    assert (partial.rejected_spans, partial.error_message) == (1, "1 spans have no valid ids")
    assert refused(address, b"\xff").code() is grpc.StatusCode.INVALID_ARGUMENT
    assert refused(address, bytes(LARGEST + 1)).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    metrics = "opentelemetry.proto.collector.metrics.v1.MetricsService"
    assert refused(address, b"", metrics).code() is grpc.StatusCode.UNIMPLEMENTED
    log.fails = True
    intake._close_log()
    error = refused(address, request(good))
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    retry = RetryInfo.FromString(dict(error.trailing_metadata())["google.rpc.retryinfo-bin"])
    assert retry.retry_delay.seconds == 1
    log.fails = False
    assert export(address, request(good)) == ExportTraceServiceResponse()
    counts = intake.counts.now()
    assert {reason: count for reason, count in counts.refused.items() if count} == {"malformed": 1, "log": 1}
    assert (counts.recorded["spans"], counts.rejected["spans"], counts.taken) == (3, 1, 3)


def test_exporter_resends_what_could_not_be_recorded(address: str, log: FailingLog, intake: OtlpIntake) -> None:
    provider = TracerProvider()
    exporter = OTLPSpanExporter(address, insecure=True, timeout=WAIT_S)
    span = provider.get_tracer("test").start_span("chat", attributes={"gen_ai.operation.name": "chat"})
    span.end()
    log.fails = True
    intake._close_log()
    results: list[SpanExportResult] = []
    sending = threading.Thread(target=lambda: results.append(exporter.export([span])))  # type: ignore[list-item]
    sending.start()
    refused(address, request((b"1" * 16, b"2" * 8)))
    log.fails = False
    sending.join(WAIT_S)
    exporter.shutdown()
    assert results == [SpanExportResult.SUCCESS]
    with refold.open(log.url) as opened:
        assert len(opened.runs()) == 1


def test_unusable_address_is_refused(address: str, intake: OtlpIntake, tmp_path: Path) -> None:
    url = f"file:{tmp_path / 'other'}"

    def said(listen: str) -> str:
        return refold_command("receive", "--listen", "127.0.0.1:0", "--listen-grpc", listen, log=url).refused()

    assert "only addresses on loopback" in said("0.0.0.0:0")
    assert "cannot listen there" in said(address)
