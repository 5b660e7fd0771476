"""Measures `refold receive`: spans a second over HTTP, from requests that OpenTelemetry's exporter encodes as protobuf.

Each request has 512 spans, which is the exporter's own limit for a batch; each trace has 16. Two kinds are measured:
calls of a model, with messages and tokens, and spans of a web server, which refold keeps unchanged. SENDERS connections
send their next request when the last one is answered. A third of the spans are sent before the measurement begins,
because a broker that has just started is slow. CPU time is that of the receiver's process with all its threads, until
the last answer; neither the sender's nor a broker's.

An answer of refold says that the spans are durable in its log. In a `file:` log they are folded, too. On Kafka, the
brokers have them, and `refold worker` folds them, in another process; here one broker and the sender have the same
processors as the receiver.

The OpenTelemetry Collector, with a receiver of OTLP and its file exporter (peers/otel-collector), is measured next to
it. It answers when the spans are in the file's buffer: it neither syncs, nor folds, nor finds a repeated span.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from capturing import free_port, started
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import IdGenerator, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import set_span_in_context
from opentelemetry.util.types import AttributeValue
from peers.building import built_collector
from rich.console import Console
from rich.table import Table

from refold.testing.kafka import missing, start_kafka
from refold.testing.processes import ServerMissing

GOAL_PER_SECOND = 20_000
SPANS = 61_440
WARM_SHARE = 3
REQUEST_SPANS = 512
TRACE_SPANS = 16
SENDERS = 16
WAIT_S = 60.0
START_NS = 1_790_000_000_000_000_000
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
RESOURCE = Resource({
    "service.name": "desk", "service.version": "1.4.0", "host.name": "bench", "deployment.environment.name": "test",
    "telemetry.sdk.language": "python", "telemetry.sdk.name": "opentelemetry",
})  # fmt: skip
KINDS = ("model", "other")


class _Counted(IdGenerator):
    def __init__(self) -> None:
        self._traces, self._spans = 1 << 100, 1 << 60

    def generate_trace_id(self) -> int:
        self._traces += 1
        return self._traces

    def generate_span_id(self) -> int:
        self._spans += 1
        return self._spans


class _Kept(SpanExporter):
    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.spans += spans
        return SpanExportResult.SUCCESS


def requests(kind: str, count: int) -> Iterator[bytes]:
    """Yield the bodies of requests with `count` spans in total.

    Args:
        kind: One of KINDS. model: calls of a model below an agent's span. other: spans of a web server.
        count: A multiple of REQUEST_SPANS.
    """
    is_model, kept = kind == "model", _Kept()
    provider = TracerProvider(resource=RESOURCE, id_generator=_Counted(), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    tracer = provider.get_tracer("bench", "1.0")
    for trace in range(count // TRACE_SPANS):
        at = START_NS + trace * 1_000_000_000
        asked = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "desk"} if is_model else _web(trace, 0)
        root = tracer.start_span("invoke_agent desk" if is_model else "GET /orders", start_time=at, attributes=asked)
        for number in range(1, TRACE_SPANS):
            begin = at + number * 10_000_000
            name, attributes = ("chat small", _call) if is_model else ("SELECT orders", _web)
            span = tracer.start_span(
                name, set_span_in_context(root), start_time=begin, attributes=attributes(trace, number)
            )
            span.end(begin + 9_000_000)
        root.end(at + 900_000_000)
        while len(kept.spans) >= REQUEST_SPANS:
            yield encode_spans(kept.spans[:REQUEST_SPANS]).SerializeToString()
            del kept.spans[:REQUEST_SPANS]


def _call(trace: int, number: int) -> Mapping[str, AttributeValue]:
    said = {
        "user": f"{trace}.{number}: what does a kettle cost, and when could it be delivered to Hamburg?",
        "assistant": f"{trace}.{number}: a kettle costs 42 EUR, and it would be delivered in two days.",
    }
    asked, answered = (
        json.dumps([{"role": role, "parts": [{"type": "text", "content": text}]}]) for role, text in said.items()
    )
    return {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "openai", "gen_ai.request.model": "small",
        "gen_ai.response.model": "small-2026-07-18", "gen_ai.response.id": f"chatcmpl-{trace}-{number}",
        "gen_ai.response.finish_reasons": ["stop"], "gen_ai.usage.input_tokens": 120 + number,
        "gen_ai.usage.output_tokens": 30 + number, "gen_ai.request.temperature": 0.2,
        "server.address": "api.example", "server.port": 443,
        "gen_ai.input.messages": asked, "gen_ai.output.messages": answered,
    }  # fmt: skip


def _web(trace: int, number: int) -> Mapping[str, AttributeValue]:
    return {
        "http.request.method": "GET", "url.path": f"/orders/{trace}", "http.response.status_code": 200,
        "server.address": "shop.example", "server.port": 443, "network.protocol.version": "1.1",
        "db.system.name": "postgresql", "db.query.text": f"SELECT * FROM orders WHERE id = {trace} AND line = {number}",
    }  # fmt: skip


class ReceiverFigures(NamedTuple):
    """The figures of one receiver and one kind of span. stored_bytes: in its folder, for each span; None if another
    program stores them."""

    per_second: float
    cpu_micros: float
    stored_bytes: float | None


def measured(url: str, pid: int, bodies: Sequence[bytes], folder: Path) -> ReceiverFigures:
    """Send all bodies, and measure from a third on until the last is answered. folder: where the receiver stores."""
    warm = len(bodies) // WARM_SHARE
    _send_all(url, bodies[:warm])
    cpu_s, began = _cpu_s(pid), time.perf_counter()
    _send_all(url, bodies[warm:])
    took_s, cpu_s = time.perf_counter() - began, _cpu_s(pid) - cpu_s
    spans, every = (len(bodies) - warm) * REQUEST_SPANS, len(bodies) * REQUEST_SPANS
    stored = sum(each.stat().st_size for each in folder.rglob("*") if each.is_file())
    return ReceiverFigures(spans / took_s, cpu_s / spans * 1e6, stored / every if stored else None)


def _send_all(url: str, bodies: Sequence[bytes]) -> None:
    with ThreadPoolExecutor(SENDERS) as pool:
        for sent in [pool.submit(_send, url, bodies[number::SENDERS]) for number in range(SENDERS)]:
            sent.result()


def _send(url: str, bodies: Sequence[bytes]) -> None:
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=WAIT_S)) as connection:
        for body in bodies:
            connection.request("POST", "/v1/traces", body, {"Content-Type": "application/x-protobuf"})
            response = connection.getresponse()
            answer = response.read()
            assert response.status == 200, answer
            assert ExportTraceServiceResponse.FromString(answer).partial_success.rejected_spans == 0


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


@contextmanager
def refold_receiver(log: str) -> Iterator[tuple[str, int]]:
    """Run `refold receive` until the end of the block; yields its URL and its process id."""
    command = [sys.executable, "-P", "-m", "refold.explorer.cli.main", "receive", "--listen", "127.0.0.1:0",
               "--log", log]  # fmt: skip
    with started(command, "refold receive:") as found:
        yield found


@contextmanager
def refold_receiver_to_file(folder: Path) -> Iterator[tuple[str, int]]:
    """Run `refold receive` with a `file:` log."""
    with refold_receiver(f"file:{folder / 'log'}") as found:
        yield found


@contextmanager
def refold_receiver_to_kafka(folder: Path) -> Iterator[tuple[str, int]]:
    """Run `refold receive` with a log on a broker of its own. Raises ServerMissing if that cannot be started."""
    del folder  # the broker has its own
    if (reason := missing()) is not None:
        raise ServerMissing(reason)
    with start_kafka() as kafka, refold_receiver(f"kafka://{kafka.bootstrap}/bench") as found:
        yield found


@contextmanager
def collector(folder: Path) -> Iterator[tuple[str, int]]:
    """Run the OpenTelemetry Collector in the same way. Raises ServerMissing if it cannot be built or started."""
    program, port = built_collector(), free_port()
    config = {
        "receivers": {"otlp": {"protocols": {"http": {"endpoint": f"127.0.0.1:{port}"}}}},
        "exporters": {"file": {"path": str(folder / "traces.jsonl")}},
        "service": {
            "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["file"]}},
            "telemetry": {"metrics": {"level": "none"}, "logs": {"level": "error"}},
        },
    }
    path = folder.with_suffix(".yaml")
    path.write_text(json.dumps(config))  # JSON is YAML
    process = subprocess.Popen([str(program), "--config", str(path)], stderr=subprocess.DEVNULL)
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + WAIT_S
        while not _answers(url):
            if time.monotonic() > deadline or process.poll() is not None:
                raise ServerMissing("the OpenTelemetry Collector did not start")
            time.sleep(0.1)
        yield url, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _answers(url: str) -> bool:
    try:
        _send(url, [b""])  # a request without spans
    except OSError:
        return False
    return True


def show(console: Console, folder: Path, share: int) -> None:
    """Print the table."""
    count = SPANS // share // REQUEST_SPANS * REQUEST_SPANS
    table = Table(title=f"OTLP over HTTP: {count:,} spans in requests of {REQUEST_SPANS} from {SENDERS} connections "
                        f"(goal: {GOAL_PER_SECOND:,} a second)")  # fmt: skip
    for number, name in enumerate(("by", "spans", "bytes sent a span", "spans a second", "CPU us a span",
                                   "bytes stored a span")):  # fmt: skip
        table.add_column(name, justify="left" if number < 2 else "right")
    for kind in KINDS:
        bodies = list(requests(kind, count))
        receivers = (
            ("refold receive, file log", refold_receiver_to_file), ("refold receive, Kafka", refold_receiver_to_kafka),
            ("Collector, file exporter", collector),
        )  # fmt: skip
        for name, receiver in receivers:
            try:
                with tempfile.TemporaryDirectory(dir=folder) as own, console.status(f"{name}, {kind}"):
                    place = Path(own) / "kept"
                    place.mkdir()
                    with receiver(place) as (url, pid):
                        found = measured(url, pid, bodies, place)
            except ServerMissing as missing:
                console.print(f"{name}: {missing}", markup=False)
                continue
            cells = (sum(map(len, bodies)) / count, *found)
            table.add_row(name, kind, *("" if each is None else f"{each:,.0f}" for each in cells))
    console.print(table)
