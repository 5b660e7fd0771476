"""One request to a receiver, and the meaning of its response: accepted, partly accepted, busy, refused, too large.

OpenTelemetry's exporters report only success or failure. This module uses their encoding and the services' stubs.

| response | HTTP | gRPC | becomes |
|---|---|---|---|
| accepted | 2xx | OK | the rejected part (partial success) |
| busy | 429, 502, 503, 504, none | UNAVAILABLE, RESOURCE_EXHAUSTED, ... | SinkBusy, for the time that it gives |
| too large | 413 | "larger than max" | TooLarge: the caller sends halves |
| refused | all others | all others | SinkRefused |
"""

from __future__ import annotations

import gzip
import ssl
import time
from abc import ABC, abstractmethod
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from refold.avro.errors import InputError
from refold.avro.files import PEM_BYTES_MAX, read_bounded, require_bounded
from refold.sinks.otlp.settings import Target, Wire
from refold.sinks.port import SinkBusy, SinkRefused

if TYPE_CHECKING:
    import grpc

RETRY_S = 1.0
RETRY_MAX_S = 300.0
TEXT_CHARS_MAX = 300
_NOT_NOW = frozenset({429, 502, 503, 504})
_NOT_NOW_GRPC = frozenset({
    "UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "CANCELLED", "ABORTED", "OUT_OF_RANGE", "DATA_LOSS",
})  # fmt: skip
_DO = {
    400: "it finds the request wrong: is this an OTLP receiver of traces?",
    401: "name who you are in OTEL_EXPORTER_OTLP_HEADERS",
    403: "have whom OTEL_EXPORTER_OTLP_HEADERS names allowed to write traces",
    404: "is this the address of an OTLP receiver? its path is /v1/traces unless it says another",
    413: "one span is larger than it takes: raise its limit, or send none of the content (content=no)",
}


class TooLarge(Exception):
    """The receiver refuses a request of this size."""


class Rejected(NamedTuple):
    """The part of an accepted request that the receiver rejected: number of spans, and why. With 0 spans, a warning."""

    spans: int
    why: str


class Sender(ABC):
    """Sends to one receiver. For one thread."""

    def __init__(self, target: Target, wire: Wire) -> None:
        self._target = target
        self._wire = wire

    @abstractmethod
    def send(self, request: ExportTraceServiceRequest) -> Rejected:
        """Send a request, and return when the receiver acknowledged it. Raises SinkBusy, SinkRefused or TooLarge."""

    @abstractmethod
    def close(self) -> None:
        """Close the connections."""

    def _busy(self, why: str, retry_after_s: float | None = None) -> SinkBusy:
        wait_s = RETRY_S if retry_after_s is None else min(max(retry_after_s, 0.0), RETRY_MAX_S)
        return SinkBusy(f"{self._target.url} takes nothing now: {self._shown(why)}", wait_s)

    def _refused(self, why: str, do: str) -> SinkRefused:
        return SinkRefused(f"{self._target.url} refuses: {self._shown(why)}; {do}")

    def _shown(self, text: str) -> str:
        one_line = " ".join(self._wire.hidden(text).split())
        return "".join(each for each in one_line if each.isprintable())[:TEXT_CHARS_MAX]


def sender_of(target: Target, wire: Wire) -> Sender:
    """Return the sender for the receiver's protocol."""
    return GrpcSender(target, wire) if target.is_grpc else HttpSender(target, wire)


class _NoRedirect(HTTPRedirectHandler):
    """Follows no redirect, because headers meant for one receiver must not reach another."""

    def redirect_request(self, *_: Any) -> None:
        return None


class HttpSender(Sender):
    """OTLP over HTTP, in protobuf."""

    def __init__(self, target: Target, wire: Wire) -> None:
        super().__init__(target, wire)
        handlers: list[Any] = [_NoRedirect()]
        if target.is_secure:
            try:
                for file in (wire.certificate, wire.client_certificate, wire.client_key):
                    require_bounded(file)
                context = ssl.create_default_context(cafile=wire.certificate or None)
                if wire.client_certificate:
                    context.load_cert_chain(wire.client_certificate, wire.client_key or None)
            except OSError as error:
                raise InputError(
                    f"the files that OTEL_EXPORTER_OTLP_*CERTIFICATE name cannot be read: {error}"
                ) from None
            handlers.append(HTTPSHandler(context=context))
        self._opener = build_opener(*handlers)

    def send(self, request: ExportTraceServiceRequest) -> Rejected:
        body = request.SerializeToString()
        headers = {**dict(self._wire.headers), "content-type": "application/x-protobuf", "user-agent": "refold"}
        if self._wire.gzip:
            body, headers["content-encoding"] = gzip.compress(body), "gzip"
        asked = Request(self._target.url, body, headers, method="POST")
        try:
            with self._opener.open(asked, timeout=self._wire.timeout_s) as answer:
                return self._read_rejected(answer.read())
        except HTTPError as error:
            with error:
                self._answered(error)
        except URLError as error:
            if isinstance(error.reason, ssl.SSLCertVerificationError):
                raise self._refused(str(error.reason), "name its CA in OTEL_EXPORTER_OTLP_CERTIFICATE") from None
            raise self._busy(str(error.reason)) from None
        except (OSError, HTTPException) as error:
            raise self._busy(str(error) or type(error).__name__) from None

    def _read_rejected(self, content: bytes) -> Rejected:
        from google.protobuf.message import DecodeError

        try:
            partial = ExportTraceServiceResponse.FromString(content).partial_success
        except DecodeError:
            raise self._refused("its answer is not OTLP", "is this an OTLP receiver of traces?") from None
        return Rejected(partial.rejected_spans, self._shown(partial.error_message))

    def _answered(self, error: HTTPError) -> NoReturn:
        try:
            text = error.read(4 * TEXT_CHARS_MAX).decode(errors="replace")
        except (OSError, HTTPException):
            text = ""
        why = f"{error.code} {error.reason} {text}".strip()
        if error.code in _NOT_NOW:
            raise self._busy(why, _retry_after_s(error.headers.get("Retry-After"))) from None
        if error.code == 413:
            raise TooLarge(self._shown(why)) from None
        do = "give the address that it leads to, if you trust it" if error.code < 400 else "its own log says more"
        raise self._refused(why, _DO.get(error.code, do)) from None

    def close(self) -> None:
        self._opener.close()


class GrpcSender(Sender):
    """OTLP over gRPC."""

    def __init__(self, target: Target, wire: Wire) -> None:
        import grpc
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub

        super().__init__(target, wire)
        self._channel: grpc.Channel
        compression = grpc.Compression.Gzip if wire.gzip else grpc.Compression.NoCompression
        if target.is_secure:
            files = [wire.certificate, wire.client_key, wire.client_certificate]
            try:
                contents = [read_bounded(path, PEM_BYTES_MAX) if path else None for path in files]
            except OSError as error:
                raise InputError(f"a file that OTEL_EXPORTER_OTLP_* names cannot be read: {error}") from None
            self._channel = grpc.secure_channel(target.host, grpc.ssl_channel_credentials(*contents),
                                                compression=compression)  # fmt: skip
        else:
            self._channel = grpc.insecure_channel(target.host, compression=compression)
        self._stub = TraceServiceStub(self._channel)

    def send(self, request: ExportTraceServiceRequest) -> Rejected:
        import grpc

        try:
            answer = self._stub.Export(request, metadata=self._wire.headers, timeout=self._wire.timeout_s)
        except grpc.RpcError as error:
            self._answered(cast("grpc.Call", error))
        partial = answer.partial_success
        return Rejected(partial.rejected_spans, self._shown(partial.error_message))

    def _answered(self, error: grpc.Call) -> NoReturn:
        from grpc import StatusCode

        code, details = error.code(), error.details() or ""
        why = f"{code.name} {details}"
        if code is StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
            raise TooLarge(self._shown(why)) from None
        if code.name in _NOT_NOW_GRPC:
            raise self._busy(why, _retry_info_s(error.trailing_metadata() or ())) from None
        do = {
            StatusCode.UNAUTHENTICATED: _DO[401], StatusCode.PERMISSION_DENIED: _DO[403],
            StatusCode.UNIMPLEMENTED: _DO[404], StatusCode.INVALID_ARGUMENT: _DO[400],
        }  # fmt: skip
        raise self._refused(why, do.get(code, "its own log says more")) from None

    def close(self) -> None:
        self._channel.close()


def too_large(target: Target, why: str) -> SinkRefused:
    """The error for a single span that is larger than the receiver accepts."""
    return SinkRefused(f"{target.url} refuses: {why}; {_DO[413]}")


def _retry_after_s(text: str | None) -> float | None:
    """Seconds, or a date."""
    if not text:
        return None
    if text.strip().isdecimal():
        return float(text)
    try:
        return parsedate_to_datetime(text).timestamp() - time.time()
    except ValueError:
        return None


def _retry_info_s(metadata: Any) -> float | None:
    """The time to wait that a gRPC receiver asks for (google.rpc.RetryInfo), in seconds; None if it gives none."""
    from google.rpc.error_details_pb2 import RetryInfo
    from google.rpc.status_pb2 import Status

    found = {key: value for key, value in metadata if key.endswith("-bin")}
    if "google.rpc.retryinfo-bin" in found:
        delay = RetryInfo.FromString(found["google.rpc.retryinfo-bin"]).retry_delay
        return float(delay.seconds + delay.nanos / 1e9)
    for detail in Status.FromString(found.get("grpc-status-details-bin", b"")).details:
        info = RetryInfo()
        if detail.Unpack(info):
            return float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9)
    return None
