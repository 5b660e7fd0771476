"""Processes that are not children of the test's."""

from __future__ import annotations

from pathlib import Path


def is_gone(pid: int) -> bool:
    """Whether a process has ended, waited for by its parent or not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True
