"""Shared memory of a confined process: it gets a /dev/shm of its own, initially empty (Linux, mount namespaces).

Semaphores are files in /dev/shm, including those of `multiprocessing.Lock` and `ThreadPool`. Landlock cannot allow a
process to create files there and at the same time deny it the files of others, which may be named pipes, or memory that
other processes map. So the process gets a /dev/shm of its own:

1. `own_shared_memory` tries the steps in a child process, which ends at once: first without a user namespace, then in a
   new one, which needs no privilege. The child is needed because a process cannot leave a user namespace in which the
   mounts were denied.
2. It takes the same steps in the calling process, which must have one thread: unshare the mount namespace, keep its
   mounts from the old one, mount an empty file system on /dev/shm, and give up the capabilities of the user namespace.
3. If the kernel denies a step, /dev/shm stays shared, and the result says why. It also stays shared if the code itself
   is in it.

The files in the process's own /dev/shm disappear when it ends.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from collections.abc import Iterable
from pathlib import Path

SHARED = "/dev/shm"
_MOUNTS, _USERS = 0x20000, 0x10000000
_NO_SETUID, _NO_DEVICES, _RECURSIVE, _PRIVATE = 2, 4, 0x4000, 1 << 18
_CAPABILITIES_VERSION = 0x20080522
_owned: list[str] = []
"""Contains SHARED if it is this process's own."""


def own_shared_memory(libc: ctypes.CDLL, folder: str, code: Iterable[str]) -> str:
    """Give this process, which must have one thread, a /dev/shm of its own.

    Args:
        libc: The C library, loaded with `use_errno=True`.
        folder: Where the process may write. It is created again if it is in /dev/shm.
        code: Folders that must stay readable.

    Returns:
        Why /dev/shm is still shared; empty if it is not.
    """
    if not Path(SHARED).is_dir():
        return ""
    for path in code:
        if Path(path).resolve().is_relative_to(SHARED):
            return f"{SHARED} is shared with other processes, for code is in it: {path}"
    kinds, why = _possible(libc)
    if why:
        return why
    try:
        _separate(libc, kinds)
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return _problem_text(error)
    _owned.append(SHARED)
    return ""


def not_ownable() -> str:
    """Return why a process gets no /dev/shm of its own here; empty if it does."""
    if not Path(SHARED).is_dir():
        return ""
    return _possible(ctypes.CDLL(None, use_errno=True))[1]


def is_owned(path: str) -> bool:
    """Return whether a resolved path is in a /dev/shm of this process's own."""
    return bool(_owned) and Path(path).is_relative_to(SHARED)


def _possible(libc: ctypes.CDLL) -> tuple[int, str]:
    """Return the namespaces that a process may unshare here, or why it may unshare none."""
    problem = OSError(errno.EPERM, os.strerror(errno.EPERM))
    try:
        for kinds in (_MOUNTS, _MOUNTS | _USERS):
            status = _try_in_child(libc, kinds)
            if status == 0:
                return kinds, ""
            problem = OSError(status, os.strerror(status))
    except OSError as error:  # no child process can be created
        problem = error
    return 0, _problem_text(problem)


def _try_in_child(libc: ctypes.CDLL, kinds: int) -> int:
    """Try the steps in a child process. Return its errno, or 0."""
    process = os.fork()
    if process == 0:
        status = errno.EPERM
        try:
            _separate(libc, kinds)
            status = 0
        except OSError as error:
            status = error.errno or status
        finally:
            os._exit(status)
    ended = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return ended if ended >= 0 else errno.EPERM


def _separate(libc: ctypes.CDLL, kinds: int) -> None:
    users, groups = os.geteuid(), os.getegid()
    _check(libc.unshare(kinds))
    if kinds & _USERS:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{users} {users} 1")
        Path("/proc/self/gid_map").write_text(f"{groups} {groups} 1")
    _check(libc.mount(None, b"/", None, ctypes.c_ulong(_RECURSIVE | _PRIVATE), None))
    options = ctypes.c_ulong(_NO_SETUID | _NO_DEVICES)
    _check(libc.mount(b"tmpfs", SHARED.encode(), b"tmpfs", options, b"mode=1777"))
    if kinds & _USERS:
        header = struct.pack("=Ii", _CAPABILITIES_VERSION, 0)
        _check(libc.capset(header, bytes(24)))


def _check(status: int) -> None:
    if status != 0:
        code = ctypes.get_errno() or errno.EPERM
        raise OSError(code, os.strerror(code))


def _problem_text(problem: OSError) -> str:
    return f"{SHARED} is shared with other processes, for a mount namespace was refused: {problem.strerror}"
