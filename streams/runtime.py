"""What this process takes of its machine: processors, and memory.

How much of a machine's processors a container or a service may use: the quota of its control group (Linux, v2).

A group's `cpu.max` says "QUOTA PERIOD" in microseconds, or "max PERIOD" without one; its parents' hold for it too.

Python's garbage collector, where hundreds of thousands of small objects are made a second.

What the C library keeps of memory that was freed, in a process that runs for long with many threads.

glibc gives threads up to eight heaps a core and hands back only what is free at the end of one. RocksDB, Kafka's client
and Python free in other orders and other threads than they took: half of a worker's memory was such holes. So there are
few heaps, large pieces are taken from the system and go back to it by themselves, and now and then all pages that
nobody uses are handed back. Elsewhere than with glibc none of this does anything. It is for processes that are refold's
own: the memory of a program that opens a log is that program's.
"""

from __future__ import annotations

import ctypes
import gc
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# As malloc.h has them.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_HEAPS = 2
_LARGE_BYTES = 256 << 10
_TOP_BYTES = 4 << 20
_LIBRARY = ctypes.CDLL(None) if sys.platform == "linux" else None


def keep_little() -> None:
    """Keep little from now on; called before there are threads. What the environment tells the library goes first."""
    told = any(name.startswith("MALLOC_") for name in os.environ)
    if told or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return
    for setting, value in ((_ARENA_MAX, _HEAPS), (_MMAP_THRESHOLD, _LARGE_BYTES), (_TRIM_THRESHOLD, _TOP_BYTES)):
        _call("mallopt", setting, value)


def give_back() -> None:
    """Hand back all pages that nobody uses: some 10 ms for a few hundred megabytes, other threads go on."""
    _call("malloc_trim", 0)


def _call(name: str, *arguments: int) -> None:
    function: Any = getattr(_LIBRARY, name, None)
    if function is not None:
        function(*arguments)


_THRESHOLDS = 50_000, 20, 50


@contextmanager
def calm_collector() -> Iterator[None]:
    """Have it look for cycles rarely meanwhile, and not among what is there already.

    What is folded or written in bulk is objects without cycles, let go at a batch's end: looking among them after every
    700 was a tenth of a fold's time, and a third of a Parquet file's.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


_MEMBERSHIP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_V2 = "0::/"


def quota_cores(membership: Path = _MEMBERSHIP, groups: Path = _GROUPS) -> int | None:
    """How many cores at once the quota is, a part counted as one; None without one, or where nothing tells."""
    own = [line.removeprefix(_V2) for line in _text(membership).splitlines() if line.startswith(_V2)]
    if not own:
        return None
    group = groups / own[0]
    quotas = [_quota(each / "cpu.max") for each in (group, *group.parents) if each.is_relative_to(groups)]
    return min((quota for quota in quotas if quota is not None), default=None)


def _quota(file: Path) -> int | None:
    try:
        quota, period = map(int, _text(file).split())
        return max(1, math.ceil(quota / period))
    except (ValueError, ZeroDivisionError):  # "max", or no such file
        return None


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""


def cores() -> int:
    """How many cores this process may use: those it may run on, or fewer where a container has a quota."""
    known = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(known, quota_cores() or known)
