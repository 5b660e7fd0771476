"""`refold agents`: show supervised agents, and say what they should do."""

from __future__ import annotations

import getpass
import os
import sys
import time
from typing import NamedTuple

import click

from refold.agents.log import AgentLog
from refold.agents.supervise.entries import AgentEntries
from refold.agents.supervise.listing import AgentRow, known_agent
from refold.agents.supervise.listing import agents as listed
from refold.avro.errors import InputError
from refold.explorer.cli.options import WHEN, InOrder, as_json, at, on_log
from refold.explorer.cli.output.screen import Screen, moment
from refold.explorer.queries.agents import agent_json
from refold.explorer.queries.log_target import LogTarget
from refold.streams.deadline import Deadline

LOOK_S = 0.2
LINES = 100

agent_argument = click.argument("name")
_why = click.option("--why", default="", metavar="TEXT", help="Why; it is recorded with the request.")
_by = click.option("--by", default="", metavar="NAME", help="Who requests it [the user].")
_wait = click.option("--wait", "wait_s", type=click.FloatRange(0), default=0, metavar="SECONDS",
                     help="Wait at most so long until the agent follows; exit with 1 if it does not.")  # fmt: skip


@click.group(cls=InOrder)
def agents() -> None:
    """Show supervised agents, and start, pause or stop them."""


@agents.command("list", epilog=WHEN)
@at
@as_json
@on_log
def list_(target: LogTarget, at: str | None, as_json: bool) -> int:
    """List the supervised agents, and what they do.

    An agent whose owner renewed nothing within its lease is unknown: nobody can say what its process does.

    \b
    Examples
      refold agents list
      refold agents list --json
    """
    screen = Screen()
    with target.read() as log:
        found = listed(log, _now(), at)
    if as_json:
        screen.json([agent_json(each) for each in found])
        return 0
    for each in found:
        screen.say(f"{each.name}: {each.status or 'new'}{_wish_text(each)}: {each.why or 'nothing was recorded yet'}")
        screen.say(f"  {_details(each)}")
    if not found:
        screen.say("no agent was supervised in this log; `refold up` starts those of refold.toml")
    return 0


def _wish_text(row: AgentRow) -> str:
    """Return what an agent should do and does not do; empty if there is nothing. One that ended well has done it."""
    if row.desired in ("", row.status) or row.is_over:
        return ""
    if (row.status, row.desired) == ("ended", "running"):
        return ", to be started again"
    return f", should be {row.desired}"


def _details(row: AgentRow) -> str:
    parts = [f"since {moment(row.status_at)}"] if row.status_at else []
    parts += [f"run {row.run}"] if row.run else []
    parts += [f"attempt {row.attempt}"] if row.attempt else []
    parts += [f"process {row.pid} on {row.host}"] if row.pid else []
    parts += [f"again at {moment(row.restart_at)}"] if row.restart_at else []
    parts += [f"budget {name} {limit:g}" for name, limit in row.budget.items()]
    return ", ".join([*parts, f"owner {row.owner}" if row.has_owner else "no owner"])


class AgentWish(NamedTuple):
    """The state that a command requests of an agent.

    Attributes:
        reached: The statuses in which the agent has followed.
    """

    desired: str
    reached: tuple[str, ...]


_START = AgentWish("running", ("running", "ended"))
_PAUSE = AgentWish("paused", ("paused", "ended", "failed"))
_STOP = AgentWish("stopped", ("stopped", "ended", "failed"))


@agents.command()
@agent_argument
@_why
@_by
@_wait
@on_log
def start(target: LogTarget, name: str, why: str, by: str, wait_s: float) -> int:
    """Start an agent that was stopped, that ended or that failed.

    Its supervisor follows; without one, the next `refold up` does.

    \b
    Examples
      refold agents start desk --why "the key was renewed"
    """
    return _request(target, name, _START, why, by, wait_s)


@agents.command()
@agent_argument
@_why
@_by
@_wait
@on_log
def pause(target: LogTarget, name: str, why: str, by: str, wait_s: float) -> int:
    """Let an agent wait at its next boundary.

    An agent that records itself waits before its next step. An agent that is captured waits for the answer of its next
    model call. Until it has reached that boundary, it is `pausing`.

    \b
    Examples
      refold agents pause desk --wait 60
    """
    return _request(target, name, _PAUSE, why, by, wait_s)


@agents.command()
@agent_argument
@_why
@_by
@_wait
@on_log
def resume(target: LogTarget, name: str, why: str, by: str, wait_s: float) -> int:
    """Let a paused agent continue.

    If its process is gone meanwhile, it is started again, and its run is resumed from the log, by any supervisor.

    \b
    Examples
      refold agents resume desk
    """
    return _request(target, name, _START, why, by, wait_s)


@agents.command()
@agent_argument
@_why
@_by
@_wait
@on_log
def stop(target: LogTarget, name: str, why: str, by: str, wait_s: float) -> int:
    """Stop an agent, until it is started.

    Its process gets SIGTERM, and SIGKILL if it does not end within stop_s.

    \b
    Examples
      refold agents stop desk --wait 30
    """
    return _request(target, name, _STOP, why, by, wait_s)


def _request(target: LogTarget, name: str, wish: AgentWish, why: str, by: str, wait_s: float) -> int:
    screen = Screen()
    with target.write(make=False) as log:
        deadline = Deadline(wait_s)
        _await_agent(log, name, deadline)
        number = AgentEntries(log, _now).request(name, wish.desired, by or getpass.getuser(), why)
        while True:
            row = known_agent(log, name, _now())
            has_followed = row.handled >= number and row.status in wish.reached
            if has_followed or deadline.is_past or not wait_s:
                break
            time.sleep(LOOK_S)
    if has_followed:
        screen.say(f"{name}: {row.status}: {row.why}")
    else:
        owner = "" if row.has_owner else "; no supervisor owns it now, and the next `refold up` follows"
        screen.say(f"{name} should be {wish.desired}; it is {row.status or 'new'}{owner}")
    return 1 if wait_s and not has_followed else 0


def _await_agent(log: AgentLog, name: str, deadline: Deadline) -> None:
    """Wait until a supervisor has declared an agent. Raises InputError if none did in time."""
    while True:
        try:
            known_agent(log, name, _now())
            return
        except InputError:
            if deadline.is_past or not deadline.left_s:
                raise
        time.sleep(LOOK_S)


@agents.command()
@agent_argument
@click.option("--follow", "-f", "is_followed", is_flag=True, help="Go on as it is written; Ctrl-C ends.")
@click.option("--lines", default=LINES, show_default=True, type=click.IntRange(0), help="How many lines to begin with.")
@on_log
def logs(target: LogTarget, name: str, is_followed: bool, lines: int) -> int:
    """Show what an agent wrote to its standard output and standard error.

    It is kept in two files of a bounded size on the machine that runs the agent. It is not in the log.

    \b
    Examples
      refold agents logs desk
      refold agents logs desk --follow
    """
    from refold.agents.state_home import state_folder, whole_url
    from refold.agents.supervise.output_files import output
    from refold.streams.open import resolved_url

    with target.read() as log:
        row = known_agent(log, name, _now())
    folder = state_folder("agents", whole_url(resolved_url(target.url)), os.environ) / row.name
    if not folder.exists():
        host = f"; it ran on {row.host}" if row.host else ""
        click.echo(f"refold: no output of {name} is kept on this machine{host}", err=True)
        return 1
    data, position = output(folder, lines)
    _write(data)
    while is_followed:
        time.sleep(LOOK_S)
        _write(position.read())
    return 0


def _write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _now() -> int:
    return time.time_ns() // 1000
