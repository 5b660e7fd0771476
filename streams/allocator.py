"""What the C library keeps of memory that was freed, in a process that runs for long with many threads.

glibc gives threads up to eight heaps a core and hands back only what is free at the end of one. RocksDB, Kafka's client
and Python free in other orders and other threads than they took: half of a worker's memory was such holes. So there are
few heaps, large pieces are taken from the system and go back to it by themselves, and now and then all pages that
nobody uses are handed back. Elsewhere than with glibc none of this does anything. It is for processes that are refold's
own: the memory of a program that opens a log is that program's.
"""

from __future__ import annotations

import ctypes
import os
import sys
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
