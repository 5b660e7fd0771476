"""`refold demo --capture`: a program that does not use refold is recorded, shown, and replayed without its model.

1. The agent and a stand-in for a model provider are copied into the folder, where they can be read and changed.
2. The provider is started, and the agent is run by `refold record`.
3. The provider is stopped. `refold play` runs the agent again, and its model calls are answered from the recording.
4. Both runs must have printed the same, and the recording must have three turns and two tool calls. Otherwise the exit
   status is 1.

The run's id is left in the file `run` in the folder. Nothing is downloaded.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from refold.agents.log import open_log
from refold.avro.errors import InputError
from refold.explorer.cli.child_command import REFOLD
from refold.explorer.cli.record.proxy import capture_modules

FOLDER = Path(".refold-capture")
ORDER = "o-7"
_FILES = ("agent.py", "model.py")
_WAIT_S = 120.0


def run(folder: Path | None) -> int:
    """Run the demo; return 0 if everything was as expected, else 1.

    Args:
        folder: Where its files are kept; None: `.refold-capture`.

    Raises:
        InputError: The folder holds something else, or the extra `capture` is not installed.
    """
    capture_modules()
    where = folder or FOLDER
    if where.exists() and any(each.name not in (*_FILES, "run", "log", "spool") for each in where.iterdir()):
        raise InputError(f"{where} holds something else; name another folder with --folder")
    if where.exists():
        shutil.rmtree(where)
    where.mkdir(parents=True)
    for name in _FILES:
        shutil.copy(Path(__file__).parent / name, where / name)
    url = f"file:{where / 'log'}"
    environment = {**os.environ, "REFOLD_LOG": url, "OPENAI_API_KEY": "a-key-that-is-recorded-nowhere"}
    agent = (sys.executable, str(where / "agent.py"), ORDER)
    recorded = _record_run(where, agent, environment)
    with open_log(url, read_only=True) as log:
        (row,) = log.runs()
        steps = log.recording(row.run).steps
    (where / "run").write_text(row.run + "\n")
    _show("Its turns, with what the tools answered:", "refold", "run", "show", row.run)
    _call((*REFOLD, "run", "show", row.run), environment)
    _show("The provider is gone now. The same program, its model answered from the recording:",
          "refold", "play", row.run, "--", "python", agent[1], ORDER)  # fmt: skip
    played = _call((*REFOLD, "play", row.run, "--", *agent), environment)
    calls = [call.asked.kind for step in steps for call in step.calls]
    is_right = recorded == played and (len(steps), calls.count("tool")) == (3, 2)
    click.echo("\nBoth printed the same." if is_right else "\nThis did not come out as it should.")
    click.echo(f"The log is {url}, the run {row.run}; more of what to do with it: docs/guides/capture.md")
    return 0 if is_right else 1


def _record_run(where: Path, agent: Sequence[str], environment: Mapping[str, str]) -> str:
    with subprocess.Popen([sys.executable, str(where / "model.py")], stdout=subprocess.PIPE, text=True) as provider:
        try:
            assert provider.stdout is not None
            url = provider.stdout.readline().strip()
            _show("An agent is recorded, its code as it is:", "refold", "record", "--upstream", url, "--", "python",
                  agent[1], ORDER)  # fmt: skip
            spool = str(where / "spool")
            return _call((*REFOLD, "record", "--agent", "refunds", "--spool", spool, "--upstream", url, "--", *agent),
                         environment)  # fmt: skip
        finally:
            provider.terminate()


def _show(heading: str, *command: str) -> None:
    click.echo(f"\n{heading}\n\n  $ {' '.join(command)}\n")


def _call(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run a command and show what it prints; return the lines of the agent's result."""
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=_WAIT_S, check=False)  # fmt: skip
    click.echo("".join(f"  {line}" for line in done.stdout.splitlines(keepends=True)))
    return "".join(line for line in done.stdout.splitlines(keepends=True) if line.startswith("Order "))
