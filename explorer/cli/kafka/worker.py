"""`refold worker`: fold a log on Kafka."""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

import click

import refold
from refold.agents.log import open_log
from refold.avro.errors import InputError, RefoldError
from refold.explorer.cli.child_command import REFOLD
from refold.explorer.cli.options import on_log
from refold.explorer.queries.log_target import LogTarget
from refold.explorer.queries.shapes import row_json, state_json
from refold.streams.events import log_event
from refold.streams.open import is_kafka, log_from_port, process_context, resolved_url

if TYPE_CHECKING:
    from refold.streams.web.server import WebServer
    from refold.streams.worker.agents import ChangesAgent
    from refold.streams.worker.config import FoldConfig
    from refold.streams.worker.host.pages import Pages
    from refold.streams.worker.service import FoldService

PORT = 6066
LEVELS = ("debug", "info", "warning", "error")
FORMATS = ("text", "json")
DATA = ".refold-worker"
# The exit status of a worker that cannot continue.
ENDED = 2

_log = logging.getLogger(__name__)


@click.command()
@click.option("--data", default=DATA, show_default=True, metavar="DIR", type=click.Path(path_type=Path),
              help="The folder of its entity tables. If they are lost, they are rebuilt from the log.")  # fmt: skip
@click.option("--instance", metavar="NAME",
              help="Its name among the log's workers. During a restart its partitions wait for it.")  # fmt: skip
@click.option("--processes", type=click.IntRange(1, 256), default=1, show_default=True, metavar="N",
              help="Run N workers here, with DIR/1, DIR/2, ..., NAME-1, ... and ports from --port on.")  # fmt: skip
@click.option("--standby", is_flag=True,
              help="Keep warm tables of other workers' partitions, to take them over quickly.")  # fmt: skip
@click.option("--agents", metavar="MODULE", help="Your own agents over the log's changes, as a dotted name.")
@click.option("--host", default="127.0.0.1", show_default=True,
              help="The address of its pages. Any address but loopback needs a token, in REFOLD_TOKEN.")  # fmt: skip
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0: any free port.")
@click.option("--tls-cert", metavar="FILE", help="Serve the pages over TLS: a certificate in PEM, with its chain.")
@click.option("--tls-key", metavar="FILE", help="The certificate's key in PEM, without a password.")
@click.option("--allow-host", "allowed_hosts", multiple=True, metavar="NAME",
              help="A host name that callers use for this worker, as well as its addresses; repeatable.")  # fmt: skip
@click.option("--advertise", metavar="URL", help="The URL at which others reach the pages [http://HOST:PORT].")
@click.option("--connections", type=click.IntRange(10, 10_000), default=100, show_default=True,
              help="How many connections its pages accept at once.")  # fmt: skip
@click.option("--commit-interval-ms", "commit_ms", type=click.IntRange(1, 60_000), default=100, show_default=True,
              help="How long records may wait to be folded in one batch.")  # fmt: skip
@click.option("--log-level", type=click.Choice(LEVELS), default="info", show_default=True,
              help="The least severe level to log, on standard error.")  # fmt: skip
@click.option("--log-format", type=click.Choice(FORMATS), default="text", show_default=True,
              help="Lines of time, level, event and key=value, or JSON lines.")  # fmt: skip
@on_log
def worker(
    target: LogTarget, data: Path, instance: str | None, processes: int, standby: bool, agents: str | None, host: str,
    port: int, tls_cert: str | None, tls_key: str | None, allowed_hosts: tuple[str, ...], advertise: str | None,
    connections: int, commit_ms: int, log_level: str, log_format: str,
) -> int:  # fmt: skip
    """Fold a log on Kafka; emit each change exactly once.

    Workers of one log share its partitions, on one machine or several; start as many as you like. On Ctrl-C and SIGTERM
    a worker finishes its batch and leaves the group. A fatal error prints one line and exits with status 2; restart the
    worker, and it continues where it stopped.

    \b
    Its pages, on http://127.0.0.1:6066
      /health  /ready  /status  /metrics       its condition, for load balancers and Prometheus
      /state/TYPE/ID?at=WHEN&clock=observed    as `refold state --json`; any worker answers for every entity
      /history/TYPE/ID?since=WHEN&until=WHEN   as `refold history --json`
      POST /snapshot /recover /verify ...      operations that commands start: docs/OPERATIONS.md

    With REFOLD_TOKEN set, callers send Authorization: Bearer TOKEN. Set the same token for every worker and for the
    commands that call them. REFOLD_TLS_CA names the authority of the workers' certificates if the system does not know
    it.

    \b
    Examples
      refold worker --log kafka://127.0.0.1:9092/agents
      refold worker --log kafka://127.0.0.1:9092/agents --processes 4 --instance "$(hostname)"
      refold worker --agents refold.agents.examples.loops
    """
    url = resolved_url(target.url)
    if not is_kafka(url):
        raise InputError(
            f"{url}: a worker folds a log on Kafka, such as kafka://127.0.0.1:9092/agents; "
            "the writer of an embedded log folds it, so it needs no worker"
        )
    serving = PageOptions(host, port, tls_cert, tls_key, allowed_hosts, advertise, connections)
    if processes > 1:
        from refold.streams.worker.host.logs import logged_to_stderr

        logged = ["--log-level", log_level, "--log-format", log_format]
        with logged_to_stderr(log_level, log_format):
            return _several(target, url, processes, data, instance, standby, agents, serving, commit_ms, logged)
    try:
        import refold.streams.worker.host.process  # noqa: F401
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("faust", "mode", "confluent_kafka", "prometheus_client", "aiohttp"):
            raise InputError("a worker needs more than is installed here; pip install 'refold[kafka]'") from error
        raise
    from refold.streams.worker.host.logs import logged_to_stderr

    with logged_to_stderr(log_level, log_format):
        is_json = log_format == "json"
        try:
            _run(target, url, data, instance, standby, agents, serving, commit_ms, is_json=is_json)
        except RefoldError as error:
            if not is_json:
                raise
            log_event(_log, "ended", logging.ERROR, why=" ".join(str(error).split()))
            return ENDED
    return 0


class PageOptions(NamedTuple):
    """The options of the pages, as given."""

    host: str
    port: int
    certificate: str | None
    key: str | None
    allowed_hosts: tuple[str, ...]
    advertised: str | None
    connections: int

    def words(self) -> list[str]:
        """Return all options except the port, as command-line arguments."""
        words = ["--host", self.host, "--connections", str(self.connections)]
        words += ["--tls-cert", self.certificate] if self.certificate else []
        words += ["--tls-key", self.key] if self.key else []
        return words + [word for name in self.allowed_hosts for word in ("--allow-host", name)]

    def bind(self) -> WebServer:
        """Return the server, bound to its address.

        Raises:
            InputError: The address cannot be bound.
        """
        from refold.streams.web.connection import Bounds
        from refold.streams.web.guard import token_in
        from refold.streams.web.listening import Access
        from refold.streams.web.server import WebServer

        access = Access(token_in(os.environ), self.allowed_hosts, self.advertised, self.certificate, self.key)
        return WebServer(self.host, self.port, access, Bounds(connections=self.connections))


def _several(
    target: LogTarget, url: str, processes: int, data: Path, instance: str | None, standby: bool, agents: str | None,
    serving: PageOptions, commit_ms: int, logged: Sequence[str],
) -> int:  # fmt: skip
    from refold.streams.worker.host.processes import run_several

    port = serving.port
    if serving.advertised:
        raise InputError("--advertise names the pages of one worker; leave it out with --processes")
    if port + processes > 1 << 16:
        raise InputError(
            f"--port {port}: no room for the ports of {processes} processes from there on; give a lower one"
        )
    shared = ["--log", url, *serving.words(), "--commit-interval-ms", str(commit_ms), *logged]
    shared += [word for path in target.type_paths() for word in ("--types", str(path))]
    shared += ["--agents", agents] if agents else []
    shared += ["--standby"] if standby else []
    commands = []
    for number in range(1, processes + 1):
        own = ["--data", str(data / str(number)), "--port", str(port and port + number - 1)]
        own += ["--instance", f"{instance}-{number}"] if instance else []
        commands.append([*REFOLD, "worker", *shared, *own])
    return run_several(commands)


def _run(target: LogTarget, url: str, data: Path, instance: str | None, standby: bool, agents: str | None,
         serving: PageOptions, commit_ms: int, *, is_json: bool) -> None:  # fmt: skip
    from refold.reducers import registered
    from refold.streams import runtime
    from refold.streams.log.kafka.lookups import client_id
    from refold.streams.registry.settings import registry_settings
    from refold.streams.worker.agents import load_agents
    from refold.streams.worker.config import FoldConfig
    from refold.streams.worker.host.process import run_process
    from refold.streams.worker.service import FoldService

    # If a C library aborts the process, its own message does not show which Python call led to it.
    if sys.__stderr__ is not None:
        faulthandler.enable(sys.__stderr__)
    runtime.limit_freed_memory()
    registered.require()
    found = load_agents(agents) if agents else []
    with ExitStack() as ending:
        server = serving.bind()
        ending.callback(server.close)
        config = FoldConfig(
            url=url, folder=data, instance=instance or process_context().new_id(), is_static=instance is not None,
            is_standby=standby, commit_ms=commit_ms, client_id=client_id(server.url),
            registry=registry_settings(os.environ),
        )  # fmt: skip
        service = FoldService(config)
        # After the service, which creates the log if it does not exist.
        server.serve(pages_of(service, config, target, server.url, ending))
        if is_json:
            log_event(_log, "serving", url=url, pages=server.url)
        else:
            click.echo(f"{url}: folding; pages on {server.url}", err=True)
        if not found:
            run_process(service)
            return
        _run_with_agents(service, found, target, url, data, instance, str(agents), ending)


def _run_with_agents(
    service: FoldService, agents: Sequence[ChangesAgent], target: LogTarget, url: str, data: Path, instance: str | None,
    module: str, ending: ExitStack,
) -> None:  # fmt: skip
    from refold.streams.log.kafka.log import KafkaLog
    from refold.streams.worker.host.agents_app import AgentsApp, AgentThread
    from refold.streams.worker.host.change_consumer import (
        REBALANCE_MS,
        ChangeConsumer,
        ChangeDecoder,
        ChangesSource,
        Deliver,
    )
    from refold.streams.worker.host.process import run_process
    from refold.streams.worker.membership import GroupMember

    read = ending.enter_context(open_log(url, types=target.type_paths(), read_only=True)).port
    assert isinstance(read, KafkaLog)
    thread = AgentThread(agents, lambda: open_log(url, types=target.type_paths()))
    ending.callback(thread.close)
    group = f"{read.topics.group}.agents.{module}"
    member = GroupMember(group, read.topics.changes, instance or "", instance is not None, rebalance_ms=REBALANCE_MS)
    source = ChangesSource(read.clients, member, read.unreadable, ChangeDecoder(read))

    def consumer(deliver: Deliver) -> ChangeConsumer:
        return ChangeConsumer(source, deliver, service.was_outage_within)

    run_process(service, lambda: AgentsApp(group, data / "faust", thread, consumer))


def pages_of(service: FoldService, config: FoldConfig, target: LogTarget, own_url: str, ending: ExitStack) -> Pages:
    """Return the pages of a worker. `ending` closes what they have open."""
    from refold.streams.log.kafka.log import KafkaLog
    from refold.streams.log.kafka.lookups import workers_of
    from refold.streams.log.kafka.url import parse_url
    from refold.streams.web.client import pages_client_of
    from refold.streams.worker.host.metrics import About, metrics_of
    from refold.streams.worker.host.pages import Pages
    from refold.streams.worker.operations import Operations
    from refold.streams.worker.own_tables import OwnTables, answer_lookup

    tables = OwnTables(service.table, service.log.partitions)
    port = KafkaLog(parse_url(config.url), config=config.kafka, read_only=True, tables=tables)
    log = ending.enter_context(log_from_port(port, target.own_types(), process_context()))
    admin = port.clients.admin()
    about = About(parse_url(config.url).prefix, port.partitions, config.folder, refold.__version__)
    one_at_a_time = Lock()

    def state(entity: str, given: Mapping[str, str]) -> object:
        with one_at_a_time:
            point = log.point(given.get("at"), entity, given.get("clock", "recorded"))
            return state_json(point, log.state(entity, point.cut))

    def history(entity: str, given: Mapping[str, str]) -> object:
        with one_at_a_time:
            rows = log.history(entity, since=given.get("since"), until=given.get("until"),
                               clock=given.get("clock", "recorded"), python=False)  # fmt: skip
            return [row_json(row) for row in rows]

    return Pages(
        status=service.status,
        condition=service.condition,
        metrics=metrics_of(
            service.status,
            service.condition,
            about,
            service.log.foreign,
            service.log.set_aside,
            service.log.passed_over,
        ),
        partition_of=port.partition_of,
        owns=lambda partition: service.table(partition) is not None,
        workers=lambda: workers_of(admin, port.topics.group, port.topics.observations),
        questions={"state": state, "history": history},
        operations=Operations(service, config),
        lookup=lambda content: answer_lookup(tables, content),
        log_id=port.log_id,
        own_url=own_url,
        asker=pages_client_of(),
    )
