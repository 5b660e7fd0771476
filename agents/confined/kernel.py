"""Confine a process by the kernel: it can open no socket and start no process, in Python, ctypes, C or Rust.

`confine` restricts file writes by Landlock, if the kernel offers that (agents/confined/files.py), and gives the process
a /dev/shm of its own, if the kernel allows that (agents/confined/shared_memory.py). Then it installs a seccomp filter
in the calling process, permanently and for all its threads:

1. The filter allows computing, reading and writing files, starting threads, and making pairs of stream sockets within
   the process, which event loops need.
2. Making any other socket, connecting, listening, starting a process, executing another program, accessing another
   process, and creating or using queues and memory that processes share by number or name (System V, POSIX queues)
   raise SIGSYS in the thread that tries. Its Python stack is written to `trace` (faulthandler), and the process ends by
   that signal: the attempted operation does not happen.
3. The handler of SIGSYS cannot be replaced: an attempt to do so ends the process.
4. clone3 and io_uring, whose arguments a filter cannot read, report ENOSYS: C libraries then use the older calls.

The filter needs no privilege, and no user namespace, which containers often forbid. Open descriptors stay open; the
process that starts this one passes it no descriptor that leads outside.

Python starts a process (`uname -p`) to find the processor's name when the platform is first queried, and caches the
result. SDKs query it. No process can be started later, so it is queried before.
"""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Iterable
from typing import NamedTuple

from refold.agents.confined.files import restrict_files


def learn_processor() -> None:
    """Make Python cache the processor's name; see the module."""
    platform.uname().processor  # noqa: B018


Step = tuple[int, int, int, int]


class _Machine(NamedTuple):
    """Constants from the kernel's headers for an architecture.

    Attributes:
        denied: The numbers of the calls that end the process.
    """

    name: int
    seccomp: int
    clone: int
    socketpair: int
    sigaction: int
    denied: tuple[int, ...]


# Denied: socket, connect, bind, listen, accept, accept4, execve, execveat, ptrace, process_vm_writev, pidfd_getfd;
# mq_open, msgget, msgsnd, semget, shmget, shmat; and fork and vfork, if the architecture has them.
_MACHINES = {
    "x86_64": _Machine(
        0xC000003E, 317, 56, 53, 13,
        (41, 42, 49, 50, 43, 288, 59, 322, 101, 311, 438, 240, 68, 69, 64, 29, 30, 57, 58),
    ),
    "aarch64": _Machine(
        0xC00000B7, 277, 220, 199, 134,
        (198, 203, 200, 201, 202, 242, 221, 281, 117, 271, 438, 180, 186, 189, 190, 194, 196),
    ),
}  # fmt: skip
_CLONE3, _IO_URING_SETUP = 435, 425
_OTHER_ABI = 0x40000000
_CLONE_THREAD, _UNIX, _STREAM, _KIND = 0x10000, 1, 1, 0xF
_NO_NEW_PRIVS, _SET_FILTER, _ALL_THREADS = 38, 1, 1
_ALLOW, _TRAP, _ERRNO, _KILL = 0x7FFF0000, 0x00030000, 0x00050000, 0x80000000
_LOAD, _AND, _IS, _AT_LEAST, _HAS, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND = 0, 4, 16, 24
_STEP = struct.Struct("=HBBI")


class NotConfined(Exception):
    """The kernel, or the environment of the process, refuses to confine it; the message says why."""


def confine(trace: int, folder: str, code: Iterable[str] = ()) -> str:
    """Confine this process.

    Args:
        trace: A descriptor to which the stack of a denied operation is written.
        folder: The only folder in which files may be written.
        code: Folders from which code is imported.

    Returns:
        Why files, or those in /dev/shm, are not confined; empty if they are.

    Raises:
        NotConfined: The process could not be confined. Sockets and processes are as before, so no user code may run.
    """
    learn_processor()
    machine = _MACHINES.get(platform.machine())
    if sys.platform != "linux" or machine is None:
        raise NotConfined(f"it needs Linux on {' or '.join(_MACHINES)}; this is {sys.platform} on {platform.machine()}")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise NotConfined(f"prctl(PR_SET_NO_NEW_PRIVS) failed: {os.strerror(ctypes.get_errno())}")
    unheld = restrict_files(libc, folder, code)
    steps = _filter(machine)
    held = ctypes.create_string_buffer(b"".join(_STEP.pack(*step) for step in steps))
    program = struct.pack("@HP", len(steps), ctypes.addressof(held))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.register(signal.SIGSYS, trace, all_threads=True, chain=True)
    status = libc.syscall(machine.seccomp, _SET_FILTER, _ALL_THREADS, program)
    if status != 0:
        reason = os.strerror(ctypes.get_errno()) if status < 0 else f"thread {status} could not be confined"
        faulthandler.unregister(signal.SIGSYS)
        raise NotConfined(f"seccomp failed: {reason}")
    return unheld


def _filter(machine: _Machine) -> list[Step]:
    """Return the filter program, one instruction after the other; a jump counts the instructions that it skips."""
    steps: list[Step] = [
        (_LOAD, 0, 0, _ARCHITECTURE), (_IS, 1, 0, machine.name), (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER), (_AT_LEAST, 0, 1, _OTHER_ABI), (_RETURN, 0, 0, _KILL),
    ]  # fmt: skip
    for number in machine.denied:
        steps += [(_IS, 0, 1, number), (_RETURN, 0, 0, _TRAP)]
    for number in (_CLONE3, _IO_URING_SETUP):
        steps += [(_IS, 0, 1, number), (_RETURN, 0, 0, _ERRNO | errno.ENOSYS)]
    steps += [
        (_IS, 0, 4, machine.clone), (_LOAD, 0, 0, _FIRST), (_HAS, 1, 0, _CLONE_THREAD), (_RETURN, 0, 0, _TRAP),
        (_RETURN, 0, 0, _ALLOW),
        (_IS, 0, 7, machine.socketpair), (_LOAD, 0, 0, _FIRST), (_IS, 0, 3, _UNIX), (_LOAD, 0, 0, _SECOND),
        (_AND, 0, 0, _KIND), (_IS, 1, 0, _STREAM), (_RETURN, 0, 0, _TRAP), (_RETURN, 0, 0, _ALLOW),
        (_IS, 0, 3, machine.sigaction), (_LOAD, 0, 0, _FIRST), (_IS, 0, 1, signal.SIGSYS), (_RETURN, 0, 0, _KILL),
        (_RETURN, 0, 0, _ALLOW),
    ]  # fmt: skip
    return steps
