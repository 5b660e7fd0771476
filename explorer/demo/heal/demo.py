"""`refold demo --heal`: an agent is stuck in a loop at night, is stopped, and is healed and proved in the morning.

1. The agent, its policy and its remedies are copied into the folder, where they can be read and changed.
2. Night: the agent runs under the policy. Its loop breaker denies the fourth read of the same page, and the run fails.
3. Morning: `refold heal` shows what is wrong. `refold heal --apply` tries the remedies on copies: the first one runs
   into the same loop, the second one is proved. Then the run goes on with it, and the list is published once.
4. The healed run becomes a golden trace, and today's code is run against it.

The exit status is 1 if any of this comes out in another way. Nothing is downloaded.
"""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path

import click

from refold.agents.entry import agent_of
from refold.agents.heal.healings import healings
from refold.agents.log import AgentLog
from refold.avro.errors import InputError
from refold.explorer.cli.main import run as run_command
from refold.explorer.queries.log_target import LogTarget
from refold.policy import PolicyDenied

FOLDER = Path(".refold-heal")
AGENT = "price-watch"
_FILES = ("agent.py", "policy.toml", "heal.toml")
_MADE = frozenset({*_FILES, "log", "published.jsonl", "golden", "__pycache__"})


def run(folder: Path | None, place: LogTarget) -> int:
    """Run the demo; return 0 if everything was as expected, else 1.

    Args:
        folder: Where its files are kept; None: `.refold-heal`.
        place: The log; without a url, one in the folder.

    Raises:
        InputError: The folder holds something else.
    """
    where = folder or FOLDER
    if where.exists() and any(each.name not in _MADE for each in where.iterdir()):
        raise InputError(f"{where} holds something else; name another folder with --folder")
    if where.exists():
        shutil.rmtree(where)
    where.mkdir(parents=True)
    for name in _FILES:
        shutil.copy(Path(__file__).parent / name, where / name)
    target = place if place.url else LogTarget(f"file:{where / 'log'}")
    agent, remedies = f"{where / 'agent.py'}:watch", str(where / "heal.toml")
    with target.write() as log:
        name = _night(log, where, agent)
    click.echo("\nMorning. What is wrong with it, and what could be done?")
    _refold(target, "heal", name, "--remedies", remedies, "--agent", agent)
    click.echo("\nTry the remedies on copies, which publish nothing. Only a proved one is applied to the run:")
    status = _refold(target, "heal", name, "--apply", "--remedies", remedies, "--agent", agent)
    click.echo("\nEach step of that is an observation, with its causes:")
    with target.read() as log:
        healed = [each for each in healings(log, name) if each.status == "healed"]
    if healed:
        _refold(target, "why", f"healing/{healed[-1].id}.status", "--depth", "1")
    _refold(target, "heal", "--report")
    click.echo("\nKeep it as a test, and run today's code against it:")
    kept = _refold(target, "heal", name, "--keep", str(where / "golden"), "--agent", agent)
    passed = _refold(None, "golden", "run", str(where / "golden"), "--agent", agent)
    published = (where / "published.jsonl").read_text().splitlines() if (where / "published.jsonl").exists() else []
    is_right = (status, kept, passed, len(published), len(healed)) == (0, 0, 0, 1, 1)
    click.echo(
        f"\nThe list was published once: {published[0]}" if is_right else "\nThis did not come out as it should."
    )
    click.echo(f"The log is {target.url}; more of what to do: docs/guides/heal.md")
    return 0 if is_right else 1


def _night(log: AgentLog, where: Path, agent: str) -> str:
    """Run the agent under its policy, until its loop breaker stops it. Returns the run's id."""
    number = 1
    while log.states([f"run/nightly-{number}"]):
        number += 1
    name = f"nightly-{number}"
    click.echo("Night. An agent reads a price list page by page. The last page names itself as the next one.\n")
    try:
        log.run(AGENT, id=name, entry=agent, guard=where / "policy.toml").drive(agent_of(agent, Path.cwd()))
    except PolicyDenied as denied:
        click.echo(f"  {denied}")
    click.echo(f"\nRun {name} is stopped. Nothing was published, and nobody was woken up.")
    return name


def _refold(target: LogTarget | None, *arguments: str) -> int:
    """Show a command, run it, and return its exit status. target: its log, if it has one."""
    command = [*arguments, *(["--log", target.url] if target is not None and target.url else [])]
    click.echo(f"\n  $ refold {shlex.join(command)}\n")
    return run_command(command)
