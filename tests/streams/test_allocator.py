"""Freed memory that a process keeps: measured with glibc, in separate processes."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has other rules")

HEAPS = """
import ctypes, os, re, tempfile, threading
from refold.streams import runtime

runtime.limit_freed_memory()
together = threading.Barrier(8)

def take():
    kept = [bytes(10_000) for _ in range(10)]
    together.wait()
    return kept

threads = [threading.Thread(target=take) for _ in range(8)]
for each in threads:
    each.start()
for each in threads:
    each.join()
library = ctypes.CDLL(None)
library.fopen.restype = ctypes.c_void_p
with tempfile.NamedTemporaryFile() as told:
    file = ctypes.c_void_p(library.fopen(told.name.encode(), b"w"))
    library.malloc_info(0, file)
    library.fclose(file)
    print(len(re.findall("<heap nr", told.read().decode())))
"""

HOLES = """
from refold.streams import runtime

def resident_kb():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))

every = [bytes(1_000) for _ in range(200_000)]
left = every[::50]
del every
before = resident_kb()
runtime.release_freed_memory()
print(before - resident_kb())
"""

AGAIN = """
import resource
from refold.streams import runtime

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

runtime.limit_freed_memory()
filled = [b"x" * (1 << 20) for _ in range(2)]
del filled
before = faults()
for _ in range(100):
    b"x" * (1 << 20)
print(faults() - before)
"""


def said_by(code: str, **settings: str) -> int:
    told = ("MALLOC_", "GLIBC_TUNABLES")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(told)}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={**environment, **settings}
    )
    return int(ran.stdout)


def test_threads_share_four_heaps() -> None:
    assert said_by(HEAPS) <= 4


@pytest.mark.parametrize(
    "setting", [{"MALLOC_ARENA_MAX": "7"}, {"GLIBC_TUNABLES": "glibc.malloc.arena_max=7"}], ids=min
)
def test_users_number_of_heaps_is_respected(setting: dict[str, str]) -> None:
    assert said_by(HEAPS, **setting) > 4


def test_free_pages_in_the_middle_of_a_heap_are_released() -> None:
    assert said_by(HOLES) > 100_000


def test_buffers_of_a_megabyte_are_used_again() -> None:
    """From the system each of them would cost a fault for each of its 256 pages."""
    assert said_by(AGAIN) < 5_000
