"""`refold sink`: keep a store up to date with a log.

Standard error shows progress while the sink loads, and then its lag. Bars are shown only on a terminal. A line is
always printed when the store refuses writes, when it accepts them again, and when the sink has caught up; while it
lags, one line a minute.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from threading import Event
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from refold.avro.errors import StorageError
from refold.explorer.cli.metrics_page import log_label, needing_metrics
from refold.explorer.cli.options import on_log
from refold.explorer.queries.log_target import LogTarget
from refold.sinks.feed import Lag
from refold.sinks.port import Batch, Load, Sink
from refold.sinks.registry import open_sink
from refold.sinks.run import SinkCommit, SinkReport, SinkWatch, keep_snapshots, keep_up
from refold.streams.open import resolved_url
from refold.streams.runtime import tune_garbage_collector

if TYPE_CHECKING:
    from refold.sinks.metrics import SinkMetrics


SAY_EVERY_S = 60.0
DRAW_EVERY_S = 0.1


class SinkScreen:
    """The output for one sink, as a context manager.

    Args:
        is_long: Whether the sink continues at the log's end.
    """

    def __init__(self, name: str, *, is_long: bool) -> None:
        self._name = name
        self._is_long = is_long
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        self._bar = Progress(*columns, console=console, transient=True) if console.is_terminal else None
        self._tasks: dict[str, TaskID] = {}
        self._waiting: dict[str, int] = {}
        self._drawn_at_s = 0.0
        self._refusal = ""
        self._is_behind: bool | None = None
        self._said_at_s = 0.0

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def loading(self, more: int, total: int) -> None:
        """Called when more records were read, of `total`."""
        self._advance("reading the log (records)", more, total)

    def storing(self, more: int, total: int) -> None:
        """Called when more entities were passed to the store, of `total`."""
        self._advance("loading the store (entities)", more, total)

    def wrote(self, changes: int) -> None:
        """Called when a transaction was committed."""
        for task in self._tasks.values():
            if self._bar is not None:
                self._bar.remove_task(task)
        self._tasks.clear()
        self._waiting.clear()
        self.answered()

    def answered(self) -> None:
        """Called when the store accepts writes."""
        if self._refusal:
            self._refusal = ""
            self._say("the store answers again")

    def refused(self, why: str, retry_after_s: float) -> None:
        """Called when the store refuses writes."""
        if why != self._refusal:
            self._refusal = why
            self._say(f"waiting, because the store refuses: {why}")

    def lags(self, changes: int, seconds: float) -> None:
        """Report the lag.

        Args:
            changes: How many changes are not in the store yet.
            seconds: The age of the oldest of them, in seconds.
        """
        now, is_behind = time.monotonic(), changes > 0
        turned = is_behind != self._is_behind and not is_behind
        if self._is_long and (turned or (is_behind and now - self._said_at_s >= SAY_EVERY_S)):
            self._say(f"{changes:,} changes behind, {seconds:.0f} s" if is_behind else "caught up")
            self._said_at_s = now
        self._is_behind = is_behind

    def _advance(self, doing: str, more: int, total: int) -> None:
        if self._bar is None:
            return
        self._waiting[doing] = self._waiting.get(doing, 0) + more
        now = time.monotonic()
        if now - self._drawn_at_s >= DRAW_EVERY_S:
            self._drawn_at_s = now
            if doing not in self._tasks:
                self._tasks[doing] = self._bar.add_task(doing, total=total)
            self._bar.update(self._tasks[doing], completed=self._waiting[doing], total=total)

    def _say(self, text: str) -> None:
        line = f"{self._name}: {text}"
        if self._bar is None:
            click.echo(line, err=True)
        else:  # above the bars
            self._bar.console.print(line, markup=False, highlight=False, soft_wrap=True)


HOST = "127.0.0.1"
TERMINATED = 143


@click.command()
@click.argument("name", metavar="NAME")
@click.option("--to", required=True, metavar="URL", envvar="REFOLD_SINK_TO", show_envvar=False,
              help="The store, with its options [$REFOLD_SINK_TO, which lists of processes do not show].")  # fmt: skip
@click.option("--once/--follow", "once", default=True,
              help="Stop at the log's end [default], or continue until SIGTERM or Ctrl-C.")  # fmt: skip
@click.option("--every", "every_s", type=click.FloatRange(0.1), default=60.0, show_default=True, metavar="SECONDS",
              help="With --follow, how often a store of whole cuts is given a cut.")  # fmt: skip
@click.option("--metrics-port", type=click.IntRange(0, 65535), metavar="PORT",
              help="Serve Prometheus' /metrics on this port; 0: any free port.")  # fmt: skip
@click.option("--host", default=HOST, show_default=True,
              help="The address of /metrics. Any address but loopback needs a token, in REFOLD_TOKEN.")  # fmt: skip
@click.option("--tls-cert", metavar="FILE", help="Serve /metrics over TLS: a certificate in PEM, with its chain.")
@click.option("--tls-key", metavar="FILE", help="The certificate's key in PEM, without a password.")
@click.option("--allow-host", "allowed_hosts", multiple=True, metavar="NAME",
              help="A name that Prometheus knows this machine by, as well as its addresses; repeatable.")  # fmt: skip
@on_log
def sink(
    target: LogTarget, name: str, to: str, once: bool, every_s: float, metrics_port: int | None, host: str,
    tls_cert: str | None, tls_key: str | None, allowed_hosts: tuple[str, ...],
) -> int:  # fmt: skip
    """Keep a store up to date with a log, at an exact cut.

    \b
      postgres   postgresql://USER@HOST/DATABASE[?schema=refold]   a table for each type, a row for each entity
      parquet    file:///FOLDER or s3://BUCKET/PREFIX[?grace_s=N]  files for each type, whole cuts: every --every
      search     sqlite:[///PATH][?sealed=yes]                     the words of runs, for `refold run search`
      otlp       http://HOST:4318 or grpc://HOST:4317              each run of an agent that ended, as a trace
      MODULE:FUNCTION                                              a sink of your own: docs/SINKS.md

    The rows in the store and the cut that they are the state of are written in one transaction. So the sink can be
    stopped or killed at any moment, and continues from the cut in the store. A store that refuses for a time is waited
    for. If two sinks use one store, one waits for the other. On SIGTERM it finishes the current batch and ends; a
    second SIGTERM ends it at once.

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
        log = ending.enter_context(target.read()).port
        metrics = None
        if metrics_port is not None:
            page = MetricsPage(host, metrics_port, tls_cert, tls_key, allowed_hosts)
            metrics = _metrics(target, name, page, ending)
        screen = ending.enter_context(SinkScreen(name, is_long=not once))
        ending.enter_context(_ended_by_signals(stop))
        ending.enter_context(tune_garbage_collector())
        watch = _watch(screen, metrics, is_of_changes=isinstance(store, Sink))
        if isinstance(store, Sink):
            report = keep_up(log, store, follow=not once, stop=stop, watch=watch)
        else:
            report = keep_snapshots(log, store, follow=not once, every_s=every_s, stop=stop, watch=watch)
    click.echo(_report_line(report))
    return 0


class MetricsPage(NamedTuple):
    """The options of the page /metrics, as given."""

    host: str
    port: int
    certificate: str | None
    key: str | None
    allowed_hosts: tuple[str, ...]


def _watch(screen: SinkScreen, metrics: SinkMetrics | None, *, is_of_changes: bool) -> SinkWatch:
    """Return callbacks that report to the screen and to Prometheus. A sink of whole cuts prints no lines about its
    lag.
    """

    def wrote(written: Load | Batch | SinkCommit) -> None:
        changes = 0 if isinstance(written, Load) else written.changes
        if isinstance(written, Batch):
            entities = len(written.states)
        else:
            entities = written.total if isinstance(written, Load) else written.entities
        screen.wrote(changes)
        if metrics is not None:
            metrics.committed(changes, entities)

    def caught_up() -> None:
        screen.answered()
        if metrics is not None:
            metrics.caught_up()

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

    return SinkWatch(screen.loading, screen.storing, wrote, caught_up, refused, lags)


def _metrics(target: LogTarget, name: str, given: MetricsPage, ending: ExitStack) -> SinkMetrics:
    """Serve the metrics of this sink until `ending` closes.

    Raises:
        InputError: The libraries for metrics are not installed.
    """
    with needing_metrics():
        from refold.sinks.metrics import SinkMetrics, SinkPages
        from refold.streams.web.guard import token_in
        from refold.streams.web.listening import Access
        from refold.streams.web.server import WebServer
    found = SinkMetrics(log_label(resolved_url(target.url)), name, time.time)
    access = Access(token_in(os.environ), given.allowed_hosts, None, given.certificate, given.key)
    server = WebServer(given.host, given.port, access, what="the sink's pages")
    ending.callback(server.close)
    server.serve(SinkPages(found.page))
    click.echo(f"metrics on {server.url}/metrics", err=True)
    return found


@contextmanager
def _ended_by_signals(stop: Event) -> Iterator[None]:
    """Set `stop` on the first SIGTERM or Ctrl-C. The next one ends the process as usual."""
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


def _report_line(report: SinkReport) -> str:
    if report.position is None:
        return "it was ended before anything was written"
    written = f"{report.changes:,} changes in {report.batches:,} batches, {report.loads:,} loads"
    return f"holds {report.position.short}; wrote {report.entities:,} states of entities: {written}\n{report.position}"
