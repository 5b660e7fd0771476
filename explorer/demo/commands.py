"""Commands for the reader to try. They can be pasted into the shell that the demo was run in."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from refold.explorer.demo.desk import RUN as FAILED
from refold.explorer.demo.names import CONFIG, CRASH, DEPLOYED, EVALUATION, PIPELINE, RUN

PROGRAM = "refold"


def commands(log: str, document: str, crashed_at: str) -> list[tuple[str, str]]:
    """Return pairs of what a command shows, and the command."""
    shown = [
        ("the pipeline when the agent died", f"state {PIPELINE} --at @{CRASH}"),
        ("the pipeline after step 3", f"state {PIPELINE} --at run:{RUN}#3"),
        ("what the overwrite changed", f"history {CONFIG} --since @{DEPLOYED}"),
        ("why the evaluation failed", f"why {EVALUATION}.passed --depth 1"),
        ("what differs between two points", f"diff @{DEPLOYED} @{CRASH} {CONFIG}"),
        ("what was true at the crash", f"state {document} --at {crashed_at} --clock observed"),
        ("the same root, by the same replay", f"rebuild --at @{CRASH}"),
        ("another agent's run, which failed", "runs --outcome failed"),
        ("how it failed, step by step", f"run steps {FAILED}"),
    ]
    prefix = f"{program()} --log {shlex.quote(log)}"
    return [(shows, f"{prefix} {command}") for shows, command in shown]


def program() -> str:
    """Return how to call this refold from the current folder: by name if the shell finds it, else by its path."""
    beside = Path(sys.executable).with_name(PROGRAM)
    found = shutil.which(PROGRAM)
    if found is not None and (not beside.exists() or Path(found).samefile(beside)):
        return PROGRAM
    if beside.exists():
        here = Path.cwd()
        if not beside.is_relative_to(here):
            return shlex.quote(str(beside))
        below = str(beside.relative_to(here))
        return shlex.quote(below if "/" in below else f"./{below}")
    return f"{shlex.quote(sys.executable)} -P -m refold.explorer.cli.main"
