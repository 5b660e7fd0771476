"""Answer OTLP over gRPC: traces and logs, at Export of TraceService and LogsService, plain or gzip.

    OK                   recorded, and durable; partial_success as over HTTP (receiver.py). Not to be sent again
    INVALID_ARGUMENT     the message is no request. Not to be sent again
    UNIMPLEMENTED        another service, such as that of metrics: gRPC's own answer
    RESOURCE_EXHAUSTED   larger than BODY_BYTES_MAX, as sent or decompressed: gRPC's own answer. Not to be sent again
    UNAVAILABLE          too many requests wait, or the log is not available; with RetryInfo

At most CALLS_MAX calls are answered at once; others wait in gRPC. Answers quote nothing of a message.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import grpc
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import RetryInfo

from refold.agents.adapters.otlp.intake import OtlpIntake, Unavailable
from refold.agents.adapters.otlp.receiver import BODY_BYTES_MAX, RETRY_AFTER_S
from refold.agents.adapters.otlp.requests import PROTOBUF
from refold.agents.adapters.otlp.signals import SIGNALS, Signal
from refold.avro.errors import InputError
from refold.streams.web.guard import require_loopback

CALLS_MAX = 32
CLOSE_S = 5.0


class GrpcReceiver:
    """A server of OTLP over gRPC."""

    def __init__(self, intake: OtlpIntake, host: str, port: int, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        """Start it.

        Args:
            intake: Records what is sent.
            host: The address to listen on.
            port: Its port; 0 is any free one.
            body_bytes_max: The largest message, as sent and decompressed.

        Raises:
            InputError: The address is not on loopback, or cannot be used.
        """
        require_loopback(host, "--listen-grpc")
        self._intake = intake
        options = [
            ("grpc.max_receive_message_length", body_bytes_max),
            ("grpc.so_reuseport", 0),  # else a second receiver at this address would take half of the calls
        ]
        self._server = grpc.server(ThreadPoolExecutor(CALLS_MAX), options=options)
        self._server.add_generic_rpc_handlers(tuple(self._handler(each) for each in SIGNALS))
        address = f"[{host}]" if ":" in host else host
        try:
            self.port = self._server.add_insecure_port(f"{address}:{port}")
        except RuntimeError:
            raise InputError(
                f"--listen-grpc {host}:{port}: cannot listen there; name another address, or port 0 for any free port"
            ) from None
        self.address = f"{address}:{self.port}"
        self._server.start()

    def close(self) -> None:
        """Answer the calls in progress, for CLOSE_S at most, and end."""
        self._server.stop(CLOSE_S).wait()

    def _handler(self, signal: Signal) -> grpc.GenericRpcHandler:
        export: grpc.RpcMethodHandler[bytes, Message] = grpc.unary_unary_rpc_method_handler(
            lambda body, context: self._export(signal, body, context),
            response_serializer=lambda message: message.SerializeToString(),
        )
        return grpc.method_handlers_generic_handler(signal.service, {"Export": export})

    def _export(self, signal: Signal, body: bytes, context: grpc.ServicerContext) -> Message:
        try:
            items, without_id = self._intake.decode(signal, body, PROTOBUF)
            recorded = self._intake.put(items, len(body), without_id).result()
        except InputError as error:
            self._intake.counts.refused("malformed")
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except Unavailable as error:
            self._intake.counts.refused(error.reason)
            retry = RetryInfo()
            retry.retry_delay.FromSeconds(RETRY_AFTER_S)
            context.set_trailing_metadata((("google.rpc.retryinfo-bin", retry.SerializeToString()),))
            context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        return signal.response(without_id, recorded)
