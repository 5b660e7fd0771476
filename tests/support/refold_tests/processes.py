"""Any processes of this machine's, the test's children or not, as Linux has them in /proc."""

from __future__ import annotations

from pathlib import Path


def state_of(pid: int) -> str:
    """The letter that the kernel has for what it does; empty where it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def is_gone(pid: int) -> bool:
    """Whether it has ended, waited for by its parent or not."""
    return state_of(pid) in {"", "Z"}
