"""`refold sink`: keep a store up with a log."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from threading import Event
from typing import TYPE_CHECKING, NamedTuple

import click

from refold.avro.errors import InputError, StorageError
from refold.explorer.cli.options import Place, on_log
from refold.explorer.cli.sink_screen import SinkScreen
from refold.sinks.feed import Lag
from refold.sinks.port import Batch, Load, Sink
from refold.sinks.registry import open_sink
from refold.sinks.run import Committed, Report, Watch, keep_snapshots, keep_up
from refold.streams.collector import calm_collector
from refold.streams.open import given_url

if TYPE_CHECKING:
    from refold.sinks.metrics import SinkMetrics

HOST = "127.0.0.1"
TERMINATED = 143


@click.command()
@click.argument("name", metavar="NAME")
@click.option("--to", required=True, metavar="URL", envvar="REFOLD_SINK_TO", show_envvar=False,
              help="The store, with its options [$REFOLD_SINK_TO, which no list of processes shows].")  # fmt: skip
@click.option("--once/--follow", "once", default=True,
              help="Stop at the log's end [this], or keep up with it until SIGTERM or Ctrl-C.")  # fmt: skip
@click.option("--every", "every_s", type=click.FloatRange(0.1), default=60.0, show_default=True, metavar="SECONDS",
              help="With --follow, how often a store that takes whole cuts is given one.")  # fmt: skip
@click.option("--metrics-port", type=click.IntRange(0, 65535), metavar="PORT",
              help="Serve Prometheus' /metrics there; 0: a free one.")  # fmt: skip
@click.option("--host", default=HOST, show_default=True,
              help="Where /metrics is. Off loopback it needs a token, in REFOLD_TOKEN.")  # fmt: skip
@click.option("--tls-cert", metavar="FILE", help="Serve /metrics over TLS: a certificate in PEM, with its chain.")
@click.option("--tls-key", metavar="FILE", help="The certificate's key in PEM, without a password.")
@click.option("--allow-host", "allowed_hosts", multiple=True, metavar="NAME",
              help="A name that Prometheus knows this machine by, beside its addresses; may be repeated.")  # fmt: skip
@on_log
def sink(
    place: Place, name: str, to: str, once: bool, every_s: float, metrics_port: int | None, host: str,
    tls_cert: str | None, tls_key: str | None, allowed_hosts: tuple[str, ...],
) -> int:  # fmt: skip
    """Keep a store up with a log: its state at an exact cut, and history.

    \b
      postgres   postgresql://USER@HOST/DATABASE[?schema=refold]   a table for each type, a row for each entity
      parquet    file:///FOLDER or s3://BUCKET/PREFIX[?grace_s=N]  files for each type, whole cuts: every --every
      otlp       http://HOST:4318 or grpc://HOST:4317              each run of an agent that ended, as a trace
      MODULE:FUNCTION                                              a sink of your own: docs/SINKS.md

    What the store holds and the cut it is the state of are written in one transaction, so it can be stopped and killed
    at any moment: it goes on from what stands there. A store that refuses for now is waited for. Of two sinks on one
    store one waits for the other. SIGTERM has it finish the batch at hand and leave; a second one ends it at once.

    \b
    Examples
      refold sink postgres --to postgresql://localhost/agents
      refold sink postgres --to 'postgresql://db/agents?schema=acme' --follow --metrics-port 9464
      refold sink parquet --to s3://lake/agents --follow --every 300
      refold sink otlp --to http://localhost:4318 --follow
      refold sink my_sinks:open_sink --to anything --once
    """
    stop = Event()
    with ExitStack() as ending:
        store = ending.enter_context(closing(open_sink(name, to)))
        log = ending.enter_context(place.read()).port
        metrics = None
        if metrics_port is not None:
            page = MetricsPage(host, metrics_port, tls_cert, tls_key, allowed_hosts)
            metrics = _metrics(place, name, page, ending)
        screen = ending.enter_context(SinkScreen(name, is_long=not once))
        ending.enter_context(_ended_by_signals(stop))
        ending.enter_context(calm_collector())
        watch = _watch(screen, metrics, is_of_changes=isinstance(store, Sink))
        if isinstance(store, Sink):
            report = keep_up(log, store, follow=not once, stop=stop, watch=watch)
        else:
            report = keep_snapshots(log, store, follow=not once, every_s=every_s, stop=stop, watch=watch)
    click.echo(_said(report))
    return 0


class MetricsPage(NamedTuple):
    """Where and how /metrics is served, as it was given."""

    host: str
    port: int
    certificate: str | None
    key: str | None
    allowed_hosts: tuple[str, ...]


def _watch(screen: SinkScreen, metrics: SinkMetrics | None, *, is_of_changes: bool) -> Watch:
    """What the screen shows and Prometheus asks for. Of a sink of whole cuts no line says how far."""

    def wrote(taken: Load | Batch | Committed) -> None:
        changes = 0 if isinstance(taken, Load) else taken.changes
        if isinstance(taken, Batch):
            entities = len(taken.states)
        else:
            entities = taken.total if isinstance(taken, Load) else taken.entities
        screen.wrote(changes)
        if metrics is not None:
            metrics.committed(changes, entities)

    def asked() -> None:
        screen.answered()
        if metrics is not None:
            metrics.asked()

    def refused(error: StorageError, retry_after_s: float) -> None:
        screen.refused(str(error), retry_after_s)
        if metrics is not None:
            metrics.refused()

    def lags(lag: Lag) -> None:
        oldest_s = None if lag.oldest_ms is None else lag.oldest_ms / 1000
        if is_of_changes:
            screen.lags(lag.changes, 0.0 if oldest_s is None else max(0.0, time.time() - oldest_s))
        if metrics is not None:
            metrics.lags(lag.changes, oldest_s)

    return Watch(screen.loading, screen.storing, wrote, asked, refused, lags)


def _metrics(place: Place, name: str, given: MetricsPage, ending: ExitStack) -> SinkMetrics:
    """Metrics of this sink, served until the end."""
    try:
        from refold.sinks.metrics import SinkMetrics
        from refold.sinks.pages import SinkPages
        from refold.streams.web.server import Access, WebServer
        from refold.streams.web.token import token_in
    except ModuleNotFoundError as error:
        if error.name not in ("prometheus_client", "aiohttp"):
            raise
        raise InputError("--metrics-port needs more than is installed here; pip install 'refold[kafka]'") from error
    url = given_url(place.url)
    found = SinkMetrics(url.partition("?")[0].rstrip("/").rpartition("/")[2].removeprefix("file:"), name, time.time)
    access = Access(token_in(os.environ), given.allowed_hosts, None, given.certificate, given.key)
    server = WebServer(given.host, given.port, access, what="the sink's pages")
    ending.callback(server.close)
    server.serve(SinkPages(found.page))
    click.echo(f"metrics on {server.url}/metrics", err=True)
    return found


@contextmanager
def _ended_by_signals(stop: Event) -> Iterator[None]:
    """The first SIGTERM or Ctrl-C sets `stop`; the next one ends the process as it does elsewhere."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def asked(number: int, _: object) -> None:
        stop.set()
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in before:
        signal.signal(number, asked)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _said(report: Report) -> str:
    if report.position is None:
        return "it was ended before anything was written"
    written = f"{report.changes:,} changes in {report.batches:,} batches, {report.loads:,} loads"
    return f"holds {report.position.short}; wrote {report.entities:,} states of entities: {written}\n{report.position}"
