"""Files of a confined process: it writes only in a given folder (Linux, Landlock).

`restrict_files` permanently restricts the calling thread, and every thread and process that it starts:

1. Creating, writing, truncating, renaming and removing files is denied (EACCES), except in the given folder, on a few
   devices, and in /dev/shm, where semaphores are created. /dev/shm is the process's own
   (agents/confined/shared_memory.py). If the kernel refuses that, the result says so, and the guard denies Python's
   writes there.
2. Signals to processes outside are denied if the kernel can do that (Landlock ABI 6, Linux 6.12).
3. Reading is not restricted, nor are modes, owners and times of files. Open descriptors are not affected.

`is_write_denied` answers the same question for a path, so that the guard in Python can name the line of the attempt.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

from refold.agents.confined.shared_memory import SHARED, is_owned, not_ownable, own_shared_memory

# The numbers are the same on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH = 1, 1
_WRITE_FILE, _REMOVE_FILE, _MAKE_REGULAR = 1 << 1, 1 << 5, 1 << 8
_CHANGING = _WRITE_FILE | sum(1 << bit for bit in range(4, 13))
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_SIGNALS = 1 << 1
_ABI_OF_REFER, _ABI_OF_TRUNCATE, _ABI_OF_NETWORK, _ABI_OF_SCOPES = 2, 3, 4, 6
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full")


def restrict_files(libc: ctypes.CDLL, folder: str, code: Iterable[str] = ()) -> str:
    """Restrict the files of this thread.

    Args:
        libc: The C library, loaded with `use_errno=True`.
        folder: The folder in which it may write.
        code: Folders that must stay readable.

    Returns:
        Why files, or those in /dev/shm, are not restricted; empty if all are.
    """
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _ASK_VERSION)
    if version < 1:
        return f"Landlock says {os.strerror(ctypes.get_errno())}"
    if len(list(Path("/proc/self/task").iterdir())) != 1:
        return "another thread runs already, which Landlock would not restrict"
    shared = own_shared_memory(libc, folder, code)
    handled = _CHANGING | (_REFER if version >= _ABI_OF_REFER else 0)
    handled |= _TRUNCATE if version >= _ABI_OF_TRUNCATE else 0
    attributes = struct.pack("=QQQ", handled, 0, _SIGNALS if version >= _ABI_OF_SCOPES else 0)
    size = 24 if version >= _ABI_OF_SCOPES else 16 if version >= _ABI_OF_NETWORK else 8
    ruleset = libc.syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return f"Landlock says {os.strerror(ctypes.get_errno())}"
    of_files = (_WRITE_FILE | _TRUNCATE) & handled
    rules = {folder: handled, SHARED: of_files | _REMOVE_FILE | _MAKE_REGULAR, **dict.fromkeys(_DEVICES, of_files)}
    try:
        for path, allowed in rules.items():
            _allow(libc, ruleset, path, allowed)
        if libc.syscall(_RESTRICT_SELF, ruleset, 0) != 0:
            return f"Landlock says {os.strerror(ctypes.get_errno())}"
    except OSError as error:
        return f"Landlock says {error.strerror} of {error.filename}"
    finally:
        os.close(ruleset)
    return shared


def not_offered() -> str:
    """Return why this kernel cannot restrict files; empty if it can."""
    if sys.platform != "linux":
        return f"it needs Linux; this is {sys.platform}"
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), _ASK_VERSION)
    return "" if version > 0 else f"Landlock says {os.strerror(ctypes.get_errno())}"


def unrestricted_files() -> str:
    """Return which files a confined process may change here, and why; empty if only those in its own folder."""
    return f"no files: {why}" if (why := not_offered()) else not_ownable()


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, allowed: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # some containers do not have it
    try:
        if libc.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", allowed, place), 0) != 0:
            code = ctypes.get_errno() or errno.EINVAL
            raise OSError(code, os.strerror(code), path)
    finally:
        os.close(place)


def is_write_denied(path: str, folder: str) -> bool:
    """Return whether writing to a path is denied.

    Args:
        folder: The folder in which it is allowed.
    """
    real = os.path.realpath(path)
    if real in _DEVICES:
        return False
    return not (is_owned(real) or Path(real).is_relative_to(os.path.realpath(folder)))
