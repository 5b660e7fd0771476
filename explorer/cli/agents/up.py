"""`refold up`: run the agents of refold.toml, and keep them running."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from pathlib import Path
from threading import Event
from types import FrameType

import click

from refold.agents.supervise.lease import LEASE_MS
from refold.agents.supervise.settings import FILE, chosen, load_agents
from refold.explorer.cli.child_command import REFOLD
from refold.explorer.cli.metrics_page import log_label, needing_metrics, serving_metrics
from refold.explorer.cli.options import on_log
from refold.explorer.queries.log_target import LogTarget

LEASE_S = LEASE_MS / 1000


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME...]")
@click.option("--file", "file", default=FILE, show_default=True, type=click.Path(), metavar="FILE",
              help="The file that declares the agents.")  # fmt: skip
@click.option("--lease", "lease_s", default=LEASE_S, show_default=True, type=click.FloatRange(0.5, 3600),
              metavar="SECONDS", help="How long after this supervisor's last renewal another takes over.")  # fmt: skip
@click.option("--until-done", "is_until_done", is_flag=True,
              help="End when each agent has ended, failed or was stopped; exit with 1 if one failed.")  # fmt: skip
@click.option("--metrics-port", type=click.IntRange(0, 65535), metavar="PORT",
              help="Serve Prometheus' /metrics on this port of 127.0.0.1; 0: any free port.")  # fmt: skip
@on_log
def up(
    target: LogTarget, names: tuple[str, ...], file: str, lease_s: float, is_until_done: bool, metrics_port: int | None
) -> int:
    """Run the agents of refold.toml, and keep them running.

    Without NAME, all agents of the file. Each runs in a process of its own, and is started again as its restart policy
    says. What it should do, what it does and who owns it are observations in the log, so `refold agents` shows and
    changes them from any process. One supervisor owns an agent at a time: a second `refold up` on the same log, on this
    machine or another, waits, and takes over when the first is gone.

    An agent that was stopped or paused stays so. SIGTERM and Ctrl-C end the agents and give them up.

    \b
    Examples
      refold up
      refold up desk --file agents/refold.toml
    """
    from refold.agents.state_home import state_folder, whole_url
    from refold.agents.supervise.keeper import boottime_s
    from refold.agents.supervise.owner import SupervisorSettings, supervisor_folder
    from refold.agents.supervise.supervisor import Supervisor
    from refold.streams.open import process_context, resolved_url

    agents = chosen(load_agents(Path(file)), names, file)
    url = whole_url(resolved_url(target.url))
    around = process_context()
    stop = _stopped_by_signals()
    with target.write() as log:
        by = SupervisorSettings(
            around.agent, socket.gethostname(), url, supervisor_folder(state_folder("agents", url, os.environ)),
            dict(os.environ), [*REFOLD, "record"], int(lease_s * 1000), around.now_micros, boottime_s, around.new_id,
            click.echo, [*REFOLD, "heal", "--apply", "--file", str(Path(file).absolute()), "--supervised"],
        )  # fmt: skip
        click.echo(f"refold up: {', '.join(agents)} in {url}; Ctrl-C ends")
        supervisor = Supervisor(log, agents, by)
        with contextlib.ExitStack() as ending:
            if metrics_port is not None:
                with needing_metrics():
                    from refold.agents.supervise.metrics import SupervisorMetrics
                metrics = SupervisorMetrics(log_label(url), supervisor.counts)
                ending.enter_context(serving_metrics(metrics_port, metrics.page, "the supervisor's"))
            has_succeeded = supervisor.run(stop.wait, is_until_done=is_until_done)
    return 1 if is_until_done and not has_succeeded else 0


def _stopped_by_signals() -> Event:
    """Return an event that SIGTERM and Ctrl-C set."""
    stop = Event()

    def ended(number: int, frame: FrameType | None) -> None:
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, ended)
    return stop
