"""Interpreters of their own for what Python would otherwise compute one at a time: nothing is forked, and no module of
the caller's is run again.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def is_there() -> bool:
    """Whether an interpreter can be started: where Python is embedded in another program it may not be known."""
    return bool(sys.executable)


def command(module: str, *arguments: str) -> Sequence[str]:
    """The command that runs a module."""
    return [sys.executable, "-P", "-m", module, *arguments]


def environment(**more: str) -> dict[str, str]:
    """Its environment: it finds the modules that this process finds."""
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    return {**os.environ, "PYTHONPATH": path, **more}
