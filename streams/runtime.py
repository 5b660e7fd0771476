"""This process: its processors, memory and garbage collector, how it waits for signals, and how it closes what it has.

- Processors: a control group may limit them (Linux, v2). Its `cpu.max` is "QUOTA PERIOD" in microseconds, or "max
  PERIOD" without a quota; its parents' quotas apply too.
- Garbage collector: tuned for code that creates hundreds of thousands of small objects a second.
- Memory: glibc gives threads up to eight heaps per core, and returns only the free end of a heap to the system.
  RocksDB, Kafka's client and Python free memory in other orders and other threads than they allocate it: half of a
  worker's memory was such holes. So the number of heaps is small, large blocks are allocated from the system and
  returned to it when freed, and all unused pages are returned from time to time. Without glibc none of this has an
  effect. It is only for refold's own processes: a program that opens a log manages its own memory.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import math
import os
import platform
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

from refold.streams.events import log_event

# The values in malloc.h.
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
# Threads that allocate at the same time wait for each other's heap, and each heap keeps what its threads freed.
_HEAPS = 4
# A worker allocates and frees buffers of some 100 KB to a few MB all the time: batches, fetched records, RocksDB's
# blocks of memory. From the system each of them costs a fault for each of its pages.
_LARGE_BYTES = 8 << 20
_TOP_BYTES = 32 << 20
_ALLOCATORS = ("jemalloc", "tcmalloc", "mimalloc")
LOOK_S = 0.25
_LIBRARY = ctypes.CDLL(None) if sys.platform == "linux" else None


def limit_freed_memory() -> None:
    """Make the C library keep little freed memory. Call it before starting threads. Has no effect if the environment
    configures malloc."""
    is_configured = any(name.startswith("MALLOC_") for name in os.environ)
    if is_configured or "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", ""):
        return
    for setting, value in ((_ARENA_MAX, _HEAPS), (_MMAP_THRESHOLD, _LARGE_BYTES), (_TRIM_THRESHOLD, _TOP_BYTES)):
        _call("mallopt", setting, value)


def allocator() -> str:
    """Return the name of this process's allocator: one that is loaded beside the C library, or that library."""
    try:
        loaded = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        loaded = ""
    return next((each for each in _ALLOCATORS if f"/lib{each}" in loaded), platform.libc_ver()[0] or "the C library's")


def release_freed_memory() -> None:
    """Return all unused pages to the system: takes some 10 ms for a few hundred megabytes; other threads continue."""
    _call("malloc_trim", 0)


def _call(name: str, *arguments: int) -> None:
    function: Any = getattr(_LIBRARY, name, None)
    if function is not None:
        function(*arguments)


_THRESHOLDS = 200_000, 20, 50
# A new interpreter of Python 3.12 has frozen 375 objects. A program that has frozen more did so by gc.freeze().
_FROZEN_AT_START_MAX = 1_000


@contextmanager
def tune_garbage_collector() -> Iterator[None]:
    """Make the garbage collector search for cycles rarely during the block, and not among existing objects.

    Folding and bulk writing create objects without cycles, which are freed at a batch's end. Searching them after every
    700 objects took a tenth of a fold's time, and a third of a Parquet file's. Objects that the program had frozen stay
    frozen: gc.unfreeze() is for all or none, so then the block freezes nothing itself.
    """
    before = gc.get_threshold()
    is_frozen = gc.get_freeze_count() > _FROZEN_AT_START_MAX
    if not is_frozen:
        gc.freeze()
    gc.set_threshold(*_THRESHOLDS)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not is_frozen:
            gc.unfreeze()


_MEMBERSHIP = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_V2 = "0::/"


def quota_cores(membership: Path = _MEMBERSHIP, groups: Path = _GROUPS) -> int | None:
    """Return the quota in cores, rounded up; None without a quota, or if it cannot be read."""
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
    """Return how many cores this process may use: its CPU affinity, or fewer if a container has a quota."""
    known = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(known, quota_cores() or known)


def wait_for(event: Event) -> None:
    """Wait in the main thread until an event is set, and handle signals meanwhile.

    Python runs the handlers of signals in its main thread. If the kernel gives a signal to another thread, or just
    before the main thread begins to wait, it does not wake a main thread that waits without a timeout. So this one
    looks every LOOK_S seconds.
    """
    while not event.wait(LOOK_S):
        pass


_log = logging.getLogger(__name__)


def close_all(closings: Iterable[Callable[[], object]]) -> None:
    """Make every call, in order, even if some fail.

    Args:
        closings: the calls. Each is taken from the iterable after the one before it returned or failed.

    Raises:
        Exception: the first failure, after the last call. The others are logged.
    """
    first: Exception | None = None
    for close in closings:
        try:
            close()
        except Exception as problem:  # everything is closed; the first error is raised afterwards
            if first is None:
                first = problem
            else:
                log_event(_log, "failed_further", logging.WARNING, why=problem)
    if first is not None:
        raise first
