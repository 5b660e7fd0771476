"""Child processes that run a module of refold: how they are started, and how they ended.

Each is an interpreter of its own, so it computes at the same time as its parent. Nothing is forked, and the caller's
main module is not run again. Parent and child exchange data as fits their work: rebuild/processes.py by lines of JSON,
sealing_process/channel.py by a measured fast channel, agents/confined/process.py by files in memory.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

from refold.reducers import registered

_ENDING_S = 10.0


def can_start() -> bool:
    """Whether an interpreter can be started: where Python is part of another program there may be none by itself."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def environment(**more: str) -> dict[str, str]:
    """A child's environment: it finds the modules that this process finds, and may fold by the same custom reducers."""
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return {**os.environ, **registered.environment(), "PYTHONPATH": path, **more}


def start(
    module: str, *arguments: object, stdin: int = subprocess.DEVNULL, stdout: int = subprocess.DEVNULL,
    stderr: IO[Any] | None = None, pass_fds: Sequence[int] = (), **variables: str,
) -> subprocess.Popen[bytes]:  # fmt: skip
    """Start a module in a process of its own.

    Args:
        module: Its full name.
        arguments: Its sys.argv[1:].
        stdin: As subprocess.Popen takes it; pipes are not buffered.
        stdout: The same.
        stderr: A file; this process's own if there is none.
        pass_fds: Descriptors that it inherits, under the same numbers.
        variables: Changes of its environment.

    Raises:
        OSError: No process can be started.
    """
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *map(str, arguments)], stdin=stdin, stdout=stdout, stderr=stderr,
        pass_fds=pass_fds, env=environment(**variables), bufsize=0,
    )  # fmt: skip


def ending(status: int) -> str:
    """How a process ended, in words.

    Args:
        status: As subprocess reports it, negative for a signal.
    """
    return f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"


def how_it_ended(process: subprocess.Popen[bytes]) -> str:
    """The same of a process that does not answer; it may still be running."""
    try:
        return ending(process.wait(_ENDING_S))
    except subprocess.TimeoutExpired:
        return "stopped answering"
