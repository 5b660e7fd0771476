"""Processes that are not children of the test's."""

from __future__ import annotations

import os
import subprocess


def is_gone(pid: int) -> bool:
    """Whether a process has ended, waited for by its parent or not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return state.strip()[:1] in {"", "Z"}
