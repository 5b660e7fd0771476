"""Programs that test servers need, fetched once into the user's cache by Maven or pip.

1. A lock for each program lets only one process fetch it. A folder that exists is complete, and is used.
2. Otherwise it is fetched into a new folder next to it.
3. One rename gives the folder its name. A process that is killed earlier leaves a folder that is never read.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from refold.testing.processes import ServerMissing, locked

_FETCH_S = 600
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1"


def fetched(folder: Path, fetch: Callable[[Path], None]) -> Path:
    """Return the folder. If it is missing, call `fetch` with a temporary path and rename the result to the folder."""
    if not folder.is_dir():
        with locked(folder.parent / f".{folder.name}.lock"):
            if not folder.is_dir():
                with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as work:
                    whole = Path(work) / "whole"
                    fetch(whole)
                    whole.rename(folder)
    return folder


def find_maven(what: str) -> str:
    """Return the command mvn. Raises ServerMissing, which names what it would fetch and how to install Maven."""
    command = shutil.which("mvn")
    if command is None:
        raise ServerMissing(
            f"{what} is fetched by Maven, and there is no mvn on PATH; "
            "on Debian and Ubuntu: apt install maven; on macOS: brew install maven"
        )
    return command


def run_maven(what: str, goal: str, *options: str, folder: Path) -> None:
    """Run a goal of Maven's dependency plugin.

    Args:
        what: What it fetches, for errors.
        goal: The goal.
        options: Its options.
        folder: Where to run it.

    Raises:
        ServerMissing: There is no Maven, or it failed; the message has its output.
    """
    command = [find_maven(what), "-q", "-B", f"{_PLUGIN}:{goal}", *options]
    # Two Maven processes must not write the user's repository at the same time.
    with locked(Path.home() / ".m2" / ".refold.lock"):
        run_fetch(what, command, folder)


def run_fetch(what: str, command: Sequence[str], folder: Path) -> None:
    """Run a command that fetches something.

    Args:
        what: What it fetches, for errors.
        command: The command and its arguments.
        folder: Where to run it.

    Raises:
        ServerMissing: It failed or took too long; the message has its output.
    """
    try:
        done = subprocess.run(
            command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_FETCH_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ServerMissing(f"{what} was not fetched within {_FETCH_S} s; is the network there?") from None
    if done.returncode != 0:
        output = (done.stdout + done.stderr).strip()[-2000:]
        raise ServerMissing(f"{what} could not be fetched; is the network there? {command[0]} said:\n{output}")
