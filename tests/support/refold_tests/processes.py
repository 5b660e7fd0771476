"""Processes of this machine, whether children of the test or not, as Linux shows them in /proc."""

from __future__ import annotations

from pathlib import Path


def state_of(pid: int) -> str:
    """Return the kernel's letter for a process's state; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_gone(pid: int) -> bool:
    """Return whether a process has ended, even if its parent has not waited for it."""
    return state_of(pid) in {"", "Z"}
