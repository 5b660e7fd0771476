"""`refold receive`: record the traces and logs that agents send by OpenTelemetry."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING, NamedTuple

import click

from refold.avro.errors import InputError
from refold.explorer.cli.metrics_page import log_label, needing_metrics, serving_metrics
from refold.explorer.cli.options import on_log
from refold.explorer.cli.output.screen import counted
from refold.explorer.cli.record.proxy import address_of
from refold.explorer.queries.log_target import LogTarget
from refold.streams.open import resolved_url
from refold.streams.runtime import wait_for

if TYPE_CHECKING:
    from refold.agents.adapters.otlp.intake import OtlpIntake

PORT = 4318
"""OTLP's own port over HTTP, where exporters send to by default."""
NEEDED = ("aiohttp", "google", "grpc", "opentelemetry")
DISTRIBUTIONS = {"google": "protobuf", "grpc": "grpcio", "opentelemetry": "opentelemetry-proto"}


@click.command()
@click.option("--listen", default=f"127.0.0.1:{PORT}", show_default=True, metavar="HOST:PORT",
              help="The address to listen on, loopback only; port 0 is any free port.")  # fmt: skip
@click.option("--listen-grpc", metavar="HOST:PORT",
              help="Also listen for OTLP over gRPC there; exporters send to 127.0.0.1:4317.")  # fmt: skip
@click.option("--metrics-port", type=click.IntRange(0, 65535), metavar="PORT",
              help="Serve Prometheus' /metrics on this port of 127.0.0.1; 0: any free port.")  # fmt: skip
@on_log
def receive(target: LogTarget, listen: str, listen_grpc: str | None, metrics_port: int | None) -> int:
    """Record traces and logs of agents that OpenTelemetry sends.

    It takes OTLP over HTTP at /v1/traces and /v1/logs, as protobuf or JSON, plain or gzip, and over gRPC. A trace with
    spans of an agent becomes a run: a call of a model is a step, a call of a tool an action. Spans may come in any
    order, late, or again. Spans are understood by OpenTelemetry's conventions for GenAI of today and their older names,
    by OpenInference's, and by OpenLLMetry's. All other spans are kept unchanged. Log records that hold messages of a
    model join the span that they name; all others are kept unchanged.

    A request is answered when its content is durable in the log. While the log is slow or unavailable, the answer is
    503 or UNAVAILABLE, and exporters try again. Messages are there only if the instrumentation records content.

    SIGTERM and Ctrl-C end it.

    \b
    Examples
      refold receive
      OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 python my_agent.py
      refold receive --listen-grpc 127.0.0.1:4317
      refold receive --listen 127.0.0.1:0 --log kafka://127.0.0.1:9092/agents
      refold receive --metrics-port 9464
    """
    host, port = address_of(listen)
    stop = Event()

    def ended(number: int, frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ended)
    with _start_receivers(target, (host, port), None if listen_grpc is None else address_of(listen_grpc)) as started:
        over_grpc = f", gRPC at {started.grpc_address}" if started.grpc_address else ""
        counts = started.intake.counts
        with ExitStack() as serving:
            if metrics_port is not None:
                with needing_metrics("otlp"):
                    from refold.agents.adapters.otlp.metrics import ReceiverMetrics
                metrics = ReceiverMetrics(log_label(resolved_url(target.url)), counts.now)
                serving.enter_context(serving_metrics(metrics_port, metrics.page, "the receiver's"))
            log = resolved_url(target.url).partition("?")[0]
            click.echo(f"refold receive: {started.url}/v1/traces{over_grpc}, into {log}; Ctrl-C ends it")
            wait_for(stop)
    click.echo(f"refold: {counted(sum(counts.now().recorded.values()), 'item')} received", err=True)
    return 0


class _Receivers(NamedTuple):
    """The receivers of one command.

    Attributes:
        grpc_address: The address for gRPC; empty without gRPC.
    """

    intake: OtlpIntake
    url: str
    grpc_address: str


@contextmanager
def _start_receivers(
    target: LogTarget, address: tuple[str, int], grpc_address: tuple[str, int] | None
) -> Iterator[_Receivers]:
    """Start the servers, and what records for them; end them after the block.

    Raises:
        InputError: The extra is not installed, or an address cannot be used.
        RefoldError: The log cannot be opened.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # its library in C writes lines of its own to standard error
    try:
        from refold.agents.adapters.otlp.grpc_receiver import GrpcReceiver
        from refold.agents.adapters.otlp.intake import OtlpIntake
        from refold.agents.adapters.otlp.receiver import OtlpReceiver
        from refold.agents.capture.server import LoopbackServer
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in NEEDED:
            raise
        needed = DISTRIBUTIONS.get(error.name or "", error.name)
        raise InputError(f'{needed} is not installed: pip install "refold[otlp]"') from None
    with ExitStack() as stack:
        intake = OtlpIntake(
            target.open_to_write, target.own_types(), lambda line: click.echo(f"refold: {line}", err=True)
        )
        closing = stack.enter_context(ExitStack())
        closing.callback(intake.close)
        server = LoopbackServer(lambda: OtlpReceiver(intake), *address)
        stack.callback(server.close)
        over_grpc = ""
        if grpc_address is not None:
            grpc = GrpcReceiver(intake, *grpc_address)
            stack.callback(grpc.close)
            over_grpc = grpc.address
        yield _Receivers(intake, server.url, over_grpc)
        closing.close()  # first: waiting requests are answered, and new ones get a retry response
