"""A receiver of OTLP traces in its own process, with OpenTelemetry's protobuf and gRPC's server, over HTTP and gRPC.

    python -c 'from refold_tests.otlp_receiver import main; main()' FOLDER HTTP_PORT GRPC_PORT

1. Each request is parsed as protobuf and checked against the specification: ids of 16 and 8 bytes that are not 0,
   names, times in order. Anything else is answered with 400, INVALID_ARGUMENT.
2. Before a request is acknowledged, it is stored as a file in FOLDER/taken, atomically. The files outlive the process.
3. FOLDER/mood, a JSON object, sets another answer: {"status", "retry_after", "said"}: a HTTP status, for both
   protocols; {"rejected", "said"}: a partial success; {"bytes_max"}; {"token"}: the only token that is accepted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from refold.testing.processes import free_ports
from refold_tests.tree import ROOT

_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT, 401: grpc.StatusCode.UNAUTHENTICATED, 403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.UNIMPLEMENTED, 413: grpc.StatusCode.RESOURCE_EXHAUSTED, 500: grpc.StatusCode.INTERNAL,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED, 503: grpc.StatusCode.UNAVAILABLE, 504: grpc.StatusCode.DEADLINE_EXCEEDED,
}  # fmt: skip


class Refusal(Exception):
    """Another answer to a request."""

    def __init__(self, status: int, said: str, retry_after_s: float | None = None) -> None:
        super().__init__(said)
        self.status = status
        self.retry_after_s = retry_after_s


class _Store:
    """The requests that the process accepted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._taken = folder / "taken"
        self._taken.mkdir(exist_ok=True)
        self._lock = threading.Lock()

    def take(self, request: ExportTraceServiceRequest, size: int, token: str) -> ExportTraceServiceResponse:
        """Store a request, or refuse it, according to the current mood."""
        with self._lock:
            mood = self._mood()
            if token != mood.get("token", token):
                raise Refusal(401, f"not {token}")
            if mood.get("status"):
                raise Refusal(mood["status"], mood.get("said", ""), mood.get("retry_after"))
            if size > mood.get("bytes_max", size):
                raise Refusal(413, f"received message larger than max ({size} vs. {mood['bytes_max']})")
            for span in spans_in(request):
                if problem := problem_of(span):
                    raise Refusal(400, f"{span.name}: {problem}")
            beside = self._folder / "taking"
            beside.write_bytes(request.SerializeToString())
            beside.replace(self._taken / f"{len([*self._taken.iterdir()]):06}")
            partial = ExportTracePartialSuccess(
                rejected_spans=mood.get("rejected", 0), error_message=mood.get("said", "")
            )
            return ExportTraceServiceResponse(partial_success=partial)

    def _mood(self) -> dict[str, Any]:
        path = self._folder / "mood"
        mood: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return mood


def problem_of(span: Span) -> str:
    """Return how a span violates the specification; empty if it does not."""
    ids = [(span.trace_id, 16), (span.span_id, 8)]
    ids += [(span.parent_span_id, 8)] if span.parent_span_id else []
    ids += [found for link in span.links for found in ((link.trace_id, 16), (link.span_id, 8))]
    if any(len(each) != size or not any(each) for each, size in ids):
        return "an id is not as W3C has it"
    if not span.name or span.kind == Span.SPAN_KIND_UNSPECIFIED:
        return "without a name or kind"
    names = [each.key for each in span.attributes]
    if len({*names}) != len(names) or not all(names):
        return "attributes without a name of their own"
    return "" if 0 <= span.start_time_unix_nano <= span.end_time_unix_nano else "it ends before it starts"


def spans_in(request: ExportTraceServiceRequest) -> Iterator[Span]:
    """Yield every span of a request."""
    for resource in request.resource_spans:
        for scope in resource.scope_spans:
            yield from scope.spans


def main() -> None:
    """Serve until killed."""
    folder, http_port, grpc_port = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    store = _Store(folder)

    class Service(TraceServiceServicer):
        def Export(self, request: ExportTraceServiceRequest, context: grpc.ServicerContext) -> Any:  # noqa: N802
            headers = dict(context.invocation_metadata())
            try:
                return store.take(request, request.ByteSize(), str(headers.get("authorization", "")))
            except Refusal as refusal:
                if refusal.retry_after_s is not None:
                    info = RetryInfo()
                    info.retry_delay.FromMilliseconds(round(refusal.retry_after_s * 1000))
                    context.set_trailing_metadata((("google.rpc.retryinfo-bin", info.SerializeToString()),))
                context.abort(_CODES[refusal.status], str(refusal))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            try:
                if self.path != "/v1/traces" or self.headers["Content-Type"] != "application/x-protobuf":
                    raise Refusal(404, "no such service")
                try:
                    request = ExportTraceServiceRequest.FromString(body)
                except DecodeError as error:
                    raise Refusal(400, str(error)) from None
                answer = store.take(request, len(body), self.headers.get("authorization", ""))
                self._answer(200, answer.SerializeToString(), {})
            except Refusal as refusal:
                wait = refusal.retry_after_s
                more = {} if wait is None else {"Retry-After": f"{wait:g}"}
                self._answer(refusal.status, str(refusal).encode(), more)

        def _answer(self, status: int, content: bytes, headers: Mapping[str, str]) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = grpc.server(ThreadPoolExecutor(4))
    add_TraceServiceServicer_to_server(Service(), server)
    server.add_insecure_port(f"127.0.0.1:{grpc_port}")
    server.start()
    http = ThreadingHTTPServer(("127.0.0.1", http_port), Handler)
    print("serves", flush=True)
    http.serve_forever()


class Receiver:
    """A running receiver, as a test uses it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._http, self._grpc = free_ports(2)
        self._start()

    def url(self, scheme: str) -> str:
        """Return the URL for traces. scheme: http or grpc."""
        return f"{scheme}://127.0.0.1:{self._http if scheme == 'http' else self._grpc}"

    def mood(self, **mood: object) -> None:
        """Set how it answers from now on."""
        path = self._folder / "mood"
        path.with_name("mood.new").write_text(json.dumps(mood), encoding="utf-8")
        path.with_name("mood.new").replace(path)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def restart(self) -> None:
        """Kill it, and restart it with its stored requests."""
        self.kill()
        self._start()

    @property
    def requests(self) -> list[ExportTraceServiceRequest]:
        """Return the acknowledged requests, in order, including one that it was about to acknowledge when it was
        killed.
        """
        paths = sorted((self._folder / "taken").iterdir())
        return [ExportTraceServiceRequest.FromString(path.read_bytes()) for path in paths]

    @property
    def spans(self) -> list[Span]:
        """Return every span that it accepted, in order."""
        return [span for request in self.requests for span in spans_in(request)]

    def _start(self) -> None:
        code = "from refold_tests.otlp_receiver import main; main()"
        command = [sys.executable, "-c", code, str(self._folder), str(self._http), str(self._grpc)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests" / "support"), "PYTHONSAFEPATH": "1"}
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self._process.stdout is not None
        assert self._process.stdout.readline().strip() == "serves"


@contextmanager
def receiving(folder: Path) -> Iterator[Receiver]:
    """Run a receiver that stores its requests in a folder. It ends after the block."""
    folder.mkdir(parents=True, exist_ok=True)
    receiver = Receiver(folder)
    try:
        yield receiver
    finally:
        receiver.kill()
