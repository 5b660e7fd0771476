"""Processes of this machine, named so that none is ever taken for another: by boot, id and start.

A process id is used again. The kernel's id of the boot, the process's id and its start in clock ticks since the boot
name one process for good. Agents also carry a mark in their environment, which all their descendants inherit.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MARK = "REFOLD_AGENT_MARK"
_PROC = Path("/proc")
_START = 19
"""The place of a process's start among the fields of /proc/PID/stat after its name."""


def boot_id() -> str:
    """Return the kernel's id of this boot; empty where there is none."""
    with suppress(OSError):
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    return ""


def process_start(pid: int) -> int:
    """Return when a process began, clock ticks since the boot; 0 if it is gone or a zombie."""
    fields = _stat(pid)
    return 0 if not fields or fields[0] in "ZX" else int(fields[_START])


def is_alive(pid: int, start: int) -> bool:
    """Return whether a process still runs.

    Args:
        pid: The process's id.
        start: When it began, clock ticks since the boot, as `process_start` returned it.
    """
    return start > 0 and process_start(pid) == start


def marked(mark: str) -> Iterator[int]:
    """Yield the ids of the processes of this user that carry a mark, but for this one."""
    wanted = f"{MARK}={mark}".encode()
    for each in _PROC.iterdir():
        if each.name.isdigit() and int(each.name) != os.getpid():
            with suppress(OSError):  # another user's, or it has ended
                if wanted in (each / "environ").read_bytes().split(b"\0") and process_start(int(each.name)):
                    yield int(each.name)


def descendants(pid: int) -> list[int]:
    """Return the ids of a process's descendants that have not ended."""
    children: dict[int, list[int]] = {}
    for each in _PROC.iterdir():
        if each.name.isdigit() and (fields := _stat(int(each.name))) and fields[0] not in "ZX":
            children.setdefault(int(fields[1]), []).append(int(each.name))
    found, ahead = [], [pid]
    while ahead:
        ahead += (new := children.get(ahead.pop(), []))
        found += new
    return found


def kill_all(pids: Iterator[int] | list[int]) -> int:
    """Send SIGKILL to processes, and return how many there were."""
    count = 0
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
            count += 1
    return count


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the name; empty if the process is gone."""
    with suppress(OSError):
        return (_PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()
    return []
