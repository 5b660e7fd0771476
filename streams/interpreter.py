"""Interpreters of their own for what Python would otherwise compute one at a time: nothing is forked, and the caller's
main module is not run again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from refold.reducers import registered
from refold.streams.quota import quota_cores

_ENDING_S = 10.0


def cores() -> int:
    """How many cores this process may use: those it may run on, or fewer where a container has a quota."""
    known = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(known, quota_cores() or known)


def is_there() -> bool:
    """Whether an interpreter can be started: where Python is part of another program there may be none by itself."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def command(module: str, *arguments: str) -> Sequence[str]:
    """The command that runs a module."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment(**more: str) -> dict[str, str]:
    """Its environment: it finds the modules that this process finds, and may fold by the same custom reducers."""
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return {**os.environ, **registered.environment(), "PYTHONPATH": path, **more}


def how_it_ended(process: subprocess.Popen[bytes]) -> str:
    """How a process ended that says nothing any more, to be said of it."""
    try:
        status = process.wait(_ENDING_S)
    except subprocess.TimeoutExpired:
        return "stopped answering"
    return f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
