"""`refold demo --heal`: an agent that is stuck in a loop at night is stopped, healed and proved by morning.

1. The agent, its policy and its declaration are copied into the folder, where they can be read and changed.
2. Night: `refold up` runs the agent. Its policy's loop breaker denies the fourth read of the same page, and the run
   fails. The supervisor heals the run by the table `heal`: the first remedy runs into the same loop on a copy, the
   second one is proved. The run continues with it, and the list is published once.
3. Morning: a person reads what happened, in `refold agents list` and `logs`, `refold why` and `refold heal --report`.
4. The healed run becomes a golden trace, and today's code is run against it.

The exit status is 1 if any of this comes out in another way. Nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import click

from refold.agents.heal.healings import Healing, healings
from refold.agents.log import AgentLog
from refold.agents.state_home import state_folder, whole_url
from refold.agents.supervise.listing import agents
from refold.avro.errors import InputError
from refold.explorer.cli.child_command import REFOLD
from refold.explorer.cli.main import run as run_command
from refold.explorer.queries.log_target import LogTarget
from refold.streams.open import resolved_url

FOLDER = Path(".refold-heal")
AGENT = "price-watch"
_FILES = ("agent.py", "policy.toml", "refold.toml")
_MADE = frozenset({*_FILES, "log", "published.jsonl", "golden", "__pycache__"})


def run(folder: Path | None, target: LogTarget) -> int:
    """Run the demo; return 0 if everything was as expected, else 1.

    Args:
        folder: Where its files are kept; None: `.refold-heal`.
        target: The log; without a url, one in the folder.

    Raises:
        InputError: The folder holds something else.
    """
    where = folder or FOLDER
    if where.exists() and any(each.name not in _MADE for each in where.iterdir()):
        raise InputError(f"{where} holds something else; name another folder with --folder")
    if where.exists():
        shutil.rmtree(where)
    where.mkdir(parents=True)
    url = target.url or f"file:{where / 'log'}"
    with LogTarget(url).write() as log:
        name = _unused_name(log)
    _copy_files(where, name)
    # It may hold what an agent of this name wrote for an earlier log of this URL.
    shutil.rmtree(state_folder("agents", whole_url(resolved_url(url)), os.environ) / name, ignore_errors=True)
    click.echo("Night. An agent reads a price list page by page. The last page names itself as the next one.")
    status = _supervise(url, where)
    click.echo("\nMorning. What does the agent do, and what did it write?")
    _refold(url, "agents", "list")
    _refold(url, "agents", "logs", name)
    with LogTarget(url).read() as log:
        row = next((each for each in agents(log, time.time_ns() // 1000) if each.name == name), None)
        healed = _healing_of(log, "" if row is None else row.run)
    if healed is not None:
        click.echo("\nEach step of that is an observation, with its causes:")
        _refold(url, "why", f"healing/{healed.id}.status", "--depth", "1")
    _refold(url, "heal", "--report")
    kept = passed = 1
    if healed is not None:
        click.echo("\nKeep it as a test, and run today's code against it:")
        code, golden = f"{where / 'agent.py'}:watch", str(where / "golden")
        kept = _refold(url, "heal", healed.run, "--keep", golden, "--agent", code)
        passed = _refold(None, "golden", "run", golden, "--agent", code)
    published = (where / "published.jsonl").read_text().splitlines() if (where / "published.jsonl").exists() else []
    has_ended = row is not None and row.status == "ended"
    is_right = has_ended and (status, kept, passed, len(published)) == (0, 0, 0, 1)
    click.echo(
        f"\nThe list was published once: {published[0]}" if is_right else "\nThis did not come out as it should."
    )
    click.echo(f"The log is {url}; more of what to do: docs/guides/heal.md")
    return 0 if is_right else 1


def _unused_name(log: AgentLog) -> str:
    """Return the first of price-watch, price-watch-2 and so on that is no agent of the log. One that ended is not
    started again."""
    known = {each.name for each in agents(log, log.now_micros())}
    name, number = AGENT, 1
    while name in known:
        number += 1
        name = f"{AGENT}-{number}"
    return name


def _copy_files(where: Path, name: str) -> None:
    """Copy the files of the demo. name: the agent's. Its command names this Python: the shell may have another one."""
    for each in _FILES:
        shutil.copy(Path(__file__).parent / each, where / each)
    declaration = where / "refold.toml"
    text = declaration.read_text().replace(f"agents.{AGENT}", f"agents.{name}")
    declaration.write_text(text.replace('"python"', json.dumps(sys.executable, ensure_ascii=False)))


def _supervise(url: str, where: Path) -> int:
    """Run the agent under `refold up` until it ended, and show what is printed. Returns the exit status."""
    command = ["up", "--until-done", "--file", str(where / "refold.toml"), "--log", url]
    _show(command)
    with subprocess.Popen(
        [*REFOLD, *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as supervisor:  # fmt: skip
        assert supervisor.stdout is not None
        try:
            for line in supervisor.stdout:
                click.echo(f"  {line}", nl=False)
            return supervisor.wait()
        except BaseException:  # such as Ctrl-C: the agent ends with its supervisor
            supervisor.terminate()
            raise


def _healing_of(log: AgentLog, run: str) -> Healing | None:
    """Return the attempt that healed a run or led to it; None if there is none."""
    return next((each for each in healings(log) if each.status == "healed" and each.healed_by == run), None)


def _refold(url: str | None, *arguments: str) -> int:
    """Show a command, run it, and return its exit status. url: its log, if it has one."""
    command = [*arguments, *(["--log", url] if url else [])]
    _show(command)
    return run_command(command)


def _show(command: list[str]) -> None:
    click.echo(f"\n  $ refold {shlex.join(command)}\n")
