"""`refold receive`: record what agents say of themselves by OpenTelemetry."""

from __future__ import annotations

import signal
from threading import Event
from types import FrameType
from typing import TYPE_CHECKING

import click

from refold.avro.errors import InputError
from refold.explorer.cli.options import on_log
from refold.explorer.cli.output.screen import counted
from refold.explorer.cli.record.proxy import address_of
from refold.explorer.queries.log_target import LogTarget
from refold.streams.runtime import wait_for

if TYPE_CHECKING:
    from refold.agents.adapters.otlp.intake import SpanIntake
    from refold.agents.capture.server import LoopbackServer

PORT = 4318
"""OTLP's own port over HTTP, where exporters send to by default."""
NEEDED = ("aiohttp", "google", "opentelemetry")


@click.command()
@click.option("--listen", default=f"127.0.0.1:{PORT}", show_default=True, metavar="HOST:PORT",
              help="The address to listen on, loopback only; port 0 is any free port.")  # fmt: skip
@on_log
def receive(place: LogTarget, listen: str) -> int:
    """Record traces of agents that OpenTelemetry sends.

    It takes OTLP over HTTP at /v1/traces, as protobuf or JSON, plain or gzip. A trace with spans of an agent becomes a
    run: a call of a model is a step, a call of a tool an action. Spans may come in any order, late, or again. Spans are
    understood by OpenTelemetry's conventions for GenAI of today and their older names, by OpenInference's, and by
    OpenLLMetry's. All other spans are kept unchanged.

    A request is answered when its spans are durable in the log. While the log is slow or unavailable, the answer is
    503, and exporters try again. Messages are there only if the instrumentation records content.

    SIGTERM and Ctrl-C end it.

    \b
    Examples
      refold receive
      OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318 python my_agent.py
      refold receive --listen 127.0.0.1:0 --log kafka://127.0.0.1:9092/agents
    """
    host, port = address_of(listen)
    stop = Event()

    def ended(number: int, frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ended)
    server, intake = _started(place, host, port)
    click.echo(f"refold receive: {server.url}/v1/traces; Ctrl-C ends it")
    wait_for(stop)
    intake.close()  # first: what waits is answered, and what comes is told to come again
    server.close()
    click.echo(f"refold: {counted(intake.spans, 'span')} received", err=True)
    return 0


def _started(place: LogTarget, host: str, port: int) -> tuple[LoopbackServer, SpanIntake]:
    """Return the server and what records for it.

    Raises:
        InputError: The extra is not installed, or the address cannot be used.
        RefoldError: The log cannot be opened.
    """
    try:
        from refold.agents.adapters.otlp.intake import SpanIntake
        from refold.agents.adapters.otlp.receiver import OtlpReceiver
        from refold.agents.capture.server import LoopbackServer
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in NEEDED:
            raise
        raise InputError(f'{error.name} is not installed: pip install "refold[otlp]"') from None
    intake = SpanIntake(place.open_to_write, place.own_types(), lambda line: click.echo(f"refold: {line}", err=True))
    try:
        return LoopbackServer(lambda: OtlpReceiver(intake), host, port), intake
    except BaseException:
        intake.close()
        raise
